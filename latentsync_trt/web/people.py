"""Finds the people of an uploaded video, one video at a time."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.track_file import Tracks
from latentsync_trt.serve.admission import check_media
from latentsync_trt.serve.limits import Limits, check_size
from latentsync_trt.sync.analysis import analyse, summaries
from latentsync_trt.types import Progress, UInt8Array

_TELL_S = 0.3


@dataclass(frozen=True, slots=True, eq=False)
class People:
    """Who is seen in a video: `portraits`, uint8 `(160, 160, 3)` RGB, each with the seconds seen, by number."""

    video: str
    tracks: Tracks
    portraits: list[tuple[UInt8Array, float]]


class _Stopped(Exception):
    """Another video was chosen."""


class Searches:
    """Searches videos for faces; each browser has one search at most, which its next one ends."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="faces")
        self._stops: dict[str, threading.Event] = {}

    def stop(self, browser: str) -> None:
        """Ends the search of a browser, if there is one."""
        if (stop := self._stops.pop(browser, None)) is not None:
            stop.set()

    def close(self) -> None:
        """Ends all searches."""
        for browser in list(self._stops):
            self.stop(browser)
        self._pool.shutdown(cancel_futures=True)

    def find(self, browser: str, video: str) -> Iterator[Progress | People]:
        """Progress of the search from time to time, at its end what was found; nothing if it was stopped.

        Raises:
            MediaError: the video cannot be read. InputError: it is too large or too long. NoFaceError: it shows none.
        """
        self.stop(browser)
        stop = self._stops[browser] = threading.Event()
        newest = Progress("waiting", 0, None)

        def note(progress: Progress) -> None:
            nonlocal newest
            newest = progress
            if stop.is_set():
                raise _Stopped

        def search() -> People:
            note(Progress("finding faces", 0, None))
            check_size(Path(video).stat().st_size, self._limits)
            check_media("video", Path(video), self._limits)
            with MediaPipeDetector() as detector:
                tracks, portraits = analyse(Path(video), detector, note)
            return People(video, tracks, [(portraits[one.number], one.seen_s) for one in summaries(tracks)])

        job = self._pool.submit(search)
        try:
            while not job.done() and not stop.is_set():
                yield newest
                time.sleep(_TELL_S)
            if not stop.is_set():
                yield job.result()
        except _Stopped:
            return
        finally:
            stop.set()
            if self._stops.get(browser) is stop:
                del self._stops[browser]
