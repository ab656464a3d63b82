"""Two people who look into the camera at the same place: the built-in portrait, and one made from
it.
"""

from fractions import Fraction
from functools import cache
from itertools import islice
from pathlib import Path

import cv2
import numpy as np

from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.media.reader import read_frames
from latentsync_trt.types import Float32Array, UInt8Array
from tests.clips import CLOSE, camera_frames

_FACE = (CLOSE.side_px / 2, CLOSE.side_px * CLOSE.face_height)
_WIDER = 1.2
_CHIN = 0.35


def first_person(count: int) -> list[UInt8Array]:
    """Frames `(480, 480, 3)` of the portrait, filmed by a moving camera."""
    return [
        frame for frame, _ in zip(camera_frames(Fraction(count, 25)), range(count), strict=False)
    ]


def second_person(count: int) -> list[UInt8Array]:
    """Frames of a wider, longer face with a beard and no hair, lit from the right, before another
    wall.
    """
    return [_another(frame) for frame in first_person(count)]


def _another(frame: UInt8Array) -> UInt8Array:
    map_x, map_y, gain, added = _change()
    return np.clip(cv2.remap(frame, map_x, map_y, cv2.INTER_LINEAR) * gain + added, 0, 255).astype(
        np.uint8
    )


@cache
def _change() -> tuple[Float32Array, ...]:
    """Where the second person's pixels are in the first one's picture, their gain, and what is
    added.
    """
    y, x = np.mgrid[0 : CLOSE.side_px, 0 : CLOSE.side_px].astype(np.float32)
    across = x - _FACE[0]
    down = y - _FACE[1]
    lower = np.clip(down / CLOSE.side_px, 0, 1)
    # Mirrored; wider towards the jaw, and stretched below the nose.
    map_x = _FACE[0] - across / (_WIDER + lower)
    map_y = _FACE[1] + down * (1 - _CHIN * lower)
    beard = (np.clip((down - 22) / 15, 0, 1) * (np.hypot(across / 36, (down - 42) / 18) > 1))[
        ..., None
    ]
    bald = np.clip((-down - 58) / 10, 0, 1)[..., None]
    light = (0.2 + 1.5 * x / CLOSE.side_px)[..., None]
    wall = 60 + 90 * (np.sin(x / 45) * np.sin(y / 30) > 0)[..., None] * np.array([1.0, 0.8, 0.5])
    near = np.clip(6 * (1.15 - np.hypot(across / 110, (down + 10) / 165)), 0, 1)[..., None]
    gain = near * light * (1 - bald) * (1 - 0.75 * beard)
    added = near * light * bald * (215, 180, 160) + (1 - near) * wall
    return tuple(array.astype(np.float32) for array in (map_x, map_y, gain, added))


ROOM_PX = (1100, 480)
"""Width and height of the frames of `together`."""
_CUT_PX = 400


def together(
    first_x: list[float | None],
    second_x: list[float | None],
    *,
    light: int = 90,
    people: tuple[list[UInt8Array], list[UInt8Array]] | None = None,
) -> list[UInt8Array]:
    """Frames `(480, 1100, 3)` of both in one room, the second in front; middles of their faces,
    None = not there.
    """
    count = len(first_x)
    heads = people or (first_person(count), second_person(count))
    y, x = np.mgrid[0:_CUT_PX, 0:_CUT_PX]
    inside = np.hypot((x - 200) / 87, (y - 172) / 125) < 1
    frames = []
    for index, (one, other) in enumerate(zip(*heads, strict=True)):
        picture = np.full((ROOM_PX[1], ROOM_PX[0], 3), light, np.uint8)
        picture[::48] = picture[:, ::110] = 2 * light
        for person, middle in ((one, first_x[index]), (other, second_x[index])):
            if middle is not None:
                _put(picture, cv2.resize(person, (_CUT_PX, _CUT_PX)), inside, round(middle) - 200)
        frames.append(picture)
    return frames


def filmed(path: Path, count: int, detector: MediaPipeDetector) -> list[UInt8Array]:
    """Frames of a clip as `together` takes them: `(400, 400, 3)`, with the face where the
    portrait's is.
    """
    frames = [frame.rgb for frame in islice(read_frames(path), count)]
    left, top, right, bottom = detector.detect(frames[0])[0].box.tolist()
    scale = _CUT_PX / 2 / (bottom - top)
    place = np.array(
        [[scale, 0, 200 - (left + right) / 2 * scale], [0, scale, 172 - (top + bottom) / 2 * scale]]
    )
    return [
        np.asarray(cv2.warpAffine(frame, place, (_CUT_PX, _CUT_PX)), np.uint8) for frame in frames
    ]


def _put(picture: UInt8Array, person: UInt8Array, inside: np.ndarray, left: int) -> None:
    shown = slice(max(0, -left), max(0, min(_CUT_PX, ROOM_PX[0] - left)))
    place = picture[
        40 : 40 + _CUT_PX, max(0, left) : max(0, left) + max(0, shown.stop - shown.start)
    ]
    place[inside[:, shown]] = person[:, shown][inside[:, shown]]
