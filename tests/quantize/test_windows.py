"""Recorded windows: those of a usual run, spread over the clip; and which clips are poor."""

import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import psutil
import pytest

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.media.audio import SPEECH_RATE_HZ
from latentsync_trt.quantize.clips import Clip, ClipSummary, clips_in, silent_share, warnings_of
from latentsync_trt.quantize.windows import RecordedWindow, record_windows
from latentsync_trt.runtime.networks.denoiser import GraphDenoiser
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.types import Float32Array, WindowBatch
from tests.clips import write_face, write_sound
from tests.small import small_bundle

pytestmark = pytest.mark.integration

FRAMES = 16


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Networks]:
    options = RuntimeOptions(engine_cache=tmp_path_factory.mktemp("cache"))
    made = Networks(Bundle.load(small_bundle(), verify=False), Selection("cpu"), options)
    yield made
    made.close()


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Clip:
    """40 frames: two windows and one that is shifted back; the sound is longer, and pixels are higher than wide."""
    folder = tmp_path_factory.mktemp("clip")
    video = write_face(folder / "face.mp4", 40, pixel_aspect=Fraction(8, 9))
    return Clip(video, write_sound(folder / "speech.wav", 2.0))


def record(
    networks: Networks, clip: Clip, folder: Path, wanted: int
) -> tuple[ClipSummary, dict[int, Path], list[tuple[int, int]]]:
    """The summary, the files of the windows by number, and the progress."""
    folder.mkdir(exist_ok=True)
    progress: list[tuple[int, int]] = []
    summary = record_windows(
        clip,
        wanted,
        networks,
        MediaPipeDetector(),
        lambda number: folder / f"{number:03}.npz",
        lambda done, total: progress.append((done, total)),
    )
    return summary, {int(path.stem): path for path in sorted(folder.iterdir())}, progress


def batches_of_a_run(clip: Clip, target: Path) -> list[WindowBatch]:
    """The denoiser's inputs in a usual run."""
    batches: list[WindowBatch] = []
    original = GraphDenoiser.begin

    def remember(denoiser: GraphDenoiser, batch: WindowBatch) -> None:
        batches.append(batch)
        original(denoiser, batch)

    with pytest.MonkeyPatch.context() as patch, LipSync.from_bundle(small_bundle(), "cpu") as lip_sync:
        patch.setattr(GraphDenoiser, "begin", remember)
        lip_sync.sync(clip.video, clip.audio, target, SyncOptions(steps=1, length="shortest"))
    return batches


def test_windows_are_those_of_a_usual_run(networks: Networks, clip: Clip, tmp_path: Path) -> None:
    summary, files, progress = record(networks, clip, tmp_path / "windows", 2)
    usual = batches_of_a_run(clip, tmp_path / "out.mp4")
    assert list(files) == [0, 1]
    assert (summary.frames, summary.with_face, summary.windows) == (40, 40, 2)
    assert progress == [(frame, 40) for frame in range(1, 41)]
    for number, path in files.items():
        window, latents = RecordedWindow.load(path), usual[number].latents
        np.testing.assert_array_equal(np.broadcast_to(window.noise, latents.shape), latents)
        np.testing.assert_array_equal(window.conditioning, usual[number].conditioning)
        np.testing.assert_array_equal(window.audio, usual[number].audio)


def test_recorded_windows_are_not_recorded_again(networks: Networks, clip: Clip, tmp_path: Path) -> None:
    (tmp_path / "000.npz").write_bytes(b"recorded before")
    summary, files, _ = record(networks, clip, tmp_path, 2)
    assert summary.windows == 2
    assert files[0].read_bytes() == b"recorded before"
    assert RecordedWindow.load(files[1]).conditioning.shape == (1, 9, FRAMES, 16, 16)


def test_few_windows_of_a_clip_are_spread_over_it(networks: Networks, tmp_path: Path) -> None:
    clip = Clip(write_face(tmp_path / "face.mp4", 6 * FRAMES), write_sound(tmp_path / "speech.wav", 4.0))
    assert list(record(networks, clip, tmp_path / "windows", 3)[1]) == [1, 3, 5]


def test_a_window_that_cannot_be_written_leaves_no_file_open(networks: Networks, clip: Clip, tmp_path: Path) -> None:
    long = Clip(clip.video, write_sound(tmp_path / "speech.wav", 60.0))  # more than one input of the audio encoder
    with pytest.raises(OutputError) as caught:
        record_windows(long, 2, networks, MediaPipeDetector(), lambda _: long.audio / "0.npz", lambda *_: None)
    opened = {Path(item.path) for item in psutil.Process().open_files()}
    assert not opened & {long.video, long.audio}, caught  # whose traceback keeps every local variable


def test_frames_without_a_face_are_counted_and_left_out(networks: Networks, tmp_path: Path) -> None:
    clip = Clip(write_face(tmp_path / "face.mp4", 12, blank=range(12)), write_sound(tmp_path / "speech.wav", 0.48))
    summary, _, _ = record(networks, clip, tmp_path / "windows", 2)
    assert (summary.frames, summary.with_face, summary.windows) == (12, 0, 0)


def noise(level_dbfs: float, duration_s: float) -> Float32Array:
    values = np.random.default_rng(1).standard_normal(round(duration_s * SPEECH_RATE_HZ), np.float32)
    return values * np.float32(10 ** (level_dbfs / 20))


@pytest.mark.parametrize("length", [None, 100, 639, 640, 100_000])
def test_the_silent_share_does_not_depend_on_the_length_of_pieces(length: int | None) -> None:
    sound = np.concatenate([noise(-20, 1.0), noise(-70, 3.0)])[: 4 * SPEECH_RATE_HZ]
    length = length or len(sound)
    assert silent_share([sound[start : start + length] for start in range(0, len(sound), length)]) == 0.75


def test_sound_shorter_than_a_frame_is_silent() -> None:
    assert silent_share([np.ones(10, np.float32)]) == 1.0
    assert silent_share([]) == 1.0


def test_a_folder_pairs_videos_with_audio_files_of_the_same_name(tmp_path: Path) -> None:
    for name in ("b.mov", "a.mp4", "a.wav", "c.flac", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "d.mp4").mkdir()
    paired = Clip(tmp_path / "a.mp4", tmp_path / "a.wav")
    assert clips_in(tmp_path) == (paired, Clip(tmp_path / "b.mov", tmp_path / "b.mov"))


def test_a_folder_without_videos_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.wav").touch()
    with pytest.raises(InputError, match="no video"):
        clips_in(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        clips_in(tmp_path / "nowhere")


GOOD = ClipSummary(frames=400, with_face=390, windows=8, silent=0.3)


def test_good_clips_give_no_warnings() -> None:
    assert warnings_of({"a": GOOD, "b": GOOD}, samples=16, frames=FRAMES) == ()


@pytest.mark.parametrize(
    ("summary", "warning"),
    [
        (ClipSummary(400, 390, 8, 0.9), "90% of its sound is silent"),
        (ClipSummary(400, 40, 8, 0.3), "a face in only 40 of 400 frames"),
        (ClipSummary(400, 400, 3, 0.3), "3 windows of the 8 .* a face for 5 s in all"),
    ],
)
def test_poor_clips_give_a_warning(summary: ClipSummary, warning: str) -> None:
    (found,) = warnings_of({"clip": summary}, samples=8, frames=FRAMES)
    assert re.search(warning, found)
