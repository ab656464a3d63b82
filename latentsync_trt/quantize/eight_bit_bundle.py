"""Bundles in 8 bits, from one of higher precision and the ranges of its activations.

Their step graphs have QuantizeLinear/DequantizeLinear pairs; everything else is copied.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from latentsync_trt.bundle import manifest as bundles
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.errors import InputError, did_you_mean
from latentsync_trt.files import published_folder
from latentsync_trt.quantize.calibration_options import (
    CALIBRATE_EXTRA,
    CALIBRATE_TOOLS,
    RESIDUAL_LAYERS,
    CalibrateOptions,
)
from latentsync_trt.quantize.layers import layer_names, multiply_adds
from latentsync_trt.quantize.ranges import ActivationRanges
from latentsync_trt.quantize.steps import write_steps
from latentsync_trt.runtime.providers.libraries import onnxruntime_version

DISTANCE = "faces_psnr_db"
"""The manifest's name for the PSNR of faces after whole loops, compared with the parent."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """How an 8-bit bundle was calibrated, for its manifest."""

    clips: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


def open_parent(folder: Path) -> Bundle:
    """Returns the bundle to quantize; raises `BundleError` if it is incomplete, `InputError` if it
    is in 8 bits already.
    """
    parent = Bundle.load(folder)
    precision = parent.manifest.precision
    if precision not in bundles.EIGHT_BIT_PRECISIONS:
        return parent
    hint = ""
    if parent.manifest.quantization:
        hint = f"; calibrate {parent.manifest.quantization.parent}, which it was made from"
    raise InputError(f"{folder}: is in {precision} already{hint}")


def check_out(parent: Bundle, out: Path) -> None:
    """Raises `InputError` if `out` must not be overwritten with a bundle made from `parent`."""
    if out.resolve() == parent.folder.resolve():
        raise InputError(f"{out}: is the bundle to calibrate; choose another folder for --output")
    bundles.check_target(out)


def kept_layers(parent: Bundle, options: CalibrateOptions) -> tuple[str, ...]:
    """Returns the layers that keep their precision, sorted.

    Raises:
        InputError: these are all, or a name fits none.
    """
    names = layer_names(parent)
    bundle = parent.manifest.name
    for pattern in options.keep:
        alone = replace(options, keep=(pattern,))
        if pattern not in RESIDUAL_LAYERS and not any(map(alone.keeps, names)):
            parts = {part for name in names for part in name.split(".") if not part.isdigit()}
            cure = did_you_mean(pattern, sorted(parts))
            cure = cure or f"; its layers have the parts {', '.join(sorted(parts))}"
            raise InputError(f"--keep {pattern}: fits no layer of {bundle}{cure}")
    kept = sorted(filter(options.keeps, names))
    if len(kept) == len(names):
        raise InputError(f"--keep: keeps all {len(kept)} layers of {bundle}; keep fewer")
    return tuple(kept)


def quantize_bundle(
    parent: Bundle,
    ranges: ActivationRanges,
    options: CalibrateOptions,
    out: Path,
    provenance: Provenance = Provenance(),
    measure: Callable[[Path], float] | None = None,
) -> Path:
    """Writes an 8-bit version of `parent` to `out`, completely or not at all; returns `out`.

    Args:
        measure: gives the PSNR in dB of faces by the new step graphs in a folder.

    Raises:
        InputError: as `kept_layers`, or `out` contains something else.
        OutputError: `out` cannot be written.
    """
    check_out(parent, out)
    manifest = parent.manifest
    kept = kept_layers(parent, options)
    tools = bundles.tool_versions(CALIBRATE_TOOLS, extra=CALIBRATE_EXTRA)
    with published_folder(out) as staged:
        steps = write_steps(parent, ranges, options, kept, staged)
        _copy_others(parent, steps, staged)
        quantization = bundles.Quantization(
            parent=manifest.name,
            parent_sha256=bundles.manifest_sha256(parent.folder),
            parent_precision=manifest.precision,
            clips=provenance.clips,
            settings={
                **provenance.settings,
                "precision": options.precision,
                "percentile": options.percentile,
            },
            kept=kept,
            share=_share(parent, kept),
            distance={DISTANCE: measure(staged)} if measure else {},
        )
        eight_bit = replace(
            manifest,
            name=out.name,
            precision=options.precision,
            graphs={**manifest.graphs, **steps},
            files=bundles.files_of(staged),
            tools={**manifest.tools, **tools, "onnxruntime": onnxruntime_version()},
            # The step graphs are not those that were compared with PyTorch.
            verification={
                graph: error for graph, error in manifest.verification.items() if graph not in steps
            },
            quantization=quantization,
        )
        bundles.write_manifest(staged, eight_bit)
    return out


def _copy_others(parent: Bundle, steps: Mapping[str, bundles.GraphEntry], staged: Path) -> None:
    """Copies the parent's files that are not in `staged`, without other forms of its steps."""
    files = set(parent.manifest.files)
    for name in steps:
        files -= set(parent.manifest.graphs[name].forms.values())
    for file in files:
        if not (staged / file).exists():
            shutil.copyfile(parent.folder / file, staged / file)


def _share(parent: Bundle, kept: Sequence[str]) -> float:
    """Returns the share of the multiply-adds of a full step that is in 8 bits."""
    costs = multiply_adds(parent, bundles.FULL_STEP)
    kept_cost = sum(cost for name, cost in costs.items() if name in kept)
    return 1 - kept_cost / sum(costs.values())
