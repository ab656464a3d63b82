"""8-bit numbers: scales, rounded weights, and SmoothQuant's factors. Pure."""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from latentsync_trt.quantize.options import EightBit
from latentsync_trt.types import Float32Array

DTYPES: dict[EightBit, np.dtype[Any]] = {"int8": np.dtype(np.int8), "fp8": np.dtype(ml_dtypes.float8_e4m3fn)}
"""FP8 with four exponent bits (E4M3), as TensorRT supports it."""

_LARGEST: dict[EightBit, float] = {"int8": 127.0, "fp8": 448.0}

# float16's smallest normal number: smaller scales lose bits, and 0 would divide by zero.
_SMALLEST_SCALE = 2.0**-14

# With larger factors the smoothed weights or activations could leave float16's range.
_LARGEST_FACTOR = 1e3

# Smaller channels and weights are treated as if they reached this.
_SMALLEST_AMAX = 1e-5


def scale_of(amax: Float32Array | float, kind: EightBit, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The scale that maps `amax` to the largest 8-bit number; same shape, in `dtype`."""
    return np.asarray(np.maximum(np.asarray(amax, np.float64) / _LARGEST[kind], _SMALLEST_SCALE), dtype)


def round_weights(weights: NDArray[Any], output_axis: int, kind: EightBit) -> tuple[NDArray[Any], NDArray[Any]]:
    """8-bit weights of the same shape, and the per-channel scales `(O,)` in the weights' dtype."""
    exact = weights.astype(np.float32)
    others = tuple(axis for axis in range(weights.ndim) if axis != output_axis)
    scales = scale_of(np.abs(exact).max(axis=others), kind, weights.dtype)
    exact /= np.expand_dims(scales.astype(np.float32), others)
    if kind == "int8":
        np.rint(exact, out=exact)
    # A scale that was rounded down puts the largest weight slightly out of range, which FP8's cast would turn into NaN.
    np.clip(exact, -_LARGEST[kind], _LARGEST[kind], out=exact)
    return exact.astype(DTYPES[kind]), scales


def smoothing_divisors(channel_amax: Float32Array, weights: NDArray[Any], alpha: float) -> Float32Array:
    """SmoothQuant: what to divide each input channel by, `(I,)`, with geometric mean 1.

    All channels of an input share one scale, so a channel with large values costs the others precision; weights have
    per-channel scales and absorb the difference. https://arxiv.org/abs/2211.10438

    Args:
        channel_amax: `(I,)`, maximum of |x| per channel. weights: `(I, O)`.
        alpha: share of the range that moves from the activations to the weights, 0 to 1.
    """
    activation = np.maximum(channel_amax, _SMALLEST_AMAX).astype(np.float64)
    weight = np.maximum(np.abs(weights.astype(np.float32)).max(axis=1), _SMALLEST_AMAX).astype(np.float64)
    divisors = activation**alpha / weight ** (1 - alpha)
    divisors /= np.exp(np.log(divisors).mean())
    return np.clip(divisors, 1 / _LARGEST_FACTOR, _LARGEST_FACTOR).astype(np.float32)
