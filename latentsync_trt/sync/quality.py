"""Measures of the painted faces while a clip runs: lips against speech, seams, flicker, and pictures of moments."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from math import isnan, sqrt
from statistics import fmean

import cv2
import numpy as np
from numpy.typing import NDArray

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.face.align import rescaled, shifted
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.face.paste import Pasted
from latentsync_trt.measure.lips import QUIET_DB, Curves, Loudness, agreement, closed_rate, gap_of
from latentsync_trt.measure.pictures import FlickerMeter, mouth_part
from latentsync_trt.measures import LipMeasure, Measures
from latentsync_trt.sync.jobs import Target
from latentsync_trt.types import (
    Float32Array,
    Float64Array,
    Frame,
    Patch,
    UInt8Array,
    UInt16Array,
)

_HEIGHT_PX = 240
_AROUND = 0.15
"""How much of the face's size is shown around it on each side: seams lie at its edge."""
_JPEG_QUALITY = 92

_SIDE_PX = 128
"""Side of the aligned faces in which flicker is measured."""

_PASTED = 0.9
_LEAST_NOISE = 6 * 0.5**2
"""The squared second difference of rounding to levels and more: what a picture without any noise is compared with."""

_LEAST_SPOKEN = MODEL_FPS
"""With less than a second of speech, lips that do not follow it agree with it by chance."""

_LEAST_AGREEMENT = 0.35
"""Lips of another speech agree less at any delay: in the built-in clip against itself, shifted, up to 0.3."""

_SILENT_DB = -100.0


@dataclass(frozen=True, slots=True)
class Moment:
    """A face at `time_s` of the output: `before` and `after` as JPEG files; `shows`: why it was chosen."""

    time_s: float
    shows: str
    before: bytes
    after: bytes


class Quality:
    """Adds up what painted faces look like; memory grows by 36 bytes a face.

    Args:
        starts_s: when the recording of each speaker begins in the output.
        pictures: whether to keep small pictures of the moments that matter, for a page.
    """

    def __init__(self, starts_s: Sequence[Fraction], *, pictures: bool = False) -> None:
        self.starts_s = tuple(starts_s)
        self._lips = [_Lips(start_s) for start_s in starts_s]
        self._flicker: dict[int, _Flicker] = {}
        self._seams, self._own, self._new = array("d"), array("d"), array("d")
        self._pictures = pictures
        self._best: dict[str, float] = {}
        self._moments: dict[str, Moment] = {}
        self._last: tuple[Frame, Target, Patch] | None = None
        self._from_s: Fraction | None = None

    def listen(self, speaker: int, blocks: Iterable[Float32Array]) -> Iterator[Float32Array]:
        """The same blocks of the speaker's recording, mono at 16 kHz, measured on their way to `SpeechStream`."""
        return self._lips[speaker].loudness.passing(blocks)

    def add(self, frame: Frame, target: Target, pasted: Pasted, seam: float) -> None:
        """A face that was pasted into `frame`, with its `seam_score`; frames in order, each face of a frame once."""
        gap = float("nan") if pasted.painted_mesh is None else gap_of(pasted.painted_mesh)
        self._lips[target.speaker].add(frame.time_s, gap)
        self._seams.append(seam)
        self._flicker = {track: each for track, each in self._flicker.items() if each.index >= frame.index - 1}
        change = self._flicker.setdefault(target.track_id, _Flicker()).add(frame, target, pasted.patch)
        if change is not None:
            self._own.append(change[0])
            self._new.append(change[1])
        if self._pictures:
            self._last = frame, target, pasted.patch
            flicker = 0.0 if change is None else change[1] - change[0]
            values = {
                "first": 0.0,
                "widest open": gap,
                "shut": -gap,
                "most visible seam": seam,
                "most flicker": flicker,
            }
            for shows, value in values.items():
                if not isnan(value) and value > self._best.get(shows, -np.inf):
                    self._best[shows] = value
                    self._moments[shows] = _moment(*self._last, shows)

    def restart(self, time_s: Fraction) -> None:
        """Begins a new part: the frames before have no influence on what follows."""
        self._from_s = time_s if self._from_s is None else self._from_s
        self._flicker.clear()

    def result(self) -> Measures:
        """The measures of all faces so far."""
        flicker = None
        if self._own:
            flicker = sqrt((fmean(self._new) + _LEAST_NOISE) / (fmean(self._own) + _LEAST_NOISE))
        lips = [_measured(speaker, curves) for speaker, curves in enumerate(self.curves()) if curves is not None]
        return Measures(tuple(lips), fmean(self._seams) if self._seams else None, flicker, float(self._from_s or 0))

    def curves(self) -> list[Curves | None]:
        """Lips and loudness of each speaker over the recording; None where no lips were measured."""
        return [lips.curves() for lips in self._lips]

    def moments(self) -> list[Moment]:
        """The extreme moments, first and last face, by time; what is shown twice is named once."""
        found = [*self._moments.values(), *([] if self._last is None else [_moment(*self._last, "last")])]
        named: dict[tuple[float, bytes], Moment] = {}
        for moment in found:
            key = moment.time_s, moment.before
            named[key] = replace(moment, shows=f"{named[key].shows}, {moment.shows}") if key in named else moment
        return sorted(named.values(), key=lambda moment: moment.time_s)


