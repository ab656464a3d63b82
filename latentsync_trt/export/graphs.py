"""Exports a PyTorch module as an ONNX graph, and compares the graph with it: shapes, then
values.
"""

import gc
import logging
import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.passes import common as passes
from onnxscript import optimizer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from latentsync_trt.bundle import manifest as bundle
from latentsync_trt.bundle.external import WeightsFile
from latentsync_trt.errors import CheckpointError, ExportMismatch
from latentsync_trt.export.cuda_ops import VERSIONS
from latentsync_trt.runtime.engines.session import Array, Session

OPSET = 23
"""The first opset with `Attention`; it also has `GroupNormalization` and exact `Gelu`."""

_WHOLE_SIZES: Mapping[int | str, str] = {
    f"{bundle.SIZE_STEPS[whole]}*({known}//{bundle.SIZE_STEPS[known]})": whole
    for axis in ((bundle.HEIGHT, bundle.LATENT_HEIGHT), (bundle.WIDTH, bundle.LATENT_WIDTH))
    for whole in axis
    for known in axis
}
"""Names of sizes, also where a graph computes them from the other one of the same axis."""

# Operator → index of its first optional output.
_OPTIONAL_OUTPUTS = {"SkipLayerNormalization": 1, "SkipGroupNorm": 1}

_STORED_ELEMENTS = 1 << 22
"""The most of a tensor that is computed from weights, such as a part of a stacked projection."""

_REPEATING = {"ConstantOfShape", "Expand", "Tile"}
_REPEATED_ELEMENTS = 1 << 17
"""The most of one that only repeats others: positions, but not zeros in the shape of features."""

FACTOR = 3.0
"""How many times the error of PyTorch's own float16 a graph may have. Both have the same roundings
in another order: graphs of narrow networks had 0.3 to 0.9 times PyTorch's error (128 px).
"""

FLOOR = 1e-3
"""The smallest limit, relative to an output's largest value; in float32 the only one. Graphs of
narrow networks in float32 differed by less than 1e-5, and by 2e-4 where norms have groups of two
values. In float16 graphs of few operations may round once where PyTorch does not.
"""

CEILING = 0.2
"""The largest limit: with errors above it, a precision does not suit a network."""

_PRODUCTS = {
    F.conv1d,
    F.conv2d,
    F.linear,
    F.scaled_dot_product_attention,
    Tensor.matmul,
    Tensor.__matmul__,
    torch.matmul,
}


@dataclass(frozen=True)
class GraphPlan:
    """What to export.

    `network`: the network whose weights file it uses, e.g. "unet". `module`: in the portable form.
    `inputs`: name → example, in the order of `forward`. `dynamic`: input → {axis: dimension name};
    `ranges`: dimension name → allowed values. `further_inputs`: other sizes within the ranges, for
    verification.
    """

    name: str
    network: str
    module: nn.Module
    inputs: Mapping[str, Tensor]
    outputs: tuple[str, ...]
    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    ranges: Mapping[str, bundle.DimensionRange] = field(default_factory=dict)
    further_inputs: tuple[Mapping[str, Tensor], ...] = ()


def build_graph(plan: GraphPlan, cuda_module: nn.Module | None = None) -> ir.Model:
    """The graph, traced from the plan's module, or in the CUDA form; weights still refer to the
    module's tensors.
    """
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it tells of missing packages
    # With millions of live objects, looking for cycles takes a tenth of an export.
    gc.disable()
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            warnings.simplefilter("ignore", DeprecationWarning)  # of calls of the exporter's own
            model = _trace(plan, cuda_module or plan.module)
            if cuda_module is None:
                # Without folding, the graph keeps shape arithmetic, part of it as operators that
                # TensorRT rejects.
                optimizer.fold_constants(model)
            else:
                optimizer.fold_constants(
                    model, should_fold=_may_fold, output_size_limit=_STORED_ELEMENTS
                )
                _tidy(model, plan.name)
                _finish(model)
            return _tidy(model, plan.name)
    finally:
        gc.enable()


