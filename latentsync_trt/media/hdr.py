"""HDR as SDR for the networks, the inverse for what they paint, and HDR10's static metadata.

Per channel, on the non-linear signal of PQ and HLG (ITU-R BT.2100):

1. Signal → light relative to HDR reference white, 203 cd/m² (ITU-R BT.2408). For HLG on a nominal display of
   1000 cd/m², whose system gamma of 1.2 is applied to each channel, 75 % signal is that white, too.
2. Light → signal of an SDR display: s = light^(1/2.4) (ITU-R BT.1886).
3. A soft knee: s up to 0.75 stays; above, 0.75 + a·x / (x + a) with x = s − 0.75, which continues with slope 1 and
   reaches 1 at 1000 cd/m². Reference white becomes 0.89, and brighter light than 1000 cd/m² 1.

Primaries are not converted, as clipping to BT.709 has no inverse: the networks see slightly paler colors.
"""

import struct
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from av import VideoFrame
from av.sidedata.sidedata import Type

from latentsync_trt.errors import InputError
from latentsync_trt.types import Float32Array, Float64Array, HdrMetadata, UInt8Array

PQ, HLG = 16, 18
"""Transfer characteristics in ITU-T H.273."""

HDR_TRANSFERS = PQ, HLG
_UNSPECIFIED = 2

_PEAK, _WHITE = 1000.0, 203.0  # cd/m²: the nominal display of HLG, and HDR reference white
_GAMMA, _KNEE = 2.4, 0.75

# PQ: BT.2100, table 4.
_M1, _M2 = 2610 / 16384, 2523 / 4096 * 128
_C1, _C2, _C3 = 3424 / 4096, 2413 / 4096 * 32, 2392 / 4096 * 32

# HLG: BT.2100, table 5.
_A = 0.17883277
_B, _C = 1 - 4 * _A, 0.5 - _A * np.log(4 * _A)
_SYSTEM_GAMMA = 1.2


class HdrCurve(NamedTuple):
    """Tables of a transfer for 16-bit values: `sdr (65536,)` uint8, the SDR level of each HDR signal; `signal (65536,)`
    float32 in [0, 1], the HDR signal of each SDR level."""

    sdr: UInt8Array
    signal: Float32Array


@cache
def hdr_of(transfer: int) -> HdrCurve | None:
    """The curve of an HDR transfer; None for SDR."""
    if transfer not in HDR_TRANSFERS:
        return None
    levels = np.arange(65536) / 65535
    to_light, from_light = (_pq_light, _pq_signal) if transfer == PQ else (_hlg_light, _hlg_signal)
    sdr = _knee((to_light(levels) / _WHITE) ** (1 / _GAMMA))
    light = np.minimum(_WHITE * _knee(levels, inverse=True) ** _GAMMA, _PEAK)
    return HdrCurve(np.rint(255 * np.clip(sdr, 0, 1)).astype(np.uint8), from_light(light).astype(np.float32))


def _pq_light(signal: Float64Array) -> Float64Array:
    """cd/m² of PQ."""
    root = signal ** (1 / _M2)
    return 10000 * (np.maximum(root - _C1, 0) / (_C2 - _C3 * root)) ** (1 / _M1)


def _pq_signal(light: Float64Array) -> Float64Array:
    root = (light / 10000) ** _M1
    return ((_C1 + _C2 * root) / (1 + _C3 * root)) ** _M2


def _hlg_light(signal: Float64Array) -> Float64Array:
    """cd/m² of HLG on the nominal display."""
    scene = np.where(signal <= 0.5, signal**2 / 3, (np.exp((signal - _C) / _A) + _B) / 12)
    return _PEAK * scene**_SYSTEM_GAMMA


def _hlg_signal(light: Float64Array) -> Float64Array:
    scene = (light / _PEAK) ** (1 / _SYSTEM_GAMMA)
    return np.where(scene <= 1 / 12, np.sqrt(3 * scene), _A * np.log(np.maximum(12 * scene - _B, _B)) + _C)


