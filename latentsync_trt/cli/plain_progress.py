"""Progress as lines of text, where stderr is not a terminal: a log file, a pipe, a service's journal."""

import time
from collections.abc import Callable

from latentsync_trt.types import Progress

LINE_EVERY_S = 30.0
LEAST_BETWEEN_LINES_S = 5.0
LINES_PER_STAGE = 10


class ProgressLines:
    """Prints a line when a stage begins, and within it after 30 s or a tenth of its steps, at least 5 s apart.

    A line begins with the seconds since this object was made. `clock` returns seconds.
    """

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._began_s = self._said_s = clock()
        self._last: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        """Reports `progress`, if it is time for a line."""
        now_s, last = self._clock(), self._last
        begins = last is None or last.stage != progress.stage
        if last is not None and not begins and not self._is_due(last, progress, now_s - self._said_s):
            return
        steps = f": {progress.done}" if progress.total is None else f": {progress.done} of {progress.total}"
        self._say(f"[{now_s - self._began_s:.0f} s] {progress.stage}{'' if begins else steps}")
        self._last, self._said_s = progress, now_s

    def _is_due(self, last: Progress, progress: Progress, since_s: float) -> bool:
        if since_s >= LINE_EVERY_S:
            return True
        tenth = progress.total is not None and (progress.done - last.done) * LINES_PER_STAGE >= progress.total
        return tenth and since_s >= LEAST_BETWEEN_LINES_S
