"""`calibrate` as it is called: what it makes, what it refuses, what it warns of, and how it goes on."""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from latentsync_trt.bundle.manifest import Bundle, sha256_file
from latentsync_trt.cli import calibrate as calibrate_command
from latentsync_trt.cli import main
from latentsync_trt.cli.calibrate import default_out
from latentsync_trt.errors import InputError
from latentsync_trt.quantize.calibrate import what_the_gpu_lacks
from latentsync_trt.quantize.calibration import UNGUIDED, Calibration, loops_over, split
from latentsync_trt.quantize.clips import Clip
from latentsync_trt.quantize.ranges import Ranges, load
from latentsync_trt.quantize.settings import CalibrateOptions
from latentsync_trt.runtime.networks.observer import ObservingDenoiser
from latentsync_trt.runtime.providers.gpu import Gpu
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.types import Progress, WindowBatch
from tests.clips import write_face, write_sound
from tests.conftest import REPOSITORY
from tests.small import small_bundle
from tests.sounds import write_samples

STEPS, SAMPLES = 2, 2
WINDOWS = 4
PATIENCE_S = 120.0

FAR_DB = 20.0
"""Faces of random weights in eight bits are well above it; of a broken graph they are at 5 to 10 dB."""


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Clip:
    """Four windows of a face, and sound that is not silent."""
    folder = tmp_path_factory.mktemp("clip")
    return Clip(write_face(folder / "face.mp4", 16 * WINDOWS), write_sound(folder / "speech.wav", 16 * WINDOWS / 25))


@pytest.fixture(autouse=True)
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where bundles go that are not told where to."""
    monkeypatch.setenv("LATENTSYNC_TRT_CHECKPOINTS", str(tmp_path / "checkpoints"))
    return tmp_path / "checkpoints"


def arguments(clip: Clip, *more: str, bundle: Path | None = None) -> list[str]:
    words = ["calibrate", "--bundle", str(bundle or small_bundle()), "--provider", "cpu"]
    words += ["--video", str(clip.video), "--audio", str(clip.audio)]
    return [*words, "--steps", str(STEPS), "--samples", str(SAMPLES), *more]


def run(words: list[str]) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, words)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def made(clip: Clip, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A bundle in eight bits, the folder of the work, and what was printed."""
    folder = tmp_path_factory.mktemp("made")
    code, out, err = run(arguments(clip, "--out", str(folder / "int8"), "--work", str(folder / "work")))
    assert code == 0, err
    return folder / "int8", folder / "work", out


@pytest.mark.slow
def test_a_clip_makes_a_bundle_in_eight_bits(made: tuple[Path, Path, str], clip: Clip) -> None:
    folder, _, out = made
    manifest = Bundle.load(folder).manifest
    assert manifest.precision == "int8"
    quantized = manifest.quantization
    assert quantized is not None
    assert quantized.clips == {path.name: sha256_file(path) for path in (clip.video, clip.audio)}
    assert quantized.settings["windows"] == SAMPLES
    assert quantized.settings["steps"] == STEPS
    assert quantized.distance["faces_psnr_db"] > FAR_DB
    assert f"faces at {quantized.distance['faces_psnr_db']:.1f} dB of fp32" in out
    assert len(out.splitlines()) == 1


@pytest.mark.slow
def test_sync_runs_the_bundle(made: tuple[Path, Path, str], clip: Clip, tmp_path: Path) -> None:
    words = ["sync", "--bundle", str(made[0]), "--provider", "cpu", "--steps", "1", "-q"]
    words += ["--video", str(clip.video), "--audio", str(clip.audio), "-o", str(tmp_path / "out.mp4")]
    code, _, err = run(words)
    assert code == 0, err
    assert (tmp_path / "out.mp4").stat().st_size > 0


@pytest.mark.slow
def test_another_precision_begins_with_what_was_seen(
    made: tuple[Path, Path, str], clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ObservingDenoiser, "begin", never)
    monkeypatch.setattr("latentsync_trt.quantize.calibration.Recorder", never)
    options = CalibrateOptions(precision="fp8", method="max", keep=(), steps=STEPS, samples=SAMPLES)
    seen = calibration(clip, made[1], options).run(ignore)
    assert seen.windows == SAMPLES
    assert_alike(seen.ranges, load(next(made[1].glob("*/ranges-*.npz"))))


def calibration(clip: Clip, work: Path, options: CalibrateOptions | None = None) -> Calibration:
    options = options or CalibrateOptions(steps=STEPS, samples=SAMPLES)
    return Calibration(Bundle.load(small_bundle(), verify=False), [clip], options, Selection("cpu"), work)


def ignore(_: Progress) -> None:
    pass


def never(*_: object) -> None:
    raise AssertionError("was done before")


