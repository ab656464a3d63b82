"""Exports a PyTorch module as an ONNX graph, and compares the graph with it: shapes, then
values.
"""

import gc
import logging
import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
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

# Operator → index of its first optional output.
_OPTIONAL_OUTPUTS = {"SkipLayerNormalization": 1, "SkipGroupNorm": 1}

_STORED_ELEMENTS = 1 << 22
"""The most elements of a stored tensor that is computed from weights, such as a part of a stacked
projection.
"""

_REPEATING = {"ConstantOfShape", "Expand", "Tile"}
_REPEATED_ELEMENTS = 1 << 17
"""The most elements of a stored tensor that only repeats others: positions, but not zeros in the
shape of features.
"""

FACTOR = 3.0
"""How many times the error of PyTorch's own float16 a graph may have. It has the same roundings in
another order: graphs of narrow networks had 0.3 to 0.9 times PyTorch's error (128 px).
"""

FLOOR = 1e-3
"""The smallest limit of errors, relative to an output's largest value; in float32 the only one.
Graphs of
narrow networks in float32 differed by less than 1e-5, and by 2e-4 where norms have groups of two
values. In float16 graphs of few operations may round once where PyTorch does not.
"""

CEILING = 0.2
"""The largest limit of errors: above it, a precision does not suit a network."""

_RANGES_OF_SYMBOLS = "pkg.torch.export.ExportedProgram.range_constraints"
"""The metadata in which the tracer leaves the ranges of its symbols."""

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
    """A graph to export."""

    name: str
    network: str
    """The network whose weights file it uses, as "unet"."""
    module: nn.Module
    """What is exported, in the portable form."""
    inputs: Mapping[str, Tensor]
    """Examples by name, in the order of the module's `forward`."""
    outputs: tuple[str, ...]
    """Names, in the order in which the module returns them."""
    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Names of the variable dimensions, by input and axis."""
    ranges: Mapping[str, bundle.DimensionRange] = field(default_factory=dict)
    """Allowed values of each variable dimension."""
    further_inputs: tuple[Mapping[str, Tensor], ...] = ()
    """Examples of other sizes within the ranges, for verification."""


def build_graph(plan: GraphPlan, cuda_module: nn.Module | None = None) -> ir.Model:
    """Returns the graph, traced from the plan's module or its CUDA form; weights still refer to the
    module's tensors.
    """
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it logs which packages are missing
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
    inputs = tuple(map(_entry_of, model.graph.inputs))
    outputs = tuple(map(_entry_of, model.graph.outputs))
    return bundle.GraphEntry(path.name, weights.path.name, inputs, outputs)


def _entry_of(value: ir.Value) -> bundle.TensorEntry:
    if value.name is None or value.dtype is None or value.shape is None:
        raise ExportMismatch(f"the exporter left name, type or shape of {value} open")
    shape = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
    return bundle.TensorEntry(value.name, value.dtype.numpy().name, shape)


def _trace(plan: GraphPlan, module: nn.Module) -> ir.Model:
    dimensions = {name: _dimension(name, allowed) for name, allowed in plan.ranges.items()}
    shapes = []
    for name in plan.inputs:
        axes = plan.dynamic.get(name, {})
        shapes.append({axis: dimensions[size] for axis, size in axes.items()})
    program = torch.export.export(
        module,
        tuple(plan.inputs.values()),
        dynamic_shapes=tuple(shapes) if dimensions else None,
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
    names = [value.name for value in (*model.graph.inputs, *model.graph.outputs)]
    if names != [*plan.inputs, *plan.outputs]:
        raise ExportMismatch(f"{plan.name}: its inputs and outputs are {names}; please report it")
    _name_dimensions(model, plan)
    return model


def _dimension(name: str, allowed: bundle.DimensionRange) -> Any:
    """Returns what a dimension is to the tracer; that of a size is a multiple, so that halving it
    three times leaves no remainder.
    """
    step = bundle.SIZE_STEPS.get(name)
    if step is None:
        return torch.export.Dim(name, min=allowed.minimum, max=allowed.maximum)
    least = allowed.minimum // step
    most = allowed.maximum // step
    return step * torch.export.Dim(f"{name}_steps", min=least, max=most)


def _name_dimensions(model: ir.Model, plan: GraphPlan) -> None:
    """Replaces the tracer's symbols by the plan's dimension names, also inside expressions.

    Their ranges are dropped: the plan has those of the dimensions, and the tracer writes its own in
    an order that differs from run to run.
    """
    names = {}
    for value in model.graph.inputs:
        for axis, name in plan.dynamic.get(str(value.name), {}).items():
            symbol = str(value.shape and value.shape[axis]).rpartition("*")[2]
            step = bundle.SIZE_STEPS.get(name)
            names[symbol] = name
            if step is not None:
                names[symbol] = f"({name}//{step})"
    if not names:
        return
    model.graph.metadata_props.pop(_RANGES_OF_SYMBOLS, None)
    symbols = re.compile(rf"\b({'|'.join(names)})\b")
    values = [*model.graph.inputs]
    for node in model.graph:
        values += node.outputs
    for value in values:
        if value.shape is not None:
            value.shape = ir.Shape(_size(size, symbols, names) for size in value.shape)


def _size(size: object, symbols: re.Pattern[str], names: Mapping[str, str]) -> int | str:
    """Returns a size in terms of the plan's dimension names."""
    if isinstance(size, int):
        return size
    named = symbols.sub(lambda symbol: names[symbol[0]], str(size))
    return _whole_sizes().get(named, named)


