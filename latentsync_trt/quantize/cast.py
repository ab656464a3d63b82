"""Numbers of eight bits: the scale that fits a range, and weights rounded to it. Pure.

ONNX Runtime's own scales are not used. For INT8 in a float16 graph it takes a scale of 1 where the fitting one is below
float16's normal numbers, which makes zeros of every channel with weights below 0.008; for FP8 it derives the scale from
the standard deviation, which cuts off outliers.
"""

from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from latentsync_trt.types import Float32Array

EightBit = Literal["int8", "fp8"]
EIGHT_BIT: tuple[EightBit, ...] = ("int8", "fp8")

_LARGEST: dict[EightBit, float] = {"int8": 127.0, "fp8": 448.0}
DTYPES: dict[EightBit, np.dtype[Any]] = {"int8": np.dtype(np.int8), "fp8": np.dtype(ml_dtypes.float8_e4m3fn)}
"""FP8 with four bits of exponent, as TensorRT takes it."""

SMALLEST_SCALE = 2.0**-14
"""float16's smallest normal number: scales below it lose bits, and 0 would divide by zero."""


def scale_of(amax: Float32Array | float, kind: EightBit, dtype: np.dtype[Any]) -> NDArray[Any]:
    """What the eight-bit numbers are multiplied by so that they reach `amax`; of its shape, in `dtype`."""
    return np.asarray(np.maximum(np.asarray(amax, np.float64) / _LARGEST[kind], SMALLEST_SCALE), dtype)


def cast_weight(weight: NDArray[Any], output_axis: int, kind: EightBit) -> tuple[NDArray[Any], NDArray[Any]]:
    """Weights in eight bits, of the same shape, and the scale of each output channel, `(O,)` in the weights' dtype."""
    exact = weight.astype(np.float32)
    others = tuple(axis for axis in range(weight.ndim) if axis != output_axis)
    scales = scale_of(np.abs(exact).max(axis=others), kind, weight.dtype)
    shape = [1] * weight.ndim
    shape[output_axis] = -1
    exact /= scales.astype(np.float32).reshape(shape)
    if kind == "int8":
        np.rint(exact, out=exact)
    # A scale that was rounded down leaves the largest weight a little beyond the end; FP8's cast would make it NaN.
    np.clip(exact, -_LARGEST[kind], _LARGEST[kind], out=exact)
    return exact.astype(DTYPES[kind]), scales
