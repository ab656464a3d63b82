"""Codecs of the linked FFmpeg: which are missing, and the H.264 encoder to use."""

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import cast

import av
import av.error
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame

from latentsync_trt.config import Encoder
from latentsync_trt.errors import OutputError
from latentsync_trt.media.files import reason_of

_X264 = "libx264"

_NEEDED_CODECS = (
    *(_X264, "ffv1", "aac"),
    *("h264", "hevc", "vp9", "av1", "prores", "mp3", "opus", "flac", "pcm_s16le"),
)

# At one crf, x264's presets differ little in quality and by a tenth in size; this one is fast enough for a GPU.
_X264_PRESET = "veryfast"

_X264_LONGEST_SIDE_PX = 16384

# NVENC's presets range from p1 (fast) to p7; it is separate hardware, and p5 does not slow a run down.
_NVENC_PRESET = "p5"
_NVENC_LEAST_QP = 1
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
class H264:
    """An H.264 encoder: FFmpeg's name and options."""

    codec: str
    options: dict[str, str]


def h264_encoder(encoder: Encoder, crf: int, width_px: int, height_px: int) -> H264:
    """The encoder and its options; "auto" is NVENC if it opens for pictures of this size, else x264.

    Args:
        crf: 0 to 51. x264 uses it directly, NVENC as its constant quantizer, which is similar but not the same.

    Raises:
        OutputError: the encoder does not open, or not for pictures of this size.
    """
    if encoder != "x264":
        problem = _problem_of_nvenc(width_px, height_px)
        if problem is None:
            return _nvenc(crf)
        if encoder == "nvenc":
            of_size = _problem_of_nvenc(*_NVENC_USUAL_SIZE_PX) is None
            place = f" for pictures of {width_px}×{height_px}, only for usual sizes" if of_size else ""
            raise OutputError(
                f"--encoder nvenc: the GPU's H.264 encoder does not open{place}: {problem}; use --encoder x264"
            )
    if _X264 not in av.codecs_available:
        raise OutputError(f"PyAV's FFmpeg has no {_X264}; install PyAV's own wheel: pip install --force-reinstall av")
    if max(width_px, height_px) > _X264_LONGEST_SIDE_PX:
        raise OutputError(
            f"the picture has {width_px}×{height_px} pixels, but x264 allows {_X264_LONGEST_SIDE_PX} per side; "
            "scale the video down, or use --lossless"
        )
    return H264(_X264, {"crf": str(crf), "preset": _X264_PRESET})


def check_encoder(encoder: Encoder, width_px: int, height_px: int, *, lossless: bool) -> None:
    """Raises `OutputError` if pictures of this size cannot be encoded; opens NVENC for a moment if it may be used."""
    if not lossless:
        h264_encoder(encoder, 0, *even_size(width_px, height_px))


def even_size(width_px: int, height_px: int) -> tuple[int, int]:
    """The next size with even sides, as 4:2:0 needs."""
    return width_px + width_px % 2, height_px + height_px % 2


def _nvenc(crf: int) -> H264:
    qp = str(max(crf, _NVENC_LEAST_QP))
    return H264("h264_nvenc", {"preset": _NVENC_PRESET, "rc": "constqp", "qp": qp})


@cache
def _problem_of_nvenc(width_px: int, height_px: int) -> str | None:
    """As `problem_of`, which takes a good part of a second on a GPU; a run asks three times."""
    return problem_of(_nvenc(0), width_px, height_px)


def problem_of(encoder: H264, width_px: int, height_px: int) -> str | None:
    """Encodes one picture; returns the reason if that fails, else None."""
    try:
        context = cast(VideoCodecContext, av.CodecContext.create(encoder.codec, "w"))
        context.width, context.height = width_px, height_px
        context.pix_fmt, context.time_base = "yuv420p", Fraction(1, 25)
        context.options = encoder.options
        context.encode(VideoFrame(width_px, height_px, "yuv420p"))
        context.encode(None)
    except (av.error.FFmpegError, ValueError, OSError) as error:
        return reason_of(error)
    return None
