"""The command `calibrate`: its result, its errors and warnings."""

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.cli import main
from latentsync_trt.quantize.calibration_options import CalibrateOptions, CalibrationClip
from latentsync_trt.quantize.windows import UNGUIDED, RecordedWindow, loops_of, split
from tests.clips import write_face, write_sound
from tests.small import small_bundle
from tests.sounds import write_samples

pytestmark = pytest.mark.integration

STEPS = 2
SAMPLES = 2
WINDOWS = 3

LEAST_DB = 20.0
"""Faces of random weights in 8 bits are well above it; of a broken graph they are at 5 to 10 dB."""


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> CalibrationClip:
    """Three windows of a face, and sound that is not silent."""
    folder = tmp_path_factory.mktemp("clip")
    return CalibrationClip(
        write_face(folder / "face.mp4", 16 * WINDOWS),
        write_sound(folder / "speech.wav", 16 * WINDOWS / 25),
    )


def run(bundle: Path, clip: CalibrationClip | None, out: Path, *more: str) -> Result:
    words = ["calibrate", "--bundle", str(bundle), "--provider", "cpu", "--output", str(out), *more]
    if clip is not None:
        words += ["--video", str(clip.video), "--audio", str(clip.audio)]
        words += ["--steps", str(STEPS), "--windows", str(SAMPLES)]
    return CliRunner().invoke(main, words)


def test_a_clip_gives_a_measured_eight_bit_bundle(
    guided_bundle: Path, clip: CalibrationClip, tmp_path: Path
) -> None:
    result = run(guided_bundle, clip, tmp_path / "int8")
    assert result.exit_code == 0, result.stderr
    manifest = Bundle.load(tmp_path / "int8").manifest
    assert manifest.precision == "int8"
    quantized = manifest.quantization
    assert quantized is not None
    assert quantized.clips == (clip.video.name, clip.audio.name)
    assert quantized.settings["windows"] == SAMPLES
    assert quantized.settings["windows_measured"] == WINDOWS - SAMPLES
    assert quantized.settings["steps"] == STEPS
    assert quantized.distance["faces_psnr_db"] > LEAST_DB
    assert (
        f"PSNR of faces against fp32 {quantized.distance['faces_psnr_db']:.1f} dB" in result.stdout
    )
    assert len(result.stdout.splitlines()) == 1


def test_an_eight_bit_bundle_is_refused(
    int8_bundle: Path, clip: CalibrationClip, tmp_path: Path
) -> None:
    result = run(int8_bundle, clip, tmp_path / "out")
    assert result.exit_code == 2
    assert "calibrate demo" in result.stderr


def test_a_clip_without_a_face_is_refused(clip: CalibrationClip, tmp_path: Path) -> None:
    blank = write_face(tmp_path / "blank.mp4", 20, blank=range(20))
    result = run(small_bundle(), CalibrationClip(blank, clip.audio), tmp_path / "out")
    assert result.exit_code == 1
    assert re.search(r"error: .*blank\.mp4: no face", result.stderr)


def test_few_windows_give_warnings(guided_bundle: Path, tmp_path: Path) -> None:
    """One short silent clip in a folder."""
    clips = tmp_path / "clips"
    clips.mkdir()
    write_face(clips / "face.mp4", 20)
    write_samples(clips / "face.wav", np.zeros(16000, np.float32), 16000)
    result = run(
        guided_bundle,
        None,
        tmp_path / "int8",
        "--clips",
        str(clips),
        "--steps",
        "1",
        "--windows",
        "3",
    )
    assert result.exit_code == 0
    assert "note: --windows 3: the clips have only 1, so" in result.stderr
    assert "no window is left" in result.stderr
    quantized = Bundle.load(tmp_path / "int8").manifest.quantization
    assert quantized is not None and quantized.settings["windows_measured"] == 1


def test_loops_cover_all_timesteps_with_full_and_cached_steps_and_some_without_guidance() -> None:
    windows = [RecordedWindow(*[np.full(1, number, np.float32)] * 3) for number in range(8)]
    loops = loops_of(windows, CalibrateOptions(steps=6), unguided=True)
    guided = [loop for _, loop in loops if loop.guidance != UNGUIDED]
    assert [window for window, _ in loops[len(guided) :]] == [windows[3], windows[7]]
    full = [set(loop.interval) for loop in guided if isinstance(loop.interval, tuple)]
    assert len(full) == 6
    assert set.union(*full) == set(range(6)) and set.intersection(*full) == {0}
    assert all(
        loop.guidance == 1.5 for _, loop in loops_of(windows, CalibrateOptions(), unguided=False)
    )


@pytest.mark.parametrize(("windows", "held"), [(1, 0), (3, 1), (40, 2)])
def test_held_out_windows_are_not_calibrated_on(windows: int, held: int) -> None:
    calibrated_on, held_out = split(range(windows), samples=8)
    assert len(held_out) == held
    assert not set(calibrated_on) & set(held_out)
    assert len(calibrated_on) == min(8, windows - held)
