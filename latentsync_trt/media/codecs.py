"""How a run's picture is encoded: encoder, preset, pixel format and color tags."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import cast

import av
from av import FFmpegError, VideoCodecContext, VideoFormat, VideoFrame, VideoStream
from av.codec import find_best_pix_fmt_of_list
from av.codec.context import Flags as CodecFlags
from av.container import OutputContainer

from latentsync_trt.config import MODEL_FPS, Codec, SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.media.color import BT709, BT2020_NCL, HDR_TRANSFERS, RGB_IDENTITY, UNSPECIFIED
from latentsync_trt.media.conversion import COLOR_RANGES
from latentsync_trt.media.files import reason_of
from latentsync_trt.types import ColorTags, HdrMetadata, VideoInfo

CONTAINERS: dict[Codec, tuple[str, ...]] = {
    "h264": (".mp4", ".mov", ".mkv"),
    "hevc": (".mp4", ".mov", ".mkv"),
    "av1": (".mp4", ".mkv"),
    "prores": (".mov", ".mkv"),
    "ffv1": (".mkv",),
}
"""What FFmpeg writes and common players read."""

# By default x264 starts 1.5 threads per core, each with a frame: more memory, but no faster.
_ENCODER_THREADS = min(16, os.cpu_count() or 1)

# About how many pictures x264 holds, and what they may take.
_X264_PICTURES = 40
_X264_BYTES = 1_000_000_000
# Where they would take more: at 8192×4352 it needs 0.5 instead of 3.1 GB. Files grow, quality stays
# that of the CRF.
_X264_SMALL = {"rc-lookahead": "0", "bframes": "0", "sliced-threads": "1", "subme": "0"}

_SVT_AV1 = "libsvtav1"
_NVENC_HEVC = ("yuv420p", "p010le", "yuv444p", "yuv444p16le")
_NO_INTEGERS = ("f16le", "f32le")

# Parameters of encoders for HDR10's display and light, and the units of the display's
# chromaticity and luminance, as integers (SMPTE ST 2086) or 1 for decimal fractions.
_HDR_PARAMETERS = {
    "libx264": ("mastering-display", "cll", 50000, 10000),
    "libx265": ("master-display", "max-cll", 50000, 10000),
    _SVT_AV1: ("mastering-display", "content-light", 1, 1),
}

# FFmpeg's names for where chroma samples lie (`VideoInfo.chroma_place`). Those of mirrored pictures
# lie at the right, which no format can state.
_CHROMA_PLACES = {
    (0, 1): "left",
    (1, 1): "center",
    (0, 0): "topleft",
    (1, 0): "top",
    (0, 2): "bottomleft",
    (1, 2): "bottom",
}
_USUAL_X = 0
_USUAL_Y = 1  # what players take
# What encoders state in 4:2:0, and Matroska in its own header for any sampling.
_PLACES_OF = {
    "libx264": tuple(_CHROMA_PLACES.values()),
    "libx265": tuple(_CHROMA_PLACES.values()),
    _SVT_AV1: ("left", "topleft"),
}
_PLACES_IN_MKV = "left", "center", "topleft", "top"

# Encoders with a mode for interlaced pictures.
_INTERLACED = "libx264", "prores_ks", "ffv1"
# FFmpeg's numbers for progressive pictures, and for interlaced ones by which field is first.
_FIELD_ORDERS = {None: 1, True: 4, False: 5}


@dataclass(frozen=True, slots=True)
class Library:
    """An encoder, by FFmpeg's name; `quality`: of its setting for quality the name, default and
    worst value; `speed`, `preset`: name and default of its setting for speed; `formats`: pixel
    formats to choose from, empty = all.
    """

    ffmpeg: str
    quality: tuple[str, int, int] | None = None
    preset: str = ""
    speed: str = "preset"
    formats: tuple[str, ...] = ()


# The presets of x264 differ little in quality and by a tenth in size; this one is fast enough.
# x265 gains 2 dB and a quarter in size from veryfast to medium, for a third more work.
# NVENC is separate hardware, which p5 does not slow down; only the newest have 4:2:2.
LIBRARIES: dict[tuple[Codec, str], Library] = {
    ("h264", "x264"): Library("libx264", ("crf", 16, 51), "veryfast"),
    ("hevc", "x265"): Library("libx265", ("crf", 18, 51), "medium"),
    ("av1", "svtav1"): Library(_SVT_AV1, ("crf", 24, 63), "8"),
    ("prores", "prores"): Library("prores_ks", speed="profile"),
    ("ffv1", "ffv1"): Library("ffv1"),
    ("h264", "nvenc"): Library("h264_nvenc", ("qp", 16, 51), "p5", formats=("yuv420p", "yuv444p")),
    ("hevc", "nvenc"): Library("hevc_nvenc", ("qp", 18, 51), "p5", formats=_NVENC_HEVC),
    ("av1", "nvenc"): Library("av1_nvenc", ("qp", 24, 63), "p5", formats=("yuv420p", "p010le")),
}
# The encoder of each codec that needs no GPU.
ON_CPU: dict[Codec, str] = {codec: name for codec, name in LIBRARIES if name != "nvenc"}


@dataclass(frozen=True, slots=True)
class VideoEncoder:
    """FFmpeg's names; `width_px`, `height_px`: of the encoded picture, with even sides where the
    format needs it; `color`: its tags; `chroma_place`, `top_field_first`: as in `VideoInfo`;
    `notices`: what it cannot preserve of the source.
    """

    codec: Codec
    ffmpeg: str
    pixel_format: str
    width_px: int
    height_px: int
    color: ColorTags
    options: tuple[tuple[str, str], ...]
    notices: tuple[str, ...] = ()
    chroma_place: tuple[int, int] | None = None
    top_field_first: bool | None = None

    @property
    def chroma_name(self) -> str | None:
        """FFmpeg's name of `chroma_place`; None if it has none, or nothing is stated."""
        if self.chroma_place is None:
            return None
        return _CHROMA_PLACES.get(self.chroma_place)

    @property
    def frame_tags(self) -> str:
        """What FFmpeg's filter `setparams` is to set in pictures besides color tags."""
        tags = dict[str, str]()
        if self.chroma_name is not None:
            tags["chroma_location"] = self.chroma_name
        if self.top_field_first is not None:
            tags["field_mode"] = "tff" if self.top_field_first else "bff"
        return ":".join(f"{name}={value}" for name, value in tags.items())

    @property
    def keeps_fields(self) -> bool:
        """Whether readers learn which fields the pictures have. Those of H.264 believe the stream,
        all others the container."""
        return self.top_field_first is None or self.ffmpeg in _INTERLACED or self.codec != "h264"

    def keeps_chroma_place(self, suffix: str) -> bool:
        """Whether readers of a container learn `chroma_place`, or assume it."""
        if self.chroma_place is None:
            return True
        x, y = self.chroma_place
        columns, rows = _chroma_of(VideoFormat(self.pixel_format))
        if (columns == 16 or x == _USUAL_X) and (rows == 16 or y == _USUAL_Y):
            return True
        # Readers of H.264 and HEVC in Matroska believe the stream, not the container.
        if (
            suffix == ".mkv"
            and self.codec not in ("h264", "hevc")
            and self.chroma_name in _PLACES_IN_MKV
        ):
            return True
        return columns == rows == 8 and self.chroma_name in _PLACES_OF.get(self.ffmpeg, ())


