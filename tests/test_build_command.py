"""`latentsync-trt build`: engines ahead of time."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.cli import main
from latentsync_trt.runtime.engines.cache import EngineCache
from tests.compiling import compiling_provider
from tests.small import small_bundle

pytestmark = pytest.mark.integration

MANIFEST = Bundle.load(small_bundle(), verify=False).manifest
GRAPHS = tuple(MANIFEST.graphs)
NAME = MANIFEST.name


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; provider "tensorrt" runs on the CPU, and its engines are copies of the
    graphs.
    """
    compiling_provider(monkeypatch)
    return tmp_path / "engine cache für Ženy 引擎"


def build(cache: Path, provider: str = "tensorrt") -> Result:
    options = [
        "--bundle",
        str(small_bundle()),
        "--provider",
        provider,
        "--engine-cache",
        str(cache),
    ]
    return CliRunner().invoke(main, ["build", *options])


def test_all_graphs_and_a_second_call_finds_them(cache: Path) -> None:
    first = build(cache)
    assert first.exit_code == 0
    assert f"{len(GRAPHS)} of {len(GRAPHS)} engines built in " in first.stdout
    assert {
        (entry.key.graph, entry.state)
        for entry in EngineCache(cache).entries(hashes=True)
        if entry.key
    } == {(graph, "ready") for graph in GRAPHS}
    second = build(cache)
    assert f"0 of {len(GRAPHS)} engines built in 0.0 s" in second.stdout
    assert second.stderr.count("found in the cache") == len(GRAPHS)


def test_a_provider_without_engines_builds_none_and_says_so(cache: Path) -> None:
    result = build(cache, provider="cpu")
    assert (result.exit_code, "provider cpu needs no engines" in result.stdout, cache.exists()) == (
        0,
        True,
        False,
    )
