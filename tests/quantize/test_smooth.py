"""SmoothQuant moves range from inputs to weights, and nothing else."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.quantize.mixed import MixedSteps
from latentsync_trt.quantize.options import QuantizeOptions
from latentsync_trt.quantize.smooth import divisors
from latentsync_trt.runtime.sessions.session import Session
from latentsync_trt.types import Float32Array
from tests.quantize import block
from tests.quantize.block import CONVOLUTION, GRAPH, LINEAR

LOUD = 40.0
"""How much louder the first channel is than the others."""

CHANNELS = 128
"""Enough that the convolution spreads little of one channel over the others."""

FLOAT32_ROUNDING = 1e-5


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return block.write_block(tmp_path_factory.mktemp("block") / "bundle", CHANNELS)


def loud_latents() -> Float32Array:
    """Only the first channel's skip carries what is loud: its values reach the linear layer as they are."""
    latents = block.latents(CHANNELS)
    latents[:, 0] *= LOUD
    return latents


def error(bundle: Bundle, folder: Path, alpha: float | None) -> float:
    """RMS error of the linear layer's output on an input with one loud channel."""
    folder.mkdir()
    latents = loud_latents()
    exact, hidden = Session(bundle.graph_path(GRAPH)).run({"latents": latents})
    ranges = {
        CONVOLUTION: block.seen(np.abs(latents).max(axis=(0, 2, 3))),
        LINEAR: block.seen(np.abs(hidden).max(axis=(0, 1))),
    }
    with MixedSteps(bundle, ranges, QuantizeOptions(kept=(), smooth_alpha=alpha), folder) as steps:
        found = Session(steps.write(GRAPH, (CONVOLUTION,))).run({"latents": latents})
    np.testing.assert_allclose(found[1], hidden, rtol=0, atol=FLOAT32_ROUNDING * LOUD)
    return float(np.sqrt(np.mean((found[0] - exact) ** 2)))


def test_a_loud_channel_costs_the_others_less(bundle: Bundle, tmp_path: Path) -> None:
    assert error(bundle, tmp_path / "smooth", 0.5) < 0.5 * error(bundle, tmp_path / "plain", None)


def test_products_stay_what_they_were(bundle: Bundle, tmp_path: Path) -> None:
    """A smoothed layer that is kept reads its own input and weights again."""
    latents = loud_latents()
    with MixedSteps(bundle, block.ranges(CHANNELS), QuantizeOptions(kept=(), smooth_alpha=0.5), tmp_path) as steps:
        path = steps.write(GRAPH, (CONVOLUTION, LINEAR))
    assert "Mul" not in {node.op_type for node in onnx.load(path, load_external_data=False).graph.node}
    exact = Session(bundle.graph_path(GRAPH)).run({"latents": latents})
    np.testing.assert_array_equal(Session(path).run({"latents": latents})[0], exact[0])


def test_convolutions_are_not_smoothed(bundle: Bundle, tmp_path: Path) -> None:
    with MixedSteps(bundle, block.ranges(CHANNELS), QuantizeOptions(kept=(), smooth_alpha=0.5), tmp_path) as steps:
        model = onnx.load(steps.write(GRAPH, ()), load_external_data=False)
    assert [node.name for node in model.graph.node if node.op_type == "Mul"] == ["to_q_smoothing"]


def test_divisors_follow_loudness_and_strength() -> None:
    """√(loudness / strength), one on geometric average."""
    weight = np.array([[1, -4], [1, 0.5]], np.float32)
    found = divisors(np.array([16, 1], np.float32), weight, 0.5)
    np.testing.assert_allclose(found, [2**0.5, 0.5**0.5], rtol=1e-6)


def test_alpha_one_gives_weights_all_of_it() -> None:
    found = divisors(np.array([8, 2], np.float32), np.eye(2, dtype=np.float32), 1.0)
    np.testing.assert_allclose(found, [2, 0.5], rtol=1e-6)


def test_silent_channels_and_weights_of_zero_stay_in_bounds() -> None:
    found = divisors(np.array([0, 1e30, 1], np.float32), np.zeros((3, 2), np.float32), 0.9)
    assert np.isfinite(found).all()
    assert found.min() >= 1e-3
    assert found.max() <= 1e3
