"""H.264 copies of videos that browsers cannot play, such as HEVC, ProRes, AVI, photos and GIFs."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path

from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.media.codecs import choose_encoder
from latentsync_trt.media.files import open_input
from latentsync_trt.media.pictures import PictureMaker, picture_info
from latentsync_trt.media.reader import delays_of, probe, read_frames
from latentsync_trt.media.soundtrack import SoundPiece, SoundPlan
from latentsync_trt.media.writer import VideoWriter
from latentsync_trt.serve.admission import Limits
from latentsync_trt.serve.checks import check_media
from latentsync_trt.types import Frame

_SUFFIX = ".preview.mp4"
_MOST_HEIGHT_PX = 720
_MOST_KNOWN = 200
_ENCODING = SyncOptions(codec="h264", encoder="x264:ultrafast", crf=23)

_CODECS = {"mov": ("h264", "av1", "vp9"), "matroska": ("vp8", "vp9", "av1")}
"""By FFmpeg's name of the container, what all browsers play; they take WebM for Matroska, but not H.264 in it."""
_FORMATS = "yuv420p", "yuvj420p"
_SOUNDS = "aac", "mp3", "opus", "vorbis", "flac"


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
            found = self._known.get(video)
            if found is None or (found.done() and not found.cancelled() and not found.result().exists()):
                found = self._known[video] = self._pool.submit(self._make, video)
                if len(self._known) > _MOST_KNOWN:
                    self._known.pop(next(iter(self._known)))
            return found

    def close(self) -> None:
        """Ends the one that is being made, and makes no other."""
        self._closed.set()
        self._pool.shutdown(cancel_futures=True)

    def _make(self, video: Path) -> Path:
        copy = video.with_name(f"{video.name}{_SUFFIX}")
        try:
            if not plays(video):
                check_media("video", video, self._limits)
                _write(video, copy, self._closed)
                return copy
        except LatentSyncError:  # whoever works with the video says what is wrong
            pass
        return video


def original(shown: Path) -> Path:
    """Returns the video of which a file is the copy, or the file itself."""
    video = shown.with_name(shown.name.removesuffix(_SUFFIX))
    return video if video.is_file() else shown


def plays(video: Path) -> bool:
    """Returns whether all browsers can play a file; raises `MediaError`."""
    with open_input(video) as container:
        codecs = next((codecs for name, codecs in _CODECS.items() if name in container.format.name.split(",")), ())
        pictures, sounds = container.streams.video, container.streams.audio
        return (
            bool(pictures)
            and pictures[0].codec_context.name.removeprefix("lib").split("-")[0].replace("dav1d", "av1") in codecs
            and pictures[0].codec_context.pix_fmt in _FORMATS
            and all(each.codec_context.name in _SOUNDS for each in sounds)
        )


def _write(video: Path, target: Path, closed: threading.Event) -> None:
    """Writes a small copy with the same times; raises `LatentSyncError`, also when `closed` is set."""
    info = probe(video)
    maker, frames = PictureMaker(info, choose_encoder(SyncOptions(), info)), read_frames(video)

    def small() -> Iterator[Frame]:
        for frame in frames:
            if closed.is_set():
                raise LatentSyncError(f"{video}: its preview was broken off")
            yield replace(frame, picture=maker.small_rgb(frame, most_px=_MOST_HEIGHT_PX), planes=None)

    pictures = small()
    first = next(pictures)
    height_px, width_px, _ = first.picture.shape
    made = picture_info(width_px, height_px, rgb=False)
    made = replace(made, frames_per_s=info.frames_per_s, time_base=info.time_base)
    with open_input(video) as container:
        has_sound = bool(container.streams.audio)
    delays = delays_of(video, video) if has_sound else None
    sound = None if delays is None else SoundPlan((SoundPiece(video, delays.sound_s - delays.picture_s),))
    with VideoWriter(target, made, choose_encoder(_ENCODING, made), sound) as writer:
        for frame in chain([first], pictures):
            writer.write(frame)
