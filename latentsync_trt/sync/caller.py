"""What the caller of a run hears of it while it goes on."""

import threading
from dataclasses import replace
from time import perf_counter

from latentsync_trt.types import Progress, ProgressCallback

_ASK_S = 0.5
"""The caller is asked at least this often whether to go on."""


class CallerProgress:
    """Tells the caller of a run its progress; the caller raises to stop it."""

    def __init__(self, on_progress: ProgressCallback | None) -> None:
        self._on_progress = on_progress
        self._newest = Progress("", 0, None)
        self._told_s = perf_counter()
        self._thread = threading.get_ident()

    def __call__(self, progress: Progress) -> None:
        self._newest = progress
        self._told_s = perf_counter()
        if self._on_progress is not None:
            self._on_progress(progress)

    def ask(self) -> None:
        """Repeats the newest progress, a few times a second however often this is called, so that
        the caller can stop a run that makes none. Does nothing in other threads than that of the
        run.
        """
        if threading.get_ident() == self._thread and perf_counter() - self._told_s > _ASK_S:
            self(replace(self._newest, picture=None))