class _Lips:
    """The lips of one speaker over the time of the recording."""

    def __init__(self, start_s: Fraction) -> None:
        self._start_s = start_s
        self.loudness = Loudness()
        self._at, self._gaps = array("q"), array("f")

    def add(self, time_s: Fraction, gap: float) -> None:
        at = round((time_s - self._start_s) * MODEL_FPS)
        if at >= 0 and not isnan(gap):
            self._at.append(at)
            self._gaps.append(gap)

    def curves(self) -> Curves | None:
        """At the model's rate: the mean of the frames around each time, silence after the recording."""
        if not self._at:
            return None
        at, gaps = np.array(self._at), np.array(self._gaps, np.float64)
        level_db = self.loudness.level_db()
        count = max(len(level_db), int(at.max()) + 1)
        frames = np.bincount(at, minlength=count)
        means: Float64Array = np.full(count, np.nan)
        np.divide(np.bincount(at, gaps, count), frames, out=means, where=frames > 0)
        heard = np.pad(level_db, (0, count - len(level_db)), constant_values=_SILENT_DB)
        return Curves(means.astype(np.float32), heard)


class _Flicker:
    """Flicker beside the mouth of one track, of the source and of the new picture."""

    def __init__(self) -> None:
        self.index = -1
        self._meters = FlickerMeter(), FlickerMeter()

    def add(self, frame: Frame, target: Target, patch: Patch) -> tuple[float, float] | None:
        """See `FlickerMeter.add`: of both."""
        pictures = _aligned(frame, target, patch)
        if frame.index != self.index + 1:
            self._meters = FlickerMeter(), FlickerMeter()
        self.index = frame.index
        own, new = (meter.add(picture) for meter, picture in zip(self._meters, pictures, strict=True))
        return None if own is None or new is None else (own, new)


@cache
def _beside_mouth() -> NDArray[np.intp]:
    """Places in flat pictures in the network's pose where faces are painted, but no lips move."""
    painted = mouth_mask(_SIDE_PX) == 0
    painted[mouth_part(_SIDE_PX)] = False
    return np.flatnonzero(painted)