# The knee's a: from a·x / (x + a) = 1 − knee at x = reach.
_REACH = (_PEAK / _WHITE) ** (1 / _GAMMA) - _KNEE
_BEND = (1 - _KNEE) * _REACH / (_REACH - (1 - _KNEE))


def _knee(level: Float64Array, *, inverse: bool = False) -> Float64Array:
    above = np.maximum(level - _KNEE, 0)
    return np.minimum(level, _KNEE) + _BEND * above / (_BEND - above if inverse else _BEND + above)


_DOLBY_VISION = Type.DOVI_RPU_BUFFER, Type.DOVI_METADATA
_DYNAMIC = dict.fromkeys(_DOLBY_VISION, "Dolby Vision") | {
    Type.DYNAMIC_HDR_PLUS: "HDR10+",
    Type.DYNAMIC_HDR_VIVID: "HDR Vivid",
}
_STATIC = Type.MASTERING_DISPLAY_METADATA, Type.CONTENT_LIGHT_LEVEL

# Parameters of encoders for display and light, and the units of the display's
# chromaticity and luminance, as integers (SMPTE ST 2086) or 1 for decimal fractions.
_PARAMETERS = {
    "libx264": ("mastering-display", "cll", 50000, 10000),
    "libx265": ("master-display", "max-cll", 50000, 10000),
    "libsvtav1": ("mastering-display", "content-light", 1, 1),
}


def metadata_of(frame: VideoFrame) -> HdrMetadata | None:
    """The HDR metadata of a decoded frame, if any; `InputError` for Dolby Vision in its own color space (profile 5)."""
    entries: Any = frame.side_data
    found = {entry.type: bytes(entry) for entry in entries if entry.type in (*_DYNAMIC, *_STATIC)}
    if int(frame.color_trc) == _UNSPECIFIED and any(kind in found for kind in _DOLBY_VISION):
        what = (
            "it is Dolby Vision without a picture for other displays (profile 5), which only its own decoders can show"
        )
        raise InputError(f"{what}; export it as HDR10, HLG or SDR")
    if not found:
        return None
    display, light = found.get(Type.MASTERING_DISPLAY_METADATA), found.get(Type.CONTENT_LIGHT_LEVEL)
    mastering = None
    if display is not None:
        # FFmpeg's struct: ten fractions, then whether primaries and luminance are set.
        *numbers, has_primaries, has_luminance = struct.unpack_from("=22i", display)
        if has_primaries and has_luminance and all(numbers[1::2]):
            mastering = tuple(map(Fraction, numbers[0::2], numbers[1::2]))
    dynamic = dict.fromkeys(name for kind, name in _DYNAMIC.items() if kind in found)
    return HdrMetadata(mastering, None if light is None else struct.unpack_from("=2I", light), tuple(dynamic))


def encoder_options(codec: str, metadata: HdrMetadata | None) -> dict[str, str]:
    """The parameters with which `libx264`, `libx265` or `libsvtav1` stores the metadata.

    The display is written as "G(x,y)B(x,y)R(x,y)WP(x,y)L(largest,least)".
    """
    if metadata is None or codec not in _PARAMETERS:
        return {}
    display_name, light_name, chromaticity, luminance = _PARAMETERS[codec]
    options = {}
    if metadata.mastering is not None:
        units = [chromaticity] * 8 + [luminance] * 2
        scaled = [value * unit for value, unit in zip(metadata.mastering, units, strict=True)]
        texts = [str(round(value)) if chromaticity > 1 else f"{float(value):.5f}" for value in scaled]
        red, green, blue, white = (",".join(texts[start : start + 2]) for start in range(0, 8, 2))
        options[display_name] = f"G({green})B({blue})R({red})WP({white})L({texts[9]},{texts[8]})"
    if metadata.light is not None:
        options[light_name] = "{},{}".format(*metadata.light)
    return options
