"""Small pictures, before and after, of the moments of a clip that matter."""

from dataclasses import dataclass, replace
from math import isnan

import cv2
import numpy as np

from latentsync_trt.sync.jobs import Target
from latentsync_trt.types import Frame, Patch, UInt8Array

_HEIGHT_PX = 240
_AROUND = 0.15
"""How much of the face's size is shown around it on each side: seams lie at its edge."""
_JPEG_QUALITY = 92


@dataclass(frozen=True, slots=True)
class Moment:
    """A face at `time_s` of the output: `before` and `after` as JPEG files; `shows`: why it was chosen."""

    time_s: float
    shows: str
    before: bytes
    after: bytes


class Filmstrip:
    """Keeps the extreme moments of a clip, and its first and last face."""

    def __init__(self) -> None:
        self._best: dict[str, float] = {}
        self._moments: dict[str, Moment] = {}
        self._last: tuple[Frame, Target, Patch] | None = None

    def add(self, frame: Frame, target: Target, patch: Patch, *, gap: float, seam: float, flicker: float) -> None:
        """A painted face; the larger a value, the more it matters, NaN where it was not measured."""
        self._last = frame, target, patch
        values = {"first": 0.0, "widest open": gap, "shut": -gap, "most visible seam": seam, "most flicker": flicker}
        for shows, value in values.items():
            if not isnan(value) and value > self._best.get(shows, -np.inf):
                self._best[shows] = value
                self._moments[shows] = _moment(frame, target, patch, shows)

    def moments(self) -> list[Moment]:
        """All, by time; what is shown twice is named once."""
        found = list(self._moments.values())
        if self._last is not None:
            found.append(_moment(*self._last, "last"))
        named: dict[tuple[float, bytes], Moment] = {}
        for moment in found:
            key = moment.time_s, moment.before
            named[key] = replace(moment, shows=f"{named[key].shows}, {moment.shows}") if key in named else moment
        return sorted(named.values(), key=lambda moment: moment.time_s)


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
