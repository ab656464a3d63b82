"""Tables that turn the signal of an HDR picture into SDR for the networks, and back. Pure.

They hold for each channel of the non-linear signal of PQ and HLG (ITU-R BT.2100):

1. Signal → light relative to HDR reference white, 203 cd/m² (ITU-R BT.2408). For HLG on a nominal
   display of 1000 cd/m², whose system gamma of 1.2 is applied to each channel, 75 % signal is that
   white, too.
2. Light → signal of an SDR display: s = light^(1/2.4) (ITU-R BT.1886).
3. A soft knee: s up to 0.75 stays; above, 0.75 + a·x / (x + a) with x = s − 0.75, which continues
   with slope 1 and reaches 1 at 1000 cd/m². Reference white becomes 0.89, and brighter light than
   1000 cd/m² becomes 1.

Primaries are not converted, as clipping to BT.709 has no inverse: the networks see slightly paler
colors.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from latentsync_trt.types import Float32Array, Float64Array, UInt8Array

PQ = 16
HLG = 18
HDR_TRANSFERS = (PQ, HLG)
"""Numbers of HDR transfers in ITU-T H.273."""

_NOMINAL_PEAK = 1000.0
"""The peak of the nominal display of HLG, in cd/m²."""
_REFERENCE_WHITE = 203.0
"""In cd/m²."""
_SDR_GAMMA = 2.4

# PQ: BT.2100, table 4.
_PQ_PEAK = 10_000
_M1 = 2610 / 16384
_M2 = 2523 / 4096 * 128
_PQ_C1 = 3424 / 4096
_PQ_C2 = 2413 / 4096 * 32
_PQ_C3 = 2392 / 4096 * 32

# HLG: BT.2100, table 5.
_A = 0.17883277
_B = 1 - 4 * _A
_C = 0.5 - _A * np.log(4 * _A)
_SYSTEM_GAMMA = 1.2

_KNEE = 0.75
"""The level at which the knee begins. Skin is mostly below, so that the networks see faces as they
are.
"""
# The knee's a follows from a·x / (x + a) = 1 − knee at the peak, where x = reach.
_REACH = (_NOMINAL_PEAK / _REFERENCE_WHITE) ** (1 / _SDR_GAMMA) - _KNEE
_BEND = (1 - _KNEE) * _REACH / (_REACH - (1 - _KNEE))


@dataclass(frozen=True, slots=True, eq=False)
class HdrCurve:
    """Both directions between HDR and SDR, for every 16-bit value."""

    sdr: UInt8Array
    """The SDR level of each HDR signal, `(65536,)`."""
    signal: Float32Array
    """The HDR signal in [0, 1] of each SDR level, `(65536,)`."""


@cache
def hdr_curve(transfer: int) -> HdrCurve | None:
    """Returns the curve of a transfer of `ColorTags`; None for SDR."""
    if transfer not in HDR_TRANSFERS:
        return None
    levels = np.arange(65536) / 65535
    level = _bent(levels, -_BEND)
    knee_light = np.minimum(_REFERENCE_WHITE * level**_SDR_GAMMA, _NOMINAL_PEAK)
    if transfer == PQ:
        light = _pq_light(levels)
        signal = _pq_signal(knee_light)
    else:
        light = _hlg_light(levels)
        signal = _hlg_signal(knee_light)
    sdr = _bent((light / _REFERENCE_WHITE) ** (1 / _SDR_GAMMA), _BEND)
    sdr_levels = np.rint(255 * np.clip(sdr, 0, 1))
    return HdrCurve(sdr_levels.astype(np.uint8), signal.astype(np.float32))


def _pq_light(signal: Float64Array) -> Float64Array:
    """Returns the light of a signal, in cd/m²."""
    root = signal ** (1 / _M2)
    above = np.maximum(root - _PQ_C1, 0)
    below = _PQ_C2 - _PQ_C3 * root
    return _PQ_PEAK * (above / below) ** (1 / _M1)


def _pq_signal(light: Float64Array) -> Float64Array:
    root = (light / _PQ_PEAK) ** _M1
    above = _PQ_C1 + _PQ_C2 * root
    below = 1 + _PQ_C3 * root
    return (above / below) ** _M2


def _hlg_light(signal: Float64Array) -> Float64Array:
    """Returns the light of a signal on the nominal display, in cd/m²."""
    dark = signal**2 / 3
    bright = (np.exp((signal - _C) / _A) + _B) / 12
    scene = np.where(signal <= 0.5, dark, bright)
    return _NOMINAL_PEAK * scene**_SYSTEM_GAMMA


def _hlg_signal(light: Float64Array) -> Float64Array:
    scene = (light / _NOMINAL_PEAK) ** (1 / _SYSTEM_GAMMA)
    dark = np.sqrt(3 * scene)
    # The logarithm is taken of dark light, too, where the result is not used.
    argument = np.maximum(12 * scene - _B, _B)
    bright = _A * np.log(argument) + _C
    return np.where(scene <= 1 / 12, dark, bright)


def _bent(level: Float64Array, bend: float) -> Float64Array:
    """Returns levels after the knee with `_BEND`, and before it with that negated, which is the
    inverse.
    """
    above = np.maximum(level - _KNEE, 0)
    return np.minimum(level, _KNEE) + bend * above / (bend + above)
