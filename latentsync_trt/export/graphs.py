"""Exports a PyTorch module as an ONNX graph."""

import gc
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.passes import common as passes
from onnxscript import optimizer
from torch import Tensor, nn

from latentsync_trt.bundle.manifest import (
    HEIGHT,
    LATENT_HEIGHT,
    LATENT_WIDTH,
    SIZE_STEPS,
    WIDTH,
    AttentionForm,
    DimensionRange,
    GraphEntry,
    TensorEntry,
)
from latentsync_trt.bundle.weights import WeightsFile
from latentsync_trt.errors import ExportMismatch
from latentsync_trt.export.attention import traced_as
from latentsync_trt.export.cuda_graph import finish, may_fold

OPSET = 23
"""The first opset with `Attention`; it also has `GroupNormalization` and exact `Gelu`."""

_WHOLE_SIZES: Mapping[int | str, str] = {
    f"{SIZE_STEPS[whole]}*({known}//{SIZE_STEPS[known]})": whole
    for axis in ((HEIGHT, LATENT_HEIGHT), (WIDTH, LATENT_WIDTH))
    for whole in axis
    for known in axis
}
"""Names of sizes, also where a graph computes them from the other one of the same axis."""


@dataclass(frozen=True)
class GraphPlan:
    """What to export.

    `network`: the network whose weights file it uses, e.g. "unet". `module`: in the portable form; `cuda_module`: in
    the CUDA form, if any. `inputs`: name → example, in the order of `forward`. `dynamic`: input → {axis: dimension
    name}; `ranges`: dimension name → allowed values. `further_inputs`: other sizes within the ranges, for verification.
    `attention`: its form in the portable graph.
    """

    name: str
    network: str
    module: nn.Module
    inputs: Mapping[str, Tensor]
    outputs: tuple[str, ...]
    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    ranges: Mapping[str, DimensionRange] = field(default_factory=dict)
    further_inputs: tuple[Mapping[str, Tensor], ...] = ()
    cuda_module: nn.Module | None = None
    attention: AttentionForm = "fused"


def build_graph(plan: GraphPlan) -> ir.Model:
    """The portable graph, traced from `plan.module`; weights still refer to the module's tensors."""
    with traced_as(plan.attention), _without_collection():
        model = _trace(plan, plan.module)
        # Without folding, the graph keeps shape arithmetic, part of it as operators that TensorRT rejects.
        optimizer.fold_constants(model)
        return _tidy(model, plan.name)


def build_cuda_graph(plan: GraphPlan, module: nn.Module) -> ir.Model:
    """The graph in the CUDA form, traced from `module`."""
    with _without_collection():
        model = _trace(plan, module)
        optimizer.fold_constants(model, should_fold=may_fold)
        _tidy(model, plan.name)
        finish(model)
        return _tidy(model, plan.name)


def save_graph(model: ir.Model, path: Path, weights: WeightsFile) -> GraphEntry:
    """Writes the graph to `path` and its weights, where they are new, to `weights`."""
    weights.move_out(model)
    ir.save(model, path)
    inputs, outputs = (tuple(map(_tensor, values)) for values in (model.graph.inputs, model.graph.outputs))
    return GraphEntry(path.name, weights.path.name, inputs, outputs)


def _tensor(value: ir.Value) -> TensorEntry:
    if value.name is None or value.dtype is None or value.shape is None:
        raise ExportMismatch(f"the exporter left name, type or shape of {value} open")
    shape = tuple(dimension if isinstance(dimension, int) else str(dimension) for dimension in value.shape)
    return TensorEntry(value.name, value.dtype.numpy().name, shape)


def _trace(plan: GraphPlan, module: nn.Module) -> ir.Model:
    dimensions = {name: _dimension(name, span) for name, span in plan.ranges.items()}
    shapes = {
        name: {axis: dimensions[dimension] for axis, dimension in plan.dynamic.get(name, {}).items()}
        for name in plan.inputs
    }
    with _quiet_exporter():
        program = torch.export.export(
            module, tuple(plan.inputs.values()), dynamic_shapes=tuple(shapes.values()) if dimensions else None
        )
        onnx_program: Any = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=OPSET,
            input_names=list(plan.inputs),
            output_names=list(plan.outputs),
            optimize=False,
            verbose=False,
        )
    model: ir.Model = onnx_program.model
    _name_dimensions(model, plan)
    return model


def _dimension(name: str, span: DimensionRange) -> Any:
    """A dimension to the tracer; that of a size is a multiple, so that halving it three times leaves no remainder."""
    step = SIZE_STEPS.get(name)
    if step is None:
        return torch.export.Dim(name, min=span.minimum, max=span.maximum)
    return step * torch.export.Dim(f"{name}_steps", min=span.minimum // step, max=span.maximum // step)


def _name_dimensions(model: ir.Model, plan: GraphPlan) -> None:
    """Replaces the tracer's symbols by the plan's dimension names, also inside expressions."""
    shapes = {value.name: value.shape or () for value in model.graph.inputs}
    names = {
        str(shapes[name][axis]).rpartition("*")[2]: f"({dimension}//{SIZE_STEPS[dimension]})"
        if dimension in SIZE_STEPS
        else dimension
        for name, axes in plan.dynamic.items()
        for axis, dimension in axes.items()
    }
    if not names:
        return
    symbols = re.compile("|".join(rf"\b{re.escape(symbol)}\b" for symbol in names))
    produced = (value for node in model.graph for value in node.outputs)
    for value in (*model.graph.inputs, *produced):
        if value.shape is not None:
            sizes = [
                size if isinstance(size, int) else symbols.sub(lambda found: names[found[0]], str(size))
                for size in value.shape
            ]
            value.shape = ir.Shape(_WHOLE_SIZES.get(size, size) for size in sizes)


def _tidy(model: ir.Model, name: str) -> ir.Model:
    for tidy in (
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.DeduplicateInitializersPass(),
        passes.CommonSubexpressionEliminationPass(),
        passes.RemoveUnusedNodesPass(),
        passes.RemoveUnusedOpsetsPass(),
    ):
        tidy(model)
    model.graph.name = name
    model.producer_name = "latentsync_trt"
    for node in model.graph:
        node.metadata_props.clear()
    # Folded constants get short names in order; the tracer's own depend on its version.
    for index, name in enumerate([name for name in model.graph.initializers if "." not in name]):
        model.graph.initializers[name].name = f"const_{index}"
    return model


@contextmanager
def _without_collection() -> Iterator[None]:
    """Python collects no cyclic garbage within: with millions of live objects that takes a tenth of an export."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silences the exporter's messages about missing packages and about its own deprecated calls."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)
