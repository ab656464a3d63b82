"""Plays a video forwards and backwards: when it begins, at which rate, what follows its end.

A picture is on screen until the next one's time. At a constant rate, output picture k is the one on
screen in the middle of its interval, at (k + ½) / fps, as FFmpeg's `fps` filter has it, and the
output lasts as long as the source, rounded to whole pictures. All times are exact seconds.
"""

import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice, takewhile
from math import ceil
from pathlib import Path
from typing import TypeVar, cast

from av import FFmpegError, VideoFrame, VideoStream
from av.container import InputContainer
from av.stream import Discard

from latentsync_trt.config import MODEL_FPS, Extend, SyncOptions
from latentsync_trt.errors import MediaError
from latentsync_trt.media.decoding import decode_pictures, is_photo
from latentsync_trt.media.files import (
    MAX_PIXELS,
    check_size,
    codec_name,
    default_stream,
    guarded,
    open_input,
    picture_streams,
)
from latentsync_trt.media.timing import (
    LONGEST_PERIOD_S,
    Timed,
    clock_of,
    frames_per_s,
    nearest,
    on_clock,
    on_grid,
    period_of,
    stamp_of,
    with_next,
)
from latentsync_trt.types import VideoInfo

T = TypeVar("T")

HELD_S = Fraction(1, 2)
"""If less is missing at the end of a video, its last picture is held: the sound is padded."""
_SLOW_FPS = 16
"""Below this, lips are seen to move in steps."""
_EXTENDED = {"pingpong": "goes back and forth", "loop": "starts again"}
"""What the picture does where it is extended, in words."""

_CHUNK_BYTES = 128 * 2**20
"""What the pictures of a chunk may take, which are held to play them backwards. FFmpeg frees them
together: two chunks are in memory at times.
"""
_MIN_CHUNK = 2
"""The least number of pictures in a chunk, however large they are."""
_THREADS_BYTES = 256 * 2**20
"""What the pictures may take that the threads of a decoder hold: each thread decodes one."""
_SEEK_BACK_S = (0, 2, 20)
"""How much earlier than the first wanted picture is sought, one after the other: a keyframe may be
found by decoding time, or be none.
"""


@dataclass(frozen=True, slots=True)
class Playback:
    """How a video becomes frames. Pictures before 0 are left out."""

    fps: Fraction | None = None
    """Frames per second; None = the source's own frames at its own times, long ones repeated."""
    duration_s: Fraction | None = None
    """Frames begin before this; None = at the end of the video."""
    extend: Extend | None = None
    """What follows the end of the video, without end: "pingpong" plays it backwards and forwards,
    "loop" from the start; None stops.
    """
    delay_s: Fraction = Fraction(0)
    """Time of the first picture, which is also shown before."""

    def expected_frames(self, info: VideoInfo) -> int | None:
        """Returns about how many frames a video gives; None where the file does not state
        enough.
        """
        fps = self.fps or info.frames_per_s
        if fps is not None and fps * LONGEST_PERIOD_S < 1:
            fps = Fraction(MODEL_FPS)
        end_s = self.duration_s
        if self.extend is None and info.duration_s is not None:
            end_s = info.duration_s if end_s is None else min(end_s, info.duration_s)
        if end_s is None or not fps:
            return None
        return ceil(end_s * fps)


