"""The CPU form of a step computes what the portable graph computes, with fewer operators and the same weights."""

from collections import Counter
from pathlib import Path
from typing import Literal

import numpy as np
import onnx_ir as ir
import pytest
import torch

from latentsync_trt.bundle.find import demo_folder
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.bundle.weights import WeightsFile
from latentsync_trt.export.cpu_form import cpu_graph
from latentsync_trt.export.graphs import build_graph, save_graph
from latentsync_trt.export.plans import load_networks, plan_graphs
from latentsync_trt.runtime.sessions.session import Session
from tests import narrow
from tests.export.conftest import HALF_UNET

SINGLE = 1e-5
"""Relative; float32 sums in another order."""

HALF = 4e-3
"""Relative; the portable graph rounds every result to 11 bits, measured: 1e-3."""


def differences(portable: Path, other: Path) -> list[float]:
    """The largest difference of each output on random inputs, relative to its largest value."""
    first, second = Session(portable), Session(other)
    random = np.random.default_rng(0)
    inputs = {each.name: random.standard_normal(each.shape).astype(each.dtype) for each in first.inputs}
    inputs["timestep"] = np.array(500)
    pairs = zip(first.run(inputs), second.run(inputs), strict=True)
    assert (first.inputs, first.outputs) == (second.inputs, second.outputs)
    return [float(np.abs(made - wanted).max() / np.abs(wanted).max()) for wanted, made in pairs]


@pytest.mark.parametrize(("precision", "attention"), [("fp32", 0), ("fp16", 4)])
def test_the_cpu_form_is_the_portable_graph_for_another_processor(
    precision: Literal["fp32", "fp16"], attention: int, tmp_path: Path
) -> None:
    sources = narrow.write_sources(tmp_path / "sources", HALF_UNET if attention else narrow.UNET)
    options = narrow.narrow_options(sources, tmp_path / "out", precision=precision)
    networks = load_networks(sources, options, torch.float16 if attention else torch.float32)
    plan = next(plan for plan in plan_graphs(networks, options) if plan.name == "denoise_step_cached")
    portable = build_graph(plan)
    paths = tmp_path / "portable.onnx", tmp_path / "cpu.onnx"
    with WeightsFile(tmp_path / "unet.weights") as weights:
        save_graph(portable, paths[0], weights)
        stored_bytes = weights.path.stat().st_size
        save_graph(cpu_graph(portable), paths[1], weights)
    assert weights.path.stat().st_size == stored_bytes
    assert max(differences(*paths)) < (HALF if attention else SINGLE)
    before, after = (Counter(node.op_type for node in ir.load(path).graph) for path in paths)
    assert before["Attention"] == attention
    assert (after["Attention"], after["Softmax"]) == (4, 0)


@pytest.mark.parametrize("graph", ["denoise_step", "denoise_step_cached"])
def test_the_built_in_bundle_has_what_its_portable_graphs_give(graph: str) -> None:
    bundle = Bundle.load(demo_folder())
    portable, shipped = bundle.graph_path(graph), bundle.graph_path(graph, "cpu")
    made = cpu_graph(ir.load(portable))
    assert [node.op_type for node in made.graph] == [node.op_type for node in ir.load(shipped).graph]
    assert max(differences(portable, shipped)) < HALF
