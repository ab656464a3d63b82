"""Observed graphs: the statistics they return, and that they compute what they did before."""

from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import InferenceError
from latentsync_trt.quantize.layers import layers_of, step_graphs
from latentsync_trt.quantize.observed import (
    SAMPLE,
    ObservingDenoiser,
    sample_stride,
    split_attention,
    write_observed,
)
from latentsync_trt.quantize.ranges import ActivationRange, ActivationRanges
from latentsync_trt.runtime.model import open_model
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.types import Float32Array
from tests.quantize.eight_bit import observed_small, small_loop, small_window
from tests.quantize.toys import CONVOLUTION, LINEAR, OTHER, write_layers
from tests.small import small_bundle
from tests.toy import toy_inputs

CPU = Selection("cpu")
NO_COEFFICIENTS = np.zeros(5, np.float32)

BATCH = 5
HEADS = 2
TOKENS = 6
WIDTH = 4
SCORES_BYTES = HEADS * TOKENS * TOKENS * 4
"""Of one entry of the batch."""


def toy_window(scale: float = 1.0) -> list[Float32Array]:
    return [np.float32(scale) * values for values in toy_inputs()]


def observe_toy(
    folder: Path, window: list[Float32Array], dtype: type[np.floating] = np.float32
) -> ActivationRanges:
    """What one step of the toy returns."""
    graph = write_observed(write_layers(folder / "toy", dtype), "denoise_step", folder)
    denoiser = ObservingDenoiser({"denoise_step": graph}, CPU)
    denoiser.begin(*window, 1.5)
    denoiser.step(7, NO_COEFFICIENTS, cached=False)
    return denoiser.ranges


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_maxima_and_samples_are_those_of_the_inputs(
    tmp_path: Path, dtype: type[np.floating]
) -> None:
    window = toy_window()
    observed = observe_toy(tmp_path, window, dtype)
    latents = np.abs(window[0].astype(dtype))
    audio = np.abs(window[2].astype(dtype))
    assert (observed[CONVOLUTION].largest, observed[LINEAR].largest) == (latents.max(), audio.max())
    # Tensors as small as these are sampled whole.
    whole = ActivationRange.of_step(float(latents.max()), latents.ravel().astype(np.float32))
    np.testing.assert_array_equal(observed[CONVOLUTION].counts, whole.counts)
    assert observed[LINEAR] is observed[OTHER]  # which read the same tensor


@pytest.mark.integration
def test_an_observed_loop_computes_what_the_plain_one_does() -> None:
    bundle = Bundle.load(small_bundle(), verify=False)
    loop = small_loop()
    ranges, observed_latents = observed_small()
    with closing(open_model(bundle, CPU, RuntimeOptions(), step_graphs(bundle))) as model:
        plain_latents = model.run("denoise", lambda: loop.run(model.denoiser, small_window(bundle)))
    np.testing.assert_array_equal(observed_latents, plain_latents)
    assert set(ranges) == {
        layer.name for layer in layers_of(ir.load(bundle.graph_path("denoise_step")))
    }


def test_an_overflow_is_reported_with_its_layer_and_timestep(tmp_path: Path) -> None:
    with pytest.raises(InferenceError, match=rf"{CONVOLUTION} .* timestep 7.*fp32"):
        observe_toy(tmp_path, toy_window(scale=1e6), np.float16)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((32, 320, 64, 64), 1), ((2, 16, 4096, 640), 3), ((4, 13, 7, 7), 1)],
)
def test_a_sample_is_even_over_the_channels(shape: tuple[int, ...], axis: int) -> None:
    size = int(np.prod(shape))
    positions = np.arange(0, size, sample_stride(shape, axis))
    assert min(size, SAMPLE) / 2 < len(positions) < 1.1 * SAMPLE
    counts = np.bincount(
        positions // int(np.prod(shape[axis + 1 :])) % shape[axis], minlength=shape[axis]
    )
    assert counts.max() - counts.min() <= max(2, 0.1 * counts.mean())


def attention() -> ir.Model:
    shape = f"float[{BATCH},{HEADS},{TOKENS},{WIDTH}]"
    graph = (
        f"graph ({shape} q, {shape} k, {shape} v) => ({shape} "
        "out) { out = Attention<scale = 0.7>(q, k, v) }"
    )
    return ir.from_proto(
        onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 23]> {graph}')
    )


def run(model: ir.Model) -> NDArray[np.float32]:
    proto = ir.to_proto(model)
    random = np.random.default_rng(4)
    onnx.checker.check_model(proto)
    inputs = {
        name: random.standard_normal((BATCH, HEADS, TOKENS, WIDTH), np.float32) for name in "qkv"
    }
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    result: Float32Array = session.run(None, inputs)[0]
    return result


@pytest.mark.parametrize(("most_bytes", "parts"), [(SCORES_BYTES - 1, 5), (2 * SCORES_BYTES, 3)])
def test_split_attention_computes_the_same(most_bytes: int, parts: int) -> None:
    split = attention()
    split_attention(split, {}, most_bytes)
    assert [node.op_type for node in split.graph].count("Attention") == parts
    np.testing.assert_array_equal(run(split), run(attention()))
