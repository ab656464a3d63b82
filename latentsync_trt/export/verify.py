"""Compares exported graphs with PyTorch: shapes, then values."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from latentsync_trt.errors import CheckpointError, ExportMismatch
from latentsync_trt.export.graphs import GraphPlan
from latentsync_trt.runtime.sessions.session import Array, Session

FACTOR = 3.0
"""How many times the error of PyTorch's own arithmetic a graph may have. Both have the same
roundings in another order: graphs of narrow networks had 0.3 to 0.9 times PyTorch's error in
float16 (128 px), and 0.8 to 1.4 times in float32 (64 px, without full steps)."""

TRIALS = 3
"""A graph that exceeds its limit is compared on this many inputs, and most of them decide. Where a norm divides by
nearly zero, on few inputs, one rounding more or less changes everything after it."""

FLOOR = {"fp32": 1e-5, "fp16": 1e-3}
"""The smallest limit, relative to an output's largest value: graphs of few operations may round
once where PyTorch does not."""

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


class InDouble(TorchFunctionMode):
    """Within this context float32 modules compute in float64; parameters are converted one operation at a time."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") == "__get__":  # reads a property
            return func(*args, **kwargs or {})
        func = Tensor.double if func is Tensor.float else func
        return _called(func, args, kwargs, torch.float32, torch.float64)


class SumsInSingle(TorchFunctionMode):
    """Within this context products of float16 are summed up in float32 and then rounded, as GPUs do.

    PyTorch's own float16 products on a CPU are up to fifty times slower, and no more exact.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func not in _PRODUCTS or args[0].dtype != torch.float16:
            return func(*args, **kwargs or {})
        return _called(func, args, kwargs, torch.float16, torch.float32).half()


def _called(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, source: torch.dtype, target: torch.dtype
) -> Any:
    """Calls with `target` for tensors of `source`, also in lists, and for that type itself."""

    def cast(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(cast, value))
        if isinstance(value, Tensor):
            return value.to(target) if value.dtype == source else value
        return target if value is source else value

    return func(*map(cast, args), **{name: cast(value) for name, value in (kwargs or {}).items()})


class _Error(NamedTuple):
    """Distances of an output from the exact one, relative to its largest value; `ratio` = `graph` / `limit`."""

    ratio: float
    graph: float
    pytorch: float
    limit: float
    output: str


def verify_graph(path: Path, plan: GraphPlan, truth: nn.Module, precision: str) -> float:
    """Runs the graph, and `plan.module` that it was exported from, on the same inputs on the CPU.

    The error of both is their distance from the exact result. For float32 that is the same module in float64; for
    float16, whose errors are a thousand times larger, it is `truth`, the module in float32 with unrounded weights.

    Returns:
        The graph's largest error, relative to the largest value of the output it is in.

    Raises:
        ExportMismatch: shapes differ, a value is not finite, or on most inputs an error exceeds
            `FACTOR` times that of PyTorch in the graph's own precision.
        CheckpointError: PyTorch's own results are not finite.
    """
    session = Session(path)
    worst = 0.0
    for inputs in (plan.inputs, *plan.further_inputs):
        errors = [_largest_error(session, plan, inputs, truth, precision)]
        if errors[0].ratio > 1:
            shuffled = (_shuffled(inputs, seed) for seed in range(1, TRIALS))
            errors += [_largest_error(session, plan, other, truth, precision) for other in shuffled]
            median = sorted(errors)[TRIALS // 2]
            if median.ratio > 1:
                raise ExportMismatch(
                    f"{median.output}: differs from PyTorch by {median.graph:.2e} of its range on most of {TRIALS} "
                    f"inputs; the limit is {median.limit:.2e}, and PyTorch's own {precision} differs by "
                    f"{median.pytorch:.2e}. The graph is wrong, or {precision} does not suit these weights: please "
                    "report it; --precision fp32 has smaller errors, --no-verify writes the bundle unchecked"
                )
        worst = max(worst, min(errors).graph)
    return worst


def _largest_error(
    session: Session, plan: GraphPlan, inputs: Mapping[str, Tensor], truth: nn.Module, precision: str
) -> _Error:
    """Of all outputs, the error that is largest beside its limit."""
    dtypes = {tensor.name: tensor.dtype for tensor in session.inputs}
    outputs = session.run({name: value.numpy().astype(dtypes[name]) for name, value in inputs.items()})
    given = [value.to(torch.float32) if value.is_floating_point() else value for value in inputs.values()]
    exact = _results(truth, given, nullcontext() if precision == "fp16" else InDouble())
    own = _results(plan.module, inputs.values(), SumsInSingle())
    return max(
        _compared(f"{session.path.name}, output {name}", precision, *values)
        for name, *values in zip(plan.outputs, outputs, own, exact, strict=True)
    )


def _results(module: nn.Module, inputs: Iterable[Tensor], arithmetic: Any) -> list[Array]:
    with torch.inference_mode(), arithmetic:
        found = module(*inputs)
    return [value.double().numpy() for value in (found if isinstance(found, tuple) else (found,))]


def _compared(what: str, precision: str, output: Array, own: Array, exact: Array) -> _Error:
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
    limit = min(max(FLOOR[precision], FACTOR * pytorch), CEILING)
    return _Error(graph / limit, graph, pytorch, limit, what)


def _shuffled(inputs: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Inputs of the same shapes and distributions: each tensor's values in another order."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: value.flatten()[torch.randperm(value.numel(), generator=generator)].reshape(value.shape)
        for name, value in inputs.items()
    }
