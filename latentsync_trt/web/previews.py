"""Previews of videos that browsers cannot play, made in child processes while the page is used."""

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from latentsync_trt.errors import LatentSyncError
from latentsync_trt.media.preview import plays, write_preview
from latentsync_trt.serve.admission import Limits
from latentsync_trt.serve.checks import Pool, check_media

_log = logging.getLogger(__name__)

_SUFFIX = ".preview.mp4"
_MOST_KNOWN = 200
_AT_ONCE, _MOST_BYTES, _LEAST_S = 2, 1.5e9, 120.0
"""Copies; the memory and time that each may need, beside as long as the longest video plays."""


class Previews:
    """Makes copies beside the files. Thread-safe."""

    def __init__(self, limits: Limits) -> None:
        """`limits`: videos beyond them are not copied."""
        self._limits, self._threads = limits, ThreadPoolExecutor(_AT_ONCE, "preview")
        self._pool = Pool("preview", _AT_ONCE, _MOST_BYTES, _LEAST_S + limits.max_clip_s)
        self._lock = threading.Lock()
        self._known: dict[Path, Future[Path]] = {}

    def of(self, video: Path) -> "Future[Path]":
        """Returns what browsers can play: the video itself, or a copy. Where none can be made, it is the video."""
        with self._lock:
            if video not in self._known or (self._known[video].done() and not self._known[video].result().exists()):
                self._known[video] = self._begun(video)
                if len(self._known) > _MOST_KNOWN:
                    self._known.pop(next(iter(self._known)))
            return self._known[video]

    def close(self) -> None:
        self._pool.close()
        self._threads.shutdown(cancel_futures=True)

    def _begun(self, video: Path) -> "Future[Path]":
        try:
            if not plays(video):
                return self._threads.submit(self._make, video)
        except LatentSyncError:  # whoever works with the video says what is wrong
            pass
        except Exception:  # noqa: BLE001 -- as below
            _log.exception("%s: has no preview", video.name)
        found = Future[Path]()
        found.set_result(video)
        return found

    def _make(self, video: Path) -> Path:
        copy = video.with_name(f"{video.name}{_SUFFIX}")
        try:
            self._pool.call(check_media, "video", video, self._limits)
            self._pool.call(write_preview, video, copy)
        except LatentSyncError as error:
            _log.warning("%s: has no preview (%s)", video.name, error)
            return video
        return copy


def original(shown: Path) -> Path:
    """Returns the video of which a file is the copy, or the file itself."""
    video = shown.with_name(shown.name.removesuffix(_SUFFIX))
    return video if video.is_file() else shown
