"""Compares exported graphs with PyTorch: names, then shapes, then values."""

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor, nn

from latentsync_trt.bundle.manifest import PIXELS_PER_LATENT
from latentsync_trt.errors import CheckpointError, ExportMismatch, InputError
from latentsync_trt.export.arithmetic import InDouble, SumsInSingle
from latentsync_trt.export.attention import HEADS
from latentsync_trt.export.graphs import GraphPlan
from latentsync_trt.export.options import ExportOptions
from latentsync_trt.runtime.sessions.session import Array, Session

FACTOR = 3.0
"""How many times the error of PyTorch's own arithmetic a graph may have. Both have the same roundings in another order:
graphs of narrow networks had 0.3 to 0.9 times PyTorch's error in float16 (128 px), and 0.8 to 1.4 times in float32
(64 px, without full steps)."""

TRIALS = 3
"""A graph that exceeds its limit is compared on this many inputs, and most of them decide. Where a norm divides by
nearly zero, on few inputs, one rounding more or less changes everything after it."""

FLOOR = {"fp32": 1e-5, "fp16": 1e-3}
"""The smallest limit, relative to an output's largest value: graphs of few operations may round once where PyTorch
does not."""

CEILING = 0.2
"""The largest limit: with errors above it, a precision does not suit a network."""

PROOF_RESOLUTION_PX = 128
"""If memory is too small, the networks are exported again at this resolution and verified there."""

_FLOAT32_BYTES = 4
_GUIDED_HALVES = 2
_NAMES = {"fp32": "float32", "fp16": "float16"}


