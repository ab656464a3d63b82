"""The bench on a small bundle, with presets of one step."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from latentsync_trt import LipSync
from latentsync_trt.cli import main
from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import OutOfMemory
from tests.clips import write_clip
from tests.small import small_bundle

pytestmark = pytest.mark.integration

FRAMES = 4


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "--bundle", str(small_bundle()), *arguments])


def both_presets(folder: Path) -> Result:
    """Writes `rows.json`."""
    video, audio = write_clip(folder, FRAMES)
    words = [
        "--provider",
        "cpu",
        "--runs",
        "1",
        "--warm-up",
        "0",
        "--video",
        str(video),
        "--audio",
        str(audio),
    ]
    words += ["--preset", "fast", "--preset", "quality", "--steps", "1", "--guidance", "1"]
    return bench(*words, "--output", str(folder / "rows.json"))


def test_rows_have_times_of_stages_and_graphs_and_no_folders(tmp_path: Path) -> None:
    folder = tmp_path / "secret-folder"
    folder.mkdir()
    result = both_presets(folder)
    assert result.exit_code == 0, result.output
    assert "face.mp4 480×480 · fast · cpu" in result.stdout
    content = (folder / "rows.json").read_text(encoding="utf-8")
    assert "secret-folder" not in content
    results = json.loads(content)
    assert {"python", "onnxruntime", "cpu", "latentsync_trt", "command"} <= set(
        results["environment"]
    )
    assert results["bundle"]["name"] == "demo"
    assert [row["preset"] for row in results["rows"]] == ["fast", "quality"]
    for row in results["rows"]:
        assert (row["frames"], row["time"]["runs"]) == (FRAMES, 1)
        assert {"decode", "face", "denoise", "compose", "encode"} <= set(row["parts_s"])
        assert f"{max(row['parts_s'], key=row['parts_s'].get)} " in result.stdout
        assert {"vae_encoder", "denoise_step_unguided", "vae_decoder"} <= set(row["engines_ms"])
        assert sum(row["start_up_s"].values()) > 0
        assert row["memory"]["host_bytes"] > 50e6


def test_rows_before_a_failure_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_at_the_second(lip_sync: LipSync, options: SyncOptions) -> None:
        if options.preset == "quality":
            raise OutOfMemory("vae_encoder: out of memory")

    monkeypatch.setattr(LipSync, "warm_up", fail_at_the_second)
    result = both_presets(tmp_path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith(" vae_encoder: out of memory\n")
    assert len(json.loads((tmp_path / "rows.json").read_text())["rows"]) == 1
