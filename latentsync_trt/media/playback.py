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
from av.stream import Discard, Disposition

from latentsync_trt.config import MODEL_FPS, Extend, SyncOptions
from latentsync_trt.errors import MediaError
from latentsync_trt.media.decoding import decode_pictures, is_photo
from latentsync_trt.media.files import (
    MOST_PIXELS,
    check_size,
    codec_name,
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

# If less is missing at the end of a video, its last picture is held: the sound is padded.
HELD_S = Fraction(1, 2)
_SLOW_FPS = 16  # below this, lips are seen to move in steps
_EXTENDED = {"pingpong": "goes back and forth", "loop": "starts again"}

# Held to play them backwards. FFmpeg frees them together: two chunks are in memory at times.
_CHUNK_BYTES = 128 * 2**20
_LEAST_CHUNK = 2
# Each thread of a decoder holds a picture, which it may decode for long.
_THREADS_BYTES = 256 * 2**20
# So much earlier than the first wanted picture is sought: a keyframe may be found by decoding time,
# or be none.
_SEEK_BACK_S = (0, 2, 20)


@dataclass(frozen=True, slots=True)
class Playback:
    """How a video becomes frames. `fps`: frames per second; None = the source's own frames at its
    own times, long ones repeated. `duration_s`: frames begin before this; None = at the end of the
    video. `extend`: what follows the end of the video, without end: "pingpong" plays it backwards
    and forwards, "loop" from the start; None stops. `delay_s`: time of the first picture, which is
    also shown before. Pictures before 0 are left out.
    """

    fps: Fraction | None = None
    duration_s: Fraction | None = None
    extend: Extend | None = None
    delay_s: Fraction = Fraction(0)

    def expected_frames(self, info: VideoInfo) -> int | None:
        """About how many frames a video gives; None where the file does not state enough."""
        fps = self.fps or info.frames_per_s
        if fps is not None and fps * LONGEST_PERIOD_S < 1:
            fps = Fraction(MODEL_FPS)
        ends_s = (self.duration_s, info.duration_s if self.extend is None else None)
        known_s = [end_s for end_s in ends_s if end_s is not None]
        if known_s and fps:
            return ceil(min(known_s) * fps)
        return None


class VideoPasses:
    """The pictures of a video's main stream, as the decoder gives them, each until the next one's
    time. Times that the container has rounded become those of the exact rate, see `timing.on_grid`.
    To play backwards, pictures are decoded in chunks from the keyframe before each, or from the
    start in a file in which that does not find them. Raises `MediaError`: the file cannot be read,
    or breaks off; the message gives the time.
    """

    def __init__(self, path: Path, chunk_bytes: int = _CHUNK_BYTES) -> None:
        self._path = path
        self._chunk_bytes = chunk_bytes
        # What a picture lasts whose duration is missing, and for how long at a time one is held:
        # known once opened.
        self._usual_s = self.period_s = Fraction(0)
        self._last_s = self._mean_s = Fraction(0)
        self._origin_s: Fraction | None = None
        self._chunk = _LEAST_CHUNK

    def forward(self) -> Generator[Timed[VideoFrame], None, None]:
        """All pictures; the first one's time is 0."""
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
                    self._chunk = max(_LEAST_CHUNK, self._chunk_bytes // picture_bytes)
                yield picture
            self._origin_s = origin_s if has_stamps else None
            self._mean_s = self._last_s / max(count - 1, 1)

    def backward(self) -> Generator[Timed[VideoFrame], None, None]:
        """The pictures from the last but one to the first, after a pass forward, with its times."""
        stop_s = self._last_s
        while stop_s > 0:
            chunk = self._before(stop_s)
            stop_s = chunk[0].time_s
            while chunk:
                yield chunk.pop()

    def _before(self, stop_s: Fraction) -> deque[Timed[VideoFrame]]:
        """The last pictures before `stop_s`, at least one, at most a chunk of them."""

        def latest(pictures: Iterable[Timed[VideoFrame]]) -> deque[Timed[VideoFrame]]:
            return deque(
                takewhile(lambda picture: picture.time_s < stop_s, pictures), maxlen=self._chunk
            )

        if self._origin_s is not None:
            # the pass below tells
            with self._opened() as (container, stream), suppress(FFmpegError, MediaError):
                for back_s in _SEEK_BACK_S:
                    from_s = max(stop_s - self._chunk * self._mean_s - back_s, Fraction(0))
                    container.seek(
                        int((self._origin_s + from_s) / cast(Fraction, stream.time_base)),
                        stream=stream,
                    )
                    chunk = latest(self._pictures(container, stream, self._origin_s))
                    if chunk and not any(picture.item.is_corrupt for picture in chunk):
                        return chunk
        with closing(self.forward()) as pictures:
            return latest(pictures)

    def _pictures(
        self, container: InputContainer, stream: VideoStream, origin_s: Fraction | None = None
    ) -> Generator[Timed[VideoFrame], None, None]:
        clock = clock_of(self._path, stream, origin_s=origin_s)
        frames = guarded(self._path, stream, decode_pictures(self._path, container, stream))
        stamped = (
            (stamp_of(each), max(each.duration, 0) * (each.time_base or Fraction(0)), each)
            for each in frames
        )
        timed = on_clock(stamped, clock, self._usual_s)
        if stream.average_rate:  # else the rate is no exact one
            timed = on_grid(timed, stream.time_base, self._usual_s)
        for picture, following in with_next(timed):
            yield (
                replace(picture, duration_s=following.time_s - picture.time_s)
                if following
                else picture
            )

    @contextmanager
    def _opened(self) -> Iterator[tuple[InputContainer, VideoStream]]:
        with open_input(self._path) as container:
            stream = video_stream(self._path, container)
            stream.thread_type = "AUTO"
            most_threads = _THREADS_BYTES // (3 * stream.width * stream.height // 2)
            if most_threads < (os.cpu_count() or 1):
                stream.codec_context.thread_count = max(most_threads, 1)
            for other in set(container.streams) - {stream}:
                other.discard = Discard.all
            if not self._usual_s:
                self._usual_s = period_of(frames_per_s(self._path, stream))
                if self._usual_s <= LONGEST_PERIOD_S:
                    self.period_s = self._usual_s
                else:
                    self.period_s = Fraction(1, MODEL_FPS)
            yield container, stream


def video_stream(path: Path, container: InputContainer) -> VideoStream:
    """The main video stream: the first that is marked as default, as players show it, else the
    first; never a cover. `MediaError` if there is none or it is too large.
    """
    streams = picture_streams(container)
    if not streams:
        raise MediaError(f"{path}: has no video stream")
    usual = [each for each in streams if each.disposition & Disposition.default]
    # Of a photo not the thumbnail, a depth map and the like.
    stream = next(iter(usual), None) or min(streams, key=is_photo)
    context = stream.codec_context
    if not codec_name(stream):
        raise MediaError(
            f"{path}: its video stream is in a codec that FFmpeg does not know; convert it to MP4"
        )
    check_size(path, context.width, context.height)
    context.options = {"max_pixels": f"{MOST_PIXELS}"}  # the size may change
    return stream


def played(source: VideoPasses, playback: Playback) -> Iterator[Timed[Timed[VideoFrame]]]:
    """The output's pictures with their times in the source: `Timed(output's, …, Timed(source's,
    …))`.
    """
    shown = _extended(source, playback)
    fps = playback.fps
    duration_s = playback.duration_s
    if fps is None:
        repeated = _repeated(shown, source)
        if duration_s is None:
            return repeated
        return _cut(repeated, duration_s, source)
    regular = (
        Timed(index / fps, 1 / fps, item) for index, item in enumerate(at_constant_rate(shown, fps))
    )
    if duration_s is None:
        return regular
    return takewhile(lambda picture: picture.time_s < duration_s, regular)


def _extended(source: VideoPasses, playback: Playback) -> Iterator[Timed[Timed[VideoFrame]]]:
    """Pass after pass, without end unless `extend` is None; nothing if the source has no
    picture.
    """
    at_s = playback.delay_s
    count = 0
    backward = False
    last = None
    while True:
        turned = playback.extend == "pingpong" and count > 0
        pictures: Iterable[Timed[VideoFrame]]
        if backward:
            pictures = source.backward()
        else:
            pictures = islice(source.forward(), 1 if turned else 0, None)
        for last in pictures:
            yield Timed(at_s, last.duration_s, last)
            at_s += last.duration_s
            count += 1
        if last is None or playback.extend is None:
            return
        left_s = None if playback.duration_s is None else playback.duration_s - at_s
        if count == 1 or (left_s is not None and left_s < HELD_S):
            break
        backward = playback.extend == "pingpong" and not backward
    while True:
        yield Timed(at_s, source.period_s, last)
        at_s += source.period_s


def _repeated(shown: Iterator[Timed[T]], source: VideoPasses) -> Iterator[Timed[T]]:
    """Repeats the first picture from time 0 to its own time, and every picture that lasts long."""
    at_s = Fraction(0)
    for picture in shown:
        if picture.time_s < 0 and picture.end_s <= 0:
            continue
        if at_s < picture.time_s or picture.duration_s > LONGEST_PERIOD_S:
            while picture.end_s - at_s >= 2 * source.period_s:
                yield Timed(at_s, source.period_s, picture.item)
                at_s += source.period_s
        yield Timed(at_s, picture.end_s - at_s, picture.item)
        at_s = picture.end_s


def _cut(
    shown: Iterator[Timed[T]], duration_s: Fraction, source: VideoPasses
) -> Iterator[Timed[T]]:
    """The pictures that begin before `duration_s`; the last one ends there, or after one period.
    One that is shown is not repeated for less than a period: sound that is a few samples longer
    than the picture must not add a frame.
    """
    for picture, following in with_next(shown):
        left_s = Fraction(0) if following is None else duration_s - following.time_s
        if picture.time_s >= duration_s:
            return
        if following is None or left_s <= 0:
            longest_s = max(duration_s - picture.time_s, source.period_s)
            yield replace(picture, duration_s=min(picture.duration_s, longest_s))
            return
        if following.item is picture.item and left_s < source.period_s:
            yield replace(picture, duration_s=picture.duration_s + left_s)
            return
        yield picture


def at_constant_rate(pictures: Iterable[Timed[T]], fps: Fraction | int) -> Iterator[T]:
    """Repeats or drops pictures to get `fps` per second from time 0, at least one if there is any;
    repeated ones are the same object. The first picture is shown before its time, too.
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
    """That the output has another number of frames per second than the video, or too few for
    lips.
    """
    rate = info.frames_per_s
    if rate is None or rate == MODEL_FPS:
        return []
    if options.fps != "source":
        return [f"the video has {short_number(rate)} frames/s, the output {options.fps} (--fps)"]
    slow = (
        f"the video has {short_number(rate)} frames/s, so lips move "
        f"in steps; --fps {MODEL_FPS} repeats its pictures"
    )
    if rate < _SLOW_FPS and rate * LONGEST_PERIOD_S >= 1:
        return [slow]
    return []


def notices_of_length(info: VideoInfo, audio_s: Fraction, options: SyncOptions) -> list[str]:
    """That the picture is extended, or that picture or sound are cut by more than recordings of one
    device differ; `audio_s`: when the sound ends.
    """
    video_s = info.duration_s
    length = options.output_length
    rate = info.frames_per_s
    still = video_s is not None and rate is not None and video_s * rate <= 1
    if video_s is None or still or abs(video_s - audio_s) < HELD_S or length == "shortest":
        return []
    if video_s < audio_s:
        if length == "video":
            how = "the sound is cut"
        else:
            how = f"the picture {_EXTENDED[options.extend]}"
    elif options.start is not None or options.end is not None:
        return []
    else:
        how = "the picture is cut" if length == "audio" else "the rest is silent"
    sound = "audio" if options.mix is None else "sound of --mix"
    return [
        f"the video lasts {short_number(video_s)} s, the {sound} "
        f"{short_number(audio_s)} s: {how} (--length, --extend)"
    ]


def short_number(value: Fraction) -> str:
    """`value` for people, with at most two decimals."""
    return f"{float(value):.2f}".rstrip("0").rstrip(".")