@cache
def _whole_sizes() -> dict[str, str]:
    """Returns names of sizes by what graphs have in their place, such as "64*(height//64)".

    A graph may also compute a size from the other one of the same axis: a picture's from its
    latents'.
    """
    names = {}
    for axis in ((bundle.HEIGHT, bundle.LATENT_HEIGHT), (bundle.WIDTH, bundle.LATENT_WIDTH)):
        for whole, source in product(axis, axis):
            steps = f"({source}//{bundle.SIZE_STEPS[source]})"
            names[f"{bundle.SIZE_STEPS[whole]}*{steps}"] = whole
    return names


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
    folded = [value for value in model.graph.initializers.values() if "." not in str(value.name)]
    for index, value in enumerate(folded):
        value.name = f"const_{index}"
    return model


def _may_fold(node: ir.Node) -> bool | None:
    """Returns whether to compute the node at export, None if the optimizer may decide.

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
    """Returns about how many elements a node computes from constants: exactly, if its shape is
    known.
    """
    shape = node.outputs[0].shape
    if shape is not None:
        return math.prod(shape.numpy())
    constants = [value.const_value for value in node.inputs if value is not None]
    tensors = [tensor for tensor in constants if tensor is not None]
    elements = sum(tensor.size for tensor in tensors)
    if node.op_type in _REPEATING:
        return elements * math.prod(tensors[-1].numpy().tolist())
    return elements


def _finish(model: ir.Model) -> None:
    """Drops outputs that nothing reads: the kernels compute whatever is named."""
    graph = model.graph
    graph.opset_imports.update(VERSIONS)
    for node in graph:
        first_optional = _OPTIONAL_OUTPUTS.get(node.op_type, len(node.outputs))
        for output in node.outputs[first_optional:]:
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
        options = kwargs or {}
        if func not in _PRODUCTS or args[0].dtype != torch.float16:
            return func(*args, **options)
        return func(*map(_in_single, args), **options).half()


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
    worst = 0.0
    for inputs in (plan.inputs, *plan.further_inputs):
        arrays = {}
        for tensor in session.inputs:
            arrays[tensor.name] = inputs[tensor.name].numpy().astype(tensor.dtype)
        outputs = session.run(arrays)
        exact = _outputs_of(truth, map(_in_single, inputs.values()))
        rounded = exact
        if precision == "fp16":
            with SumsInSingle():
                rounded = _outputs_of(plan.module, inputs.values())
        for index, name in enumerate(plan.outputs):
            where = f"{path.name}, output {name}"
            error = _error(where, precision, outputs[index], rounded[index], exact[index])
            worst = max(worst, error)
    return worst


def _in_single(value: Any) -> Any:
    """Returns a tensor of real numbers in float32, and anything else as it is."""
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.float()
    return value


def _outputs_of(module: nn.Module, inputs: Iterable[Tensor]) -> list[Array]:
    with torch.inference_mode():
        outputs = module(*inputs)
    if isinstance(outputs, Tensor):
        outputs = (outputs,)
    return [output.double().numpy() for output in outputs]


def _error(where: str, precision: str, output: Array, rounded: Array, exact: Array) -> float:
    """Returns the error of a graph's output, relative to the output's largest value.

    Args:
        rounded, exact: PyTorch's output in the same precision, and in float32.
    """
    if output.shape != exact.shape:
        raise ExportMismatch(
            f"{where}: shape {output.shape}, PyTorch gives {exact.shape}; please report it"
        )
    if not np.isfinite(exact).all():
        raise CheckpointError(
            f"{where}: PyTorch gives values that are not finite; the checkpoint is damaged"
        )
    for values, source in ((rounded, "PyTorch in the same precision"), (output, "the graph")):
        infinite = np.count_nonzero(~np.isfinite(values))
        if infinite:
            raise ExportMismatch(
                f"{where}: {infinite} values of {source} are not finite; "
                "export with --precision fp32, whose range is larger"
            )
    largest = float(np.abs(exact).max()) or 1.0
    graph = float(np.abs(output - exact).max()) / largest
    pytorch = float(np.abs(rounded - exact).max()) / largest
    limit = min(max(FLOOR, FACTOR * pytorch), CEILING)
    if graph > limit:
        raise ExportMismatch(
            f"{where}: differs from PyTorch by {graph:.2e} of its "
            f"range; the limit is {limit:.2e}, by PyTorch's own "
            f"{precision}. The graph is wrong, or {precision} "
            "does not suit these weights: please report it; "
            "--precision fp32 has smaller errors, --no-verify writes the bundle unchecked"
        )
    return graph
