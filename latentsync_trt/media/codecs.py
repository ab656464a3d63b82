"""How a run's picture is encoded: the encoder with its options, pixel format and tags."""

import os
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import cast

import av
import av.error
from av.container import OutputContainer
from av.video.codeccontext import VideoCodecContext
from av.video.format import VideoFormat
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from latentsync_trt.config import Codec, SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.media.color import BT709, BT2020_NCL, RGB_IDENTITY, UNSPECIFIED
from latentsync_trt.media.conversion import COLOR_RANGES
from latentsync_trt.media.encoders import (
    LIBRARIES,
    ON_CPU,
    EncoderName,
    bits_of,
    chroma_of,
    nearest_format,
    settings_of,
)
from latentsync_trt.media.files import reason_of
from latentsync_trt.media.hdr import HDR_TRANSFERS
from latentsync_trt.media.hdr_metadata import encoder_options
from latentsync_trt.types import ColorTags, VideoInfo

_NEEDED_CODECS = (
    *("libx264", "libx265", "libsvtav1", "prores_ks", "ffv1", "aac"),
    *("h264", "hevc", "vp9", "av1", "prores", "mp3", "opus", "flac", "pcm_s16le"),
)

CONTAINERS: dict[Codec, tuple[str, ...]] = {
    "h264": (".mp4", ".mov", ".mkv"),
    "hevc": (".mp4", ".mov", ".mkv"),
    "av1": (".mp4", ".mkv"),
    "prores": (".mov", ".mkv"),
    "ffv1": (".mkv",),
}
"""What FFmpeg writes and common players read."""

_STORE_PIXEL_ASPECT = ("h264", "hevc")
"""Codecs that do so in their own stream. For the others PyAV can write it to .mp4 and .mov, but not to .mkv."""

# By default x264 starts 1.5 threads per core, each with its own frames: gigabytes on a large server, but no faster.
_ENCODER_THREADS = min(16, os.cpu_count() or 1)

_NVENC_USUAL_SIZE_PX = (1280, 720)
"""Which every NVENC supports."""


def library_versions() -> dict[str, str]:
    """Versions of PyAV and of the FFmpeg libraries it is linked with."""
    libraries = {name: ".".join(map(str, version)) for name, version in sorted(av.library_versions.items())}
    return {"PyAV": av.__version__, **libraries}


def missing_codecs() -> tuple[str, ...]:
    """The needed codecs that the linked FFmpeg lacks."""
    return tuple(name for name in _NEEDED_CODECS if name not in av.codecs_available)


@dataclass(frozen=True, slots=True)
class VideoEncoder:
    """How the picture is encoded.

    `codec`: as in `SyncOptions`. `ffmpeg`, `pixel_format`, `options`: FFmpeg's names. `width_px`, `height_px`: of the
    encoded picture, whose sides are even where the format needs it. `color`: its tags. `notices`: what it cannot
    preserve of the source.
    """

    codec: Codec
    ffmpeg: str
    pixel_format: str
    width_px: int
    height_px: int
    color: ColorTags
    options: dict[str, str]
    notices: tuple[str, ...] = ()


def choose_encoder(options: SyncOptions, info: VideoInfo) -> VideoEncoder:
    """The encoder of a run whose source is `info`; "auto" is NVENC if it opens for such pictures, else the CPU's.

    Raises:
        InputError: options contradict each other, a value is not one of the encoder's, or FFmpeg lacks the encoder.
    """
    codec, named = _codec_of(options, info), options.encoder_name
    if named == "auto" and (codec, "nvenc") in LIBRARIES:
        if options.encoder_preset is not None:
            raise InputError(f"--encoder {options.encoder}: presets differ from encoder to encoder; name one")
        on_gpu = _encoder(codec, "nvenc", options, info)
        if problem_of(on_gpu) is None:
            return on_gpu
    name = ON_CPU[codec] if named in (None, "auto") else cast(EncoderName, named)
    if (codec, name) not in LIBRARIES:
        fitting = [encoder for of, encoder in LIBRARIES if of == codec]
        cure = f"use {' or '.join(fitting)}" if len(fitting) > 1 else "leave it out"
        raise InputError(f"--encoder {name}: does not write {codec}; {cure}")
    return _encoder(codec, name, options, info)


