"""Clips through the whole pipeline on small networks, and everything that can be wrong with
them.
"""

import json
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from operator import ne
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest
from click.testing import CliRunner

from latentsync_trt import Helpers, LipSync, RuntimeOptions, SyncOptions
from latentsync_trt.cli import main
from latentsync_trt.config import Fps, Length
from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.face.align import crop
from latentsync_trt.media.pictures import LazyRgb
from latentsync_trt.types import AlignedFace, Face, Progress, SyncReport, UInt8Array, YuvPlanes
from tests.clips import LOSSLESS, STAGES, decoded, numbered, write_face, write_sound, write_video
from tests.small import LATENT_SIDE, small_bundle

pytestmark = pytest.mark.integration

QUICK = SyncOptions(steps=2, cache_interval=2)
UNTOUCHED_DB = 38.0
"""PSNR of unchanged pixels after one encode at crf 16; a second encode or a color shift costs
more.
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clips")


@pytest.fixture(scope="module")
def face_clip(folder: Path) -> Path:
    """20 frames of a face; 20 is not a multiple of the window."""
    return write_face(folder / "face.mp4", 20)


@pytest.fixture(scope="module")
def speech(folder: Path) -> Path:
    return write_sound(folder / "speech.wav", 0.8, clicks_s=(0.1, 0.5))


@pytest.fixture(scope="module")
def word(folder: Path) -> Path:
    """As long as 5 frames, so that a clip of it is one window."""
    return write_sound(folder / "word.wav", 0.2)


def test_paints_the_mouth_and_nothing_else(
    lip_sync: LipSync, face_clip: Path, speech: Path, tmp_path: Path
) -> None:
    seen: list[Progress] = []
    report = lip_sync.sync(face_clip, speech, tmp_path / "out.mp4", QUICK, on_progress=seen.append)
    assert (report.frames, report.frames_with_face, report.windows) == (20, 20, 2)
    assert (report.provider, report.duration_s) == ("cpu", 0.8)
    assert {stage.stage for stage in report.stages} == STAGES
    opening = Progress("reading audio", 0, None), Progress("opening networks", 0, None)
    start = *opening, Progress("painting first frames", 0, 20)
    written = (Progress("lip-sync", done, 20) for done in range(1, 21))
    once = [progress for progress, _ in groupby(seen)]  # repeated while nothing is written
    assert once == [*start, *written, Progress("finishing", 20, 20)]
    assert 0 < report.opened_s == report.startup_s < report.wall_s - report.finish_s
    before = decoded(face_clip)
    after = decoded(tmp_path / "out.mp4")
    assert len(after) == 20
    for own, new in zip(before, after, strict=True):
        assert cv2.PSNR(own[:120], new[:120]) > UNTOUCHED_DB  # hair and background
        assert cv2.PSNR(own[430:], new[430:]) > UNTOUCHED_DB  # the suit
        # the mouth
        assert np.abs(own[220:290, 190:290].astype(int) - new[220:290, 190:290]).mean() > 10
    assert [path.name for path in tmp_path.iterdir()] == ["out.mp4"]


def runs(report: SyncReport) -> Counter[str]:
    return Counter(
        {time.graph: time.runs for time in report.engines if time.graph.startswith("denoise_step")}
    )


def test_an_output_that_fails_to_open_stops_all_threads(
    lip_sync: LipSync, face_clip: Path, speech: Path, tmp_path: Path
) -> None:
    """While the networks are opened, a file takes the place of the output's folder."""
    folder = tmp_path / "results"
    folder.mkdir()

    def replace_folder(progress: Progress) -> None:
        if progress.stage == "opening networks" and folder.is_dir():
            folder.rmdir()
            folder.touch()

    before = set(threading.enumerate())
    with pytest.raises(OutputError):
        lip_sync.sync(face_clip, speech, folder / "out.mp4", QUICK, on_progress=replace_folder)
    assert set(threading.enumerate()) <= before


def test_steps_run_as_the_options_say(
    lip_sync: LipSync, face_clip: Path, word: Path, tmp_path: Path
) -> None:
    full = "denoise_step"
    cached = "denoise_step_cached"
    wanted = [
        (SyncOptions(steps=4), {full: 2, cached: 2}),
        (SyncOptions(steps=3, cache_interval=(0, 1)), {full: 2, cached: 1}),
    ]
    lip_sync.warm_up(wanted[0][0])  # both graphs: opened later, their runs would be counted anew
    bare = replace(QUICK, guidance=1.0)
    # Other tests may have used this graph: only the difference of two runs tells.
    before = runs(lip_sync.sync(face_clip, word, tmp_path / "first.mp4", bare))
    after = runs(lip_sync.sync(face_clip, word, tmp_path / "second.mp4", bare))
    assert dict(after - before) == {
        "denoise_step_unguided": 1,
        "denoise_step_unguided_cached": 1,
    }
    before = after
    for number, (options, steps) in enumerate(wanted):
        report = lip_sync.sync(face_clip, word, tmp_path / f"{number}.mp4", options)
        assert report.windows == 1
        assert dict(runs(report) - before) == steps
        before = runs(report)


