"""`latentsync-trt build`: engines ahead of time."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.cli import main
from latentsync_trt.runtime.cache import EngineCache
from latentsync_trt.runtime.providers import select
from latentsync_trt.runtime.providers.select import Selection
from tests.compiling import COMPILING, compiling_provider
from tests.small import small_bundle

pytestmark = pytest.mark.integration

MANIFEST = Bundle.load(small_bundle(), verify=False).manifest
GRAPHS, NAME = tuple(MANIFEST.graphs), MANIFEST.name


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; provider "rtx" runs on the CPU, and its engines are copies of the graphs."""
    compiling_provider(monkeypatch)
    monkeypatch.setattr(select, "select_provider", lambda name, device: COMPILING if name == "rtx" else Selection(name))
    return tmp_path / "engine cache für Ženy 引擎"


def build(cache: Path, *words: str, bundle: Path | None = None, provider: str = "rtx") -> Result:
    options = ["--bundle", str(bundle or small_bundle()), "--provider", provider, "--engine-cache", str(cache)]
    return CliRunner().invoke(main, ["build", *options, *words])


def report(result: Result) -> dict[str, dict[str, object]]:
    """The rows of `--json` by graph."""
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert found["provider"] == "rtx"
    return {row["graph"]: row for row in found["engines"]}


def test_all_graphs_and_a_second_call_finds_them(cache: Path) -> None:
    first = build(cache)
    assert first.exit_code == 0
    assert f"{len(GRAPHS)} of {len(GRAPHS)} engines built in " in first.stdout
    for graph in GRAPHS:
        assert f"{graph}: built in " in first.stderr
    assert len(first.stdout.splitlines()) == 1
    assert {(entry.key.graph, entry.state) for entry in EngineCache(cache).entries(hashes=True) if entry.key} == {
        (graph, "ready") for graph in GRAPHS
    }
    second = build(cache)
    assert f"0 of {len(GRAPHS)} engines built in 0.0 s" in second.stdout
    assert second.stderr.count("found in the cache") == len(GRAPHS)


def test_a_provider_without_engines_builds_none_and_says_so(cache: Path) -> None:
    result = build(cache, provider="cpu")
    assert (result.exit_code, result.stdout) == (
        0,
        "provider cpu needs no engines: it opens the bundle's graphs directly\n",
    )
    result = build(cache, "--graph", "vae_encoder", "--json", provider="cpu")
    assert (result.exit_code, json.loads(result.stdout)) == (0, {"provider": "cpu", "engines": []})
    assert not cache.exists()


def test_json_names_what_each_engine_cost(cache: Path) -> None:
    built = report(build(cache, "--graph", "vae_decoder", "--graph", "vae_encoder", "--json"))
    assert list(built) == ["vae_decoder", "vae_encoder"]
    row = built["vae_decoder"]
    assert set(row) == {"graph", "built", "build_s", "open_s", "bytes", "node_share"}
    assert (row["built"], row["node_share"]) == (True, 1.0)
    entries = {entry.key.graph: entry for entry in EngineCache(cache).entries() if entry.key}
    assert row["bytes"] == entries["vae_decoder"].size_bytes
    again = report(build(cache, "--graph", "vae_decoder", "--json"))["vae_decoder"]
    assert (again["built"], again["build_s"]) == (False, row["build_s"])
    assert report(build(cache, "--graph", "vae_decoder", "--force", "--json"))["vae_decoder"]["built"] is True
    forced = {entry.key.graph: entry for entry in EngineCache(cache).entries() if entry.key}
    assert forced["vae_decoder"].built_at != entries["vae_decoder"].built_at
