"""The command `calibrate`: its result, its errors and warnings, and how it resumes."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from latentsync_trt.bundle.manifest import Bundle, sha256_file
from latentsync_trt.cli import calibrate as calibrate_command
from latentsync_trt.cli import main
from latentsync_trt.cli.calibrate import default_out
from latentsync_trt.errors import InputError
from latentsync_trt.quantize import calibrate
from latentsync_trt.quantize.calibrate import UNGUIDED, Calibration, loops_of, split
from latentsync_trt.quantize.clips import Clip
from latentsync_trt.quantize.options import CalibrateOptions
from latentsync_trt.quantize.ranges import Ranges
from latentsync_trt.runtime.networks.uncached import ObservingDenoiser
from latentsync_trt.runtime.providers.gpu import Gpu
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.temporary import PREFIX
from latentsync_trt.types import Progress, WindowBatch
from tests.clips import write_face, write_sound
from tests.small import small_bundle
from tests.sounds import write_samples

pytestmark = pytest.mark.integration

STEPS, SAMPLES = 2, 2
WINDOWS = 3

LEAST_DB = 20.0
"""Faces of random weights in 8 bits are well above it; of a broken graph they are at 5 to 10 dB."""


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Clip:
    """Three windows of a face, and sound that is not silent."""
    folder = tmp_path_factory.mktemp("clip")
    return Clip(write_face(folder / "face.mp4", 16 * WINDOWS), write_sound(folder / "speech.wav", 16 * WINDOWS / 25))


@pytest.fixture(autouse=True)
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where bundles are written without --out."""
    monkeypatch.setenv("LATENTSYNC_TRT_CHECKPOINTS", str(tmp_path / "checkpoints"))
    return tmp_path / "checkpoints"


def arguments(clip: Clip, *more: str, bundle: Path | None = None) -> list[str]:
    words = ["calibrate", "--bundle", str(bundle or small_bundle()), "--provider", "cpu"]
    words += ["--video", str(clip.video), "--audio", str(clip.audio)]
    return [*words, "--steps", str(STEPS), "--samples", str(SAMPLES), *more]


def run(words: list[str]) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, words)
    return result.exit_code, result.stdout, result.stderr


def calibration(clip: Clip, work: Path, on_warning: Callable[[str], None] = str, **fields: Any) -> Calibration:
    bundle, selection = Bundle.load(small_bundle(), verify=False), fields.pop("selection", Selection("cpu"))
    options = CalibrateOptions(**{"steps": STEPS, "samples": SAMPLES, **fields})
    return Calibration(bundle, [clip], options, selection, work, lambda _: None, on_warning)


