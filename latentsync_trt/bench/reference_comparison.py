"""How far outputs and pictures of a trial are from those of the reference provider."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from latentsync_trt.bench.sample_faces import PICTURES
from latentsync_trt.bench.trial import GraphRow, Trial
from latentsync_trt.bundle.manifest import DEMO_NAME, Manifest
from latentsync_trt.measure.pictures import decibels
from latentsync_trt.runtime.engines.output_comparison import difference, provider_limit
from latentsync_trt.runtime.engines.session import Array
from latentsync_trt.runtime.providers.diagnosis import diagnose_provider
from latentsync_trt.runtime.providers.table import CPU, CUDA

MIN_PSNR_DB: Mapping[str, float] = {"fp32": 60.0, "fp16": 45.0, "int8": 35.0, "fp8": 35.0}
"""Least PSNR to the reference's pictures, by the bundle's precision. Weights of 10 bits of mantissa
gave 73 dB and of 7 bits 56 in float32; in float16, 8 bits gave 62 and 3 bits 41.
"""

_LEVELS_PER_8_BIT_LEVEL = np.float64(257)
"""How many levels of 16 bits are one of 8 bits."""


@dataclass(frozen=True, slots=True)
class ReferenceComparison:
    """How outputs and pictures of a trial compare with the reference."""

    rows: Mapping[str, GraphRow]
    """The rows by graph, with their distance from the reference."""
    failures: Sequence[str]
    pictures: str
    """The PSNR of the pictures, in words; empty where there are none."""


def reference_of(manifest: Manifest, provider: str) -> str:
    """Returns the provider whose results are taken as correct: the CPU for the built-in model, else
    CUDA with portable graphs, as the CPU takes hours with a published one; empty where that does
    not run, or the CPU itself is tested.
    """
    if provider == CPU.name:
        return ""
    if manifest.name == DEMO_NAME:
        return CPU.name
    if diagnose_provider(CUDA) is not None:
        return ""
    return CUDA.name


def compare_with_reference(
    manifest: Manifest, rows: Mapping[str, GraphRow], trial: Trial, reference: Trial
) -> ReferenceComparison:
    """Compares what a trial has written, and the `rows` of its graphs, with a reference."""
    provider = reference.result.provider
    compared = dict(rows)
    failures: list[str] = []
    for graph, reference_row in reference.result.graphs.items():
        row = replace(rows[graph], reference_ms=reference_row.mean_ms)
        file = f"{graph}.npz"
        if not row.error and trial.has(file) and reference.has(file):
            row = replace(
                row,
                difference=difference(
                    _arrays(trial.spec.folder / file), _arrays(reference.spec.folder / file)
                ),
            )
        limit = provider_limit(manifest, graph)
        if row.difference is not None and row.difference > limit:
            failures.append(
                f"{graph}: its values differ from those of {provider} by {row.difference:.1e} of "
                f"the largest (inf: NaN or infinity), at most {limit:.1e} is allowed"
            )
        compared[graph] = row
    psnr_db = _psnr_db(trial, reference)
    if psnr_db is None:
        return ReferenceComparison(compared, failures, pictures="")
    psnr = f"{psnr_db:.1f} dB"
    if psnr_db == math.inf:
        psnr = "equal"
    min_db = MIN_PSNR_DB[manifest.precision]
    pictures = f"{psnr} beside {provider} (at least {min_db:.0f} dB)"
    if psnr_db < min_db:
        failures.append(f"pictures: {pictures}")
    return ReferenceComparison(compared, failures, pictures)


def _arrays(path: Path) -> list[Array]:
    with np.load(path) as arrays:
        return [arrays[name] for name in arrays.files]


def _psnr_db(trial: Trial, reference: Trial) -> float | None:
    """Returns the PSNR of the pictures; infinite where they are equal, None where a trial has
    none.
    """
    if not (trial.has(PICTURES) and reference.has(PICTURES)):
        return None
    pictures = np.load(trial.spec.folder / PICTURES) / _LEVELS_PER_8_BIT_LEVEL
    expected = np.load(reference.spec.folder / PICTURES) / _LEVELS_PER_8_BIT_LEVEL
    psnr_db = decibels(float(np.mean((pictures - expected) ** 2)))
    return math.inf if psnr_db is None else psnr_db
