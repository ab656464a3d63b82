"""The encoders that can be chosen: names, presets, and which of their pixel formats is nearest to a source's."""

from dataclasses import dataclass
from typing import Literal

import av
from av.video.format import VideoFormat

from latentsync_trt.config import Codec, SyncOptions
from latentsync_trt.errors import InputError

EncoderName = Literal["x264", "x265", "svtav1", "nvenc", "prores", "ffv1"]

_NVENC_LEAST_QP = 1


@dataclass(frozen=True, slots=True)
class Library:
    """An encoder.

    `ffmpeg`: FFmpeg's name. `quality`: of its setting for quality the name, default and worst value. `speed`: name of
    the setting that `presets` are values of; `preset`: the default, or empty. `formats`: pixel formats to choose from;
    empty = all that it states.
    """

    ffmpeg: str
    quality: tuple[str, int, int] | None = None
    presets: tuple[str, ...] = ()
    preset: str = ""
    speed: str = "preset"
    formats: tuple[str, ...] = ()


_X26X_PRESETS = (
    *("ultrafast", "superfast", "veryfast", "faster", "fast"),
    *("medium", "slow", "slower", "veryslow", "placebo"),
)
_SVT_PRESETS = tuple(map(str, range(14)))
_NVENC_PRESETS = tuple(f"p{number}" for number in range(1, 8))
_PRORES_PROFILES = ("proxy", "lt", "standard", "hq", "4444", "4444xq")

_NVENC_420 = ("yuv420p", "p010le")
_NVENC_444 = ("yuv444p", "yuv444p16le")

# At one crf, the presets of x264 differ little in quality and by a tenth in size; this one is fast enough for a GPU.
# x265 gains 2 dB and a quarter in size from veryfast to medium, for a third more work.
# NVENC is separate hardware, and p5 does not slow a run down; only the newest have 4:2:2, or 10 bits in H.264.
LIBRARIES: dict[tuple[Codec, EncoderName], Library] = {
    ("h264", "x264"): Library("libx264", ("crf", 16, 51), _X26X_PRESETS, "veryfast"),
    ("hevc", "x265"): Library("libx265", ("crf", 18, 51), _X26X_PRESETS, "medium"),
    ("av1", "svtav1"): Library("libsvtav1", ("crf", 24, 63), _SVT_PRESETS, "8"),
    ("prores", "prores"): Library("prores_ks", None, _PRORES_PROFILES, speed="profile"),
    ("ffv1", "ffv1"): Library("ffv1"),
    ("h264", "nvenc"): Library("h264_nvenc", ("qp", 16, 51), _NVENC_PRESETS, "p5", formats=("yuv420p", "yuv444p")),
    ("hevc", "nvenc"): Library("hevc_nvenc", ("qp", 18, 51), _NVENC_PRESETS, "p5", formats=_NVENC_420 + _NVENC_444),
    ("av1", "nvenc"): Library("av1_nvenc", ("qp", 24, 63), _NVENC_PRESETS, "p5", formats=_NVENC_420),
}
ON_CPU: dict[Codec, EncoderName] = {codec: name for codec, name in LIBRARIES if name != "nvenc"}
"""The encoder of each codec that needs no GPU."""


def settings_of(codec: Codec, name: EncoderName, options: SyncOptions) -> dict[str, str]:
    """FFmpeg's options for quality and speed; raises `InputError` for a value that is not one of the encoder's."""
    library = LIBRARIES[codec, name]
    settings: dict[str, str] = {"rc": "constqp"} if name == "nvenc" else {}
    if library.quality is not None:
        key, usual, worst = library.quality
        crf = usual if options.crf is None else options.crf
        if crf > worst:
            raise InputError(f"--crf {crf}: outside 0 to {worst} of {codec}")
        if name == "nvenc":  # whose quantizers reach 255 in AV1
            crf = max(crf * (4 if codec == "av1" else 1), _NVENC_LEAST_QP)
        settings[key] = str(crf)
    elif options.crf is not None:
        raise InputError(f"--crf {options.crf}: {codec} has no such setting; leave it out")
    preset = library.preset if options.encoder_preset is None else options.encoder_preset
    if options.encoder_preset is not None and preset not in library.presets:
        known = f"use one of {', '.join(library.presets)}" if library.presets else "leave it out"
        raise InputError(f"--encoder {name}:{preset}: {name} has no such preset; {known}")
    if preset:
        settings[library.speed] = preset
    return settings


def nearest_format(library: Library, source: str) -> str:
    """The encoder's pixel format that loses least of `source`, and among those adds least.

    RGB stays RGB in FFV1 and becomes 4:2:0 elsewhere, as players expect.
    """
    wanted = VideoFormat(source)
    as_rgb = wanted.is_rgb and library.ffmpeg == "ffv1"
    names = library.formats or [form.name for form in av.Codec(library.ffmpeg, "w").video_formats or ()]
    across, down = (8, 8) if wanted.is_rgb and not as_rgb else chroma_of(wanted)

    def distance(form: VideoFormat) -> tuple[int, ...]:
        bits = bits_of(form) - bits_of(wanted)
        gains = chroma_of(form)[0] - across, chroma_of(form)[1] - down
        lost, added = (sum(max(sign * gain, 0) for gain in gains) for sign in (-1, 1))
        return form.is_rgb != as_rgb, max(-bits, 0), lost, added, max(bits, 0)

    return min(filter(_is_plain, map(VideoFormat, names)), key=distance).name


def bits_of(form: VideoFormat) -> int:
    """Bits per channel."""
    return form.components[0].bits


def chroma_of(form: VideoFormat) -> tuple[int, int]:
    """Chroma samples in 16 pixels along x and y."""
    return form.chroma_width(16), form.chroma_height(16)


def _is_plain(form: VideoFormat) -> bool:
    """Whether a format has color, no alpha and integers, and says nothing of the range."""
    return (
        len(form.components) == 3
        and not form.name.startswith(("yuvj", "nv", "yaf"))
        and not form.name.endswith(("f16le", "f32le"))
    )