@pytest.fixture(scope="module")
def made(clip: Clip, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """An 8-bit bundle, the folder of intermediate results, and what was printed."""
    folder = tmp_path_factory.mktemp("made")
    code, out, err = run(arguments(clip, "--out", str(folder / "int8"), "--work", str(folder / "work")))
    assert code == 0, err
    return folder / "int8", folder / "work", out


def test_a_clip_gives_a_measured_eight_bit_bundle(made: tuple[Path, Path, str], clip: Clip) -> None:
    folder, work, out = made
    assert calibration(clip, work).work.ranges()[0] == SAMPLES
    manifest = Bundle.load(folder).manifest
    assert manifest.precision == "int8"
    quantized = manifest.quantization
    assert quantized is not None
    assert quantized.clips == {path.name: sha256_file(path) for path in (clip.video, clip.audio)}
    assert quantized.settings["windows"] == SAMPLES
    assert quantized.settings["windows_measured"] == WINDOWS - SAMPLES
    assert quantized.settings["steps"] == STEPS
    assert quantized.distance["faces_psnr_db"] > LEAST_DB
    assert f"PSNR of faces against fp32 {quantized.distance['faces_psnr_db']:.1f} dB" in out
    assert len(out.splitlines()) == 1


@pytest.mark.slow
def test_sync_runs_the_bundle(made: tuple[Path, Path, str], clip: Clip, tmp_path: Path) -> None:
    words = ["sync", "--bundle", str(made[0]), "--provider", "cpu", "--steps", "1", "-q"]
    words += ["--video", str(clip.video), "--audio", str(clip.audio), "-o", str(tmp_path / "out.mp4")]
    code, _, err = run(words)
    assert code == 0, err
    assert (tmp_path / "out.mp4").stat().st_size > 0


def fail(*_: object) -> None:
    raise AssertionError("was done before")


def test_another_precision_reuses_the_ranges(
    made: tuple[Path, Path, str], clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ObservingDenoiser, "begin", fail)
    monkeypatch.setattr(calibrate, "record_windows", fail)
    observed = calibration(clip, made[1], precision="fp8", percentile=100.0, keep=()).observe()
    assert observed.windows == SAMPLES
    assert_same(observed.ranges, calibration(clip, made[1]).work.ranges()[1])


@pytest.mark.parametrize("change", [{"guidance": 2.0}, {"samples": 1}, {"steps": 1}])
def test_other_loops_or_clips_have_a_folder_of_their_own(clip: Clip, tmp_path: Path, change: dict[str, Any]) -> None:
    usual = calibration(clip, tmp_path).work.folder
    assert calibration(clip, tmp_path, **change).work.folder != usual
    assert calibration(Clip(clip.video, clip.video), tmp_path).work.folder != usual
    assert calibration(clip, tmp_path).work.folder == usual


def assert_same(first: Ranges, second: Ranges) -> None:
    assert set(first) == set(second)
    for name, layer in first.items():
        np.testing.assert_array_equal(layer.channel_amax, second[name].channel_amax)
        np.testing.assert_array_equal(layer.counts, second[name].counts)


@pytest.mark.parametrize("stage", ["record", "observe"])
def test_a_calibration_resumes_after_ctrl_c(
    made: tuple[Path, Path, str], clip: Clip, tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second window of each stage; nothing is done again, and the ranges are those of one go."""
    interrupted_at = {"record": 40, "observe": STEPS + 1}[stage]

    def interrupt(progress: Progress) -> None:
        if progress.stage.startswith(stage) and progress.done == interrupted_at:
            raise KeyboardInterrupt

    @contextmanager
    def progress_bar(**_: object) -> Iterator[Callable[[Progress], None]]:
        yield interrupt

    monkeypatch.setattr(calibrate_command, "progress_bar", progress_bar)
    words = arguments(clip, "--no-measure", "--out", str(tmp_path / "int8"), "--work", str(tmp_path / "work"))
    code, _, err = run(words)
    assert code == 130
    assert "interrupted; the same command resumes" in err
    assert not (tmp_path / "int8").exists()
    left = sorted(path.name for path in (tmp_path / "work").glob("*/*"))
    assert "ranges.npz" in left if stage == "observe" else "clip-000.npz" not in left
    assert any(name.startswith("window-000-") for name in left)
    assert not any(name.startswith(PREFIX) for name in left)
    begun: list[WindowBatch] = []
    original = ObservingDenoiser.begin

    def begin(denoiser: ObservingDenoiser, batch: WindowBatch) -> None:
        begun.append(batch)
        original(denoiser, batch)

    monkeypatch.setattr(ObservingDenoiser, "begin", begin)
    if stage == "observe":
        monkeypatch.setattr(calibrate, "record_windows", fail)
    observed = calibration(clip, tmp_path / "work").observe()
    assert len(begun) == (SAMPLES - 1 if stage == "observe" else SAMPLES)
    assert_same(observed.ranges, calibration(clip, made[1]).work.ranges()[1])


def failure(words: list[str], code: int = 1) -> str:
    found, _, err = run(words)
    assert found == code
    return err


def test_an_eight_bit_bundle_is_refused(int8_bundle: Path, clip: Clip) -> None:
    assert "is in int8 already; calibrate demo, which it was made from" in failure(
        arguments(clip, bundle=int8_bundle), 2
    )


def test_a_folder_of_other_files_is_not_replaced(clip: Clip, tmp_path: Path) -> None:
    (tmp_path / "one.jpg").touch()
    assert "contains files but no bundle" in failure(arguments(clip, "--out", str(tmp_path)), 2)


def test_a_clip_without_a_face_is_refused(clip: Clip, tmp_path: Path) -> None:
    blank = write_face(tmp_path / "blank.mp4", 20, blank=range(20))
    assert re.search(r"error: .*blank\.mp4: no face in any frame", failure(arguments(Clip(blank, clip.audio))))


def test_few_windows_and_silence_give_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One short silent clip in a folder."""
    clips = tmp_path / "clips"
    clips.mkdir()
    write_face(clips / "face.mp4", 20)
    write_samples(clips / "face.wav", np.zeros(16000, np.float32), 16000)
    measured: list[object] = []

    def stop(*_: Any, settings: dict[str, Any], **__: Any) -> None:
        measured.append(settings["windows_measured"])
        raise InputError("not written")

    monkeypatch.setattr(calibrate, "quantize_bundle", stop)
    monkeypatch.setattr(calibrate, "Replay", lambda *_: SimpleNamespace(psnr_db=lambda _: 40.0))
    monkeypatch.setattr(Calibration, "_observe", lambda *_: {})
    words = ["calibrate", "--bundle", str(small_bundle()), "--provider", "cpu", "--clips", str(clips)]
    words += ["--steps", "1", "--samples", "3"]
    _, _, err = run([*words, "--no-measure"])
    assert re.search(r"warning: .*face\.mp4: 100% of its sound is silent", err)
    assert "warning: 1 windows of the 3 that --samples asks for" in err
    assert "no window is left to measure on" not in err
    assert err.endswith("error: not written\n")
    _, _, err = run(words)
    assert "no window is left to measure on" in err
    assert measured == [0, 1]


@pytest.mark.slow
def test_a_search_reaches_the_target(made: tuple[Path, Path, str], clip: Clip, tmp_path: Path) -> None:
    target_db = 60.0
    words = arguments(clip, "--target-psnr", f"{target_db:g}", "--out", str(tmp_path / "int8"), "--work", str(made[1]))
    code, out, err = run(words)
    assert code == 0, err
    quantized = Bundle.load(tmp_path / "int8").manifest.quantization
    assert quantized is not None
    assert quantized.distance["faces_psnr_db"] >= target_db
    assert quantized.settings["target_psnr_db"] == target_db
    assert re.search(r"\d+ × conv_in .* kept", out)


def test_the_missing_extra_is_named(clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate_command, "_NEEDED", ("onnx", "no-such-package"))
    message = failure(arguments(clip))
    assert "no-such-package: not installed" in message
    assert "pip install 'latentsync-trt[calibrate]'" in message


@pytest.mark.parametrize(
    ("precision", "capability", "warned"), [("fp8", "8.6", True), ("fp8", "8.9", False), ("int8", "8.6", False)]
)
def test_a_gpu_without_fp8_gives_a_warning(
    clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, capability: str, warned: bool
) -> None:
    def stop(_: object) -> None:
        raise InputError("not observed")

    monkeypatch.setattr(Calibration, "observe", stop)
    gpu = Gpu(0, "NVIDIA RTX A6000", capability, 48 * 10**9)
    warnings: list[str] = []
    with pytest.raises(InputError, match="not observed"):
        calibration(clip, tmp_path, warnings.append, selection=Selection("cuda", (), gpu), precision=precision).run(
            tmp_path / "out"
        )
    assert ["RTX A6000" in warning for warning in warnings] == [True] * warned


def test_results_are_named_after_the_bundle(checkpoints: Path) -> None:
    assert default_out("1.6-512-fp16", "int8") == checkpoints / "1.6-512-int8"
    assert default_out("1.6-512-fp32-dynamic", "fp8") == checkpoints / "1.6-512-fp8-dynamic"
    assert default_out("mine", "fp8") == checkpoints / "mine-fp8"


def test_loops_cover_all_timesteps_with_full_and_cached_steps_and_some_without_guidance() -> None:
    windows = [Path(f"{number}") for number in range(8)]
    loops = loops_of(windows, CalibrateOptions(steps=6), unguided=True)
    guided = [loop for _, loop in loops if loop.guidance != UNGUIDED]
    assert [window.name for window, _ in loops[len(guided) :]] == ["3", "7"]
    for full in (True, False):
        steps = {step for loop in guided for step, planned in enumerate(loop.plan) if planned.full is full}
        assert steps == set(range(6)) - (set() if full else {0})
    assert all(loop.guidance == 1.5 for _, loop in loops_of(windows, CalibrateOptions(), unguided=False))


@pytest.mark.parametrize(("windows", "held"), [(1, 0), (2, 0), (3, 1), (9, 2), (40, 2)])
def test_held_out_windows_are_not_calibrated_on(windows: int, held: int) -> None:
    paths = [Path(f"{number:02}") for number in range(windows)]
    calibrated_on, held_out = split(paths, samples=8)
    assert len(held_out) == held
    assert not set(calibrated_on) & set(held_out)
    assert len(calibrated_on) == min(8, windows - held)
