"""The bench on a small bundle, with presets of one and two steps."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from latentsync_trt import LipSync
from latentsync_trt.bundle.manifest import read_manifest
from latentsync_trt.cli import main
from latentsync_trt.config import PRESETS, Sampling, SyncOptions
from latentsync_trt.errors import OutOfMemory
from tests.clips import write_clip
from tests.small import small_bundle

pytestmark = pytest.mark.integration

MANIFEST = read_manifest(small_bundle())


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "--bundle", str(small_bundle()), *arguments])


@pytest.fixture(scope="module")
def short_presets() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "quality", Sampling(1, "ddim", 1))
        patch.setitem(PRESETS, "fast", Sampling(2, "dpmpp", 2))
        yield


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("bench") / "secret-folder"
    folder.mkdir()
    video, audio = write_clip(folder, MANIFEST.frames)
    return ["--provider", "cpu", "--runs", "1", "--warm-up", "0", "--video", str(video), "--audio", str(audio)]


@pytest.mark.usefixtures("short_presets")
def test_rows_have_times_of_stages_and_graphs_and_no_folders(
    clip: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.json"
    arguments = [*clip, "--preset", "fast", "--preset", "quality", "--output", str(file)]
    monkeypatch.setattr(sys, "argv", ["latentsync-trt", "bench", *arguments])
    result = bench(*arguments)
    assert result.exit_code == 0, result.output
    assert "face.mp4 480×480 · fast · cpu" in result.stdout
    content = file.read_text(encoding="utf-8")
    assert "secret-folder" not in content
    assert str(Path.home()) not in content
    results = json.loads(content)
    assert {"python", "onnxruntime", "cpu", "latentsync_trt", "command"} <= set(results["environment"])
    assert "--audio speech.wav" in results["environment"]["command"]
    assert results["bundle"]["name"] == MANIFEST.name
    assert [row["preset"] for row in results["rows"]] == ["fast", "quality"]
    for row in results["rows"]:
        assert (row["frames"], row["time"]["runs"]) == (MANIFEST.frames, 1)
        assert {"decode", "face", "denoise", "compose", "encode"} <= set(row["parts_s"])
        assert f"{max(row['parts_s'], key=row['parts_s'].get)} " in result.stdout
        assert {"vae_encoder", "denoise_step", "vae_decoder"} <= set(row["engines_ms"])
        assert sum(row["start_up_s"].values()) > 0
        assert row["memory"]["host_bytes"] > 50e6


@pytest.mark.usefixtures("short_presets")
def test_rows_before_a_failure_are_kept(clip: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warm_up = LipSync.warm_up

    def fail_at_the_second(lip_sync: LipSync, options: SyncOptions) -> None:
        if options.preset == "quality":
            raise OutOfMemory("vae_encoder: out of memory")
        warm_up(lip_sync, options)

    monkeypatch.setattr(LipSync, "warm_up", fail_at_the_second)
    result = bench(*clip, "--preset", "fast", "--preset", "quality", "--output", str(tmp_path / "rows.json"), "-q")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: vae_encoder: out of memory\n"
    assert len(json.loads((tmp_path / "rows.json").read_text())["rows"]) == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--preset", "speed"], "'speed' is not one of"),
        (["--runs", "0"], "0 is not in the range"),
        (["--audio", "missing.wav"], "missing.wav"),
        (["--cache-interval", "0,9", "--preset", "fast"], "--cache-interval 0,9"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], reason: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2
    assert reason in " ".join(result.output.split())  # which the terminal's width wraps
