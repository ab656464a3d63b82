"""Which encoder writes the picture of a run, with which settings, and what it loses."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
from av import VideoFormat
from av.codec import find_best_pix_fmt_of_list

from latentsync_trt.config import MODEL_FPS, Codec, SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.media.color import BT709, BT2020_NCL, RGB_IDENTITY, UNSPECIFIED
from latentsync_trt.media.conversion import bits_of
from latentsync_trt.media.encoders import (
    CHROMA_PLACES,
    CONTAINERS,
    LIBRARIES,
    ON_CPU,
    PLACES_OF_ENCODERS,
    SVT_AV1,
    USUAL_CHROMA_X,
    USUAL_CHROMA_Y,
    ChromaSampling,
    Library,
    VideoEncoder,
    chroma_sampling,
    problem_of,
)
from latentsync_trt.media.hdr import HDR_TRANSFERS
from latentsync_trt.types import ColorTags, HdrMetadata, VideoInfo

KEYFRAMES_S = Fraction(2)
"""The longest time between keyframes, from one of which to the next a part can be done again
without the rest, and to which players seek. 10 s of a still shot grow by 16 % with x265, 23 % with
x264 and 35 % with SVT-AV1, beside 10 s.
"""
LOST_CAPTIONS = (
    "closed captions within the picture (CEA-608, CEA-708) are left out; "
    'keep them in a file: ffmpeg -f lavfi -i "movie=VIDEO[out+subcc]" -map s captions.srt'
)
"""What is told of them."""

_WITHOUT_INTERVAL = ("ffv1", "prores_ks")
"""Encoders whose keyframes are nearer than that anyway."""

_X264_PICTURES = 40
"""About how many pictures x264 holds."""
_X264_BYTES = 1_000_000_000
"""What the pictures that x264 holds may take."""
_X264_SMALL = {"rc-lookahead": "0", "bframes": "0", "sliced-threads": "1", "subme": "0"}
"""Parameters with which x264 holds few pictures: at 8192×4352 it needs 0.5 instead of 3.1 GB. Files
grow, quality stays that of the CRF.
"""

_NO_INTEGERS = ("f16le", "f32le")
"""Ends of the names of pixel formats in floating point."""
_NO_PLAIN_PLANES = ("yuvj", "nv", "yaf")
"""Beginnings of the names of pixel formats that state a range, interleave chroma, or have alpha."""


@dataclass(frozen=True, slots=True)
class _HdrParameters:
    """The names under which an encoder takes HDR10's metadata."""

    display: str
    light: str


_HDR_PARAMETERS = {
    "libx264": _HdrParameters("mastering-display", "cll"),
    "libx265": _HdrParameters("master-display", "max-cll"),
    SVT_AV1: _HdrParameters("mastering-display", "content-light"),
}
"""The parameters of those encoders that store HDR10's metadata."""
_DISPLAY_UNITS = (*[50_000] * 8, *[10_000] * 2)
"""Units of the eight chromaticities and two luminances of a display (SMPTE ST 2086)."""


def choose_encoder(options: SyncOptions, info: VideoInfo) -> VideoEncoder:
    """Returns the encoder for a source; "auto" is NVENC if it opens for such pictures, else the
    CPU's. Without a name, the codec is the encoder's; else H.264 for 8 bits of SDR, HEVC for more.
    Raises `InputError` if options contradict each other, a value is not one of the encoder's, or
    FFmpeg lacks the encoder.
    """
    name = options.encoder_name
    codec = options.codec or _codec_for(name, info)
    if name == "auto" and (codec, "nvenc") in LIBRARIES:
        if options.encoder_preset is not None:
            raise InputError(
                f"--encoder {options.encoder}: presets differ from encoder to encoder; name one"
            )
        on_gpu = _make_encoder(codec, "nvenc", options, info)
        if problem_of(on_gpu) is None:
            return on_gpu
    if name in (None, "auto"):
        name = ON_CPU[codec]
    if (codec, name) not in LIBRARIES:
        fitting = [encoder for other, encoder in LIBRARIES if other == codec]
        cure = "leave it out"
        if len(fitting) > 1:
            cure = f"use {' or '.join(fitting)}"
        raise InputError(f"--encoder {name}: does not write {codec}; {cure}")
    return _make_encoder(codec, name, options, info)


def check_encoder(options: SyncOptions, info: VideoInfo, output: Path) -> VideoEncoder:
    """Returns what `choose_encoder` returns, after one picture was encoded on trial; also raises
    `InputError` if that fails, or if the container `output` cannot hold the codec.
    """
    encoder = choose_encoder(options, info)
    fitting = CONTAINERS[encoder.codec]
    if output.suffix.lower() not in fitting:
        raise InputError(
            f"{output}: cannot hold {encoder.codec}; use a name that ends in {' or '.join(fitting)}"
        )
    problem = problem_of(encoder)
    if problem is not None:
        cure = "use another --codec"
        if encoder.ffmpeg.endswith("_nvenc"):
            needs = f"NVENC needs an NVIDIA GPU that encodes {encoder.codec}, and its driver"
            cure = f"{needs}; use --encoder {ON_CPU[encoder.codec]}"
        settings = ", ".join(map("=".join, encoder.options))
        size = f"{encoder.width_px}×{encoder.height_px}"
        raise InputError(
            f"the encoder {encoder.ffmpeg} ({settings}) does not open for pictures of {size}: "
            f"{problem}; {cure}, or scale the video"
        )
    return encoder


