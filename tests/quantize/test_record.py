"""Recording: the windows of a real run, chosen over the whole clip, and what clips are found to lack."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import InputError, MediaError
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.media.audio import SPEECH_RATE_HZ
from latentsync_trt.quantize.clips import Clip, Findings, clips_in, silent_share, what_is_missing
from latentsync_trt.quantize.record import RecordedWindow, Recorder
from latentsync_trt.runtime.networks.denoiser import GraphDenoiser
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.types import Float32Array, WindowBatch
from tests.clips import write_face, write_sound
from tests.small import small_bundle

SEED = 3
FRAMES = 16


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Networks]:
    options = RuntimeOptions(engine_cache=tmp_path_factory.mktemp("cache"))
    made = Networks(Bundle.load(small_bundle(), verify=False), Selection("cpu"), options)
    yield made
    made.close()


@pytest.fixture
def recorder(networks: Networks) -> Recorder:
    manifest = networks.bundle.manifest
    return Recorder(networks, manifest.resolution_px, manifest.frames, SEED, MediaPipeDetector())


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Clip:
    """40 frames: two windows and one that is shifted back; the sound goes on longer."""
    folder = tmp_path_factory.mktemp("clip")
    return Clip(write_face(folder / "face.mp4", 40), write_sound(folder / "speech.wav", 2.0))


def record(recorder: Recorder, clip: Clip, folder: Path, wanted: int) -> tuple[Findings, dict[int, Path]]:
    """What was found, and the files of the windows by their numbers."""
    findings = recorder.record(clip, wanted, lambda number: folder / f"{number:03}.npz", lambda done, total: None)
    return findings, {int(path.stem): path for path in sorted(folder.iterdir())}


def begun(clip: Clip, target: Path) -> list[WindowBatch]:
    """What the denoiser of a real run is given."""
    batches: list[WindowBatch] = []
    original = GraphDenoiser.begin

    def remember(denoiser: GraphDenoiser, batch: WindowBatch) -> None:
        batches.append(batch)
        original(denoiser, batch)

    with pytest.MonkeyPatch.context() as patch, LipSync.from_bundle(small_bundle(), "cpu") as lip_sync:
        patch.setattr(GraphDenoiser, "begin", remember)
        options = SyncOptions(steps=1, seed=SEED, length="shortest")
        lip_sync.sync(clip.video, clip.audio, target, options)
    return batches


def test_windows_are_those_of_a_real_run(recorder: Recorder, clip: Clip, tmp_path: Path) -> None:
    (tmp_path / "windows").mkdir()
    findings, files = record(recorder, clip, tmp_path / "windows", 2)
    real = begun(clip, tmp_path / "out.mp4")
    assert list(files) == [0, 1]
    assert (findings.frames, findings.with_face, findings.windows) == (40, 40, 2)
    for number, path in files.items():
        window = RecordedWindow.load(path)
        np.testing.assert_array_equal(window.latents, real[number].latents)
        np.testing.assert_array_equal(window.conditioning, real[number].conditioning)
        np.testing.assert_array_equal(window.audio, real[number].audio)
        np.testing.assert_array_equal(np.broadcast_to(window.noise, window.latents.shape), window.latents)


def test_windows_on_disk_are_left_alone(recorder: Recorder, clip: Clip, tmp_path: Path) -> None:
    (tmp_path / "000.npz").write_bytes(b"recorded before")
    findings, files = record(recorder, clip, tmp_path, 2)
    assert findings.windows == 2
    assert files[0].read_bytes() == b"recorded before"
    assert RecordedWindow.load(files[1]).conditioning.shape == (1, 9, FRAMES, 16, 16)


def test_few_windows_of_a_clip_are_spread_over_it(recorder: Recorder, tmp_path: Path) -> None:
    clip = Clip(write_face(tmp_path / "face.mp4", 6 * FRAMES), write_sound(tmp_path / "speech.wav", 4.0))
    folder = tmp_path / "windows"
    folder.mkdir()
    assert list(record(recorder, clip, folder, 3)[1]) == [1, 3, 5]


def test_frames_without_a_face_are_counted_and_left_out(recorder: Recorder, tmp_path: Path) -> None:
    clip = Clip(write_face(tmp_path / "face.mp4", 12, blank=range(12)), write_sound(tmp_path / "speech.wav", 0.48))
    findings = recorder.record(clip, 2, lambda number: tmp_path / f"{number}.npz", lambda done, total: None)
    assert (findings.frames, findings.with_face, findings.windows) == (12, 0, 0)


def test_progress_tells_of_every_frame(recorder: Recorder, clip: Clip, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    recorder.record(clip, 1, lambda number: tmp_path / f"{number}.npz", lambda done, total: told.append((done, total)))
    assert told == [(frame, 40) for frame in range(1, 41)]


def test_a_clip_that_cannot_be_read_is_named(recorder: Recorder, clip: Clip, tmp_path: Path) -> None:
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    with pytest.raises(MediaError, match=r"broken\.mp4"):
        record(recorder, Clip(tmp_path / "broken.mp4", clip.audio), tmp_path, 1)


def test_a_damaged_window_is_named(tmp_path: Path) -> None:
    path = tmp_path / "window-000-000001.npz"
    path.write_bytes(b"half of it")
    with pytest.raises(InputError, match=r"window-000-000001.*calibrate again"):
        RecordedWindow.load(path)


def noise(level_dbfs: float, duration_s: float) -> Float32Array:
    values = np.random.default_rng(1).standard_normal(round(duration_s * SPEECH_RATE_HZ), np.float32)
    return values * np.float32(10 ** (level_dbfs / 20))


@pytest.mark.parametrize("cut", [1, 100, 639, 640, 100_000])
def test_the_silent_share_does_not_hang_on_how_sound_is_cut(cut: int) -> None:
    sound = np.concatenate([noise(-20, 1.0), noise(-70, 3.0)])[: 4 * SPEECH_RATE_HZ]
    blocks = [sound[start : start + cut] for start in range(0, len(sound), cut)] if cut > 1 else [sound]
    assert silent_share(blocks) == 0.75


def test_sound_too_short_to_hear_is_silent() -> None:
    assert silent_share([np.ones(10, np.float32)]) == 1.0
    assert silent_share([]) == 1.0


def test_a_folder_pairs_videos_with_sounds_of_their_names(tmp_path: Path) -> None:
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


GOOD = Findings(frames=400, with_face=390, windows=8, silent=0.3)


def test_good_clips_lack_nothing() -> None:
    assert what_is_missing({"a": GOOD, "b": GOOD}, samples=16, frames=FRAMES) == ()


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Findings(400, 390, 8, 0.9), "nothing is said in 90% of its sound"),
        (Findings(400, 40, 8, 0.3), "a face in only 40 of 400 frames"),
        (Findings(400, 400, 3, 0.3), "3 windows of the 8 .* a face for 5 s together"),
    ],
)
def test_what_clips_lack_is_said(found: Findings, said: str) -> None:
    (sentence,) = what_is_missing({"clip": found}, samples=8, frames=FRAMES)
    assert re.search(said, sentence)
