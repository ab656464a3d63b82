"""The finished file: the parts of the picture as one stream, its sound, and what is kept of the source."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
from av.container import OutputContainer
from av.video.stream import VideoStream

from latentsync_trt.media.codecs import VideoEncoder, track_tag
from latentsync_trt.media.delays import are_one
from latentsync_trt.media.files import ffmpeg_name, open_input
from latentsync_trt.media.mark import marked
from latentsync_trt.media.other_streams import OtherStreams, Source, copy_stream_tags, copy_tags, open_others
from latentsync_trt.media.parts import Finished, abandon, joined
from latentsync_trt.media.passes import video_stream
from latentsync_trt.media.soundtrack import SoundPlan, Soundtrack, open_soundtrack
from latentsync_trt.types import VideoInfo

_LEAST_TIMESCALE = 600
"""QuickTime's own. FFmpeg multiplies a smaller number of ticks per second, which keeps stamps exact."""

_MOST_PER_S = 100_000

_MOST_HELD_US = "1000000"
"""Microseconds for which FFmpeg holds packets until each stream has one; by default 10 s, gigabytes of lossless 4K."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a file consists of besides its parts.

    `info`: of the source, for what not every part stores. `source`: the file to take tags and other streams from.
    `mark`: say that AI changed the picture.
    """

    encoder: VideoEncoder
    info: VideoInfo
    sound: SoundPlan | None = None
    source: Source | None = None
    mark: bool = False


def assemble(path: Path, folder: Path, finished: Finished, contents: Contents) -> tuple[str, ...]:
    """Writes the parts in `folder` to `path`; returns what could not be kept of the source.

    Raises:
        MediaError: sound or source cannot be read. av.error.FFmpegError, OSError: `path` cannot be written.
    """
    suffix = path.suffix.lower()
    container = av.open(ffmpeg_name(path), "w", options=_options(suffix, finished.time_base))
    try:
        with ExitStack() as opened:
            video = _add_video(container, suffix, folder, finished, contents)
            sound = others = None
            if contents.sound is not None:
                sound = opened.enter_context(open_soundtrack(contents.sound, container))
            if contents.source is not None:
                _copy_tags(container, contents.source, contents.sound, finished.end_s)
                others = opened.enter_context(open_others(contents.source, container, suffix, finished.end_s))
            if contents.mark:
                tags = marked(container.metadata, suffix)
                container.metadata.clear()
                container.metadata.update(tags)
            _mux(container, video, folder, finished, [track for track in (sound, others) if track is not None])
            if sound is not None:
                container.mux(list(sound.flush()))
            container.close()
            return () if others is None else tuple(others.notices)
    except BaseException:
        abandon(container, path)
        raise


def _options(suffix: str, time_base: Fraction) -> dict[str, str]:
    options = {"max_interleave_delta": _MOST_HELD_US}
    if suffix != ".mkv":
        options["movflags"] = "+faststart"
        if (timescale := time_base.denominator) >= _LEAST_TIMESCALE:
            options["video_track_timescale"] = str(timescale)
    return options


def _add_video(
    container: OutputContainer, suffix: str, folder: Path, finished: Finished, contents: Contents
) -> VideoStream:
    """A stream for the packets of the parts, which store most of its properties."""
    with open_input(folder / finished.parts[0].file) as part:
        template = part.streams.video[0]
        stream = container.add_stream_from_template(template, opaque=True)
        tag = track_tag(contents.encoder, container)
        if tag is None and contents.encoder.codec == "prores" and suffix != ".mkv":
            tag = template.codec_context.codec_tag  # says its profile
    context = stream.codec_context
    if tag is not None:
        context.codec_tag = tag
    stream.time_base = finished.time_base
    context.sample_aspect_ratio = contents.info.sample_aspect_ratio
    context.framerate = _frames_per_s(finished, contents.info.frames_per_s)
    return stream


def _frames_per_s(finished: Finished, nominal: Fraction | None) -> Fraction:
    """The `nominal` rate, if all pictures are where that has them, but for rounding; else the mean."""
    if nominal is not None:
        stamps = (stamp for part in finished.parts for stamp in sorted(part.stamps))
        period = float(1 / (nominal * finished.time_base))
        if all(abs(stamp - index * period) <= 1 for index, stamp in enumerate(stamps)):
            return nominal
    return (finished.frames / finished.end_s).limit_denominator(_MOST_PER_S)


def _copy_tags(container: OutputContainer, source: Source, sound: SoundPlan | None, end_s: Fraction) -> None:
    """Those of the source's file, its picture, and its sound where that is heard."""
    with open_input(source.path) as original:
        copy_tags(source, original, container, end_s)
        copy_stream_tags(video_stream(source.path, original), container.streams.video[0])
        if sound is not None and all(are_one(piece.path, source.path) for piece in sound.pieces):
            copy_stream_tags(original.streams.audio[0], container.streams.audio[0])


def _mux(
    container: OutputContainer,
    video: VideoStream,
    folder: Path,
    finished: Finished,
    tracks: Sequence[Soundtrack | OtherStreams],
) -> None:
    for packet in joined(folder, finished.parts, finished.time_base):
        packet.stream = video
        until_s = ((packet.dts or 0) + (packet.duration or 0)) * finished.time_base
        container.mux(packet)
        for track in tracks:
            container.mux(list(track.packets(until_s)))
    for track in tracks:
        container.mux(list(track.packets(finished.end_s)))