def default_suffix(options: SyncOptions) -> str:
    """Returns the container of an output whose name is not given."""
    return CONTAINERS[options.codec or "h264"][0]


def _codec_for(name: str | None, info: VideoInfo) -> Codec:
    for codec, on_cpu in ON_CPU.items():
        if on_cpu == name:
            return codec
    if bits_of(VideoFormat(info.pixel_format)) > 8 or info.color.transfer in HDR_TRANSFERS:
        return "hevc"
    return "h264"


def _make_encoder(codec: Codec, name: str, options: SyncOptions, info: VideoInfo) -> VideoEncoder:
    library = LIBRARIES[codec, name]
    if library.ffmpeg not in av.codecs_available:
        raise InputError(
            f"PyAV's FFmpeg has no {library.ffmpeg}; "
            "install PyAV's own wheel: pip install --force-reinstall av"
        )
    form = _nearest_format(library, info.pixel_format)
    sampling = chroma_sampling(form)
    settings = _quality_and_speed(codec, name, options)
    if codec == "prores":
        profile = "4444" if sampling == ChromaSampling(16, 16) else "hq"
        settings.setdefault(library.speed, profile)
    parameters = _library_parameters(library.ffmpeg, form, info)
    if library.ffmpeg not in _WITHOUT_INTERVAL:
        frames = int(KEYFRAMES_S * (info.frames_per_s or MODEL_FPS))
        settings["g"] = str(max(1, frames))
    if parameters:
        settings[f"{name}-params"] = ":".join(map("=".join, parameters.items()))
    place = _chroma_place(sampling, info)
    # Of other samplings than 4:2:0, H.264 and HEVC do not state it.
    states_place = library.ffmpeg not in PLACES_OF_ENCODERS or sampling == ChromaSampling(8, 8)
    if place in CHROMA_PLACES and states_place:
        settings["chroma_sample_location"] = CHROMA_PLACES[place]
    # FFV1 codes any size; the others only whole samples of chroma.
    across = 1 if codec == "ffv1" else 16 // sampling.columns
    down = 1 if codec == "ffv1" else 16 // sampling.rows
    if info.top_field_first is not None and name in ("x264", "prores"):
        down *= 2  # each field is coded as a picture
    encoder = VideoEncoder(
        codec,
        library.ffmpeg,
        form.name,
        info.width_px + -info.width_px % across,
        info.height_px + -info.height_px % down,
        _encoded_color(info.color, form),
        tuple(settings.items()),
        chroma_place=place,
        top_field_first=info.top_field_first,
    )
    return replace(encoder, notices=tuple(_losses_of_encoder(encoder, info)))


def _quality_and_speed(codec: Codec, name: str, options: SyncOptions) -> dict[str, str]:
    """Returns FFmpeg's options for both; raises `InputError` if a value is not the encoder's."""
    library = LIBRARIES[codec, name]
    settings = dict[str, str]()
    if name == "nvenc":
        settings["rc"] = "constqp"
    if library.crf is not None:
        crf = library.crf if options.crf is None else options.crf
        if crf > library.worst_crf:
            raise InputError(f"--crf {crf}: outside 0 to {library.worst_crf} of {codec}")
        if name == "nvenc":
            per_crf = 4 if codec == "av1" else 1  # quantizers of AV1 reach 255
            settings["qp"] = str(max(crf * per_crf, 1))
        else:
            settings["crf"] = str(crf)
    elif options.crf is not None:
        raise InputError(f"--crf {options.crf}: {codec} has no such setting; leave it out")
    preset = options.encoder_preset or library.preset
    if preset:
        settings[library.speed] = preset
    return settings


def _library_parameters(ffmpeg: str, form: VideoFormat, info: VideoInfo) -> dict[str, str]:
    """Returns the settings that an encoder's library takes by names of its own."""
    parameters = _hdr_parameters(ffmpeg, info.hdr)
    if ffmpeg == "libx265":
        parameters["log-level"] = "error"  # else it reports its settings on standard error
        parameters["open-gop"] = "0"  # no picture refers to one before its keyframe
    if ffmpeg != "libx264":
        return parameters
    if info.top_field_first is not None:  # else only the second frame says so
        parameters["tff" if info.top_field_first else "bff"] = "1"
    bits = sum(component.bits for component in form.components)
    picture_bytes = info.width_px * info.height_px * bits // 8
    if _X264_PICTURES * picture_bytes > _X264_BYTES:
        parameters |= _X264_SMALL
    return parameters