def choose_encoder(options: SyncOptions, info: VideoInfo) -> VideoEncoder:
    """The encoder for a source; "auto" is NVENC if it opens for such pictures, else the CPU's.
    Without a name, the codec is the encoder's; else H.264 for 8 bits of SDR, HEVC for more. Raises
    `InputError` if options contradict each other, a value is not one of the encoder's, or FFmpeg
    lacks the encoder.
    """
    named = options.encoder_name
    deep = (
        VideoFormat(info.pixel_format).components[0].bits > 8
        or info.color.transfer in HDR_TRANSFERS
    )
    usual: Codec = "hevc" if deep else "h264"
    codec = options.codec or {name: codec for codec, name in ON_CPU.items()}.get(named or "", usual)
    if named == "auto" and (codec, "nvenc") in LIBRARIES:
        if options.encoder_preset is not None:
            raise InputError(
                f"--encoder {options.encoder}: presets differ from encoder to encoder; name one"
            )
        on_gpu = _encoder(codec, "nvenc", options, info)
        if problem_of(on_gpu) is None:
            return on_gpu
    name = ON_CPU[codec] if named in (None, "auto") else named
    if (codec, name) not in LIBRARIES:
        fitting = [encoder for of, encoder in LIBRARIES if of == codec]
        cure = f"use {' or '.join(fitting)}" if len(fitting) > 1 else "leave it out"
        raise InputError(f"--encoder {name}: does not write {codec}; {cure}")
    return _encoder(codec, name, options, info)


