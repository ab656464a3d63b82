"""An exported model on disk: a folder with `manifest.json`, graphs and one weights file per network.

The manifest is all that a run knows of the model. Every file it names carries its SHA-256, and the manifest carries its
own, so a damaged or edited bundle is refused before anything is computed with it.
"""

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from latentsync_trt.errors import BundleError

FORMAT_VERSION = 4
"""2 added `Manifest.quantization`, 3 `Manifest.attention`; 4 spells `quantization` so, earlier ones `quantisation`."""
MANIFEST_NAME = "manifest.json"
DEMO_NAME = "demo"

Precision = Literal["fp32", "fp16", "int8", "fp8"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "int8", "fp8")
EIGHT_BIT_PRECISIONS: tuple[Precision, ...] = ("int8", "fp8")
"""Of bundles that were calibrated: their steps compute in eight bits, but for some layers."""

Shapes = Literal["static", "dynamic"]
GraphForm = Literal["portable", "cuda"]
"""A graph as every provider takes it, or as ONNX Runtime's CUDA provider runs it fastest. Inputs, outputs, weights and
results are the same."""

AttentionForm = Literal["fused", "matmul"]
ATTENTION_FORMS: tuple[AttentionForm, ...] = ("fused", "matmul")
"""Attention in portable graphs: one ONNX `Attention` operator where TensorRT takes it, or MatMul, Softmax and MatMul
everywhere."""

AUDIO_ENCODER, VAE_ENCODER, VAE_DECODER = "audio_encoder", "vae_encoder", "vae_decoder"


def step_graph(*, guided: bool, cached: bool) -> str:
    """The name of the graph that runs a denoising step."""
    return f"denoise_step{'' if guided else '_unguided'}{'_cached' if cached else ''}"


FULL_STEP, CACHED_STEP = (step_graph(guided=True, cached=cached) for cached in (False, True))
UNGUIDED_GRAPHS = tuple(step_graph(guided=False, cached=cached) for cached in (False, True))
STEP_GRAPHS = (FULL_STEP, CACHED_STEP, *UNGUIDED_GRAPHS)
REQUIRED_GRAPHS = (AUDIO_ENCODER, VAE_ENCODER, VAE_DECODER, FULL_STEP, CACHED_STEP)

HIDDEN = "hidden"
STEP_INPUTS = ("latents", "conditioning", "audio", "timestep", "guidance", "history", "coefficients")
STEP_OUTPUTS = ("next_latents", "next_history")
"""Full steps have `hidden` as a further output, cached steps as a further input."""

PIXELS_PER_LATENT = 8
"""Along an edge."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A graph's input or output. `dtype` as NumPy names it; a str in `shape` names a dynamic dimension."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of the bundle: its SHA-256 in hex and its size in bytes."""

    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class GraphEntry:
    """One graph: its `.onnx` file, the weights file it reads (both keys of `Manifest.files`), inputs, outputs.

    `forms`: the files of its other forms, which bundles of early versions do not have.
    """

    file: str
    weights: str
    inputs: tuple[TensorEntry, ...]
    outputs: tuple[TensorEntry, ...]
    forms: Mapping[str, str] = field(default_factory=dict)

    def file_of(self, form: GraphForm) -> str:
        """The `.onnx` file of a form; raises KeyError where there is none."""
        return self.file if form == "portable" else self.forms[form]


@dataclass(frozen=True, slots=True)
class DimensionRange:
    """Smallest, usual and largest value of a dynamic dimension, all inclusive."""

    minimum: int
    optimum: int
    maximum: int

    @property
    def fixed(self) -> bool:
        """Whether it allows one value only."""
        return self.minimum == self.maximum


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a bundle in eight bits was made of another one.

    `parent`, `parent_sha256`: name and manifest hash of the bundle that was calibrated. `parent_precision`: what its
    other graphs, and the layers in `kept` (names of their weights), still have. `clips`: SHA-256 by file name of what
    was calibrated on. `settings`: of the calibration. `share`: of the full step's multiply-adds in convolutions and
    linear layers, how many are in eight bits, 0 to 1. `distance`: from the parent, after whole loops, by name of the
    measure; empty if it was not measured.
    """

    parent: str
    parent_sha256: str
    parent_precision: Precision
    clips: Mapping[str, str]
    settings: Mapping[str, Any]
    kept: tuple[str, ...]
    share: float
    distance: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a bundle says of itself.

    `ranges` maps the name of each dynamic dimension to its range (empty for static shapes). `unet` is the U-Net's
    configuration as inferred from its checkpoint. `sources` maps the role of each source file (unet, vae, whisper) to
    its name and hash. `verification` holds the largest relative difference to PyTorch per graph; empty if skipped.
    `attention`: as given to `export --attention`; manifests before format 3 lack it and mean "fused". `quantization`:
    only of bundles in eight bits.
    """

    name: str
    model: str
    resolution_px: int
    frames: int
    precision: Precision
    shapes: Shapes
    audio_layers: int
    audio_width: int
    opset: int
    unet: Mapping[str, Any]
    graphs: Mapping[str, GraphEntry]
    files: Mapping[str, FileEntry]
    ranges: Mapping[str, DimensionRange] = field(default_factory=dict)
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)
    verification: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    attention: AttentionForm = "fused"
    quantization: Quantization | None = None
    format_version: int = FORMAT_VERSION

    @property
    def arithmetic(self) -> Precision:
        """The precision of all that is not in eight bits."""
        return self.precision if self.quantization is None else self.quantization.parent_precision

    @property
    def latent_px(self) -> int:
        """Height and width of a latent."""
        return self.resolution_px // PIXELS_PER_LATENT

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Self:
        """Builds a manifest from parsed JSON; raises KeyError or TypeError where a field is missing or misshapen."""
        graphs = {
            name: GraphEntry(
                entry["file"],
                entry["weights"],
                _tensors(entry["inputs"]),
                _tensors(entry["outputs"]),
                dict(entry.get("forms", {})),
            )
            for name, entry in raw["graphs"].items()
        }
        files = {name: FileEntry(**entry) for name, entry in raw["files"].items()}
        ranges = {name: DimensionRange(**entry) for name, entry in raw.get("ranges", {}).items()}
        quantized = raw.get("quantization", raw.get("quantisation"))
        read_here = {"graphs", "files", "ranges", "notes", "quantization", "quantisation"}
        return cls(
            **{key: value for key, value in raw.items() if key not in read_here},
            graphs=graphs,
            files=files,
            ranges=ranges,
            notes=tuple(raw.get("notes", ())),
            quantization=None if quantized is None else Quantization(**{**quantized, "kept": tuple(quantized["kept"])}),
        )


