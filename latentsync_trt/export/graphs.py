"""A PyTorch module → an ONNX graph."""

import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.passes import common as passes
from onnxscript import optimizer
from torch import Tensor, nn

from latentsync_trt.bundle.manifest import AttentionForm, DimensionRange
from latentsync_trt.export.attention import traced_as
from latentsync_trt.export.cuda_graph import finish, may_fold

OPSET = 23
"""The first with `Attention`; it also has `GroupNormalization` and exact `Gelu`."""

_GENERATED_PREFIX = "const"


@dataclass(frozen=True)
class GraphPlan:
    """What to export.

    `module`: in the portable form; `cuda_module`: the same in the CUDA form, None where it has none.
    `inputs`: name → example (order of `forward`). `outputs`: names. `network`: whose weights file it uses, e.g. "unet".
    `dynamic`: input → {axis: dimension name}; `ranges`: dimension name → what it may be. `further_inputs`: of other
    sizes within the ranges, for verification. `attention`: how the portable form has it.
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
    """Traces `plan.module` and translates it; weights still refer to the module's tensors."""
    with traced_as(plan.attention):
        model = _translate(plan)
    # Without folding, shape arithmetic stays in the graph, some of it as ops that TensorRT refuses.
    optimizer.fold_constants(model)
    return _tidy(model, plan.name)


def build_cuda_graph(plan: GraphPlan, module: nn.Module) -> ir.Model:
    """The same in the CUDA form, traced from `module`."""
    model = _translate(replace(plan, module=module))
    optimizer.fold_constants(model, should_fold=may_fold)
    _tidy(model, plan.name)
    finish(model)
    return _tidy(model, plan.name)


def _translate(plan: GraphPlan) -> ir.Model:
    dimensions = {
        name: torch.export.Dim(name, min=span.minimum, max=span.maximum) for name, span in plan.ranges.items()
    }
    shapes = {
        name: {axis: dimensions[dimension] for axis, dimension in plan.dynamic.get(name, {}).items()}
        for name in plan.inputs
    }
    with _quiet_exporter():
        program = torch.export.export(
            plan.module, tuple(plan.inputs.values()), dynamic_shapes=tuple(shapes.values()) if dimensions else None
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


def _name_dimensions(model: ir.Model, plan: GraphPlan) -> None:
    """Replaces the tracer's symbols, in whole or inside expressions, by the names of the plan's dimensions."""
    values = {value.name: value for value in model.graph.inputs}
    names = {}
    for name, axes in plan.dynamic.items():
        shape = values[name].shape
        for axis, dimension in axes.items():
            if shape is not None:
                names[str(shape[axis])] = dimension
    if not names:
        return
    symbols = re.compile("|".join(rf"\b{re.escape(symbol)}\b" for symbol in names))
    produced = (value for node in model.graph for value in node.outputs)
    for value in (*model.graph.inputs, *produced):
        if value.shape is not None:
            value.shape = ir.Shape(
                size if isinstance(size, int) else symbols.sub(lambda found: names[found[0]], str(size))
                for size in value.shape
            )


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
    _name_constants(model)
    return model


def _name_constants(model: ir.Model) -> None:
    """Folded constants get short names in order; the tracer's own depend on its version."""
    generated = [name for name in model.graph.initializers if "." not in name]
    for index, name in enumerate(generated):
        model.graph.initializers[name].name = f"{_GENERATED_PREFIX}_{index}"


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silences what the exporter says of packages that are not there and of its own deprecated calls."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning)
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)