def check_encoder(options: SyncOptions, info: VideoInfo, output: Path) -> VideoEncoder:
    """As `choose_encoder`, after one picture was encoded on trial; also raises `InputError` if that
    fails, or if the container `output` cannot hold the codec.
    """
    encoder = choose_encoder(options, info)
    fitting = CONTAINERS[encoder.codec]
    if output.suffix.lower() not in fitting:
        raise InputError(
            f"{output}: cannot hold {encoder.codec}; use a name that ends in {' or '.join(fitting)}"
        )
    if problem := problem_of(encoder):
        cure = "use another --codec"
        if encoder.ffmpeg.endswith("_nvenc"):
            needs = f"NVENC needs an NVIDIA GPU that encodes {encoder.codec}, and its driver"
            cure = f"{needs}; use --encoder {ON_CPU[encoder.codec]}"
        raise InputError(
            f"the encoder {encoder.ffmpeg} "
            f"({', '.join('='.join(pair) for pair in encoder.options)}) does not open for "
            f"pictures of {encoder.width_px}×{encoder.height_px}: "
            f"{problem}; {cure}, or scale the video"
        )
    return encoder


def default_suffix(options: SyncOptions) -> str:
    """The container of an output whose name is not given."""
    if options.codec:
        return CONTAINERS[options.codec][0]
    return ".mp4"


def add_video(
    container: OutputContainer, encoder: VideoEncoder, info: VideoInfo, time_base: Fraction
) -> VideoStream:
    """Adds the encoder of the source `info` to a container, with stamps in `time_base`."""
    rate = info.frames_per_s or Fraction(MODEL_FPS)
    # PyAV's types know only some encoders by name.
    stream = cast(
        VideoStream, container.add_stream(encoder.ffmpeg, rate=rate, options=dict(encoder.options))
    )
    context = stream.codec_context
    _set_up(context, encoder)
    stream.time_base = context.time_base = time_base
    context.sample_aspect_ratio = info.sample_aspect_ratio
    if encoder.ffmpeg == _SVT_AV1:
        with _same_priority():
            context.open()
    return stream


@cache  # as NVENC takes long
def problem_of(encoder: VideoEncoder) -> str | None:
    """Why encoding one picture fails; None if it does not."""
    try:
        context = cast(VideoCodecContext, av.CodecContext.create(encoder.ffmpeg, "w"))
        _set_up(context, encoder)
        context.time_base = Fraction(1, 25)
        context.options = dict(encoder.options)
        with _same_priority():
            context.encode(VideoFrame(encoder.width_px, encoder.height_px, encoder.pixel_format))
            context.encode(None)
    except (FFmpegError, ValueError, OSError) as error:
        return reason_of(error)
    return None


@contextmanager
def _same_priority() -> Iterator[None]:
    """Opened by root, SVT-AV1 gives its threads, and the one that opens it, the highest real-time
    priority, which later child processes inherit: all else would wait. Here they get that of this
    thread back.
    """
    if not hasattr(os, "sched_getscheduler"):  # only on Linux
        yield
        return
    policy = os.sched_getscheduler(0)
    priority = os.sched_getparam(0)
    try:
        yield
    finally:
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # it has ended
                if os.sched_getscheduler(int(task.name)) == os.SCHED_FIFO:
                    os.sched_setscheduler(int(task.name), policy, priority)


def _set_up(context: VideoCodecContext, encoder: VideoEncoder) -> None:
    # SVT-AV1 reads this when it opens; by default it reports its settings on standard error.
    os.environ.setdefault("SVT_LOG", "1")
    context.width = encoder.width_px
    context.height = encoder.height_px
    context.pix_fmt = encoder.pixel_format
    context.thread_count = _ENCODER_THREADS
    if encoder.ffmpeg == "libx264":  # by default slices: of 16 threads, 2 % larger files
        context.thread_type = "FRAME"
    color = encoder.color
    context.color_primaries = color.primaries
    context.color_trc = color.transfer
    context.colorspace = color.matrix
    context.color_range = COLOR_RANGES[color.full_range]
    context.field_order = _FIELD_ORDERS[encoder.top_field_first]
    if encoder.top_field_first is not None and encoder.ffmpeg in _INTERLACED:
        context.flags |= CodecFlags.interlaced_dct


