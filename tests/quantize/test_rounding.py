"""8-bit numbers: scales and rounded weights."""

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper
from onnxruntime.quantization.quant_utils import quantize_onnx_initializer

from latentsync_trt.quantize.calibration_options import EightBit
from latentsync_trt.quantize.steps import round_weights, scale_of

COARSE = 2**-4
"""Half of the last of three mantissa bits: the precision of FP8."""


@pytest.mark.parametrize("output_axis", [0, 1])
def test_int8_weights_match_onnx_runtime(output_axis: int) -> None:
    weights = np.random.default_rng(8).standard_normal((6, 5), np.float32)
    eight_bit, scales = round_weights(weights, output_axis, "int8")
    zeros = np.zeros(len(scales), np.int8)
    tensor = numpy_helper.from_array(weights, "weight")
    reference = quantize_onnx_initializer(tensor, TensorProto.INT8, zeros, scales, output_axis)
    np.testing.assert_array_equal(eight_bit, numpy_helper.to_array(reference))


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_float16_weights_too_small_for_their_scale_are_not_lost(kind: EightBit) -> None:
    """The scale for 0.004 would be below float16's normal numbers."""
    weights = np.full((4, 2), 0.004, np.float16)
    eight_bit, scales = round_weights(weights, 1, kind)
    restored = eight_bit.astype(np.float32) * scales.astype(np.float32)
    np.testing.assert_allclose(restored, weights.astype(np.float32), rtol=COARSE)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_a_channel_of_zeros_stays_zero(kind: EightBit) -> None:
    eight_bit, scales = round_weights(np.zeros((3, 2), np.float16), 1, kind)
    assert (eight_bit.astype(np.float32) == 0).all()
    assert (scales > 0).all()


def test_the_largest_fp8_weight_is_not_nan_when_its_scale_was_rounded_down() -> None:
    weights = np.linspace(0.5, 0.52, 200, dtype=np.float16).reshape(1, -1)
    eight_bit, scales = round_weights(weights, 1, "fp8")
    restored = eight_bit.astype(np.float32) * scales.astype(np.float32)
    np.testing.assert_allclose(restored, weights.astype(np.float32), rtol=COARSE)


def test_a_scale_reaches_the_range() -> None:
    assert float(scale_of(127.0, "int8", np.dtype(np.float32))) == 1.0
    assert float(scale_of(448.0, "fp8", np.dtype(np.float16))) == 1.0
