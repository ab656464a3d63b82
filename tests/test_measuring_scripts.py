"""The scripts that time the networks, as graphs and as PyTorch modules, and the stages on the
CPU; and the one that makes the tests' bundle.
"""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from latentsync_trt.bundle.manifest import read_manifest
from latentsync_trt.export.export_options import ExportOptions
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.types import Progress, ProgressCallback
from scripts.measure_stages import in_this_thread, run
from tests.clips import write_clip, write_face
from tests.small import small_bundle

pytestmark = pytest.mark.integration

MANIFEST = read_manifest(small_bundle())


@pytest.mark.slow
def test_rows_of_graphs_windows_and_modules(tmp_path: Path) -> None:
    measure = pytest.importorskip("scripts.measure_networks").main
    video, audio = write_clip(tmp_path, MANIFEST.frames)
    words = [
        "--bundle",
        str(small_bundle()),
        "--provider",
        "cpu",
        "--runs",
        "1",
        "--warm-up",
        "0",
        "--preset",
        "fast",
    ]
    words += ["--steps", "2", "--cache-interval", "2"]
    words += [
        word for scenario in ("graph", "loop", "pytorch") for word in ("--scenario", scenario)
    ]
    words += [
        "--eager",
        "--video",
        str(video),
        "--audio",
        str(audio),
        "--out",
        str(tmp_path / "rows.json"),
    ]
    result = CliRunner().invoke(measure, words)
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    networks = ("denoise_step", "denoise_step_cached", "vae_encoder", "vae_decoder")
    cases = [row["case"] for row in rows if row["scenario"] != "loop"]
    assert cases == [*MANIFEST.graphs, *(f"{name} eager" for name in networks)]
    (loop,) = (row for row in rows if row["scenario"] == "loop")
    assert (loop["case"], loop["preset"], loop["frames"]) == ("one window", "fast", MANIFEST.frames)
    assert set(loop["parts_s"]) == {*networks, "rest"}
    assert any("beside preset quality" in note for note in loop["notes"])


def test_times_of_stages(tmp_path: Path) -> None:
    clock = StageClock()
    assert run(write_face(tmp_path / "face.mp4", 3), 128, 3, clock, in_this_thread) == 3
    stages = ["decode", "face", "align", "analyze paste", "compose", "measure", "encode by libx264"]
    assert [time.stage for time in clock.times()] == stages


def test_the_tests_bundle_is_exported_with_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = pytest.importorskip("scripts.make_test_bundle")

    def export_quickly(options: ExportOptions, on_progress: ProgressCallback) -> Path:
        on_progress(Progress("exporting", 50, 100))
        assert options.output is not None
        return Path(shutil.copytree(small_bundle(), options.output))

    monkeypatch.setattr(script, "export_bundle", export_quickly)
    monkeypatch.setattr(script, "TARGET", tmp_path / "bundle")
    script.main()
    assert "50 % exporting" in capsys.readouterr().out
    assert read_manifest(tmp_path / "bundle").model == "demo"
