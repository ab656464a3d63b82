"""NVIDIA's compiler for RTX compiles 8-bit graphs; engines that are mostly weights shrink."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.quantize.calibration_options import CalibrateOptions, EightBit
from latentsync_trt.quantize.steps import write_steps
from latentsync_trt.runtime.compiler import Answer
from tests.quantize import toys

pytest.importorskip("tensorrt_rtx", reason="the compiler has wheels for Linux and Windows only")

from scripts.check_graphs import compile_graph

pytestmark = pytest.mark.slow

RTX_40, RTX_50 = "8.9", "12.0"

COMPILERS = 2
"""Compilations at the same time; each takes one core."""

MOST_OF_THE_ENGINE = 0.6
"""Of float16's size, for a block of almost only weights."""

WIDE = 512
"""Channels of such a block: 5.2 MB of weights in float16."""


def verdicts(folder: Path, graphs: tuple[str, ...], compute_capability: str) -> list[Answer]:
    bundle = Bundle.load(folder)
    with ThreadPoolExecutor(COMPILERS) as pool:
        return list(pool.map(lambda name: compile_graph(bundle.graph_path(name), {}, compute_capability), graphs))


def test_int8_graphs_compile_for_rtx_40(int8_bundle: Path) -> None:
    graphs = ("denoise_step", "denoise_step_cached", "denoise_step_unguided", "denoise_step_unguided_cached")
    assert [verdict.reason for verdict in verdicts(int8_bundle, graphs, RTX_40)] == [""] * len(graphs)


@pytest.mark.parametrize("compute_capability", [RTX_40, RTX_50])
def test_fp8_graphs_compile_for_rtx_40_and_50(fp8_bundle: Path, compute_capability: str) -> None:
    """The guided step has all layers of the unguided one."""
    graphs = ("denoise_step", "denoise_step_cached")
    assert [verdict.reason for verdict in verdicts(fp8_bundle, graphs, compute_capability)] == [""] * len(graphs)


def test_fp8_is_refused_for_gpus_without_it(fp8_bundle: Path) -> None:
    (verdict,) = verdicts(fp8_bundle, ("denoise_step_cached",), "8.6")
    assert "fp8" in verdict.reason


@pytest.mark.parametrize(("kind", "compute_capability"), [("int8", RTX_40), ("fp8", RTX_40), ("fp8", RTX_50)])
def test_eight_bits_nearly_halve_a_float16_engine(tmp_path: Path, kind: EightBit, compute_capability: str) -> None:
    """With float16 scales, which TensorRT requires in float16 graphs."""
    half = toys.write_block(tmp_path / "half", WIDE, np.float16)
    plain = compile_graph(half.graph_path(toys.GRAPH), {}, compute_capability)
    (tmp_path / "work").mkdir()
    write_steps(half, toys.block_ranges(), CalibrateOptions(kind, percentile=100.0), (), tmp_path / "work")
    eight = compile_graph(tmp_path / "work" / f"{toys.GRAPH}.onnx", {}, compute_capability)
    assert (plain.reason, eight.reason) == ("", "")
    assert eight.engine_bytes < MOST_OF_THE_ENGINE * plain.engine_bytes
