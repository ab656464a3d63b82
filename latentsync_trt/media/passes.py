"""Passes through the pictures of a video, forwards and backwards."""

from array import array
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from fractions import Fraction
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

import av
import av.error
from av.container import InputContainer
from av.stream import Disposition
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from latentsync_trt.errors import MediaError
from latentsync_trt.media.files import open_input, reading
from latentsync_trt.media.joints import origins_of
from latentsync_trt.media.playback import lasting
from latentsync_trt.media.timing import Timed, clock_of, on_clock, on_grid, period_s

T = TypeVar("T")

MOST_PIXELS = 139_264 * 16 * 16
"""Of a picture: the most in H.264 (level 6.2), 8192×4352. Beyond, a damaged header could ask for gigabytes."""

_CHUNK_BYTES = 128 * 2**20
_LEAST_CHUNK = 4
"""Pictures that are held to play them backwards. FFmpeg frees them together, so two chunks are in memory at times."""

_SEEK_BACK = (0, 64, 512)
"""Pictures before the wanted one to seek to: a keyframe may be found by decoding time, or be none."""


class VideoPasses:
    """The pictures of a video's first stream, as the decoder gives them, as `playback.Passes`.

    `exact`: times that the container has rounded become those of the exact rate, see `timing.on_grid`. To play
    backwards, pictures are decoded in chunks from the keyframe before each, or from the start in a file in which that
    does not find them. Raises `MediaError`: the file cannot be read, or breaks off; the message gives the time.
    """

    def __init__(self, path: Path, *, exact: bool) -> None:
        self._path, self._exact = path, exact
        self._period_s = Fraction(0)
        self._count, self._chunk = 0, _LEAST_CHUNK
        self._stamps: array[int] | None = None

    @property
    def period_s(self) -> Fraction:
        """Seconds from picture to picture, the mean; 0 before the first pass."""
        return self._period_s

    def forward(self) -> Generator[Timed[VideoFrame], None, None]:
        """All pictures, each until the next one's time; the first one's is 0."""
        stamps: array[int] = array("q")
        count = 0
        with self._opened() as (container, stream):
            clock = clock_of(container, origins=partial(origins_of, self._path, stream.index))
            timed = on_clock(decoded(self._path, container, stream), clock, period_s(stream))
            for count, picture in enumerate(self._lasting(timed, stream), 1):
                if picture.item.pts is not None:
                    stamps.append(picture.item.pts)
                if count == 1:
                    picture_bytes = sum(plane.buffer_size for plane in picture.item.planes)
                    self._chunk = max(_LEAST_CHUNK, _CHUNK_BYTES // picture_bytes)
                yield picture
            self._count, self._stamps = count, None if clock.resets or len(stamps) < count else stamps

    def backward(self) -> Generator[Timed[VideoFrame], None, None]:
        """The pictures from the last one but one to the first, after a whole pass forward, with the same times."""
        stop = self._count - 1
        while stop > 0:
            start = max(0, stop - self._chunk)
            chunk = self._sought(start, stop)
            if chunk is None:
                with closing(self.forward()) as pictures:
                    chunk = list(islice(pictures, start, stop))
            while chunk:
                yield chunk.pop()
            stop = start

    def _sought(self, start: int, stop: int) -> list[Timed[VideoFrame]] | None:
        """The pictures from number `start` to before `stop`; None if they cannot be found by their stamps."""
        stamps = self._stamps
        if stamps is None:
            return None
        wanted = set(stamps[start:stop])
        with self._opened() as (container, stream):
            for back in _SEEK_BACK:
                found = _found(container, stream, wanted, stamps[max(0, start - back)])
                if len(found) == len(wanted):
                    unit_s = stream.time_base or Fraction(0)
                    times = ((stamp - stamps[0]) * unit_s for stamp in stamps[start : stop + 1])
                    timed = (Timed(time_s, unit_s, None) for time_s in times)
                    shown = zip(self._lasting(timed, stream), stamps[start:stop], strict=False)
                    return [Timed(picture.time_s, picture.duration_s, found[stamp]) for picture, stamp in shown]
        return None

    def _lasting(self, pictures: Iterable[Timed[T]], stream: VideoStream) -> Iterator[Timed[T]]:
        return lasting(on_grid(pictures, stream) if self._exact else pictures)

    @contextmanager
    def _opened(self) -> Iterator[tuple[InputContainer, VideoStream]]:
        with open_input(self._path) as container:
            stream = video_stream(self._path, container)
            stream.thread_type = "AUTO"
            self._period_s = period_s(stream)
            yield container, stream


def _found(container: InputContainer, stream: VideoStream, wanted: set[int], from_stamp: int) -> dict[int, VideoFrame]:
    """Those of the pictures with the `wanted` stamps that are decoded after a jump to `from_stamp`."""
    found, last = dict[int, VideoFrame](), max(wanted)
    try:
        container.seek(from_stamp, stream=stream)
        for frame in container.decode(stream):
            if frame.pts in wanted and not frame.is_corrupt:
                found.setdefault(frame.pts, frame)
            if frame.pts is None or len(found) == len(wanted) or frame.pts > last:
                break
    except av.error.FFmpegError:  # who decodes from the start reports it
        return {}
    return found


def decoded(
    path: Path, container: InputContainer, stream: VideoStream
) -> Iterator[tuple[Fraction | None, Fraction | None, VideoFrame]]:
    """Time stamps, durations and decoded frames in presentation order."""
    size = None
    frames = container.decode(stream)
    time_s = Fraction(0)
    while True:
        with reading(path, f"its video breaks off after {float(time_s):.2f} s; repair or re-encode it"):
            frame = next(frames, None)
        if frame is None:
            return
        stamp_s = stamp_of(frame, stream)
        time_s = time_s if stamp_s is None else stamp_s
        size = size or (frame.width, frame.height)
        if size != (frame.width, frame.height):
            raise MediaError(
                f"{path}: its pictures change from {size[0]}×{size[1]} to {frame.width}×{frame.height} after "
                f"{float(time_s):.2f} s; re-encode it at one size"
            )
        yield stamp_s, frame.duration * _time_base(frame, stream) if frame.duration > 0 else None, frame


def video_stream(path: Path, container: InputContainer) -> VideoStream:
    """The first video stream that is not a cover picture; raises `MediaError` without one, or if it is too large."""
    for stream in container.streams.video:
        if not stream.disposition & Disposition.attached_pic:
            _check_size(path, stream)
            return stream
    raise MediaError(f"{path}: has no video stream")


def stamp_of(frame: VideoFrame, stream: VideoStream) -> Fraction | None:
    """The time stamp of a decoded frame in seconds, if it has one."""
    return None if frame.pts is None else frame.pts * _time_base(frame, stream)


def _check_size(path: Path, stream: VideoStream) -> None:
    context: VideoCodecContext | None = stream.codec_context  # PyAV's types leave the None out
    if context is not None and context.width * context.height > MOST_PIXELS:
        raise MediaError(
            f"{path}: its pictures have {context.width}×{context.height} pixels, more than {MOST_PIXELS / 1e6:.0f} "
            "million; scale it down"
        )


def _time_base(frame: VideoFrame, stream: VideoStream) -> Fraction:
    return frame.time_base or stream.time_base or Fraction(1, av.time_base)
