"""Compares exported graphs with PyTorch: names, then shapes, then values."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import torch

from latentsync_trt.bundle.manifest import PIXELS_PER_LATENT
from latentsync_trt.errors import ExportMismatch, InputError
from latentsync_trt.export.attention import HEADS
from latentsync_trt.export.graphs import GraphPlan
from latentsync_trt.export.options import ExportOptions
from latentsync_trt.runtime.sessions.session import Array, Session

TOLERANCE = {"fp32": 1e-4, "fp16": 2e-2}
"""Largest relative difference to float32 PyTorch. float32 graphs stay near 1e-6; half precision, at 1e-3 per rounding,
stays below 1e-2 for a whole U-Net."""

PROOF_RESOLUTION_PX = 128
"""If memory is too small, the networks are exported again at this resolution and verified there."""

_FLOAT32_BYTES = 4
_GUIDED_HALVES = 2


def verification_options(options: ExportOptions) -> ExportOptions:
    """The export to verify on this machine: `options`, or the same at a lower resolution.

    On a CPU ONNX Runtime allocates the attention matrix of all frames and heads at once, and its softmax.

    Raises:
        InputError: free memory is too small for the lower resolution, too.
    """
    free_bytes = psutil.virtual_memory().available
    if needed_bytes(options) <= free_bytes:
        return options
    smaller = replace(options, resolution=min(PROOF_RESOLUTION_PX, options.resolution_px), cuda_form=False)
    if needed_bytes(smaller) > free_bytes:
        raise InputError(
            f"verifying {options.frames} frames at {smaller.resolution_px} px on the CPU needs about "
            f"{needed_bytes(smaller) / 1e9:.1f} GB of memory, {free_bytes / 1e9:.1f} are free; add --no-verify",
            usage=False,
        )
    return smaller


def needed_bytes(options: ExportOptions) -> int:
    """Memory that the largest attention of a guided denoising step takes on the CPU, softmax included."""
    pixels = (options.resolution_px // PIXELS_PER_LATENT) ** 2
    matrix_bytes = _FLOAT32_BYTES * _GUIDED_HALVES * options.frames * HEADS * pixels**2
    return 2 * matrix_bytes


def verify_graph(path: Path, plan: GraphPlan, tolerance: float) -> float:
    """Runs the graph on CPU and `plan.module` (float32) on the same inputs.

    Returns:
        The largest difference, relative to the largest value of the output it is in.

    Raises:
        ExportMismatch: names or shapes differ, a value is not finite, or a difference exceeds `tolerance`.
    """
    session = open_checked(path, plan)
    dtypes = {tensor.name: tensor.dtype for tensor in session.inputs}
    worst = 0.0
    for inputs in (plan.inputs, *plan.further_inputs):
        with torch.inference_mode():
            expected = plan.module(*inputs.values())
        outputs = session.run({name: value.numpy().astype(dtypes[name]) for name, value in inputs.items()})
        truths = expected if isinstance(expected, tuple) else (expected,)
        for name, output, truth in zip(plan.outputs, outputs, truths, strict=True):
            worst = max(worst, _compare(f"{path.name}, output {name}", output, truth.numpy(), tolerance))
    return worst


def open_checked(path: Path, plan: GraphPlan) -> Session:
    """Loads the graph on the CPU; raises `ExportMismatch` if its inputs or outputs have unplanned names."""
    session = Session(path)
    for kind, found, wanted in (
        ("inputs", [tensor.name for tensor in session.inputs], list(plan.inputs)),
        ("outputs", [tensor.name for tensor in session.outputs], list(plan.outputs)),
    ):
        if found != wanted:
            raise ExportMismatch(f"{path.name}: its {kind} are {found}, not {wanted}")
    return session


def _compare(what: str, output: Array, truth: Array, tolerance: float) -> float:
    if output.shape != truth.shape:
        raise ExportMismatch(f"{what}: shape {output.shape}, PyTorch gives {truth.shape}")
    if not np.isfinite(output).all():
        raise ExportMismatch(f"{what}: {np.count_nonzero(~np.isfinite(output))} values are not finite")
    difference = float(np.abs(output.astype(np.float32) - truth).max() / np.abs(truth).max())
    if difference > tolerance:
        raise ExportMismatch(f"{what}: differs from PyTorch by {difference:.2e} of its range (limit {tolerance:.0e})")
    return difference
