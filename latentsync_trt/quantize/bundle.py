"""Writes 8-bit bundles: step graphs with QuantizeLinear/DequantizeLinear pairs, everything else copied."""

import importlib.metadata
import shutil
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onnx_ir import save

from latentsync_trt.bundle.manifest import (
    EIGHT_BIT_PRECISIONS,
    FORMAT_VERSION,
    MANIFEST_NAME,
    Bundle,
    FileEntry,
    GraphEntry,
    Quantization,
    manifest_sha256,
    sha256_file,
    write_manifest,
)
from latentsync_trt.bundle.weights import WeightsFile
from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.quantize.layers import eight_bit_share, multiply_adds
from latentsync_trt.quantize.options import CalibrateOptions
from latentsync_trt.quantize.ranges import Ranges
from latentsync_trt.quantize.steps import QuantizedSteps, step_graphs
from latentsync_trt.runtime.providers.libraries import onnxruntime_version

_TOOLS = ("latentsync-trt", "onnx", "onnx-ir", "ml_dtypes")


@dataclass(frozen=True, slots=True)
class Provenance:
    """What the manifest of an 8-bit bundle says of its calibration.

    `clips`: SHA-256 by file name. `settings`: of the calibration, besides those of the rounding. `distance`: from the
    parent, by name of the measure.
    """

    clips: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    distance: Mapping[str, float] = field(default_factory=dict)


def open_parent(folder: Path) -> Bundle:
    """The bundle to quantize.

    Raises:
        BundleError: no complete bundle there. InputError: it is in 8 bits already.
    """
    parent = Bundle.load(folder)
    quantized = parent.manifest.quantization
    if parent.manifest.precision in EIGHT_BIT_PRECISIONS:
        hint = f"; calibrate {quantized.parent}, which it was made from" if quantized else ""
        raise InputError(f"{folder}: is in {parent.manifest.precision} already{hint}")
    return parent


def check_target(parent: Bundle, out: Path) -> None:
    """Raises `InputError` if `out` must not be replaced by a bundle made from `parent`."""
    if out.is_file():
        raise InputError(f"{out}: is a file; --out takes a folder")
    if out.is_dir() and out.resolve() == parent.folder.resolve():
        raise InputError(f"{out}: is the bundle to calibrate; choose another folder for --out")
    if out.is_dir() and any(out.iterdir()) and not (out / MANIFEST_NAME).is_file():
        raise InputError(f"{out}: contains files but no bundle; choose another folder for --out")


def quantize_bundle(
    folder: Path, ranges: Ranges, options: CalibrateOptions, out: Path, provenance: Provenance | None = None
) -> Path:
    """Writes the bundle in `folder` in 8 bits to `out`, completely or not at all; returns `out`.

    Raises:
        BundleError: no complete bundle in `folder`. OutputError: `out` cannot be written.
        InputError: the bundle is in 8 bits already, a layer has no range, all layers are kept, or `out` contains
            something else.
    """
    parent = open_parent(folder)
    check_target(parent, out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as temporary:
            staged, work = Path(temporary) / "bundle", Path(temporary) / "work"
            staged.mkdir()
            work.mkdir()
            with QuantizedSteps(parent, ranges, options, work) as steps:
                _write_files(staged, steps, options, provenance or Provenance(), out.name)
            if out.exists():
                out.rename(Path(temporary) / "replaced")
            staged.rename(out)
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(f"{out}: cannot be written ({error.strerror or error})") from error
    return out


def _write_files(
    folder: Path, steps: QuantizedSteps, options: CalibrateOptions, provenance: Provenance, name: str
) -> None:
    parent, kept = steps.bundle, steps.kept()
    manifest, step_names = parent.manifest, step_graphs(parent)
    if len(kept) == len(steps.layers):
        raise InputError(f"--keep: keeps all {len(kept)} layers of {manifest.name}; keep fewer")
    graphs = {**manifest.graphs, **_write_steps(folder, steps, kept)}
    others = [entry for graph, entry in graphs.items() if graph not in step_names]
    for file in sorted({file for entry in others for file in (entry.file, entry.weights, *entry.forms.values())}):
        shutil.copyfile(parent.folder / file, folder / file)
    rounding = {"precision": options.precision, "percentile": options.percentile, "smooth": options.smooth}
    made = replace(
        manifest,
        name=name,
        precision=options.precision,
        graphs=graphs,
        files={path.name: FileEntry(sha256_file(path), path.stat().st_size) for path in sorted(folder.iterdir())},
        tools={
            **manifest.tools,
            **{tool: importlib.metadata.version(tool) for tool in _TOOLS},
            "onnxruntime": onnxruntime_version(),
        },
        # The step graphs are no longer those that were compared with PyTorch.
        verification={graph: value for graph, value in manifest.verification.items() if graph not in step_names},
        quantization=Quantization(
            parent=manifest.name,
            parent_sha256=manifest_sha256(parent.folder),
            parent_precision=manifest.precision,
            clips=provenance.clips,
            settings={**provenance.settings, **rounding},
            kept=tuple(sorted(kept)),
            share=eight_bit_share(multiply_adds(parent, "denoise_step"), kept),
            distance=provenance.distance,
        ),
        format_version=FORMAT_VERSION,
    )
    write_manifest(folder, made)


def _write_steps(folder: Path, steps: QuantizedSteps, kept: Collection[str]) -> dict[str, GraphEntry]:
    """Writes the step graphs into `folder`, with one weights file that holds only what they use."""
    entries = {graph: steps.bundle.manifest.graphs[graph] for graph in step_graphs(steps.bundle)}
    for file in {entry.weights for entry in entries.values()}:
        with WeightsFile(folder / file) as weights:
            for graph, entry in entries.items():
                if entry.weights == file:
                    model = steps.model(graph, kept)
                    weights.move_out(model)
                    save(model, folder / entry.file)
    return {graph: replace(entry, forms={}) for graph, entry in entries.items()}
