"""Previews of videos that browsers cannot play, made while the page is used."""

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from latentsync_trt.errors import LatentSyncError
from latentsync_trt.media.preview import plays, write_preview
from latentsync_trt.serve.admission import Limits
from latentsync_trt.serve.checks import check_media

_log = logging.getLogger(__name__)

_SUFFIX = ".preview.mp4"
_MOST_KNOWN = 200


class Previews:
    """Makes copies beside the files, one at a time, in a thread. Thread-safe."""

    def __init__(self, limits: Limits) -> None:
        """`limits`: videos beyond them are not copied."""
        self._limits, self._pool = limits, ThreadPoolExecutor(1, "preview")
        self._lock, self._closed = threading.Lock(), threading.Event()
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
        self._closed.set()
        self._pool.shutdown(cancel_futures=True)

    def _begun(self, video: Path) -> "Future[Path]":
        try:
            if not plays(video):
                return self._pool.submit(self._make, video)
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
            check_media("video", video, self._limits)
            write_preview(video, copy, self._closed)
        except LatentSyncError:
            return video
        except Exception:  # noqa: BLE001 -- whatever is wrong with a file must not break the page
            _log.exception("%s: has no preview", video.name)
            return video
        return copy


def original(shown: Path) -> Path:
    """Returns the video of which a file is the copy, or the file itself."""
    video = shown.with_name(shown.name.removesuffix(_SUFFIX))
    return video if video.is_file() else shown
