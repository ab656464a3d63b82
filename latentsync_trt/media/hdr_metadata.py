"""HDR10's static metadata: read from a decoded picture, and written as encoders take it."""

import struct
from fractions import Fraction
from typing import Any

from av.sidedata.sidedata import Type
from av.video.frame import VideoFrame

from latentsync_trt.errors import InputError
from latentsync_trt.media.color import UNSPECIFIED
from latentsync_trt.types import HdrMetadata

_DOLBY_VISION = Type.DOVI_RPU_BUFFER, Type.DOVI_METADATA
_DYNAMIC = dict.fromkeys(_DOLBY_VISION, "Dolby Vision") | {
    Type.DYNAMIC_HDR_PLUS: "HDR10+",
    Type.DYNAMIC_HDR_VIVID: "HDR Vivid",
}

_CHROMATICITY, _LUMINANCE = 50000, 10000
"""Units of SMPTE ST 2086 in x264 and x265: 0.00002 and 0.0001 cd/m²."""


def metadata_of(frame: VideoFrame) -> HdrMetadata | None:
    """The HDR metadata of a decoded frame; None if it has none.

    Raises:
        InputError: it is Dolby Vision in its own color space (profile 5).
    """
    entries: Any = frame.side_data
    found = {entry.type: bytes(entry) for entry in entries if entry.type in (*_DYNAMIC, *_STATIC)}
    if int(frame.color_trc) == UNSPECIFIED and any(kind in found for kind in _DOLBY_VISION):
        raise InputError(
            "it is Dolby Vision without a picture for other displays (profile 5), which only its own decoders can "
            "show; export it as HDR10, HLG or SDR"
        )
    if not found:
        return None
    light = found.get(Type.CONTENT_LIGHT_LEVEL)
    return HdrMetadata(
        _mastering(found.get(Type.MASTERING_DISPLAY_METADATA)),
        None if light is None else struct.unpack_from("=2I", light),
        tuple(dict.fromkeys(name for kind, name in _DYNAMIC.items() if kind in found)),
    )


_STATIC = Type.MASTERING_DISPLAY_METADATA, Type.CONTENT_LIGHT_LEVEL


def _mastering(data: bytes | None) -> tuple[Fraction, ...] | None:
    """FFmpeg's `AVMasteringDisplayMetadata`: ten fractions, then whether primaries and luminance are set."""
    if data is None:
        return None
    *numbers, has_primaries, has_luminance = struct.unpack_from("=22i", data)
    if not (has_primaries and has_luminance and all(numbers[1::2])):
        return None
    return tuple(map(Fraction, numbers[0::2], numbers[1::2]))


def encoder_options(codec: str, metadata: HdrMetadata | None) -> dict[str, str]:
    """The parameters, by name, with which `libx264`, `libx265` or `libsvtav1` stores the static metadata."""
    names = _NAMES.get(codec)
    if metadata is None or names is None:
        return {}
    options = {}
    if metadata.mastering is not None:
        in_units = (1, 1) if codec == "libsvtav1" else (_CHROMATICITY, _LUMINANCE)
        options[names[0]] = _display(metadata.mastering, *in_units)
    if metadata.light is not None:
        options[names[1]] = "{},{}".format(*metadata.light)
    return options


_NAMES = {
    "libx264": ("mastering-display", "cll"),
    "libx265": ("master-display", "max-cll"),
    "libsvtav1": ("mastering-display", "content-light"),
}


def _display(mastering: tuple[Fraction, ...], chromaticity: int, luminance: int) -> str:
    """As "G(x,y)B(x,y)R(x,y)WP(x,y)L(largest,least)", integers in units above 1."""
    units = (*[chromaticity] * 8, *[luminance] * 2)
    texts = [
        str(round(value * unit)) if unit > 1 else f"{float(value):.5f}"
        for value, unit in zip(mastering, units, strict=True)
    ]
    red, green, blue, white = (",".join(texts[start : start + 2]) for start in range(0, 8, 2))
    return f"G({green})B({blue})R({red})WP({white})L({texts[9]},{texts[8]})"
