"""`latentsync-trt cache`: what it lists, and what it removes."""

import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from latentsync_trt.cli import main
from latentsync_trt.runtime.engines.cache import EngineCache
from latentsync_trt.runtime.engines.entries import RECORD_NAME
from tests.cache_worker import KEY

SIZE_BYTES = 1_000_000


def run(place: Path, *arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["cache", *arguments, "--engine-cache", str(place)])
    return result.exit_code, result.stdout, result.stderr


def fill(path: Path) -> None:
    path.write_bytes(bytes(SIZE_BYTES))


def add(place: Path, graph: str, used_days_ago: float = 0.0) -> Path:
    """An engine of a little more than `SIZE_BYTES`."""
    key = replace(KEY, graph=graph)
    folder = EngineCache(place).obtain(key, lambda aside: fill(aside / "engine.bin")).folder
    used_s = (datetime.now(UTC) - timedelta(days=used_days_ago)).timestamp()
    os.utime(folder / RECORD_NAME, (used_s, used_s))
    return folder


def graphs_in(folder: Path) -> list[str]:
    return [entry.key.graph for entry in EngineCache(folder).entries() if entry.key]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A cache of three engines, used two, forty and zero days ago."""
    folder = tmp_path / "cache"
    for graph, days in (("vae_encoder", 2.0), ("vae_decoder", 40.0), ("denoise_step", 0.0)):
        add(folder, graph, days)
    return folder


def test_ls_shows_what_each_engine_is_for(place: Path) -> None:
    code, out, _ = run(place, "ls")
    assert code == 0
    row = next(line for line in out.splitlines() if "denoise_step" in line)
    for cell in (
        "demo",
        "tensorrt fp16",
        "NVIDIA GeForce RTX 4090 (8.9)",
        "windows 1-4, height 64",
        "1.0 MB",
        "ready",
    ):
        assert cell in row
    assert f"engines: 3 in {place}, 3.0 MB" in out
    named = CliRunner(env={"LATENTSYNC_TRT_CACHE_DIR": str(place)})
    content = json.loads(named.invoke(main, ["cache", "ls", "--json"]).stdout)
    assert content["folder"] == str(place)
    engines = content["engines"]
    assert 3 * SIZE_BYTES < sum(entry["size_bytes"] for entry in engines) <= content["total_bytes"]
    assert (engines[0]["state"], engines[0]["key"]["versions"]) == ("ready", KEY.versions)
    assert [entry["key"]["graph"] for entry in engines] == [
        "denoise_step",
        "vae_encoder",
        "vae_decoder",
    ]


def test_a_cache_that_does_not_exist_is_empty_and_a_file_is_an_error(tmp_path: Path) -> None:
    code, out, err = run(tmp_path / "none", "prune", "--max-gb", "0")
    assert (code, "removed 0 of 0 engines" in out, err) == (0, True, "")
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").touch()
    code, _, err = run(tmp_path / "file", "ls")
    assert code == 1
    assert err.startswith(f"error: {tmp_path / 'file'}: the engine cache ")


def test_verify_reads_every_byte(place: Path) -> None:
    assert run(place, "ls", "--verify")[0] == 0
    engine = EngineCache(place).entries()[0].folder / "engine.bin"
    engine.write_bytes(b"\1" + bytes(SIZE_BYTES - 1))
    assert run(place, "ls")[1].count("damaged") == 0  # the size is right
    code, out, _ = run(place, "ls", "--verify")
    assert code == 1
    assert "engine.bin was changed" in out
    states = [
        item["state"] for item in json.loads(run(place, "ls", "--verify", "--json")[1])["engines"]
    ]
    assert states == ["damaged", "ready", "ready"]
    assert engine.exists()


def test_prune_removes_what_was_used_least_recently(place: Path) -> None:
    code, out, _ = run(place, "prune", "--max-gb", str(2.1 * SIZE_BYTES / 1e9))
    assert code == 0
    assert "1 of 3 engines" in out
    assert graphs_in(place) == ["denoise_step", "vae_encoder"]
    (place / "README.md").write_text("mine")
    assert "2 of 2 engines" in run(place, "prune", "--max-gb", "0")[1]
    assert (graphs_in(place), (place / "README.md").exists()) == ([], True)
