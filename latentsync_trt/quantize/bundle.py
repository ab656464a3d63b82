"""Writes 8-bit bundles: step graphs with QuantizeLinear/DequantizeLinear pairs, everything else copied."""

import shutil
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnx_ir import save

from latentsync_trt.audio.mel import filters_of, write_filters
from latentsync_trt.bundle.manifest import (
    EIGHT_BIT_PRECISIONS,
    FORMAT_VERSION,
    FULL_STEP,
    Bundle,
    FileEntry,
    GraphEntry,
    Quantization,
    check_target,
    manifest_sha256,
    sha256_file,
    tool_versions,
    write_manifest,
)
from latentsync_trt.bundle.weights import WeightsFile
from latentsync_trt.errors import InputError
from latentsync_trt.files import published_folder
from latentsync_trt.quantize.layers import eight_bit_share, multiply_adds
from latentsync_trt.quantize.options import CalibrateOptions
from latentsync_trt.quantize.ranges import Ranges
from latentsync_trt.quantize.steps import QuantizedSteps, step_graphs
from latentsync_trt.runtime.providers.libraries import onnxruntime_version

_TOOLS = ("onnx", "onnx-ir", "ml_dtypes")
"""Packages that make the graphs; the extra "calibrate" installs them."""


def open_parent(folder: Path) -> Bundle:
    """The bundle to quantize; raises `BundleError` if it is incomplete, `InputError` if it is in 8 bits already."""
    parent = Bundle.load(folder)
    quantized = parent.manifest.quantization
    if parent.manifest.precision in EIGHT_BIT_PRECISIONS:
        hint = f"; calibrate {quantized.parent}, which it was made from" if quantized else ""
        raise InputError(f"{folder}: is in {parent.manifest.precision} already{hint}")
    return parent


def check_out(parent: Bundle, out: Path) -> None:
    """Raises `InputError` if `out` must not be overwritten with a bundle made from `parent`."""
    if out.resolve() == parent.folder.resolve():
        raise InputError(f"{out}: is the bundle to calibrate; choose another folder for --out")
    check_target(out)


def quantize_bundle(
    parent: Bundle,
    ranges: Ranges,
    options: CalibrateOptions,
    out: Path,
    *,
    clips: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
    distance: Mapping[str, float] | None = None,
) -> Path:
    """Writes an 8-bit version of `parent` to `out`, completely or not at all; returns `out`.

    Args:
        clips, settings, distance: of the calibration, as in the manifest's `Quantization`.

    Raises:
        InputError: all layers are kept, or `out` contains something else. OutputError: `out` cannot be written.
    """
    check_out(parent, out)
    manifest, step_names = parent.manifest, step_graphs(parent)
    # The rounded weights go to the temporary folder that contains the staged one.
    with published_folder(out) as staged, QuantizedSteps(parent, ranges, options, staged.parent) as steps:
        kept = steps.kept()
        if len(kept) == len(steps.layers):
            raise InputError(f"--keep: keeps all {len(kept)} layers of {manifest.name}; keep fewer")
        graphs = _write_graphs(staged, steps, kept)
        write_filters(staged, filters_of(parent))
        made = replace(
            manifest,
            name=out.name,
            precision=options.precision,
            graphs=graphs,
            files={path.name: FileEntry(sha256_file(path), path.stat().st_size) for path in sorted(staged.iterdir())},
            tools={
                **manifest.tools,
                **tool_versions(_TOOLS, extra="calibrate"),
                "onnxruntime": onnxruntime_version(),
            },
            # The step graphs are not those that were compared with PyTorch.
            verification={graph: value for graph, value in manifest.verification.items() if graph not in step_names},
            quantization=Quantization(
                parent=manifest.name,
                parent_sha256=manifest_sha256(parent.folder),
                parent_precision=manifest.precision,
                clips=clips or {},
                settings={
                    **(settings or {}),
                    "precision": options.precision,
                    "percentile": options.percentile,
                    "smooth": options.smooth,
                },
                kept=tuple(sorted(kept)),
                share=eight_bit_share(multiply_adds(parent, FULL_STEP), kept),
                distance=distance or {},
            ),
            format_version=FORMAT_VERSION,
        )
        write_manifest(staged, made)
    return out


def _write_graphs(folder: Path, steps: QuantizedSteps, kept: Collection[str]) -> dict[str, GraphEntry]:
    """Writes the step graphs, with weights files of what they use only, and copies the others."""
    parent = steps.bundle
    graphs = dict(parent.manifest.graphs)
    of_steps = {graph: replace(graphs[graph], forms={}) for graph in step_graphs(parent)}
    for file in {entry.weights for entry in of_steps.values()}:
        with WeightsFile(folder / file) as weights:
            for graph, entry in of_steps.items():
                if entry.weights == file:
                    model = steps.model(graph, kept)
                    weights.move_out(model)
                    save(model, folder / entry.file)
    others = [entry for graph, entry in graphs.items() if graph not in of_steps]
    for file in {file for entry in others for file in (entry.file, entry.weights, *entry.forms.values())}:
        shutil.copyfile(parent.folder / file, folder / file)
    return graphs | of_steps
