"""How long a session takes to paint, measured before it opens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from latentsync_trt.bundle.manifest import PIXELS_PER_LATENT
from latentsync_trt.live.frame import FRAME_S
from latentsync_trt.live.idle import IdleLoop
from latentsync_trt.live.painted_ahead import WindowCanceled
from latentsync_trt.live.painter import SessionPainter
from latentsync_trt.live.planner import PlannedFrame
from latentsync_trt.live.speech_queue import silent_frame
from latentsync_trt.media.pictures import picture_info
from latentsync_trt.types import ColorTags, YuvPlanes

LEAST_MEASURE_S = 2.0
"""Windows are measured for so long at most, or for five times the time in which their frames are
shown: three windows that are painted in just less than real time need three times that.
"""


@dataclass(frozen=True, slots=True)
class WindowCost:
    """What a window takes of the networks."""

    first_s: float
    """Seconds until its first frames are painted."""
    busy_s: float
    """Seconds until all are."""
    is_limit: bool = False
    """Whether measuring ended before a window was painted, which takes longer."""

    def load(self, hop: int) -> float:
        """Returns the share of the time in which the networks paint, by windows of `hop` frames."""
        return self.busy_s / float(hop * FRAME_S)

    def sentence(self, hop: int) -> str:
        least = "at least " if self.is_limit else ""
        shown_s = float(hop * FRAME_S)
        return f"a window of {hop} frames takes {least}{self.busy_s:.2f} s of {shown_s:.2f} s"


def blank_loop(side_px: int) -> IdleLoop:
    """Returns a picture without a face, whose windows take as long to paint as those of a clip;
    `side_px`: of a face.
    """
    side = side_px // PIXELS_PER_LATENT
    plane = np.zeros((2, 2), np.uint8)
    planes = YuvPlanes(plane, plane, plane, ColorTags())
    conditioning = np.zeros((1, 9, side, side), np.float32)
    return IdleLoop(picture_info(2, 2, rgb=False), (planes,), (), conditioning)


def measure_s(hop: int) -> float:
    """Returns how long windows are measured at most."""
    return max(LEAST_MEASURE_S, float(5 * hop * FRAME_S))


def measure_cost(painter: SessionPainter, hop: int) -> WindowCost:
    """Returns the least of two windows after a first one, as far as they are painted within
    `measure_s`.
    """
    limit_s = measure_s(hop)
    end_s = perf_counter() + limit_s
    costs = list[WindowCost]()

    def check() -> None:
        if perf_counter() > end_s:
            raise WindowCanceled

    silence = silent_frame(np.zeros(0, np.float32))
    planned = [PlannedFrame(position, silence, 1.0, position == 0) for position in range(hop)]
    try:
        for _ in range(3):
            costs.append(_cost_of_window(painter, planned, check))
    except WindowCanceled:
        if not costs:
            return WindowCost(limit_s, limit_s, is_limit=True)
    steady = costs[1:] or costs
    first_s = min(each.first_s for each in steady)
    busy_s = min(each.busy_s for each in steady)
    return WindowCost(first_s, busy_s)


def _cost_of_window(
    painter: SessionPainter, planned: Sequence[PlannedFrame], check: Callable[[], None]
) -> WindowCost:
    begun_s = perf_counter()
    faces = painter.decoded(painter.latents(planned, planned[0].spoken.sound, check))
    next(faces)
    first_s = perf_counter()
    for _ in faces:
        check()
    return WindowCost(first_s - begun_s, perf_counter() - begun_s)


def composing_s(painter: SessionPainter) -> float:
    """Returns how long it takes to show a face in its frame: the clip's own, in place of a painted
    one.
    """
    painted = painter.loop.faces[0].face.image.astype(np.uint16) * 257
    begun_s = perf_counter()
    painter.picture(0, painter.patch(0, painted, begins=True), 1.0)
    return perf_counter() - begun_s
