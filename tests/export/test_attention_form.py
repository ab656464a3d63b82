"""`--attention`: the operators in portable graphs, agreement with PyTorch, and what the manifest records."""

import collections
import dataclasses
import tempfile
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from latentsync_trt.bundle.manifest import (
    FULL_STEP,
    REQUIRED_GRAPHS,
    AttentionForm,
    Bundle,
    read_manifest,
)
from latentsync_trt.export import exporter
from latentsync_trt.export.graphs import GraphPlan, build_graph
from latentsync_trt.export.layers import attend
from latentsync_trt.export.verify import FLOOR
from tests import narrow
from tests.exports import ExportCache

pytestmark = pytest.mark.integration

OPERATOR = "Attention"
IN_PARTS = ["Mul", "Transpose", "MatMul", "Softmax", "MatMul"]
"""The query is scaled before the product, and the softmax is float32."""

WIDE_HEADS = dataclasses.replace(narrow.UNET, widths=(128,), attention=(True,), motion_down=(True,), motion_up=(True,))
"""Heads of 16, as in the narrow VAE and audio encoder: in half precision all of them can be one operator."""

WITHOUT_FULL_STEP = tuple(name for name in REQUIRED_GRAPHS if name != FULL_STEP)


class _Product(nn.Module):
    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return attend(query, key, value)


def operations(folder: Path, file: str) -> collections.Counter[str]:
    graph = onnx.load(folder / file, load_external_data=False).graph
    return collections.Counter(node.op_type for node in graph.node)


def export(out: Path, attention: AttentionForm, graphs: Collection[str], *, verify: bool) -> None:
    """Exports a float16 bundle with some of the graphs."""
    plan_graphs = exporter.plan_graphs

    def chosen(*arguments: object) -> list[GraphPlan]:
        return [plan for plan in plan_graphs(*arguments) if plan.name in graphs]

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        sources = narrow.write_sources(Path(folder), WIDE_HEADS)
        patch.setattr(exporter, "plan_graphs", chosen)
        options = narrow.narrow_options(sources, out, precision="fp16", attention=attention, verify=verify)
        exporter.export_bundle(options)


@pytest.fixture(scope="module")
def matmul_bundle(exports: ExportCache) -> Path:
    """All graphs that a run needs, verified."""
    return exports.bundle("matmul", lambda out: export(out, "matmul", REQUIRED_GRAPHS, verify=True))


@pytest.fixture(scope="module")
def fused_bundle(exports: ExportCache) -> Path:
    """Without the full step, which takes the most time, and not verified: `dynamic_half_bundle` is."""
    return exports.bundle("fused", lambda out: export(out, "fused", WITHOUT_FULL_STEP, verify=False))


@pytest.mark.slow
def test_only_the_fused_form_has_the_attention_operator(fused_bundle: Path, matmul_bundle: Path) -> None:
    fused, matmul = read_manifest(fused_bundle), read_manifest(matmul_bundle)
    assert (fused.attention, matmul.attention) == ("fused", "matmul")
    assert max(matmul.verification.values()) <= 10 * FLOOR
    parts = {name: operations(matmul_bundle, matmul.graphs[name].file) for name in REQUIRED_GRAPHS}
    assert [name for name in REQUIRED_GRAPHS if parts[name][OPERATOR]] == []
    for name in WITHOUT_FULL_STEP:
        whole = operations(fused_bundle, fused.graphs[name].file)
        assert whole[OPERATOR] > 0
        assert parts[name]["Softmax"] == whole[OPERATOR] + whole["Softmax"]
        assert parts[name]["MatMul"] == whole["MatMul"] + 2 * whole[OPERATOR]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_tensorrt_compiles_every_graph_of_the_matmul_form(matmul_bundle: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="the compiler has wheels for Linux and Windows only")
    from scripts.check_graphs import compile_graph

    bundle = Bundle.load(matmul_bundle)
    with ThreadPoolExecutor(2) as pool:
        verdicts = list(pool.map(lambda name: compile_graph(bundle.graph_path(name), {}), REQUIRED_GRAPHS))
    assert [verdict.reason for verdict in verdicts] == [""] * len(REQUIRED_GRAPHS)


@pytest.mark.parametrize(
    ("form", "dtype", "head_dim", "fused"),
    [
        ("fused", torch.float16, 40, True),
        ("matmul", torch.float16, 40, False),
        ("fused", torch.float16, 20, False),
        ("fused", torch.float32, 40, False),
    ],
)
def test_attention_is_one_operator_where_tensorrt_takes_it(
    form: AttentionForm, dtype: torch.dtype, head_dim: int, fused: bool
) -> None:
    inputs = {name: torch.randn(2, 4, 6, head_dim).to(dtype) for name in ("query", "key", "value")}
    model = build_graph(GraphPlan("product", "unet", _Product(), inputs, ("out",), attention=form))
    operators = [node.op_type for node in model.graph]
    if fused:
        assert operators == [OPERATOR]
    else:
        assert [name for name in operators if name != "Cast"] == IN_PARTS
        (softmax,) = (node for node in model.graph if node.op_type == "Softmax")
        assert softmax.inputs[0].dtype.numpy() == np.float32