def _encoder(codec: Codec, name: str, options: SyncOptions, info: VideoInfo) -> VideoEncoder:
    library = LIBRARIES[codec, name]
    if library.ffmpeg not in av.codecs_available:
        cure = "install PyAV's own wheel: pip install --force-reinstall av"
        raise InputError(f"PyAV's FFmpeg has no {library.ffmpeg}; {cure}")
    settings = _settings_of(codec, name, options)
    form = _nearest_format(library, info.pixel_format)
    if codec == "prores":
        settings.setdefault(library.speed, "4444" if _chroma_of(form) == (16, 16) else "hq")
    parameters = _parameters(name, library.ffmpeg, form, info)
    if parameters:
        settings[f"{name}-params"] = ":".join(f"{key}={value}" for key, value in parameters.items())
    place = _chroma_place(form, info)
    # Of other samplings than 4:2:0, H.264 and HEVC do not state it.
    if place in _CHROMA_PLACES and (library.ffmpeg not in _PLACES_OF or _chroma_of(form) == (8, 8)):
        settings["chroma_sample_location"] = _CHROMA_PLACES[place]
    # FFV1 codes any size; the others only whole samples of chroma.
    across, down = (1, 1) if codec == "ffv1" else (16 // count for count in _chroma_of(form))
    if info.top_field_first is not None and name in ("x264", "prores"):
        down *= 2  # each field is coded as a picture
    size = info.width_px + -info.width_px % across, info.height_px + -info.height_px % down
    color = info.color
    if color.matrix == RGB_IDENTITY and not form.is_rgb:
        primaries, transfer = (
            BT709 if tag == UNSPECIFIED else tag for tag in (color.primaries, color.transfer)
        )
        color = ColorTags(
            primaries,
            transfer,
            BT2020_NCL if transfer in HDR_TRANSFERS else BT709,
            full_range=False,
        )
    encoder = VideoEncoder(
        codec,
        library.ffmpeg,
        form.name,
        *size,
        color,
        tuple(settings.items()),
        chroma_place=place,
        top_field_first=info.top_field_first,
    )
    return replace(encoder, notices=tuple(_losses(encoder, info)))


def _parameters(name: str, ffmpeg: str, form: VideoFormat, info: VideoInfo) -> dict[str, str]:
    """What an encoder's library takes by names of its own."""
    parameters = _hdr_parameters(ffmpeg, info.hdr)
    if name == "x265":  # reports its settings on standard error
        parameters["log-level"] = "error"
    if name == "x264" and info.top_field_first is not None:  # else only the second frame says so
        parameters["tff" if info.top_field_first else "bff"] = "1"
    picture_bytes = info.width_px * info.height_px * sum(each.bits for each in form.components) // 8
    if name == "x264" and _X264_PICTURES * picture_bytes > _X264_BYTES:
        parameters |= _X264_SMALL
    return parameters


def _settings_of(codec: Codec, name: str, options: SyncOptions) -> dict[str, str]:
    """FFmpeg's options for quality and speed; `InputError` if a value is not the encoder's."""
    library = LIBRARIES[codec, name]
    settings: dict[str, str] = {"rc": "constqp"} if name == "nvenc" else {}
    if library.quality is not None:
        key, usual, worst = library.quality
        crf = usual if options.crf is None else options.crf
        if crf > worst:
            raise InputError(f"--crf {crf}: outside 0 to {worst} of {codec}")
        if name == "nvenc":  # whose quantizers reach 255 in AV1
            crf = max(crf * (4 if codec == "av1" else 1), 1)
        settings[key] = str(crf)
    elif options.crf is not None:
        raise InputError(f"--crf {options.crf}: {codec} has no such setting; leave it out")
    if options.encoder_preset is None:
        preset = library.preset
    else:
        preset = options.encoder_preset
    if preset:
        settings[library.speed] = preset
    return settings


def _hdr_parameters(encoder: str, metadata: HdrMetadata) -> dict[str, str]:
    """With what an encoder stores HDR10's metadata, the display as
    "G(x,y)B(x,y)R(x,y)WP(x,y)L(largest,least)".
    """
    parameters = dict[str, str]()
    if encoder not in _HDR_PARAMETERS:
        return parameters
    display_name, light_name, chromaticity, luminance = _HDR_PARAMETERS[encoder]
    if metadata.mastering is not None:
        units = [chromaticity] * 8 + [luminance] * 2
        scaled = [value * unit for value, unit in zip(metadata.mastering, units, strict=True)]
        texts = [
            str(round(value)) if chromaticity > 1 else f"{float(value):.5f}" for value in scaled
        ]
        red, green, blue, white = (",".join(texts[start : start + 2]) for start in range(0, 8, 2))
        parameters[display_name] = f"G({green})B({blue})R({red})WP({white})L({texts[9]},{texts[8]})"
    if metadata.light is not None:
        parameters[light_name] = "{},{}".format(*metadata.light)
    return parameters


def _nearest_format(library: Library, source: str) -> VideoFormat:
    """The encoder's pixel format that loses least of `source`, and among those adds least. RGB
    stays RGB in FFV1 and becomes 4:2:0 elsewhere, as players expect.
    """
    as_rgb = VideoFormat(source).is_rgb and library.ffmpeg == "ffv1"
    names = library.formats or [
        form.name for form in av.Codec(library.ffmpeg, "w").video_formats or ()
    ]
    # With color, without alpha, as integers, and without a word on the range.
    plain = [
        name
        for name in names
        if not name.startswith(("yuvj", "nv", "yaf")) and not name.endswith(_NO_INTEGERS)
    ]
    forms = [
        form
        for form in map(VideoFormat, plain)
        if len(form.components) == 3 and form.is_rgb == as_rgb
    ]
    best, _ = find_best_pix_fmt_of_list(
        forms, source if as_rgb else source.replace("gbrp", "yuv420p")
    )
    return cast(VideoFormat, best)


def _chroma_of(form: VideoFormat) -> tuple[int, int]:
    """Chroma samples in 16 pixels along x and y."""
    return form.chroma_width(16), form.chroma_height(16)


def _chroma_place(form: VideoFormat, info: VideoInfo) -> tuple[int, int] | None:
    """Where chroma samples lie in pictures of `form`: as in the source and, along an axis on which
    that has one for each pixel, where players expect them."""
    columns, rows = _chroma_of(VideoFormat(info.pixel_format))
    if info.chroma_place is None and (columns, rows) == _chroma_of(form):
        return None
    x, y = info.chroma_place or (_USUAL_X, _USUAL_Y)
    if columns == 16:
        x = _USUAL_X
    if rows == 16:
        y = _USUAL_Y
    return x, y


def _losses(encoder: VideoEncoder, info: VideoInfo) -> Iterator[str]:
    if (info.width_px, info.height_px) != (encoder.width_px, encoder.height_px):
        sizes = f"{info.width_px}×{info.height_px} to {encoder.width_px}×{encoder.height_px}"
        where = "" if encoder.top_field_first is None else " of each field"
        yield (
            f"{encoder.pixel_format} needs even sides{where}: "
            f"the picture grows from {sizes} by repeating its edge"
        )
    source = VideoFormat(info.pixel_format)
    form = VideoFormat(encoder.pixel_format)
    source_bits = source.components[0].bits
    bits = form.components[0].bits
    if bits < source_bits:
        yield (
            f"the picture has {source_bits} bits per channel "
            f"({info.pixel_format}); {encoder.codec} stores {bits}"
        )
    pairs = zip(_chroma_of(form), _chroma_of(source), strict=True)
    if not source.is_rgb and any(own < wanted for own, wanted in pairs):
        yield (
            f"the picture is {info.pixel_format}; {encoder.codec} "
            f"stores fewer chroma samples, {form.name}"
        )
    if info.hdr.dynamic:
        yield (
            f"{' and '.join(info.hdr.dynamic)}: not written, only the picture for other displays"
        )
    if (info.hdr.mastering or info.hdr.light) and encoder.ffmpeg not in _HDR_PARAMETERS:
        yield (
            f"{encoder.ffmpeg} does not store HDR10's mastering "
            "display and light levels; color tags are kept"
        )
    if info.captions:
        cure = (
            'keep them in a file: ffmpeg -f lavfi -i "movie=VIDEO[out+subcc]" -map s captions.srt'
        )
        yield f"closed captions within the picture (CEA-608, CEA-708) are left out; {cure}"
    if not encoder.keeps_fields:
        yield f"{encoder.ffmpeg} does not store that the picture is interlaced"
    if info.interlaced:
        yield ("the picture is interlaced; its fields are not separated")
