"""Measures on filmed people how faces are found and told apart: recall by size, wrong numbers, CPU time.

    python -m scripts.measure_faces CLIP.mp4 CLIP.mp4 ... [--json FILE]

Each clip shows one person. `recall`: their faces, scaled to a height, at random places of busy pictures; a face is
found if its box overlaps the true one by half. `identity`: pairs of them in one picture who cross, leave and return, or
are shown in other shots, each pair as filmed and changed (mirrored, smaller, in other light); `confused` counts faces
with the other person's number, `split` those with a third one. `cpu_ms_per_frame`: of the tracker.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import combinations, islice
from pathlib import Path

import cv2
import numpy as np
import skimage.data

from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.geometry import iou, usable
from latentsync_trt.face.identity import luma_of
from latentsync_trt.face.tracker import FaceTracker, LookAhead
from latentsync_trt.media.reader import read_frames
from latentsync_trt.types import UInt8Array

_SIDE_PX = 400
"""Of the square that is cut around a head; the face is half as high."""
_FRAMES = 75
_BUSY = ("coffee", "rocket", "chelsea", "immunohistochemistry")
_HEIGHTS_PX = (200, 120, 80, 56, 48, 40, 32)
_NEAR_PX = 40

Heads = list[UInt8Array]
Place = tuple[float, bool] | None
"""Middle of a head in pixels from the left, and whether it is changed; None = not there."""


def heads(path: Path, detector: MediaPipeDetector, first: int = 0) -> Heads:
    """Squares around the face of a clip, uint8 `(400, 400, 3)`."""
    frames = [np.asarray(frame.picture) for frame in islice(read_frames(path), first, first + _FRAMES)]
    left, top, right, bottom = detector.detect(frames[0])[0].box.tolist()
    scale = _SIDE_PX / 2 / (bottom - top)
    middle = (left + right) / 2 * scale, (top + bottom) / 2 * scale
    place = np.array([[scale, 0, _SIDE_PX / 2 - middle[0]], [0, scale, _SIDE_PX / 2 - middle[1]]])
    return [np.asarray(cv2.warpAffine(f, place, (_SIDE_PX, _SIDE_PX), flags=cv2.INTER_AREA), np.uint8) for f in frames]


@dataclass(frozen=True)
class Scene:
    """Where two people are in each frame."""

    name: str
    first: list[Place]
    second: list[Place]

    def frames(self, one: Heads, other: Heads) -> Iterator[UInt8Array]:
        """Frames uint8 `(480, 1100, 3)`; the second person is in front."""
        y, x = np.mgrid[0:_SIDE_PX, 0:_SIDE_PX] - _SIDE_PX / 2
        inside = np.hypot(x / 110, y / 150) < 1
        for index, places in enumerate(zip(self.first, self.second, strict=True)):
            picture = np.full((480, 1900, 3), 100, np.uint8)
            picture[::40] = picture[:, ::90] = 190
            for head, place in zip((one[index], other[index]), places, strict=True):
                if place is not None:
                    shown, mask = (changed(head), changed(inside)) if place[1] else (head, inside)
                    left, top = round(place[0]) + 400 - len(shown) // 2, 240 - len(shown) // 2
                    picture[top : top + len(shown), left : left + len(shown)][mask] = shown[mask]
            yield picture[:, 400:1500]


def changed(image: np.ndarray) -> np.ndarray:
    """Mirrored, 0.7 times as large; a head darker and warmer, too."""
    size = (round(0.7 * _SIDE_PX), round(0.7 * _SIDE_PX))
    if image.dtype == np.bool_:
        return cv2.resize(image[:, ::-1].astype(np.uint8), size, interpolation=cv2.INTER_NEAREST) > 0
    small = cv2.resize(image[:, ::-1], size, interpolation=cv2.INTER_AREA)
    return np.asarray(255 * (small / np.float32(255)) ** (1.2, 1.35, 1.5), np.uint8)


def scenes() -> Iterator[Scene]:
    """Crossing, leaving and returning, and three shots; the first two also with changed people."""
    for name, is_changed in (("as filmed", False), ("changed", True)):
        right: list[Place] = [(200 + 700 * index / (_FRAMES - 1), is_changed) for index in range(_FRAMES)]
        yield Scene(f"crossing, {name}", right, right[::-1])
        away: list[Place] = [(800 + 20 * index, is_changed) if index < 20 else None for index in range(_FRAMES)]
        stays: list[Place] = [(300, is_changed)] * _FRAMES
        returns = [away[-1 - index] if index > _FRAMES // 2 else place for index, place in enumerate(away)]
        yield Scene(f"leaving, {name}", stays, returns)
    third = _FRAMES // 3
    alone: list[Place] = [(500, True)] * third
    yield Scene(
        "three shots, the middle one changed",
        [*[(300, False)] * third, *alone, *[(700, False)] * third],
        [*[(800, False)] * third, *[None] * third, *[(250, False)] * third],
    )


@dataclass(frozen=True)
class Told:
    """How two people were told apart in a scene; `missing`: times a visible person was not found."""

    scene: str
    faces: int
    confused: int
    split: int
    missing: int


def told_apart(scene: Scene, one: Heads, other: Heads, detector: MediaPipeDetector) -> Told:
    """Tracks the scene; faces of people who are less than a face apart do not count."""
    tracker = FaceTracker(detector)
    ahead: LookAhead[int] = LookAhead(tracker)
    seen = []
    for index, picture in enumerate(scene.frames(one, other)):
        found = tracker.update(picture, luma_of(picture))
        seen += ahead.push(index, tracker.now_s, picture, found)
    numbers: tuple[Counter[int], Counter[int]] = Counter(), Counter()
    missing = 0
    for index, shown in [*seen, *ahead.finish()]:
        places = scene.first[index], scene.second[index]
        apart = None in places or abs(places[0][0] - places[1][0]) > 200  # type: ignore[index]
        for person, place in enumerate(places):
            if place is None or not apart or not 100 < place[0] < 1000:
                continue
            near = [s for s in shown.faces if abs(float(s.face.box[0] + s.face.box[2]) / 2 - place[0]) < _NEAR_PX]
            numbers[person].update(sighting.person for sighting in near)
            missing += not near
    first, second = (max(count, key=lambda number: count[number], default=-1) for count in numbers)
    both = numbers[0] + numbers[1]
    confused = numbers[0][second] + numbers[1][first] if first != second else both[first]
    return Told(scene.name, both.total(), confused, both.total() - sum(both[n] for n in {first, second}), missing)


def recall(
    people: list[Heads], detector: MediaPipeDetector, size: tuple[int, int], height_px: int, *, small: bool
) -> float:
    """Share of faces of this height that are found in pictures of this size."""
    random, hits = np.random.default_rng(1), []
    for head in (person[0] for person in people):
        for name in _BUSY:
            side = 2 * height_px
            busy = cv2.resize(np.asarray(getattr(skimage.data, name)()), size, interpolation=cv2.INTER_CUBIC)
            frame = np.asarray(busy, np.uint8)
            left, top = (int(random.integers(0, length - side)) for length in size)
            frame[top : top + side, left : left + side] = cv2.resize(head, (side, side), interpolation=cv2.INTER_AREA)
            (face,) = detector.detect(head)[:1]
            true = (face.box * (side / _SIDE_PX) + (left, top, left, top)).astype(np.float32)
            found = [one.box for one in detector.search(frame, frame, (), small=small) if usable(one) or height_px < 40]
            hits.append(any(iou(true, box) > 0.5 for box in found))
    return round(float(np.mean(hits)), 2)


def cpu_ms_per_frame(path: Path, detector: MediaPipeDetector) -> float:
    """Of following the faces of a clip, the median of all frames after the first second."""
    tracker, times_s = FaceTracker(detector), []
    for frame in islice(read_frames(path), 150):
        start_s = time.thread_time()
        tracker.update(frame.picture, None if frame.planes is None else frame.planes.y, None, frame.time_s)
        times_s.append(time.thread_time() - start_s)
    return round(1000 * float(np.median(times_s[25:])), 1)


def main() -> None:
    """Prints or saves all measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", type=Path, nargs="+")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with MediaPipeDetector() as detector:
        people = [heads(path, detector, _FRAMES) for path in given.clips]
        sizes = (1920, 1080), (3840, 2160)
        rows = {
            "what": " ".join(["python -m scripts.measure_faces", *(path.name for path in given.clips)]),
            "measured_at": time.strftime("%Y-%m-%d"),
            "recall": [
                {
                    "frame": f"{size[0]}x{size[1]}",
                    "height_px": _HEIGHTS_PX,
                    "whole_frame": [recall(people, detector, size, height, small=False) for height in _HEIGHTS_PX],
                    "with_tiles": [recall(people, detector, size, height, small=True) for height in _HEIGHTS_PX],
                }
                for size in sizes
            ],
            "identity": [
                {"pair": [given.clips[one].name, given.clips[other].name], **asdict(told)}
                for one, other in combinations(range(len(people)), 2)
                for told in (told_apart(scene, people[one], people[other], detector) for scene in scenes())
            ],
            "cpu_ms_per_frame": {path.name: cpu_ms_per_frame(path, detector) for path in given.clips},
        }
    lines = (f"{json.dumps(key)}: {json.dumps(value)}".replace("}, {", "},\n {") for key, value in rows.items())
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    if given.json is None:
        print(text)
    else:
        given.json.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