def _aligned(frame: Frame, target: Target, patch: Patch) -> Float32Array:
    """Beside the mouth in the network's pose: brightness of the source and of the new picture, `(2,
    n)`, NaN where nothing was pasted."""
    height, width = patch.weight.shape
    if not (height and width and target.face is not None):
        return np.full((2, _beside_mouth().size), np.nan, np.float32)
    own = frame.picture[patch.y_px : patch.y_px + height, patch.x_px : patch.x_px + width]
    matrix = shifted(rescaled(target.face, (_SIDE_PX, _SIDE_PX)), patch.x_px, patch.y_px)
    planes = cv2.merge([_luma(own), _luma(patch.rgb) / np.float32(257), patch.weight])
    values = _warped(np.asarray(planes, np.float32), matrix).reshape(-1, 3)[_beside_mouth()]
    source, painted, weight = values.T.copy()
    source[weight < _PASTED] = np.nan
    return np.stack([source, source + weight * (painted - source)])


def _luma(rgb: UInt8Array | UInt16Array) -> Float32Array:
    return np.asarray(cv2.cvtColor(rgb.astype(np.float32), cv2.COLOR_RGB2GRAY), np.float32)


def _warped(image: Float32Array, matrix: Float64Array) -> Float32Array:
    """`image (h, w, c)` in the network's pose; averaged before where warping would skip pixels."""
    shrink = max(1, int(1 / np.linalg.norm(matrix[:, 0])))
    height, width = (max(1, side // shrink) for side in image.shape[:2])
    small = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    scale = np.array([image.shape[1] / width, image.shape[0] / height])
    scaled = np.column_stack([matrix[:, :2] * scale, matrix[:, 2] + matrix[:, :2] @ ((scale - 1) / 2)])
    return np.asarray(cv2.warpAffine(small, scaled, (_SIDE_PX, _SIDE_PX)), np.float32)


def _measured(speaker: int, curves: Curves) -> LipMeasure:
    known = ~np.isnan(curves.gaps)
    follow = late_ms = None
    if (known & (curves.level_db > QUIET_DB)).sum() >= _LEAST_SPOKEN:
        found = agreement(curves.gaps, curves.target)
        follow = found.correlation
        late_ms = found.lag_frames * 1000 // MODEL_FPS if found.best >= _LEAST_AGREEMENT else None
    shut = closed_rate(curves.gaps, curves.silent)
    return LipMeasure(speaker, int(known.sum()), follow, late_ms, None if isnan(shut) else shut)


def _moment(frame: Frame, target: Target, patch: Patch, shows: str) -> Moment:
    left, top, right, bottom = _part(frame, target)
    high, wide = patch.weight.shape
    x, y = min(left, patch.x_px), min(top, patch.y_px)
    before = frame.picture[y : max(bottom, patch.y_px + high), x : max(right, patch.x_px + wide)]
    after = np.array(before)
    place = after[patch.y_px - y :, patch.x_px - x :][:high, :wide]
    place[...] = np.rint(place + patch.weight[..., None] * (patch.rgb / np.float32(257) - place))
    shown = slice(top - y, bottom - y), slice(left - x, right - x)
    return Moment(float(frame.time_s), shows, _jpeg(before[shown]), _jpeg(after[shown]))


def _part(frame: Frame, target: Target) -> tuple[int, int, int, int]:
    """Left, top, right, bottom of the face with some of what is around it, inside the frame."""
    box = target.tracked.box.astype(np.float64)
    margin = _AROUND * max(box[2] - box[0], box[3] - box[1])
    height, width = frame.picture.shape[:2]
    left, top = np.clip(box[:2] - margin, 0, (width - 1, height - 1)).astype(int).tolist()
    right, bottom = np.clip(box[2:] + margin, (left + 1, top + 1), (width, height)).astype(int).tolist()
    return left, top, right, bottom


def _jpeg(rgb: UInt8Array) -> bytes:
    width = max(1, round(rgb.shape[1] * _HEIGHT_PX / rgb.shape[0]))
    small = cv2.resize(rgb, (width, _HEIGHT_PX), interpolation=cv2.INTER_AREA)
    encoded = cv2.imencode(".jpg", cv2.cvtColor(small, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
    return bytes(encoded[1])