def verification_options(options: ExportOptions) -> ExportOptions:
    """The export to verify on this machine: `options`, or the same at a lower resolution.

    On a CPU ONNX Runtime allocates the attention matrix of all frames and heads at once, and its softmax.

    Raises:
        InputError: free memory is too small for the lower resolution, too.
    """
    free_bytes = psutil.virtual_memory().available
    if needed_bytes(options) <= free_bytes:
        return options
    size_px = min(PROOF_RESOLUTION_PX, options.resolution_px)
    least_px = options.min_resolution and min(PROOF_RESOLUTION_PX // 2, options.min_resolution)
    smaller = replace(options, resolution=size_px, min_resolution=least_px, cuda_form=False)
    if needed_bytes(smaller) > free_bytes:
        raise InputError(
            f"verifying {options.frames} frames at {smaller.resolution_px} px on the CPU needs about "
            f"{needed_bytes(smaller) / 1e9:.1f} GB of memory, {free_bytes / 1e9:.1f} are free; add --no-verify"
        )
    return smaller


def needed_bytes(options: ExportOptions) -> int:
    """Memory that the largest attention of a guided denoising step takes on the CPU, softmax included."""
    pixels = (options.resolution_px // PIXELS_PER_LATENT) ** 2
    matrix_bytes = _FLOAT32_BYTES * _GUIDED_HALVES * options.frames * HEADS * pixels**2
    return 2 * matrix_bytes


@dataclass(frozen=True, slots=True)
class _Error:
    """Distance of an output, and of PyTorch's in its precision, from the exact one; relative to its largest value."""

    output: str
    graph: float
    own: float

    def limit(self, precision: str) -> float:
        return min(max(FLOOR[precision], FACTOR * self.own), CEILING)


def verify_graph(path: Path, plan: GraphPlan, truth: nn.Module, precision: str) -> float:
    """Runs the graph, and `plan.module` that it was exported from, on the same inputs on the CPU.

    The error of both is their distance from the exact result. For float32 that is the same module in float64; for
    float16, whose errors are a thousand times larger, it is `truth`, the module in float32 with unrounded weights.

    Returns:
        The graph's largest error, relative to the largest value of the output it is in.

    Raises:
        ExportMismatch: names or shapes differ, a value is not finite, or on most inputs an error exceeds `FACTOR` times
            that of PyTorch in the graph's own precision.
        CheckpointError: PyTorch's own results are not finite.
    """
    session = open_checked(path, plan)
    worst = 0.0
    for inputs in (plan.inputs, *plan.further_inputs):
        trials = [_trial(session, plan, inputs, truth, precision)]
        if _failed(trials[0], precision):
            trials += [_trial(session, plan, _shuffled(inputs, seed), truth, precision) for seed in range(1, TRIALS)]
            failures = [found for trial in trials if (found := _failed(trial, precision))]
            if 2 * len(failures) > TRIALS:
                raise ExportMismatch(_explained(failures, precision))
        worst = max(worst, min(max(error.graph for error in trial) for trial in trials))
    return worst


def open_checked(path: Path, plan: GraphPlan) -> Session:
    """Loads the graph on the CPU; raises `ExportMismatch` if its inputs or outputs have unplanned names."""
    session = Session(path)
    for kind, found, wanted in (
        ("inputs", [tensor.name for tensor in session.inputs], list(plan.inputs)),
        ("outputs", [tensor.name for tensor in session.outputs], list(plan.outputs)),
    ):
        if found != wanted:
            raise ExportMismatch(f"{path.name}: its {kind} are {found}, not {wanted}; please report it")
    return session


def _trial(
    session: Session, plan: GraphPlan, inputs: Mapping[str, Tensor], truth: nn.Module, precision: str
) -> list[_Error]:
    dtypes = {tensor.name: tensor.dtype for tensor in session.inputs}
    outputs = session.run({name: value.numpy().astype(dtypes[name]) for name, value in inputs.items()})
    given = {name: value.to(torch.float32) if value.is_floating_point() else value for name, value in inputs.items()}
    exact = _results(truth, given.values(), nullcontext() if precision == "fp16" else InDouble())
    own = _results(plan.module, inputs.values(), SumsInSingle())
    return [
        _compared(f"{session.path.name}, output {name}", *values)
        for name, *values in zip(plan.outputs, outputs, own, exact, strict=True)
    ]


def _results(module: nn.Module, inputs: Iterable[Tensor], arithmetic: Any) -> list[Array]:
    with torch.inference_mode(), arithmetic:
        found = module(*inputs)
    return [value.double().numpy() for value in (found if isinstance(found, tuple) else (found,))]


def _compared(what: str, output: Array, own: Array, exact: Array) -> _Error:
    if output.shape != exact.shape:
        raise ExportMismatch(f"{what}: shape {output.shape}, PyTorch gives {exact.shape}; please report it")
    if not np.isfinite(exact).all():
        raise CheckpointError(f"{what}: PyTorch gives values that are not finite; the checkpoint is damaged")
    for values, source, cure in (
        (own, "PyTorch in the same precision", "export with --precision fp32, whose range is larger"),
        (output, "the graph", "export with --precision fp32, and please report it; --no-verify skips this check"),
    ):
        if not np.isfinite(values).all():
            bad = np.count_nonzero(~np.isfinite(values))
            raise ExportMismatch(f"{what}: {bad} values of {source} are not finite; {cure}")
    largest = float(np.abs(exact).max()) or 1.0
    graph, pytorch = (float(np.abs(values - exact).max()) / largest for values in (output, own))
    return _Error(what, graph, pytorch)


def _failed(errors: list[_Error], precision: str) -> _Error | None:
    """The error that exceeds its limit most, if any does."""
    most = max(errors, key=lambda error: error.graph / error.limit(precision))
    return most if most.graph > most.limit(precision) else None


def _shuffled(inputs: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Inputs of the same shapes and distributions: each tensor's values in another order."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: value.flatten()[torch.randperm(value.numel(), generator=generator)].reshape(value.shape)
        for name, value in inputs.items()
    }


def _explained(failures: list[_Error], precision: str) -> str:
    error = min(failures, key=lambda error: error.graph / error.limit(precision))
    limit, kind = error.limit(precision), _NAMES[precision]
    reason = {
        FLOOR[precision]: f"the smallest for {kind}",
        CEILING: "the largest that is allowed",
    }.get(limit, f"{FACTOR:g} times the error of PyTorch's own {kind}, {error.own:.2e}")
    cure = "" if precision == "fp32" else "export with --precision fp32, and "
    return (
        f"{error.output}: differs from PyTorch by {error.graph:.2e} of its range, on {len(failures)} of {TRIALS} "
        f"random inputs; the limit is {limit:.2e}, {reason}. "
        f"The graph is wrong, or {kind} does not suit these weights: "
        f"{cure}please report it; --no-verify writes the bundle unchecked, at your own risk"
    )
