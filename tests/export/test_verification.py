"""Single graphs: wrong ones fail, honest half precision passes, the message says what to do, and
attention's form.
"""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn

from latentsync_trt.bundle.external import WeightsFile
from latentsync_trt.bundle.manifest import CACHED_STEP
from latentsync_trt.errors import CheckpointError, ExportMismatch
from latentsync_trt.export.checkpoints import load_networks
from latentsync_trt.export.export_options import Sources
from latentsync_trt.export.exporter import plan_graphs
from latentsync_trt.export.graphs import GraphPlan, build_graph, save_graph, verify_graph
from latentsync_trt.export.layers import NORM_GROUPS, GroupNorm, attend
from latentsync_trt.runtime.engines.session import Session
from tests import narrow

pytestmark = pytest.mark.integration

Mutation = Callable[[ir.Model], None]

HONEST = 2.0
"""Most that an honest graph's error exceeds PyTorch's own: the roundings are the same, in another
order.
"""


Planned = tuple[GraphPlan, nn.Module]


@pytest.fixture(scope="module")
def planned(sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> Planned:
    """The plan in half precision of a small graph with every kind of layer, and the module in
    float32.
    """
    options = narrow.narrow_options(
        sources, tmp_path_factory.mktemp("none"), precision="fp16", cuda_form=False
    )
    planned_in_each = [
        plan_graphs(load_networks(sources, options, kind), options)
        for kind in (torch.float16, torch.float32)
    ]
    plan, truth = (
        next(plan for plan in plans if plan.name == CACHED_STEP) for plans in planned_in_each
    )
    return plan, truth.module


@pytest.fixture(scope="module")
def graph(planned: Planned, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "denoise_step_cached.onnx"
    save_graph(build_graph(planned[0]), path, WeightsFile(path.with_name("unet.weights")))
    return path


def test_an_honest_graph_in_half_precision_passes_with_room(planned: Planned, graph: Path) -> None:
    assert 0 < verify_graph(graph, *planned, "fp16") < 5e-3


def scaled(name: str, factor: float) -> Mutation:
    """Multiplies the weight whose name ends with `name`."""

    def change(model: ir.Model) -> None:
        (value,) = [value for key, value in model.graph.initializers.items() if key.endswith(name)]
        array = value.const_value.numpy()  # type: ignore[union-attr]
        value.const_value = ir.tensor((array * factor).astype(array.dtype))

    return change


def without(op: str) -> Mutation:
    """Removes the last operation of a kind: its input takes its place."""

    def change(model: ir.Model) -> None:
        node = [node for node in model.graph if node.op_type == op][-1]
        ir.convenience.replace_all_uses_with(node.outputs[0], node.inputs[0])

    return change


@pytest.mark.parametrize(
    "mutation",
    [
        scaled("conv_out.bias", 1.25),
        scaled("conv2.weight", 1.05),
        scaled("ff_norm.weight", 1.1),
        without("Gelu"),
    ],
    ids=["bias", "convolution", "norm", "gelu"],
)
def test_one_wrong_part_fails(
    planned: Planned, graph: Path, mutation: Mutation, tmp_path: Path
) -> None:
    """The limits of float32 are narrower."""
    model = ir.load(graph)
    mutation(model)
    path = tmp_path / graph.name
    save_graph(model, path, WeightsFile(tmp_path / "unet.weights"))
    with pytest.raises(ExportMismatch, match=r"output next_\w+: differs") as caught:
        verify_graph(path, *planned, "fp16")
    assert re.search(r" \d\.\d\de.* limit .*\d\.\d\de", str(caught.value))


class _Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * float("nan")


def test_weights_that_give_nan_are_called_damaged(tmp_path: Path) -> None:
    plan = GraphPlan("broken", "unet", _Broken(), {"x": torch.ones(2, 3)}, ("y",))
    ir.save(build_graph(plan), tmp_path / "broken.onnx")
    with pytest.raises(CheckpointError, match="the checkpoint is damaged"):
        verify_graph(tmp_path / "broken.onnx", plan, plan.module, "fp32")


@pytest.mark.parametrize(("width", "side_px"), [(64, 1), (32, 2)])
def test_norms_of_few_values_are_as_exact_as_in_pytorch(
    width: int, side_px: int, tmp_path: Path
) -> None:
    """Values of a group that are nearly equal, where E[x²] − E[x]² has no correct digit."""
    norm = GroupNorm(width, 1e-6).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    groups = 3 + torch.randn(500, NORM_GROUPS, 1, generator=generator)
    x = groups + 1e-3 * torch.randn(
        500, NORM_GROUPS, width // NORM_GROUPS * side_px**2, generator=generator
    )
    x = x.reshape(500, width, side_px, side_px)
    ir.save(build_graph(GraphPlan("norm", "unet", norm, {"x": x}, ("y",))), tmp_path / "norm.onnx")
    (by_graph,) = Session(tmp_path / "norm.onnx").run({"x": x.numpy()})
    exact = nn.functional.group_norm(
        x.double(), NORM_GROUPS, norm.weight.double(), norm.bias.double(), norm.eps
    ).numpy()
    pytorch_error = np.abs(norm(x).numpy() - exact).max()
    assert np.abs(by_graph - exact).max() <= HONEST * pytorch_error + 1e-6


IN_PARTS = ["Mul", "Transpose", "MatMul", "Softmax", "MatMul"]
"""The query is scaled before the product, and the softmax is float32."""


class _Product(nn.Module):
    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return attend(query, key, value)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "fused"),
    [(torch.float16, 40, True), (torch.float16, 20, False), (torch.float32, 40, False)],
)
def test_attention_is_one_operator_where_tensorrt_takes_it(
    dtype: torch.dtype, head_dim: int, fused: bool
) -> None:
    inputs = {name: torch.randn(2, 4, 6, head_dim).to(dtype) for name in ("query", "key", "value")}
    model = build_graph(GraphPlan("product", "unet", _Product(), inputs, ("out",)))
    operators = [node.op_type for node in model.graph]
    if fused:
        assert operators == ["Attention"]
    else:
        assert [name for name in operators if name != "Cast"] == IN_PARTS
        (softmax,) = (node for node in model.graph if node.op_type == "Softmax")
        assert softmax.inputs[0].dtype.numpy() == np.float32