def test_lossless_keeps_every_other_pixel_and_frames_without_a_face(
    lip_sync: LipSync, speech: Path, tmp_path: Path
) -> None:
    clip = write_face(tmp_path / "gap.mp4", 20, blank=range(6, 9))
    mouth = np.s_[220:290, 190:290]
    report = lip_sync.sync(clip, speech, tmp_path / "out.mkv", replace(QUICK, codec="ffv1"))
    assert (report.frames, report.frames_with_face, report.windows) == (20, 17, 2)
    rows = np.r_[0:120, 430:480]
    for index, (own, new) in enumerate(
        zip(decoded(clip), decoded(tmp_path / "out.mkv"), strict=True)
    ):
        assert np.array_equal(own[rows], new[rows])
        assert np.array_equal(own[mouth], new[mouth]) == (index in range(6, 9))


@pytest.mark.parametrize(
    ("length", "own", "audio_s", "frames"),
    [
        ("audio", 3, 0.64, 16),
        ("longest", 8, 0.16, 8),
        ("audio", 8, 0.48, 12),  # under half a second is held
        ("audio", 1, 0.001, 1),
        ("video", 3, 0.001, 3),
    ],
)
def test_length(
    lip_sync: LipSync, tmp_path: Path, length: Length, own: int, audio_s: float, frames: int
) -> None:
    clip = write_face(tmp_path / "clip.mp4", own, halved=True)
    sound = write_sound(tmp_path / "speech.wav", audio_s)
    options = SyncOptions(steps=1, guidance=1.0, length=length)
    report = lip_sync.sync(clip, sound, tmp_path / "out.mp4", options)
    assert (report.frames, report.frames_with_face, report.windows) == (frames, frames, 1)
    assert len(decoded(tmp_path / "out.mp4")) == frames
    with av.open(str(tmp_path / "out.mp4")) as container:
        stream = container.streams.audio[0]
        # an AAC frame of 16 kHz lasts 64 ms
        assert float(stream.duration * stream.time_base) <= frames / 25 + 0.07


