"""An SDR rendition of HDR pictures for the networks, and its inverse for what they paint. Pure.

Per channel, on the non-linear signal of PQ and HLG (ITU-R BT.2100):

1. Signal → light relative to HDR reference white, 203 cd/m² (ITU-R BT.2408). For HLG on a nominal display of
   1000 cd/m², whose system gamma of 1.2 is applied to each channel, 75 % signal is that white, too.
2. Light → signal of an SDR display: s = light^(1/2.4) (ITU-R BT.1886).
3. A soft knee: s up to 0.75 stays; above, 0.75 + a·x / (x + a) with x = s − 0.75, which continues with slope 1 and
   reaches 1 at 1000 cd/m². Reference white becomes 0.89, and brighter light than 1000 cd/m² 1.

Primaries are not converted, as clipping to BT.709 has no inverse: the networks see slightly paler colors.
"""

from functools import cache

import numpy as np

from latentsync_trt.types import Float32Array, Float64Array, SampleArray, UInt8Array, UInt16Array

PQ, HLG = 16, 18
"""Transfer characteristics in ITU-T H.273."""

HDR_TRANSFERS = PQ, HLG

_PEAK, _WHITE = 1000.0, 203.0
"""cd/m²: the nominal display of HLG, and HDR reference white."""

_GAMMA, _KNEE = 2.4, 0.75

# PQ: BT.2100, table 4.
_M1, _M2 = 2610 / 16384, 2523 / 4096 * 128
_C1, _C2, _C3 = 3424 / 4096, 2413 / 4096 * 32, 2392 / 4096 * 32

# HLG: BT.2100, table 5.
_A = 0.17883277
_B, _C = 1 - 4 * _A, 0.5 - _A * np.log(4 * _A)
_SYSTEM_GAMMA = 1.2


class HdrCurve:
    """The curve of one transfer, as tables for 16-bit signals."""

    def __init__(self, transfer: int) -> None:
        levels = np.arange(65536) / 65535
        to_light, from_light = (_pq_light, _pq_signal) if transfer == PQ else (_hlg_light, _hlg_signal)
        sdr = _knee((to_light(levels) / _WHITE) ** (1 / _GAMMA))
        self._sdr: UInt8Array = np.rint(255 * np.clip(sdr, 0, 1)).astype(np.uint8)
        light = np.minimum(_WHITE * _inverse_knee(levels) ** _GAMMA, _PEAK)
        self._signal: Float32Array = from_light(light).astype(np.float32)

    def sdr(self, rgb: SampleArray) -> UInt8Array:
        """8-bit SDR levels of an HDR signal, both of any shape; 65535 is a signal of 1."""
        return self._sdr[rgb]

    def signal(self, rgb: UInt16Array) -> Float32Array:
        """The HDR signal in [0, 1] of SDR levels; 65535 is white."""
        return self._signal[rgb]


@cache
def hdr_of(transfer: int) -> HdrCurve | None:
    """The curve of an HDR transfer; None for SDR."""
    return HdrCurve(transfer) if transfer in HDR_TRANSFERS else None


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


_REACH = (_PEAK / _WHITE) ** (1 / _GAMMA) - _KNEE
_BEND = (1 - _KNEE) * _REACH / (_REACH - (1 - _KNEE))
"""The knee's a: from a·x / (x + a) = 1 − knee at x = reach."""


def _knee(signal: Float64Array) -> Float64Array:
    above = np.maximum(signal - _KNEE, 0)
    return np.minimum(signal, _KNEE) + _BEND * above / (above + _BEND)


def _inverse_knee(level: Float64Array) -> Float64Array:
    above = np.maximum(level - _KNEE, 0)
    return np.minimum(level, _KNEE) + _BEND * above / (_BEND - above)
