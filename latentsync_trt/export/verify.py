"""Does an exported graph compute what PyTorch computes? Names, then shapes, then values."""

from pathlib import Path

import numpy as np
import torch

from latentsync_trt.errors import ExportMismatch
from latentsync_trt.export.graphs import GraphPlan
from latentsync_trt.runtime.session import Array, Session

TOLERANCE = {"fp32": 1e-4, "fp16": 2e-2}
"""Largest relative difference to float32 PyTorch. float32 graphs stay near 1e-6; of half precision's 1e-3 for a single
rounding, a whole U-Net makes less than 1e-2."""


def verify_graph(path: Path, plan: GraphPlan, tolerance: float) -> float:
    """Runs the graph on CPU and `plan.module` (float32) on the same inputs.

    Returns:
        The largest difference, relative to the largest value of the output it is in.

    Raises:
        ExportMismatch: other names or shapes, a value that is not finite, or a difference above `tolerance`.
    """
    session = Session(path)
    for kind, found, wanted in (
        ("inputs", [tensor.name for tensor in session.inputs], list(plan.inputs)),
        ("outputs", [tensor.name for tensor in session.outputs], list(plan.outputs)),
    ):
        if found != wanted:
            raise ExportMismatch(f"{path.name}: its {kind} are {found}, not {wanted}")
    worst = 0.0
    for inputs in (plan.inputs, *plan.further_inputs):
        dtypes = {tensor.name: tensor.dtype for tensor in session.inputs}
        with torch.inference_mode():
            expected = plan.module(*inputs.values())
        outputs = session.run({name: value.numpy().astype(dtypes[name]) for name, value in inputs.items()})
        truths = expected if isinstance(expected, tuple) else (expected,)
        for name, output, truth in zip(plan.outputs, outputs, truths, strict=True):
            worst = max(worst, _compare(f"{path.name}, output {name}", output, truth.numpy(), tolerance))
    return worst


def _compare(what: str, output: Array, truth: Array, tolerance: float) -> float:
    if output.shape != truth.shape:
        raise ExportMismatch(f"{what}: shape {output.shape}, PyTorch gives {truth.shape}")
    if not np.isfinite(output).all():
        raise ExportMismatch(f"{what}: {np.count_nonzero(~np.isfinite(output))} values are not finite")
    difference = float(np.abs(output.astype(np.float32) - truth).max() / np.abs(truth).max())
    if difference > tolerance:
        raise ExportMismatch(f"{what}: differs from PyTorch by {difference:.2e} of its range (limit {tolerance:.0e})")
    return difference