def _tensors(entries: list[dict[str, Any]]) -> tuple[TensorEntry, ...]:
    return tuple(TensorEntry(e["name"], e["dtype"], tuple(e["shape"])) for e in entries)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that was opened and found whole."""

    folder: Path
    manifest: Manifest

    @classmethod
    def load(cls, folder: Path, *, verify: bool = True) -> Self:
        """Opens a bundle; with `verify` every file's SHA-256 is compared.

        Raises:
            BundleError: no bundle there, a newer format, a file missing, changed or of another size.
        """
        manifest = read_manifest(folder)
        missing = [name for name in REQUIRED_GRAPHS if name not in manifest.graphs]
        if missing:
            raise BundleError(f"{folder}: the manifest names no graph {', '.join(missing)}; export the model again")
        bundle = cls(folder, manifest)
        bundle.check_files(hashes=verify)
        return bundle

    def graph_path(self, name: str, form: GraphForm = "portable") -> Path:
        """The `.onnx` file of graph `name`; raises `BundleError` if the bundle lacks it."""
        if name not in self.manifest.graphs:
            raise BundleError(f"{self.folder}: has no graph {name}; export the model again")
        return self.folder / self.manifest.graphs[name].file_of(form)

    def graph_hash(self, name: str, form: GraphForm = "portable") -> str:
        """SHA-256 over a graph and the weights it reads, from the manifest."""
        entry = self.manifest.graphs[name]
        graph, weights = (self.manifest.files[file].sha256 for file in (entry.file_of(form), entry.weights))
        return hashlib.sha256(f"{graph} {weights}".encode()).hexdigest()

    def check_files(self, *, hashes: bool = True) -> None:
        """Raises `BundleError` if a file is missing or differs in size or, with `hashes`, in content."""
        for name, entry in self.manifest.files.items():
            path = self.folder / name
            if Path(name).name != name:
                raise BundleError(f"{self.folder}: the manifest names {name!r}, which is not a plain file name")
            if not path.is_file():
                raise BundleError(f"{path}: missing; export the model again")
            if path.stat().st_size != entry.bytes:
                raise BundleError(f"{path}: {path.stat().st_size} bytes, the manifest says {entry.bytes}; export again")
        if hashes:
            # hashlib releases the GIL, so a large bundle is checked at the speed of the disk.
            with ThreadPoolExecutor(4) as pool:
                found = dict(zip(self.manifest.files, pool.map(self._hash, self.manifest.files), strict=True))
            for name, entry in self.manifest.files.items():
                if found[name] != entry.sha256:
                    raise BundleError(
                        f"{self.folder / name}: damaged or edited (SHA-256 differs); export the model again"
                    )

    def _hash(self, name: str) -> str:
        return sha256_file(self.folder / name)


def sha256_file(path: Path) -> str:
    """SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_manifest(folder: Path, manifest: Manifest) -> Path:
    """Writes `manifest.json` into `folder`, sealed with its own SHA-256; returns its path."""
    content = json.loads(json.dumps(asdict(manifest)))
    path = folder / MANIFEST_NAME
    path.write_text(json.dumps(content | {"sha256": _seal(content)}, indent=2) + "\n", encoding="utf-8")
    return path


def read_manifest(folder: Path) -> Manifest:
    """Reads and checks `manifest.json`.

    Raises:
        BundleError: missing, not JSON, edited, or of a newer format.
    """
    path = folder / MANIFEST_NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BundleError(
            f"{folder}: not a bundle (no {MANIFEST_NAME}); make one with `latentsync-trt export`"
        ) from None
    except (OSError, ValueError) as error:
        raise BundleError(f"{path}: cannot be read ({error}); export the model again") from error
    if not isinstance(content, dict) or not isinstance(content.get("format_version"), int):
        raise BundleError(f"{path}: not a manifest of latentsync-trt")
    if content["format_version"] > FORMAT_VERSION:
        raise BundleError(
            f"{path}: format {content['format_version']}, this version reads up to {FORMAT_VERSION}; "
            "upgrade latentsync-trt or export the model again"
        )
    if content.pop("sha256", None) != _seal(content):
        raise BundleError(f"{path}: edited or damaged (its SHA-256 differs); export the model again")
    try:
        return Manifest.from_json(content)
    except (KeyError, TypeError, AttributeError) as error:
        raise BundleError(f"{path}: incomplete ({error!r}); export the model again") from error


def manifest_sha256(folder: Path) -> str:
    """The hash that a bundle's manifest is sealed with, which covers all its files; errors as `read_manifest`."""
    read_manifest(folder)
    return str(json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))["sha256"])