def save_graph(model: ir.Model, path: Path, weights: WeightsFile) -> bundle.GraphEntry:
    """Writes the graph to `path` and its weights, where they are new, to `weights`."""
    weights.move_out(model)
    ir.save(model, path)
    inputs, outputs = (
        tuple(map(_tensor, values)) for values in (model.graph.inputs, model.graph.outputs)
    )
    return bundle.GraphEntry(path.name, weights.path.name, inputs, outputs)


def _tensor(value: ir.Value) -> bundle.TensorEntry:
    if value.name is None or value.dtype is None or value.shape is None:
        raise ExportMismatch(f"the exporter left name, type or shape of {value} open")
    shape = tuple(
        dimension if isinstance(dimension, int) else str(dimension) for dimension in value.shape
    )
    return bundle.TensorEntry(value.name, value.dtype.numpy().name, shape)


def _trace(plan: GraphPlan, module: nn.Module) -> ir.Model:
    dimensions = {name: _dimension(name, span) for name, span in plan.ranges.items()}
    shapes = tuple(
        {axis: dimensions[name] for axis, name in plan.dynamic.get(each, {}).items()}
        for each in plan.inputs
    )
    program = torch.export.export(
        module, tuple(plan.inputs.values()), dynamic_shapes=shapes if dimensions else None
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
    found = [
        [value.name for value in values] for values in (model.graph.inputs, model.graph.outputs)
    ]
    if found != [list(plan.inputs), list(plan.outputs)]:
        raise ExportMismatch(f"{plan.name}: its inputs and outputs are {found}; please report it")
    _name_dimensions(model, plan)
    return model


def _dimension(name: str, span: bundle.DimensionRange) -> Any:
    """A dimension to the tracer; that of a size is a multiple, so that halving it three times
    leaves no remainder.
    """
    step = bundle.SIZE_STEPS.get(name)
    if step is None:
        return torch.export.Dim(name, min=span.minimum, max=span.maximum)
    return step * torch.export.Dim(
        f"{name}_steps", min=span.minimum // step, max=span.maximum // step
    )


def _name_dimensions(model: ir.Model, plan: GraphPlan) -> None:
    """Replaces the tracer's symbols by the plan's dimension names, also inside expressions."""
    shapes = {value.name: value.shape or () for value in model.graph.inputs}
    names = {
        str(shapes[name][axis]).rpartition("*")[2]: f"({dimension}//{bundle.SIZE_STEPS[dimension]})"
        if dimension in bundle.SIZE_STEPS
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
                size
                if isinstance(size, int)
                else symbols.sub(lambda found: names[found[0]], str(size))
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
        for value in node.outputs:
            value.metadata_props.clear()
    # Folded constants get short names in order; the tracer's own depend on its version.
    for index, name in enumerate([name for name in model.graph.initializers if "." not in name]):
        model.graph.initializers[name].name = f"const_{index}"
    return model


def _may_fold(node: ir.Node) -> bool | None:
    """Whether to compute the node at export, None if the optimizer may decide.

    What follows from weights alone is stored: ONNX Runtime would compute it each time that it opens
    a graph, in half a second, or, of a graph that is opened as it is, each time that it runs.
    """
    if node.domain in VERSIONS.keys() - {""}:
        return False
    if node.op_type in _REPEATING:
        return _elements(node) <= _REPEATED_ELEMENTS
    if _elements(node) <= _STORED_ELEMENTS:
        return True
    return None


def _elements(node: ir.Node) -> int:
    """About how many a node computes from constants: exactly, if its shape is known."""
    shape = node.outputs[0].shape
    if shape is not None:
        return math.prod(shape.numpy())
    given = [
        value.const_value
        for value in node.inputs
        if value is not None and value.const_value is not None
    ]
    elements = sum(tensor.size for tensor in given)
    if node.op_type in _REPEATING:
        return elements * math.prod(given[-1].numpy().tolist())
    return elements


def _finish(model: ir.Model) -> None:
    """Drops outputs that nothing reads: the kernels compute whatever is named."""
    graph = model.graph
    for each in (model, graph):
        each.opset_imports.update(VERSIONS)
    for node in graph:
        for output in node.outputs[_OPTIONAL_OUTPUTS.get(node.op_type, len(node.outputs)) :]:
            if not output.uses():
                output.name = ""
        while node.outputs[-1].name == "":
            node.resize_outputs(len(node.outputs) - 1)


class SumsInSingle(TorchFunctionMode):
    """Within this context products of float16 are summed up in float32 and then rounded, as GPUs
    do.

    PyTorch's own float16 products on a CPU are up to fifty times slower, and no more exact.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func not in _PRODUCTS or args[0].dtype != torch.float16:
            return func(*args, **kwargs or {})
        return func(
            *map(_single, args), **{name: _single(value) for name, value in (kwargs or {}).items()}
        ).half()


def _single(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype == torch.float16:
        return value.float()
    return value


def verify_graph(path: Path, plan: GraphPlan, truth: nn.Module, precision: str) -> float:
    """Runs the graph and `truth`, the module in float32 with unrounded weights, on the same inputs
    on the CPU.

    For float16, also `plan.module` that the graph was exported from: what PyTorch's own rounding
    costs.

    Returns:
        The graph's largest error, relative to the largest value of the output it is in.

    Raises:
        ExportMismatch: shapes differ, a value is not finite, or an error exceeds its limit.
        CheckpointError: PyTorch's own results are not finite.
    """
    session = Session(path)
    dtypes = {tensor.name: tensor.dtype for tensor in session.inputs}
    worst = 0.0
    for inputs in (plan.inputs, *plan.further_inputs):
        outputs = session.run(
            {name: value.numpy().astype(dtypes[name]) for name, value in inputs.items()}
        )
        given = [
            value.to(torch.float32) if value.is_floating_point() else value
            for value in inputs.values()
        ]
        exact = own = _results(truth, given, nullcontext())
        if precision == "fp16":
            own = _results(plan.module, inputs.values(), SumsInSingle())
        for name, *values in zip(plan.outputs, outputs, own, exact, strict=True):
            worst = max(worst, _error(f"{path.name}, output {name}", precision, *values))
    return worst


def _results(module: nn.Module, inputs: Iterable[Tensor], arithmetic: Any) -> list[Array]:
    with torch.inference_mode(), arithmetic:
        found = module(*inputs)
    return [value.double().numpy() for value in (found if isinstance(found, tuple) else (found,))]


def _error(what: str, precision: str, output: Array, own: Array, exact: Array) -> float:
    if output.shape != exact.shape:
        raise ExportMismatch(
            f"{what}: shape {output.shape}, PyTorch gives {exact.shape}; please report it"
        )
    if not np.isfinite(exact).all():
        raise CheckpointError(
            f"{what}: PyTorch gives values that are not finite; the checkpoint is damaged"
        )
    for values, source in ((own, "PyTorch in the same precision"), (output, "the graph")):
        if bad := np.count_nonzero(~np.isfinite(values)):
            cure = "export with --precision fp32, whose range is larger"
            raise ExportMismatch(f"{what}: {bad} values of {source} are not finite; {cure}")
    largest = float(np.abs(exact).max()) or 1.0
    graph, pytorch = (float(np.abs(values - exact).max()) / largest for values in (output, own))
    limit = min(max(FLOOR, FACTOR * pytorch), CEILING)
    if graph > limit:
        raise ExportMismatch(
            f"{what}: differs from PyTorch by {graph:.2e} of its "
            f"range; the limit is {limit:.2e}, by PyTorch's own "
            f"{precision}. The graph is wrong, or {precision} "
            "does not suit these weights: please report it; "
            "--precision fp32 has smaller errors, --no-verify writes the bundle unchecked"
        )
    return graph