class VideoPasses:
    """The pictures of a video's main stream, as the decoder gives them, each until the next one's
    time, forwards or backwards.

    Times that the container has rounded become those of the exact rate, see `timing.on_grid`. To
    play backwards, pictures are decoded in chunks from the keyframe before each, or from the start
    in a file in which that does not find them. Raises `MediaError`: the file cannot be read, or
    breaks off; the message gives the time.
    """

    def __init__(self, path: Path, chunk_bytes: int = _CHUNK_BYTES) -> None:
        self._path = path
        self._chunk_bytes = chunk_bytes
        self.period_s = Fraction(0)
        """For how long at a time a picture is held; 0 before the first pass."""
        self._usual_period_s = Fraction(0)  # of pictures whose duration is missing
        # What a pass forward tells those backward.
        self._last_s = Fraction(0)
        self._mean_period_s = Fraction(0)
        self._origin_s: Fraction | None = None
        self._chunk = _MIN_CHUNK

    def forward(self) -> Generator[Timed[VideoFrame]]:
        """Yields all pictures; the first one's time is 0."""
        count = 0
        has_stamps = True
        origin_s = None
        with self._opened() as (container, stream):
            for count, picture in enumerate(self._pictures(container, stream), 1):
                has_stamps &= picture.item.pts is not None
                self._last_s = picture.time_s
                if count == 1:
                    origin_s = stamp_of(picture.item)
                    picture_bytes = sum(plane.buffer_size for plane in picture.item.planes)
                    self._chunk = max(_MIN_CHUNK, self._chunk_bytes // picture_bytes)
                yield picture
            self._origin_s = origin_s if has_stamps else None
            self._mean_period_s = self._last_s / max(count - 1, 1)

    def backward(self) -> Generator[Timed[VideoFrame]]:
        """Yields the pictures from the last but one to the first, after a pass forward, with its
        times.
        """
        stop_s = self._last_s
        while stop_s > 0:
            chunk = self._before(stop_s)
            stop_s = chunk[0].time_s
            while chunk:
                yield chunk.pop()

    def _before(self, stop_s: Fraction) -> deque[Timed[VideoFrame]]:
        """Returns the last pictures before `stop_s`, at least one, at most a chunk of them."""
        if self._origin_s is not None:
            # The pass from the start, below, tells what cannot be read.
            with self._opened() as (container, stream), suppress(FFmpegError, MediaError):
                for back_s in _SEEK_BACK_S:
                    chunk_s = self._chunk * self._mean_period_s
                    from_s = max(stop_s - chunk_s - back_s, Fraction(0))
                    unit_s = cast(Fraction, stream.time_base)
                    container.seek(int((self._origin_s + from_s) / unit_s), stream=stream)
                    pictures = self._pictures(container, stream, self._origin_s)
                    chunk = self._last_chunk(pictures, stop_s)
                    if chunk and not any(picture.item.is_corrupt for picture in chunk):
                        return chunk
        with closing(self.forward()) as pictures:
            return self._last_chunk(pictures, stop_s)

    def _last_chunk(
        self, pictures: Iterable[Timed[VideoFrame]], stop_s: Fraction
    ) -> deque[Timed[VideoFrame]]:
        chunk = deque[Timed[VideoFrame]](maxlen=self._chunk)
        for picture in pictures:
            if picture.time_s >= stop_s:
                break
            chunk.append(picture)
        return chunk

    def _pictures(
        self, container: InputContainer, stream: VideoStream, origin_s: Fraction | None = None
    ) -> Generator[Timed[VideoFrame]]:
        clock = replace(clock_of(self._path, stream), origin_s=origin_s)
        frames = guarded(self._path, stream, decode_pictures(self._path, container, stream))
        timed = on_clock(frames, clock, self._usual_period_s)
        if stream.average_rate:  # else the rate is no exact one
            timed = on_grid(timed, stream.time_base, self._usual_period_s)
        for picture, following in with_next(timed):
            if following is None:
                yield picture
            else:
                yield replace(picture, duration_s=following.time_s - picture.time_s)

    @contextmanager
    def _opened(self) -> Iterator[tuple[InputContainer, VideoStream]]:
        """Opens the file; at first, it also finds out the periods."""
        with open_input(self._path) as container:
            stream = video_stream(self._path, container)
            stream.thread_type = "AUTO"
            most_threads = _THREADS_BYTES // (3 * stream.width * stream.height // 2)
            if most_threads < (os.cpu_count() or 1):
                stream.codec_context.thread_count = max(most_threads, 1)
            for other in set(container.streams) - {stream}:
                other.discard = Discard.all
            if not self._usual_period_s:
                self._usual_period_s = period_of(frames_per_s(self._path, stream))
                self.period_s = self._usual_period_s
                if self.period_s > LONGEST_PERIOD_S:
                    self.period_s = Fraction(1, MODEL_FPS)
            yield container, stream


def video_stream(path: Path, container: InputContainer) -> VideoStream:
    """Returns the main video stream: the first that is marked as default, as players show it, else
    the first; never a cover. Raises `MediaError` if there is none or it is too large.
    """
    streams = picture_streams(container)
    if not streams:
        raise MediaError(f"{path}: has no video stream")
    # Of a photo not the thumbnail, a depth map and the like.
    stream = default_stream(streams) or min(streams, key=is_photo)
    context = stream.codec_context
    if not codec_name(stream):
        raise MediaError(
            f"{path}: its video stream is in a codec that FFmpeg does not know; convert it to MP4"
        )
    check_size(path, context.width, context.height)
    context.options = {"max_pixels": f"{MAX_PIXELS}"}  # the size may change
    return stream


def played(source: VideoPasses, playback: Playback) -> Iterator[Timed[Timed[VideoFrame]]]:
    """Yields the output's pictures, each as that of the source with its time there."""
    pictures = _extended(source, playback)
    fps = playback.fps
    duration_s = playback.duration_s
    if fps is None:
        repeated = _repeated(pictures, source)
        if duration_s is None:
            return repeated
        return _cut(repeated, duration_s, source)
    items = enumerate(at_constant_rate(pictures, fps))
    period_s = 1 / fps
    regular = (Timed(index * period_s, period_s, item) for index, item in items)
    if duration_s is None:
        return regular
    return takewhile(lambda picture: picture.time_s < duration_s, regular)


def _extended(source: VideoPasses, playback: Playback) -> Iterator[Timed[Timed[VideoFrame]]]:
    """Yields pass after pass, without end unless `extend` is None; nothing if the source has no
    picture.
    """
    at_s = playback.delay_s
    count = 0
    is_backward = False
    last = None
    while True:
        pictures: Iterable[Timed[VideoFrame]] = source.forward()
        if is_backward:
            pictures = source.backward()
        elif playback.extend == "pingpong" and count:
            pictures = islice(pictures, 1, None)
        for last in pictures:
            yield Timed(at_s, last.duration_s, last)
            at_s += last.duration_s
            count += 1
        if last is None or playback.extend is None:
            return
        is_nearly_over = playback.duration_s is not None and playback.duration_s - at_s < HELD_S
        if count == 1 or is_nearly_over:
            break
        is_backward = playback.extend == "pingpong" and not is_backward
    while True:
        yield Timed(at_s, source.period_s, last)
        at_s += source.period_s


def _repeated(pictures: Iterator[Timed[T]], source: VideoPasses) -> Iterator[Timed[T]]:
    """Repeats the first picture from time 0 to its own time, and every picture that lasts long."""
    at_s = Fraction(0)
    for picture in pictures:
        if picture.time_s < 0 and picture.end_s <= 0:
            continue
        if at_s < picture.time_s or picture.duration_s > LONGEST_PERIOD_S:
            while picture.end_s - at_s >= 2 * source.period_s:
                yield Timed(at_s, source.period_s, picture.item)
                at_s += source.period_s
        yield Timed(at_s, picture.end_s - at_s, picture.item)
        at_s = picture.end_s


def _cut(
    pictures: Iterator[Timed[T]], duration_s: Fraction, source: VideoPasses
) -> Iterator[Timed[T]]:
    """Yields the pictures that begin before `duration_s`; the last one ends there, or after one
    period. One that is shown is not repeated for less than a period: sound that is a few samples
    longer than the picture must not add a frame.
    """
    for picture, following in with_next(pictures):
        if picture.time_s >= duration_s:
            return
        if following is None or following.time_s >= duration_s:
            longest_s = max(duration_s - picture.time_s, source.period_s)
            yield replace(picture, duration_s=min(picture.duration_s, longest_s))
            return
        left_s = duration_s - following.time_s
        if following.item is picture.item and left_s < source.period_s:
            yield replace(picture, duration_s=picture.duration_s + left_s)
            return
        yield picture


def at_constant_rate(pictures: Iterable[Timed[T]], fps: Fraction | int) -> Iterator[T]:
    """Yields `fps` pictures per second from time 0, at least one if there is any, by repeating or
    dropping some; repeated ones are the same object. The first one is shown before its time, too.
    """
    index = 0
    for picture, following in with_next(pictures):
        if following is None:
            end = max(1, nearest(picture.end_s, fps))
        else:
            end = nearest(following.time_s, fps)
        while index < end:
            yield picture.item
            index += 1


def notices_of_rate(info: VideoInfo, options: SyncOptions) -> list[str]:
    """Returns notices that the output has another number of frames per second than the video, or
    too few for lips.
    """
    rate = info.frames_per_s
    if rate is None or rate == MODEL_FPS:
        return []
    stated = f"the video has {short_number(rate)} frames/s"
    if options.fps != "source":
        return [f"{stated}, the output {options.fps} (--fps)"]
    if 1 / LONGEST_PERIOD_S <= rate < _SLOW_FPS:
        return [f"{stated}, so lips move in steps; --fps {MODEL_FPS} repeats its pictures"]
    return []


def notices_of_length(info: VideoInfo, audio_s: Fraction, options: SyncOptions) -> list[str]:
    """Returns notices that the picture is extended, or that picture or sound are cut by more than
    recordings of one device differ.

    Args:
        audio_s: when the sound ends.
    """
    video_s = info.duration_s
    length = options.output_length
    rate = info.frames_per_s
    if video_s is None or length == "shortest" or abs(video_s - audio_s) < HELD_S:
        return []
    is_still = rate is not None and video_s * rate <= 1
    is_part = options.start is not None or options.end is not None
    if is_still or (is_part and video_s > audio_s):
        return []
    if video_s > audio_s:
        outcome = "the picture is cut" if length == "audio" else "the rest is silent"
    elif length == "video":
        outcome = "the sound is cut"
    else:
        outcome = f"the picture {_EXTENDED[options.extend]}"
    sound = "audio" if options.mix is None else "sound of --mix"
    return [
        f"the video lasts {short_number(video_s)} s, the {sound} "
        f"{short_number(audio_s)} s: {outcome} (--length, --extend)"
    ]


def short_number(value: Fraction) -> str:
    """Returns a number for people, with at most two decimals."""
    return f"{float(value):.2f}".rstrip("0").rstrip(".")
