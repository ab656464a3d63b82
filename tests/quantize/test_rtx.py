"""NVIDIA's compiler for RTX compiles 8-bit graphs; engines that are mostly weights shrink."""

from pathlib import Path

import numpy as np
import pytest

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.quantize.calibration_options import CalibrateOptions, EightBit
from latentsync_trt.quantize.steps import write_steps
from tests.quantize import toys

pytest.importorskip("tensorrt_rtx", reason="the compiler has wheels for Linux and Windows only")

from scripts.check_graphs import compile_graph

pytestmark = pytest.mark.slow

RTX_40 = "8.9"
RTX_50 = "12.0"

MOST_OF_THE_ENGINE = 0.6
"""Of float16's size, for a block of almost only weights."""

WIDE = 512
"""Channels of such a block: 5.2 MB of weights in float16."""


@pytest.mark.parametrize(
    ("kind", "step", "compute_capability"),
    [
        ("int8", "denoise_step", RTX_40),
        ("int8", "denoise_step_unguided", RTX_40),
        ("fp8", "denoise_step", RTX_50),
    ],
)
def test_graphs_compile(
    kind: str, step: str, compute_capability: str, request: pytest.FixtureRequest
) -> None:
    bundle = Bundle.load(request.getfixturevalue(f"{kind}_bundle"))
    for name in (step, f"{step}_cached"):
        assert compile_graph(bundle.graph_path(name), {}, compute_capability).reason == ""


@pytest.mark.parametrize(("kind", "compute_capability"), [("int8", RTX_40), ("fp8", RTX_50)])
def test_eight_bits_nearly_halve_a_float16_engine(
    tmp_path: Path, kind: EightBit, compute_capability: str
) -> None:
    """With float16 scales, which TensorRT requires in float16 graphs."""
    half = toys.write_block(tmp_path / "half", WIDE, np.float16)
    plain = compile_graph(half.graph_path(toys.GRAPH), {}, compute_capability)
    (tmp_path / "work").mkdir()
    write_steps(
        half, toys.block_ranges(), CalibrateOptions(kind, percentile=100.0), (), tmp_path / "work"
    )
    eight = compile_graph(tmp_path / "work" / f"{toys.GRAPH}.onnx", {}, compute_capability)
    assert (plain.reason, eight.reason) == ("", "")
    assert eight.engine_bytes < MOST_OF_THE_ENGINE * plain.engine_bytes
