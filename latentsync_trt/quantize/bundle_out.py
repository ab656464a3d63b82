"""A bundle in eight bits, written beside its parent: steps with pairs over one weights file, all else as it was."""

import importlib.metadata
import shutil
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx
import onnx_ir as ir

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
from latentsync_trt.quantize.mixed import MixedSteps
from latentsync_trt.quantize.options import QuantizeOptions
from latentsync_trt.quantize.ranges import Ranges
from latentsync_trt.quantize.share import multiply_adds, share_in_eight_bits
from latentsync_trt.runtime.providers.libraries import onnxruntime_version

_TOOLS = ("latentsync-trt", "onnx", "onnx-ir", "ml_dtypes")


@dataclass(frozen=True, slots=True)
class Provenance:
    """What a quantized bundle says of its calibration.

    `clips`: SHA-256 by file name. `settings`: of the calibration, besides those of quantizing. `distance`: from the
    parent, by name of the measure.
    """

    clips: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str | float | int | None] = field(default_factory=dict)
    distance: Mapping[str, float] = field(default_factory=dict)


def open_parent(folder: Path) -> Bundle:
    """The bundle to quantize.

    Raises:
        BundleError: no whole bundle there. InputError: it is in eight bits already.
    """
    parent = Bundle.load(folder)
    quantized = parent.manifest.quantization
    if parent.manifest.precision in EIGHT_BIT_PRECISIONS:
        of = f"; calibrate {quantized.parent}, which it was made of" if quantized else ""
        raise InputError(f"{folder}: is in {parent.manifest.precision} already{of}")
    return parent


def quantize_bundle(
    folder: Path, ranges: Ranges, options: QuantizeOptions, out: Path, provenance: Provenance | None = None
) -> Path:
    """Writes the bundle in `folder` in eight bits to `out`, which appears complete or not at all; returns it.

    Raises:
        BundleError: no whole bundle there. OutputError: `out` cannot be written.
        InputError: the bundle is in eight bits already, `ranges` lack a layer, nothing is left to quantize, or `out`
            holds something else.
    """
    parent = open_parent(folder)
    check_target(parent, out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as temporary:
            staged, work = Path(temporary) / "bundle", Path(temporary) / "work"
            staged.mkdir()
            work.mkdir()
            with MixedSteps(parent, ranges, options, work) as steps:
                _fill(staged, steps, options, provenance or Provenance(), out.name)
            if out.exists():
                out.rename(Path(temporary) / "replaced")
            staged.rename(out)
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(f"{out}: cannot be written ({error.strerror or error})") from error
    return out


def check_target(parent: Bundle, out: Path) -> None:
    """Raises `InputError` where `out` may not be replaced by a bundle made of `parent`."""
    if out.is_file():
        raise InputError(f"{out}: is a file; --out takes a folder")
    if out.is_dir() and out.resolve() == parent.folder.resolve():
        raise InputError(f"{out}: is the bundle to calibrate; choose another folder for --out")
    if out.is_dir() and any(out.iterdir()) and not (out / MANIFEST_NAME).is_file():
        raise InputError(f"{out}: holds something that is not a bundle; choose another folder for --out")


def _fill(folder: Path, steps: MixedSteps, options: QuantizeOptions, provenance: Provenance, name: str) -> None:
    manifest = steps.bundle.manifest
    layers = steps.all_layers()
    kept = frozenset(layer.weight for layer in layers if options.keeps(layer.weight))
    if len(kept) == len(layers):
        raise InputError(f"all {len(layers)} layers of {manifest.name} would be kept as they are: keep fewer")
    graphs = {**manifest.graphs, **_write_steps(folder, steps, kept)}
    copied = {file for entry in graphs.values() if entry.file not in _names(folder) for file in _files_of(entry)}
    for file in sorted(copied):
        shutil.copyfile(steps.bundle.folder / file, folder / file)
    full = onnx.load(steps.bundle.graph_path("denoise_step"), load_external_data=False)
    quantization = Quantization(
        parent=manifest.name,
        parent_sha256=manifest_sha256(steps.bundle.folder),
        parent_precision=manifest.precision,
        clips=provenance.clips,
        settings={**provenance.settings, **options.settings()},
        kept=tuple(sorted(kept)),
        share=share_in_eight_bits(multiply_adds(full, manifest.ranges), kept),
        distance=provenance.distance,
    )
    made = replace(
        manifest,
        name=name,
        precision=options.precision,
        graphs=graphs,
        files={path.name: FileEntry(sha256_file(path), path.stat().st_size) for path in sorted(folder.iterdir())},
        tools={**manifest.tools, **_tools()},
        # What was compared with PyTorch is no longer what is here, but for the other networks.
        verification={name: value for name, value in manifest.verification.items() if name not in steps.graphs},
        quantization=quantization,
        format_version=FORMAT_VERSION,
    )
    write_manifest(folder, made)


def _write_steps(folder: Path, steps: MixedSteps, kept: Collection[str]) -> dict[str, GraphEntry]:
    """Writes the step graphs into `folder`, over one weights file that holds what they use and nothing else."""
    entries: dict[str, GraphEntry] = {}
    for weights_name in {steps.bundle.manifest.graphs[graph].weights for graph in steps.graphs}:
        with WeightsFile(folder / weights_name) as weights:
            for graph in steps.graphs:
                entry = steps.bundle.manifest.graphs[graph]
                if entry.weights != weights_name:
                    continue
                model = ir.load(steps.write(graph, kept))
                weights.move_out(model)
                ir.save(model, folder / entry.file)
                entries[graph] = replace(entry, forms={})
    return entries


def _files_of(entry: GraphEntry) -> set[str]:
    return {entry.file, entry.weights, *entry.forms.values()}


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def _tools() -> dict[str, str]:
    return {tool: importlib.metadata.version(tool) for tool in _TOOLS} | {"onnxruntime": onnxruntime_version()}