def check_encoder(options: SyncOptions, info: VideoInfo, output: Path) -> VideoEncoder:
    """As `choose_encoder`, after one picture was encoded on trial.

    Raises:
        InputError: as there, or the encoder refuses such pictures, or the container `output` cannot hold the codec.
    """
    encoder = choose_encoder(options, info)
    fitting = CONTAINERS[encoder.codec]
    if output.suffix.lower() not in fitting:
        raise InputError(f"{output}: cannot hold {encoder.codec}; use a name that ends in {' or '.join(fitting)}")
    problem = problem_of(encoder)
    if problem is not None:
        width_px, height_px = _NVENC_USUAL_SIZE_PX
        usual = problem_of(replace(encoder, width_px=width_px, height_px=height_px)) is None
        place = f" for pictures of {encoder.width_px}×{encoder.height_px}, only for usual sizes" if usual else ""
        other = f"--encoder {ON_CPU[encoder.codec]}" if encoder.ffmpeg.endswith("_nvenc") else "another --codec"
        raise InputError(
            f"the encoder {encoder.ffmpeg} does not open{place}: {problem}; use {other}, or scale the video"
        )
    return encoder


def default_suffix(options: SyncOptions) -> str:
    """The container of an output whose name is not given."""
    return CONTAINERS[options.codec][0] if options.codec else ".mp4"


def aspect_notice(encoder: VideoEncoder, info: VideoInfo, suffix: str) -> tuple[str, ...]:
    """What to say where a file with this `suffix` does not store the shape of pixels."""
    if info.sample_aspect_ratio == 1 or suffix != ".mkv" or encoder.codec in _STORE_PIXEL_ASPECT:
        return ()
    shape = info.sample_aspect_ratio * Fraction(info.width_px, info.height_px)
    return (
        f"{encoder.codec} in .mkv does not store its pixel aspect {info.sample_aspect_ratio}; to add it afterwards: "
        f"ffmpeg -i OUTPUT -c copy -aspect {shape.numerator}:{shape.denominator} NEW.mkv",
    )


def add_video(
    container: OutputContainer, encoder: VideoEncoder, pixel_aspect: Fraction, rate: Fraction, time_base: Fraction
) -> VideoStream:
    """Adds the encoder to a container, for `rate` frames per second with stamps in units of `time_base`."""
    # PyAV's types know only some encoders by name.
    stream = cast(VideoStream, container.add_stream(encoder.ffmpeg, rate=rate, options=encoder.options))
    context = stream.codec_context
    _set_up(context, encoder)
    stream.time_base = context.time_base = time_base
    context.sample_aspect_ratio = pixel_aspect
    tag = track_tag(encoder, container)
    if tag:
        context.codec_tag = tag
    return stream


def track_tag(encoder: VideoEncoder, container: OutputContainer) -> str | None:
    """The name of a track's codec in `container`, where FFmpeg's choice does not play on Apple's systems."""
    return "hvc1" if encoder.codec == "hevc" and container.format.name in ("mp4", "mov") else None


def problem_of(encoder: VideoEncoder) -> str | None:
    """Encodes one picture; returns the reason if that fails, else None. Answers are kept, as NVENC takes long."""
    size = encoder.width_px, encoder.height_px
    return _trial(encoder.ffmpeg, encoder.pixel_format, size, tuple(encoder.options.items()))


@cache
def _trial(ffmpeg: str, pixel_format: str, size: tuple[int, int], options: tuple[tuple[str, str], ...]) -> str | None:
    try:
        context = cast(VideoCodecContext, av.CodecContext.create(ffmpeg, "w"))
        _set_up(context, VideoEncoder("h264", ffmpeg, pixel_format, *size, ColorTags(), {}))
        context.time_base, context.options = Fraction(1, 25), dict(options)
        context.encode(VideoFrame(*size, pixel_format))
        context.encode(None)
    except (av.error.FFmpegError, ValueError, OSError) as error:
        return reason_of(error)
    return None


