"""A cut between two people at the same place starts everything anew; nothing else does."""

from collections.abc import Callable, Iterable
from itertools import groupby, islice
from pathlib import Path

import cv2
import numpy as np
import pytest

from latentsync_trt.face.choice import MainFace, TrackedFace
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.media.reader import read_frames
from latentsync_trt.types import Face, UInt8Array
from tests.people import first_person, second_person

pytestmark = pytest.mark.integration


Frames = list[UInt8Array]


@pytest.fixture(scope="module")
def first() -> Frames:
    return first_person(32)


@pytest.fixture(scope="module")
def second() -> Frames:
    return second_person(32)


def tracked(detector: object, frames: Iterable[UInt8Array]) -> list[TrackedFace]:
    tracker = MainFace(detector)  # type: ignore[arg-type]
    found = [tracker.update(frame) for frame in frames]
    assert all(face is not None for face in found), [face is None for face in found]
    return [face for face in found if face is not None]


def runs(faces: Iterable[TrackedFace]) -> list[int]:
    """How many frames each track has."""
    return [len(list(run)) for _, run in groupby(face.track_id for face in faces)]


def panned(frame: UInt8Array, index: int) -> UInt8Array:
    """Seen by a camera that moves 40 px to both sides, in eight frames."""
    left = 20 * abs(index % 8 - 4)
    return np.ascontiguousarray(
        np.pad(frame, ((0, 0), (40, 40), (0, 0)), "reflect")[:, left : left + frame.shape[1]]
    )


def darkened(frame: UInt8Array) -> UInt8Array:
    noise = np.random.default_rng(int(frame.sum()) % 97).normal(0, 1.5, frame.shape)
    return np.clip(0.12 * frame + noise, 0, 255).astype(np.uint8)


def beside_slides(frames: Frames) -> Frames:
    """Each with a picture twice as wide beside it, which changes every three frames."""
    height, width = frames[0].shape[:2]
    grids = [
        np.random.default_rng(index // 3).integers(0, 256, (6, 8, 3), np.uint8)
        for index in range(len(frames))
    ]
    slides = [
        cv2.resize(grid, (2 * width, height), interpolation=cv2.INTER_NEAREST) for grid in grids
    ]
    return [np.concatenate(pair, axis=1) for pair in zip(frames, slides, strict=True)]


@pytest.mark.parametrize("process", [np.asarray, darkened], ids=["plain", "dark"])
def test_every_cut_starts_a_new_track(
    detector: MediaPipeDetector,
    first: Frames,
    second: Frames,
    process: Callable[[UInt8Array], UInt8Array],
) -> None:
    frames = [process(frame) for frame in first[:5] + second[5:11] + first[11:15]]
    assert runs(tracked(detector, frames)) == [5, 6, 4]


def test_a_dissolve_ends_the_track(
    detector: MediaPipeDetector, first: Frames, second: Frames
) -> None:
    shares = np.clip((np.arange(32) - 12) / 12, 0, 1)
    frames = [
        cv2.addWeighted(a, 1 - s, b, s, 0) for a, b, s in zip(first, second, shares, strict=True)
    ]
    faces = tracked(detector, frames)
    assert len({face.track_id for face in faces[:12]}) == 1
    assert faces[24].track_id != faces[11].track_id
    assert len({face.track_id for face in faces[25:]}) == 1


HARMLESS: dict[str, Callable[[Frames], Frames]] = {
    "pan": lambda f: [panned(frame, i) for i, frame in enumerate(f)],
    "flashes": lambda f: [
        cv2.convertScaleAbs(e, alpha=1.6, beta=40) if i % 6 == 3 else e for i, e in enumerate(f)
    ],
    "beside slides": beside_slides,
}


class Steady:
    """A detector of someone else's: no landmarks, always the same place."""

    def detect(self, frame: UInt8Array) -> list[Face]:
        points = np.array([[200, 150], [280, 150], [240, 220]], np.float32)
        return [Face(np.array([160, 115, 325, 305], np.float32), points)]


@pytest.mark.parametrize("how", HARMLESS)
def test_no_cut_within_a_shot(detector: MediaPipeDetector, first: Frames, how: str) -> None:
    frames = HARMLESS[how](first[:24])
    assert runs(tracked(detector, frames)) == [len(frames)]
    if how != "pan":  # which landmarks tell from cuts
        assert runs(tracked(Steady(), frames)) == [len(frames)]


def test_pictures_alone_tell_a_cut(first: Frames, second: Frames) -> None:
    assert runs(tracked(Steady(), first[:5] + second[5:9])) == [5, 4]


@pytest.fixture(scope="module")
def real(assets: Path, detector: MediaPipeDetector) -> list[Frames]:
    """Every third frame of each real clip, cut and resized so that all faces are at the same place,
    200 px high.
    """
    shots = []
    for path in (assets / f"demo{number}_video.mp4" for number in (1, 2, 3)):
        frames = [np.asarray(frame.picture) for frame in islice(read_frames(path), 0, 54, 3)]
        left, top, right, bottom = detector.detect(frames[0])[0].box.tolist()
        scale = 200 / (bottom - top)
        place = np.array(
            [
                [scale, 0, 320 - scale * (left + right) / 2],
                [0, scale, 180 - scale * (top + bottom) / 2],
            ]
        )
        shots.append(
            [
                cv2.warpAffine(f, place, (640, 360), borderMode=cv2.BORDER_REFLECT_101)
                for f in frames
            ]
        )
    return shots


@pytest.mark.parametrize(("one", "two"), [(0, 1), (0, 2), (1, 2)])
def test_cuts_between_real_people(
    detector: MediaPipeDetector, real: list[Frames], one: int, two: int
) -> None:
    shown = real[one][:6] + real[two][6:12] + real[one][12:]
    assert runs(tracked(detector, shown)) == [6, 6, 6]
    # The same with one background behind both.
    across = np.linspace(0, 1, 640)
    share = np.clip((np.minimum(across - 0.28, 0.72 - across)) / 0.04, 0, 1)[None, :, None]
    room = real[3 - one - two][0] * (1 - share)
    assert runs(
        tracked(detector, [(frame * share + room).astype(np.uint8) for frame in shown])
    ) == [6, 6, 6]


@pytest.mark.parametrize("process", [list, beside_slides], ids=["alone", "beside slides"])
@pytest.mark.parametrize("clip", [0, 1, 2])
def test_no_cut_while_real_people_talk(
    detector: MediaPipeDetector, real: list[Frames], clip: int, process: Callable[[Frames], Frames]
) -> None:
    assert runs(tracked(detector, process(real[clip]))) == [18]