@pytest.mark.parametrize("change", [{"seed": 5}, {"guidance": 2.0}, {"samples": 1}, {"cache_interval": 1}])
def test_what_decides_what_is_seen_begins_anew(clip: Clip, tmp_path: Path, change: dict[str, Any]) -> None:
    usual = calibration(clip, tmp_path).work.folder
    options = replace(CalibrateOptions(steps=STEPS, samples=SAMPLES), **change)
    assert calibration(clip, tmp_path, options).work.folder != usual
    assert calibration(Clip(clip.video, clip.video), tmp_path).work.folder != usual
    assert calibration(clip, tmp_path).work.folder == usual


@pytest.mark.slow
def test_a_killed_calibration_goes_on_and_ends_alike(
    made: tuple[Path, Path, str], clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    words = arguments(clip, "--no-measure", "-q", "--out", str(tmp_path / "int8"), "--work", str(work))
    process = subprocess.Popen([sys.executable, "-m", "latentsync_trt", *words], cwd=REPOSITORY)
    try:
        wait_for(lambda: any(work.glob("*/ranges-*.npz")), process)
    finally:
        process.kill()
        process.wait()
    assert not (tmp_path / "int8").exists()
    begun: list[WindowBatch] = []
    original = ObservingDenoiser.begin

    def count(denoiser: ObservingDenoiser, batch: WindowBatch) -> None:
        begun.append(batch)
        original(denoiser, batch)

    monkeypatch.setattr(ObservingDenoiser, "begin", count)
    monkeypatch.setattr("latentsync_trt.quantize.calibration.Recorder", never)
    seen = calibration(clip, work).run(ignore)
    assert len(begun) < SAMPLES
    assert_alike(seen.ranges, load(next(made[1].glob("*/ranges-*.npz"))))


def wait_for(happened: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert process.poll() is None, "ended too early"
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def assert_alike(first: Ranges, second: Ranges) -> None:
    assert list(first) == list(second)
    for name, layer in first.items():
        np.testing.assert_array_equal(layer.channel_amax, second[name].channel_amax)
        np.testing.assert_array_equal(layer.counts, second[name].counts)
        assert layer.step_amax == second[name].step_amax


@pytest.mark.parametrize("stage", ["record", "observe"])
def test_ctrl_c_leaves_what_was_done(clip: Clip, tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the second window, whichever stage it is."""
    interrupted_at = {"record": 40, "observe": STEPS + 1}[stage]
    original = Calibration.run

    def interrupt(calibration: Calibration, on_progress: Callable[[Progress], None]) -> None:
        def watch(progress: Progress) -> None:
            if progress.stage.startswith(stage) and progress.done == interrupted_at:
                raise KeyboardInterrupt

        original(calibration, watch)

    monkeypatch.setattr(Calibration, "run", interrupt)
    words = arguments(clip, "--no-measure", "--out", str(tmp_path / "int8"), "--work", str(tmp_path / "work"))
    code, _, err = run(words)
    assert code == 1
    assert "interrupted; the same command goes on" in err
    assert not (tmp_path / "int8").exists()
    left = sorted(path.name for path in (tmp_path / "work").glob("*/*"))
    assert "ranges-00001.npz" in left if stage == "observe" else "clip-000.json" not in left
    assert any(name.startswith("window-000-") for name in left)
    assert not any(name.startswith("graphs-") for name in left)


def test_two_calibrations_do_not_work_in_one_folder(clip: Clip, tmp_path: Path) -> None:
    with calibration(clip, tmp_path / "work").work.alone():
        code, _, err = run(arguments(clip, "--work", str(tmp_path / "work")))
    assert code == 1
    assert "another calibration of this bundle with these clips is running" in err


@pytest.mark.slow
def test_an_eight_bit_bundle_is_refused(made: tuple[Path, Path, str], clip: Clip) -> None:
    code, _, err = run(arguments(clip, bundle=made[0]))
    assert code == 1
    assert "is in int8 already; calibrate" in err


def test_a_folder_of_something_else_is_not_replaced(clip: Clip, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").touch()
    code, _, err = run(arguments(clip, "--out", str(tmp_path / "photos")))
    assert code == 1
    assert "holds something that is not a bundle" in err


def test_a_clip_without_a_face_is_refused(clip: Clip, tmp_path: Path) -> None:
    blank = write_face(tmp_path / "blank.mp4", 20, blank=range(20))
    code, _, err = run(arguments(Clip(blank, clip.audio)))
    assert code == 1
    assert re.search(r"error: blank\.mp4: no face in any frame", err)


def test_a_clip_that_is_not_there_is_named(clip: Clip, tmp_path: Path) -> None:
    code, _, err = run(arguments(Clip(tmp_path / "none.mp4", clip.audio)))
    assert code == 1
    assert "none.mp4: cannot be read" in err


def test_few_windows_and_silence_are_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One short clip without a word, in a folder."""
    clips = tmp_path / "clips"
    clips.mkdir()
    write_face(clips / "face.mp4", 20)
    write_samples(clips / "face.wav", np.zeros(16000, np.float32), 16000)
    measured: list[object] = []

    def refuse(*given: Any) -> None:
        measured.append(given[-1].settings["windows_measured"])
        raise InputError("as far as this test goes")

    monkeypatch.setattr("latentsync_trt.quantize.calibrate.quantize_bundle", refuse)
    words = ["calibrate", "--bundle", str(small_bundle()), "--provider", "cpu", "--clips", str(clips)]
    words += ["--steps", "1", "--samples", "3"]
    _, _, err = run([*words, "--no-measure"])
    assert "warning: face.mp4: nothing is said in 100% of its sound" in err
    assert "warning: 1 windows of the 3 that --samples asks for" in err
    assert "no window is left to measure with" not in err
    assert err.endswith("error: as far as this test goes\n")
    _, _, err = run(words)
    assert "no window is left to measure with" in err
    assert measured == [0, 1]


@pytest.mark.slow
def test_a_target_out_of_reach_says_what_was_reached(
    made: tuple[Path, Path, str], clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(*_: object) -> None:
        raise InputError("--target-psnr 119: out of reach; the most was 60.5 dB")

    monkeypatch.setattr("latentsync_trt.quantize.calibrate.search", search)
    words = arguments(clip, "--target-psnr", "119", "--out", str(tmp_path / "int8"), "--work", str(made[1]))
    code, _, err = run(words)
    assert code == 1
    assert "the most was 60.5 dB" in err
    assert not (tmp_path / "int8").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give clips to look at"),
        (["--clips", "clips", "--audio", "a.wav"], "belongs to a --video"),
        (["--video", "a.mp4", "--percentile", "20"], "percentile"),
        (["--video", "a.mp4", "--precision", "int4"], "int4"),
        (["--video", "a.mp4", "--target-psnr", "0"], "target-psnr"),
    ],
)
def test_wrong_usage_is_told(words: list[str], said: str) -> None:
    code, _, err = run(["calibrate", *words])
    assert code == 2
    assert said in err


def test_the_missing_extra_is_named(clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate_command, "find_spec", lambda name: None if name == "ml_dtypes" else name)
    code, _, err = run(arguments(clip))
    assert code == 1
    assert "calibrate needs ml_dtypes: pip install 'latentsync-trt[calibrate]'" in err


@pytest.mark.parametrize(
    ("precision", "capability", "lacks"), [("fp8", "8.6", True), ("fp8", "8.9", False), ("int8", "8.6", False)]
)
def test_a_gpu_without_fp8_is_warned_of(precision: str, capability: str, lacks: bool) -> None:
    gpu = Gpu(0, "NVIDIA RTX A6000", capability, 48 * 10**9)
    said = what_the_gpu_lacks(precision, Selection("cuda", (), gpu))
    assert bool(said) is lacks
    assert not lacks or "RTX A6000" in said[0]
    assert what_the_gpu_lacks(precision, Selection("cpu")) == ()


def test_results_are_named_after_the_bundle(checkpoints: Path) -> None:
    assert default_out("1.6-512-fp16", "int8") == checkpoints / "1.6-512-int8"
    assert default_out("1.6-512-fp32-dynamic", "fp8") == checkpoints / "1.6-512-fp8-dynamic"
    assert default_out("mine", "fp8") == checkpoints / "mine-fp8"


def test_loops_look_at_all_timesteps_with_both_graphs_and_without_guidance() -> None:
    windows = [Path(f"{number}") for number in range(8)]
    loops = loops_over(windows, CalibrateOptions(steps=6, cache_interval=3), unguided=True)
    guided = [loop for loop in loops if loop.guidance != UNGUIDED]
    assert [loop.window.name for loop in loops[len(guided) :]] == ["3", "7"]
    for full in (True, False):
        seen = {step for loop in guided for step, planned in enumerate(loop.plan) if planned.full is full}
        assert seen == set(range(6)) - (set() if full else {0})
    assert all(loop.guidance == 1.5 for loop in loops_over(windows, CalibrateOptions(), unguided=False))


@pytest.mark.parametrize(("windows", "held"), [(1, 0), (2, 0), (3, 1), (9, 2), (40, 2)])
def test_windows_to_measure_with_are_not_looked_at(windows: int, held: int) -> None:
    paths = [Path(f"{number:02}") for number in range(windows)]
    seen, held_out = split(paths, samples=8)
    assert len(held_out) == held
    assert not set(seen) & set(held_out)
    assert len(seen) == min(8, windows - held)
