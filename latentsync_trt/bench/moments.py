"""The moments of a clip that show most, and a picture of them: the source, what the network is given, the result."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from latentsync_trt.bench.canvas import FAINT, Canvas
from latentsync_trt.bench.clip_sync import Curves
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import InputError
from latentsync_trt.face.align import crop
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.follower import FaceFollower
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.types import Float32Array, Float64Array, UInt8Array

COUNT = 6
CELL_PX = 256
_GAP_PX, _LABELS_PX, _FOOT_PX = 8, 112, 64
_ROWS = ("source", "masked", "result")

_NEVER = -np.inf


@dataclass(frozen=True, slots=True)
class Moment:
    """A frame and what it shows."""

    index: int
    shows: str


def choose_moments(curves: Curves, count: int = COUNT) -> list[Moment]:
    """Up to `count` frames with a face, in order, spread over the clip: the mouth wide, shut, between and at rest.

    Where the mouth is known, they are chosen by what it should do; else by what it does.
    """
    wishes = _wishes(curves)
    apart = len(curves) // (2 * count)
    chosen: list[Moment] = []
    for shows in ("widest", "shut", "widest", "shut", "half open", "silence", *["half open"] * count):
        wish = wishes[shows].copy()
        wish[np.isnan(curves.gaps)] = _NEVER
        for moment in chosen:
            wish[max(moment.index - apart, 0) : moment.index + apart + 1] = _NEVER
        if len(chosen) < count and wish.max(initial=_NEVER) > _NEVER:
            chosen.append(Moment(int(wish.argmax()), shows))
    named = {"shut": "m, b or p" if curves.mouth else "narrowest"}
    return sorted((Moment(m.index, named.get(m.shows, m.shows)) for m in chosen), key=lambda m: m.index)


def _wishes(curves: Curves) -> dict[str, Float64Array]:
    """How well each frame `(n,)` shows something; minus infinity where it does not."""
    opening = np.nan_to_num((curves.mouth.opening if curves.mouth else curves.gaps).astype(np.float64))
    depth = _depth(curves.silent)
    if curves.mouth:
        inside = _depth(curves.mouth.shut)
        shut = np.where(inside > 0, inside, _NEVER)
    else:
        shut = np.where(curves.silent, _NEVER, -opening)
    return {
        "widest": opening,
        "shut": shut,
        "half open": -np.abs(opening - opening.max(initial=0.0) / 2),
        "silence": np.where(depth > 0, depth, _NEVER),
    }


def _depth(inside: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]") -> Float64Array:
    """How many frames each frame of a run of True is from the run's nearer end, counted from 1; 0 outside."""
    rising, falling = np.zeros(len(inside)), np.zeros(len(inside))
    for index, flag in enumerate(inside):
        rising[index] = flag * (1 + (rising[index - 1] if index else 0))
    for index in range(len(inside) - 1, -1, -1):
        falling[index] = inside[index] * (1 + (falling[index + 1] if index + 1 < len(inside) else 0))
    return np.minimum(rising, falling)


def draw_moments(
    source: Iterable[UInt8Array], made: Iterable[UInt8Array], moments: Sequence[Moment], resolution_px: int
) -> Canvas:
    """Faces of `source` and `made`, frames `(H, W, 3)` RGB each, at `moments`, cut out where the source's face is.

    Args:
        resolution_px: of the network; the row in the middle shows exactly what it is given.

    Raises:
        InputError: there are no moments, or the source shows no face at one of them.
    """
    if not moments:
        raise InputError("no frame shows a face: there is nothing to draw")
    width, height = _LABELS_PX + len(moments) * (CELL_PX + _GAP_PX), len(_ROWS) * (CELL_PX + _GAP_PX) + _FOOT_PX
    canvas = Canvas(width, height + _GAP_PX)
    for row, name in enumerate(_ROWS):
        canvas.text(_LABELS_PX - 16, _GAP_PX + row * (CELL_PX + _GAP_PX) + CELL_PX / 2, name, 20, bold=True, anchor=1)
    cells = _cells(source, made, moments, resolution_px)
    for column, (moment, images) in enumerate(zip(moments, cells, strict=True)):
        left = _LABELS_PX + column * (CELL_PX + _GAP_PX)
        for row, image in enumerate(images):
            canvas.paste(left, _GAP_PX + row * (CELL_PX + _GAP_PX), image)
        middle = left + CELL_PX / 2
        canvas.text(middle, height - 28, f"{moment.index / MODEL_FPS:.2f} s", 20, bold=True, anchor=0.5)
        canvas.text(middle, height - 4, moment.shows, 18, FAINT, anchor=0.5)
    return canvas


def _cells(
    source: Iterable[UInt8Array], made: Iterable[UInt8Array], moments: Sequence[Moment], resolution_px: int
) -> Iterator[tuple[UInt8Array, UInt8Array, UInt8Array]]:
    """Source, masked and result of each moment; reads no frame after the last one."""
    wanted = {moment.index for moment in moments}
    pairs = zip(aligned(source, (CELL_PX, resolution_px)), made, strict=False)
    for index, ((before, matrices), after) in enumerate(pairs):
        if index in wanted:
            if matrices is None:
                raise InputError(f"the source shows no face in frame {index}")
            given = crop(before, matrices[1], resolution_px).image
            masked = cv2.resize(_masked(given), (CELL_PX, CELL_PX), interpolation=cv2.INTER_CUBIC)
            own, new = (crop(frame, matrices[0], CELL_PX).image for frame in (before, after))
            yield own, np.asarray(masked, np.uint8), new
        if index == moments[-1].index:
            return


def aligned(
    frames: Iterable[UInt8Array], resolutions_px: Sequence[int], detector: MediaPipeDetector | None = None
) -> Iterator[tuple[UInt8Array, tuple[Float64Array, ...] | None]]:
    """Frames with the matrices `(2, 3)` that bring their face to the network's pose, as in a run, at each resolution;
    None where there is no face."""
    follower = FaceFollower(detector or MediaPipeDetector(), *resolutions_px)
    for frame in frames:
        followed = follower.update(frame)
        yield frame, None if followed is None else followed.matrices


def _masked(image: UInt8Array) -> UInt8Array:
    """A face with zeros, which are gray, where the network is to paint."""
    mask: Float32Array = mouth_mask(image.shape[0])[..., None]
    return np.rint((image.astype(np.float32) - 127.5) * mask + 127.5).astype(np.uint8)