@pytest.mark.parametrize("fps", ["source", "25"])
def test_the_frame_rate_is_the_source_s_or_25(
    lip_sync: LipSync, word: Path, tmp_path: Path, fps: Fps
) -> None:
    clip = write_face(tmp_path / "fast.mp4", 10, fps=50)
    report = lip_sync.sync(clip, word, tmp_path / "out.mp4", replace(QUICK, fps=fps))
    step, windows = (2, 1) if fps == "25" else (1, 2)  # at 50/s, of two interleaved streams
    assert (report.frames, report.windows, report.duration_s) == (10 // step, windows, 0.2)
    before = decoded(clip)
    after = decoded(tmp_path / "out.mp4")
    assert all(
        cv2.PSNR(before[step * i][:120], after[i][:120]) > UNTOUCHED_DB for i in range(10 // step)
    )
    with av.open(str(tmp_path / "out.mp4")) as container:
        assert container.streams.video[0].average_rate == 50 // step


def test_a_detector_and_noise_can_be_given(
    lip_sync: LipSync, face_clip: Path, word: Path, tmp_path: Path
) -> None:
    points = np.array([[200, 200], [280, 200], [240, 250]], np.float32)

    class Fixed:
        def detect(self, frame: UInt8Array) -> list[Face]:
            assert frame.dtype == np.uint8
            assert frame.shape == (480, 480, 3)
            return [Face(np.array([180, 170, 300, 330], np.float32), points)]

    noise = np.zeros((1, 4, 1, LATENT_SIDE, LATENT_SIDE), np.float32)
    options = SyncOptions(steps=1)
    report = lip_sync.sync(
        face_clip, word, tmp_path / "a.mp4", options, helpers=Helpers(Fixed(), noise=noise)
    )
    assert report.frames_with_face == 5
    with pytest.raises(InputError, match="noise"):
        lip_sync.sync(
            face_clip, word, tmp_path / "b.mp4", options, helpers=Helpers(noise=noise[..., 1:])
        )
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


class Scripted:
    """A detector that finds one face per frame, at the place with the script's next number; none
    for None.
    """

    def __init__(self, places: list[int | None]) -> None:
        self._places = iter(places)

    def detect(self, frame: UInt8Array) -> list[Face]:
        place = next(self._places)
        if place is None:
            return []
        points = np.array([[50, 40], [90, 40], [70, 65]], np.float32)
        box = np.array([30, 10, 80, 65], np.float32)
        shift = np.array([55 * place, 0], np.float32)
        return [Face(box + np.tile(shift, 2), points + shift)]


WINDOW_FRAMES = 16
SIZE = 120, 160


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[[type], int]:
    """Counts the pictures and aligned faces in memory: `LazyRgb` and arrays."""
    made: list[weakref.ref[object]] = []

    class WatchedRgb(LazyRgb):
        def __init__(self, planes: YuvPlanes) -> None:
            super().__init__(planes)
            made.append(weakref.ref(self))

    def watched_crop(*arguments: Any) -> AlignedFace:
        face = crop(*arguments)
        made.append(weakref.ref(face.image))
        return face

    places = {
        "media.reader.LazyRgb": WatchedRgb,
        "sync.faces.LazyRgb": WatchedRgb,
        "sync.faces.crop": watched_crop,
    }
    for name, watch in places.items():
        monkeypatch.setattr(f"latentsync_trt.{name}", watch)
    return lambda kind: sum(isinstance(ref(), kind) for ref in made)


@pytest.fixture
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """For so many frames there is memory; None: as usual."""
    if request.param is not None:
        monkeypatch.setattr(
            "latentsync_trt.sync.source.max_frames_in_memory", lambda _: request.param
        )


@pytest.mark.parametrize(
    ("at_once", "room", "places", "most"),
    [
        # What is gathered, waits for each network, and is painted; a window; what is held back and
        # waits elsewhere.
        (1, None, [0] * 144, 5 * WINDOW_FRAMES + WINDOW_FRAMES + 45),
        (4, None, [0] * 17 + [None] * 400, 5 * 4 * WINDOW_FRAMES + WINDOW_FRAMES + 45),
        (4, 80, [None] * 20 + [0] * 16 + [None] * 60, 80),
    ],
    ids=["a face throughout", "a window and one", "little room for windows"],
    indirect=["room"],
)
@pytest.mark.usefixtures("room")
def test_memory_does_not_grow_with_length(
    tmp_path: Path,
    watched: Callable[[type], int],
    at_once: int,
    places: list[int | None],
    most: int,
) -> None:
    # without cuts, which would end tracks
    clip = write_video(tmp_path / "clip.mp4", [*numbered(1, *SIZE)] * 8)
    sound = write_sound(tmp_path / "speech.wav", len(places) / 25)
    counts: list[tuple[int, int]] = []
    with LipSync.from_bundle(
        small_bundle(), "cpu", RuntimeOptions(low_memory=at_once > 1)
    ) as lip_sync:
        report = lip_sync.sync(
            clip,
            sound,
            tmp_path / "out.mp4",
            SyncOptions(steps=1, guidance=1.0),
            helpers=Helpers(Scripted(places)),
            on_progress=lambda _: counts.append((watched(LazyRgb), watched(np.ndarray))),
        )
    assert (report.frames, report.frames_with_face) == (
        len(places),
        len(places) - places.count(None),
    )
    assert report.windows <= len(places) / WINDOW_FRAMES + sum(map(ne, places, places[1:]))
    pictures, faces = map(max, zip(*counts, strict=True))
    assert most < len(places)
    # the one that is written, and that of the source which is shown again
    assert 4 < pictures <= most + 2
    assert 2 < faces <= most


@pytest.mark.parametrize("room", [0], indirect=True)
@pytest.mark.usefixtures("room")
def test_a_clip_whose_frames_barely_fit_in_memory_is_the_same(
    lip_sync: LipSync,
    three_windows: tuple[Path, Path],
    three_windows_synced: UInt8Array,
    tmp_path: Path,
) -> None:
    lip_sync.sync(*three_windows, tmp_path / "out.mkv", LOSSLESS)
    assert np.array_equal(np.stack(decoded(tmp_path / "out.mkv")), three_windows_synced)


def test_json_is_one_object(face_clip: Path, word: Path, tmp_path: Path) -> None:
    words = [
        "sync",
        str(face_clip),
        str(word),
        "-o",
        str(tmp_path / "o.mp4"),
        "--steps",
        "1",
        "--json",
        "--bundle",
    ]
    result = CliRunner().invoke(main, [*words, str(small_bundle())])
    assert (result.exit_code, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert (report["frames"], report["frames_with_face"]) == (5, 5)
    painting_s = report["wall_s"] - report["startup_s"] - report["finish_s"]
    assert round(report["frames_per_s"] * painting_s) == 5
    result = CliRunner().invoke(main, [*words, "no-such-bundle", "--overwrite"])
    assert result.exit_code == 2
    assert "no-such-bundle" in json.loads(result.stdout)["error"]
