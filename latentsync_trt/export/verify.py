"""Compares exported graphs with PyTorch: shapes, then values."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from latentsync_trt.errors import CheckpointError, ExportMismatch
from latentsync_trt.export.graphs import GraphPlan
from latentsync_trt.runtime.engines.session import Array, Session

FACTOR = 3.0
"""How many times the error of PyTorch's own float16 a graph may have. Both have the same roundings in another order:
graphs of narrow networks had 0.3 to 0.9 times PyTorch's error (128 px)."""

FLOOR = 1e-3
"""The smallest limit, relative to an output's largest value; in float32 the only one. Graphs of narrow networks in
float32 differed by less than 1e-5, and by 2e-4 where norms have groups of two values. In float16 graphs of few
operations may round once where PyTorch does not."""

CEILING = 0.2
"""The largest limit: with errors above it, a precision does not suit a network."""

_PRODUCTS = frozenset(
    {
        F.conv1d,
        F.conv2d,
        F.linear,
        F.scaled_dot_product_attention,
        Tensor.matmul,
        Tensor.__matmul__,
        torch.matmul,
    }
)


class SumsInSingle(TorchFunctionMode):
    """Within this context products of float16 are summed up in float32 and then rounded, as GPUs do.

    PyTorch's own float16 products on a CPU are up to fifty times slower, and no more exact.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func not in _PRODUCTS or args[0].dtype != torch.float16:
            return func(*args, **kwargs or {})
        return func(*map(_single, args), **{name: _single(value) for name, value in (kwargs or {}).items()}).half()


def _single(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.float16 else value


def verify_graph(path: Path, plan: GraphPlan, truth: nn.Module, precision: str) -> float:
    """Runs the graph and `truth`, the module in float32 with unrounded weights, on the same inputs on the CPU.

    For float16, also `plan.module` that the graph was exported from: what PyTorch's own rounding costs.

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
        outputs = session.run({name: value.numpy().astype(dtypes[name]) for name, value in inputs.items()})
        given = [value.to(torch.float32) if value.is_floating_point() else value for value in inputs.values()]
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
        raise ExportMismatch(f"{what}: shape {output.shape}, PyTorch gives {exact.shape}; please report it")
    if not np.isfinite(exact).all():
        raise CheckpointError(f"{what}: PyTorch gives values that are not finite; the checkpoint is damaged")
    for values, source in ((own, "PyTorch in the same precision"), (output, "the graph")):
        if bad := np.count_nonzero(~np.isfinite(values)):
            cure = "export with --precision fp32, whose range is larger"
            raise ExportMismatch(f"{what}: {bad} values of {source} are not finite; {cure}")
    largest = float(np.abs(exact).max()) or 1.0
    graph, pytorch = (float(np.abs(values - exact).max()) / largest for values in (output, own))
    limit = min(max(FLOOR, FACTOR * pytorch), CEILING)
    if graph > limit:
        raise ExportMismatch(
            f"{what}: differs from PyTorch by {graph:.2e} of its range; the limit is {limit:.2e}, by PyTorch's own "
            f"{precision}. The graph is wrong, or {precision} does not suit these weights: please report it; "
            "--precision fp32 has smaller errors, --no-verify writes the bundle unchecked"
        )
    return graph