def _hdr_parameters(ffmpeg: str, metadata: HdrMetadata) -> dict[str, str]:
    parameters = dict[str, str]()
    stored = _HDR_PARAMETERS.get(ffmpeg)
    if stored is None:
        return parameters
    if metadata.mastering is not None:
        parameters[stored.display] = _display_text(metadata.mastering, ffmpeg)
    if metadata.light is not None:
        parameters[stored.light] = "{},{}".format(*metadata.light)
    return parameters


def _display_text(mastering: Sequence[Fraction], ffmpeg: str) -> str:
    """Returns the display as "G(x,y)B(x,y)R(x,y)WP(x,y)L(largest,least)": x264 and x265 take whole
    units, SVT-AV1 numbers.
    """
    texts = [f"{float(value):.5f}" for value in mastering]
    if ffmpeg != SVT_AV1:
        pairs = zip(mastering, _DISPLAY_UNITS, strict=True)
        texts = [str(round(value * units)) for value, units in pairs]
    return "G({2},{3})B({4},{5})R({0},{1})WP({6},{7})L({9},{8})".format(*texts)


def _nearest_format(library: Library, source: str) -> VideoFormat:
    """Returns the encoder's pixel format that loses least of `source`, and among those adds least.
    RGB stays RGB in FFV1 and becomes 4:2:0 elsewhere, as players expect.
    """
    as_rgb = VideoFormat(source).is_rgb and library.ffmpeg == "ffv1"
    forms = [VideoFormat(name) for name in library.formats]
    if not forms:
        forms = list(av.Codec(library.ffmpeg, "w").video_formats or ())
    fitting = [form for form in forms if _is_plain(form) and form.is_rgb == as_rgb]
    wanted = source if as_rgb else source.replace("gbrp", "yuv420p")
    best, _ = find_best_pix_fmt_of_list(fitting, wanted)
    return cast(VideoFormat, best)


def _is_plain(form: VideoFormat) -> bool:
    """Returns whether a format has three planes of integers."""
    is_planar = len(form.components) == 3 and not form.name.startswith(_NO_PLAIN_PLANES)
    return is_planar and not form.name.endswith(_NO_INTEGERS)


def _encoded_color(color: ColorTags, form: VideoFormat) -> ColorTags:
    """Returns the tags of a picture in `form`, in which RGB may have become YUV."""
    if color.matrix != RGB_IDENTITY or form.is_rgb:
        return color
    primaries = BT709 if color.primaries == UNSPECIFIED else color.primaries
    transfer = BT709 if color.transfer == UNSPECIFIED else color.transfer
    matrix = BT2020_NCL if transfer in HDR_TRANSFERS else BT709
    return ColorTags(primaries, transfer, matrix, full_range=False)


def _chroma_place(sampling: ChromaSampling, info: VideoInfo) -> tuple[int, int] | None:
    """Returns where the chroma samples of an encoded picture lie: as in the source and, along an
    axis on which that has one for each pixel, where players expect them.
    """
    source = chroma_sampling(VideoFormat(info.pixel_format))
    if info.chroma_place is None and source == sampling:
        return None
    x, y = info.chroma_place or (USUAL_CHROMA_X, USUAL_CHROMA_Y)
    if source.columns == 16:
        x = USUAL_CHROMA_X
    if source.rows == 16:
        y = USUAL_CHROMA_Y
    return x, y


def _losses_of_encoder(encoder: VideoEncoder, info: VideoInfo) -> Iterator[str]:
    source_size = f"{info.width_px}×{info.height_px}"
    size = f"{encoder.width_px}×{encoder.height_px}"
    if source_size != size:
        where = "" if encoder.top_field_first is None else " of each field"
        yield (
            f"{encoder.pixel_format} needs even sides{where}: "
            f"the picture grows from {source_size} to {size} by repeating its edge"
        )
    source = VideoFormat(info.pixel_format)
    form = VideoFormat(encoder.pixel_format)
    source_bits = bits_of(source)
    bits = bits_of(form)
    if bits < source_bits:
        yield (
            f"the picture has {source_bits} bits per channel "
            f"({info.pixel_format}); {encoder.codec} stores {bits}"
        )
    sampling = chroma_sampling(form)
    wanted = chroma_sampling(source)
    has_fewer_samples = sampling.columns < wanted.columns or sampling.rows < wanted.rows
    if has_fewer_samples and not source.is_rgb:
        yield (
            f"the picture is {info.pixel_format}; {encoder.codec} "
            f"stores fewer chroma samples, {form.name}"
        )
    hdr = info.hdr
    if hdr.dynamic:
        yield f"{' and '.join(hdr.dynamic)}: not written, only the picture for other displays"
    if (hdr.mastering or hdr.light) and encoder.ffmpeg not in _HDR_PARAMETERS:
        yield (
            f"{encoder.ffmpeg} does not store HDR10's mastering "
            "display and light levels; color tags are kept"
        )
    if info.captions:
        yield LOST_CAPTIONS
    if not encoder.keeps_fields:
        yield f"{encoder.ffmpeg} does not store that the picture is interlaced"
    if info.interlaced:
        yield "the picture is interlaced; its fields are not separated"