def _set_up(context: VideoCodecContext, encoder: VideoEncoder) -> None:
    # SVT-AV1 reads this when it opens; by default it reports its settings on standard error.
    os.environ.setdefault("SVT_LOG", "1")
    context.width, context.height, context.pix_fmt = encoder.width_px, encoder.height_px, encoder.pixel_format
    context.thread_count = _ENCODER_THREADS
    color = encoder.color
    context.color_primaries, context.color_trc = color.primaries, color.transfer
    context.colorspace, context.color_range = color.matrix, COLOR_RANGES[color.full_range]


def _codec_of(options: SyncOptions, info: VideoInfo) -> Codec:
    """The named codec, or that of the named encoder, or the source's: H.264 for 8 bits of SDR, else HEVC."""
    if options.codec is not None:
        return options.codec
    of_encoder = {name: codec for codec, name in ON_CPU.items()}.get(cast(EncoderName, options.encoder_name))
    deep = bits_of(VideoFormat(info.pixel_format)) > 8 or info.color.transfer in HDR_TRANSFERS
    return of_encoder or ("hevc" if deep else "h264")


def _encoder(codec: Codec, name: EncoderName, options: SyncOptions, info: VideoInfo) -> VideoEncoder:
    library = LIBRARIES[codec, name]
    if library.ffmpeg not in av.codecs_available:
        cure = "install PyAV's own wheel: pip install --force-reinstall av"
        raise InputError(f"PyAV's FFmpeg has no {library.ffmpeg}; {cure}")
    settings = settings_of(codec, name, options)
    pixel_format = nearest_format(library, info.pixel_format)
    form = VideoFormat(pixel_format)
    if codec == "prores":
        settings.setdefault(library.speed, "4444" if chroma_of(form) == (16, 16) else "hq")
    parameters = encoder_options(library.ffmpeg, info.hdr)
    if name == "x265":  # reports its settings on standard error
        parameters["log-level"] = "error"
    if parameters:
        settings[f"{name}-params"] = ":".join(f"{key}={value}" for key, value in parameters.items())
    # FFV1 codes any size; the others only whole samples of chroma.
    across, down = (1, 1) if codec == "ffv1" else (16 // count for count in chroma_of(form))
    size = info.width_px + info.width_px % across, info.height_px + info.height_px % down
    color = info.color if form.is_rgb else _yuv_tags(info.color)
    encoder = VideoEncoder(codec, library.ffmpeg, pixel_format, *size, color, settings)
    return replace(encoder, notices=tuple(_losses(encoder, info)))


def _yuv_tags(color: ColorTags) -> ColorTags:
    """The tags of YUV pictures. RGB becomes BT.709 of limited range, and keeps other primaries and transfer."""
    if color.matrix != RGB_IDENTITY:
        return color
    primaries, transfer = (BT709 if tag == UNSPECIFIED else tag for tag in (color.primaries, color.transfer))
    return ColorTags(primaries, transfer, BT2020_NCL if transfer in HDR_TRANSFERS else BT709, full_range=False)


def _losses(encoder: VideoEncoder, info: VideoInfo) -> list[str]:
    losses: list[str] = []
    if (info.width_px, info.height_px) != (encoder.width_px, encoder.height_px):
        sizes = f"{info.width_px}×{info.height_px} to {encoder.width_px}×{encoder.height_px}"
        losses.append(f"{encoder.pixel_format} needs even sides: the picture grows from {sizes} by repeating its edge")
    source, form = VideoFormat(info.pixel_format), VideoFormat(encoder.pixel_format)
    if bits_of(form) < bits_of(source):
        bits = f"{bits_of(source)} bits per channel ({info.pixel_format})"
        losses.append(f"the picture has {bits}; {encoder.codec} stores {bits_of(form)}")
    if not source.is_rgb and any(own < wanted for own, wanted in zip(chroma_of(form), chroma_of(source), strict=True)):
        losses.append(f"the picture is {info.pixel_format}; {encoder.codec} stores fewer chroma samples, {form.name}")
    if info.hdr and info.hdr.dynamic:
        losses.append(f"{' and '.join(info.hdr.dynamic)}: not written, only the picture for other displays")
    if info.hdr and (info.hdr.mastering or info.hdr.light) and not encoder_options(encoder.ffmpeg, info.hdr):
        losses.append(
            f"{encoder.ffmpeg} does not store HDR10's mastering display and light levels; color tags are kept"
        )
    if info.interlaced:
        losses.append("the picture is interlaced; its fields are not separated")
    return losses
