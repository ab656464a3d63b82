"""An exported model on disk: a folder with `manifest.json`, graphs and one weights file per
network.

The manifest holds the SHA-256 of every file and of itself: a damaged or edited bundle is refused.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from msgspec import Meta

from latentsync_trt.bundle.external import external_files
from latentsync_trt.config import MODEL_RESOLUTION_PX, RuntimeOptions, SyncOptions
from latentsync_trt.errors import BundleError, InputError, MissingDependency
from latentsync_trt.option_fields import RESOLUTION_STEP_PX, from_values
from latentsync_trt.paths import check_folder_to_write
from latentsync_trt.version import __version__, distribution_version

FORMAT_VERSION = 5
"""The only version of the manifest's format that is read."""

MANIFEST_NAME = "manifest.json"
DEMO_NAME = "demo"

Precision = Literal["fp32", "fp16", "int8", "fp8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
EIGHT_BIT_PRECISIONS: tuple[Precision, ...] = ("int8", "fp8")
"""Precisions of calibrated bundles: steps compute in 8 bits, except for some layers."""

Shapes = Literal["static", "dynamic"]
GraphVariant = Literal["portable", "cuda"]
"""Variants of a graph: for every provider, or fastest on ONNX Runtime's CUDA provider. Inputs,
outputs and weights are the same.
"""

AUDIO_ENCODER = "audio_encoder"
VAE_ENCODER = "vae_encoder"
VAE_DECODER = "vae_decoder"
FULL_STEP = "denoise_step"
CACHED_STEP = "denoise_step_cached"
UNGUIDED_GRAPHS = ("denoise_step_unguided", "denoise_step_unguided_cached")
"""The full and the cached step without guidance."""
STEP_GRAPHS = (FULL_STEP, CACHED_STEP, *UNGUIDED_GRAPHS)
REQUIRED_GRAPHS = (AUDIO_ENCODER, VAE_ENCODER, VAE_DECODER, FULL_STEP, CACHED_STEP)

HIDDEN = "hidden"
STEP_OUTPUTS = ("next_latents", "next_history")
"""Outputs of every step; `hidden` is one more output of full steps and input of cached ones."""

PIXELS_PER_LATENT = 8
"""How many pixels one latent covers along each axis."""
HEADS = 8
"""Attention heads at every level of the U-Net."""

_MOST_BYTES = 1_000_000
"""Largest manifest that is read; the built-in one has 12,403 bytes."""

HEIGHT = "height"
WIDTH = "width"
LATENT_HEIGHT = "latent_height"
LATENT_WIDTH = "latent_width"
SIZE_STEPS = {
    HEIGHT: RESOLUTION_STEP_PX,
    WIDTH: RESOLUTION_STEP_PX,
    LATENT_HEIGHT: RESOLUTION_STEP_PX // PIXELS_PER_LATENT,
    LATENT_WIDTH: RESOLUTION_STEP_PX // PIXELS_PER_LATENT,
}
"""Divisors of the dimensions that vary in bundles for several resolutions: pixels of pictures, and
latents.
"""

_Size = Annotated[int, Meta(ge=1, le=4096)]


def step_graph(*, guided: bool, cached: bool) -> str:
    """Returns the name of the graph of such a step."""
    graphs = (FULL_STEP, CACHED_STEP) if guided else UNGUIDED_GRAPHS
    return graphs[cached]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """An input or output of a graph."""

    name: str
    dtype: str
    """As NumPy names it."""
    shape: tuple[int | str, ...]
    """A str names a dynamic dimension."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """What a file must contain."""

    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    """In hex."""
    bytes: Annotated[int, Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class GraphEntry:
    """One graph, with its variants."""

    file: str
    """Its `.onnx` file."""
    weights: str
    """The weights file that it reads."""
    inputs: tuple[TensorEntry, ...]
    outputs: tuple[TensorEntry, ...]
    forms: Mapping[str, str] = field(default_factory=dict)
    """Files of its other variants, by `GraphVariant`."""


@dataclass(frozen=True, slots=True)
class DimensionRange:
    """The values that a dynamic dimension may have."""

    minimum: int
    optimum: int
    """The typical value, for which engines are made fastest."""
    maximum: _Size
    """Inclusive."""

    @property
    def fixed(self) -> bool:
        return self.minimum == self.maximum


@dataclass(frozen=True, slots=True)
class Quantization:
    """How an 8-bit bundle was made."""

    parent: str
    """Name of the bundle that was calibrated."""
    parent_sha256: str
    """SHA-256 of its manifest."""
    parent_precision: Precision
    """Precision of what is not in 8 bits: other graphs, and the layers in `kept`."""
    clips: tuple[str, ...]
    """Names of the files that it was calibrated with."""
    settings: Mapping[str, Any]
    """Settings of the calibration."""
    kept: tuple[str, ...]
    """Names of the weights of layers that are not in 8 bits."""
    share: float
    """Share of the full step's multiply-adds that are in 8 bits."""
    distance: Mapping[str, float] = field(default_factory=dict)
    """Distance to the parent after whole denoising loops, by metric; empty if not measured."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a bundle."""

    name: str
    model: str
    """The published model that it was made from, as "1.6"; "demo" for the built-in one."""
    resolution_px: _Size
    """Side of a face; the largest, if there are several."""
    frames: Annotated[int, Meta(ge=1, le=256)]
    """Frames of a window."""
    precision: Precision
    shapes: Shapes
    audio_layers: int
    """Layers of the audio encoder whose outputs are features, with its input."""
    audio_width: int
    """Numbers in a feature of a layer."""
    opset: int
    unet: Mapping[str, Any]
    """The U-Net's configuration."""
    graphs: Mapping[str, GraphEntry]
    files: Mapping[str, FileEntry]
    """All files of the folder but the manifest, by name."""
    ranges: Mapping[str, DimensionRange] = field(default_factory=dict)
    """By name of the dynamic dimension; empty for static shapes."""
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Name, hash and, if known, repository@commit of checkpoints, by role: unet, vae, whisper."""
    tools: Mapping[str, str] = field(default_factory=dict)
    """Versions of the packages that made it."""
    verification: Mapping[str, float] = field(default_factory=dict)
    """The largest relative difference to PyTorch by graph; empty if that was not verified."""
    notes: tuple[str, ...] = ()
    quantization: Quantization | None = None
    """None unless the bundle is in 8 bits."""
    format_version: int = FORMAT_VERSION

    @property
    def arithmetic(self) -> Precision:
        """The precision of layers and graphs that are not in 8 bits."""
        return self.quantization.parent_precision if self.quantization else self.precision

    @property
    def latent_px(self) -> int:
        return self.resolution_px // PIXELS_PER_LATENT

    @property
    def resolutions_px(self) -> range:
        """The resolutions that the graphs take, ascending; `resolution_px`, the default, is the
        last.
        """
        span = self.ranges.get(HEIGHT)
        least_px = self.resolution_px if span is None else span.minimum
        return range(least_px, self.resolution_px + 1, RESOLUTION_STEP_PX)

    def notices_at(self, resolution_px: int) -> list[str]:
        """Returns notices that the model is the small built-in one, or was trained at another
        resolution.
        """
        if self.model == DEMO_NAME:
            return [
                "the built-in model is small and knows the demo's "
                "face only; latentsync-trt setup makes one for any"
            ]
        trained_px = MODEL_RESOLUTION_PX.get(self.model, resolution_px)
        if trained_px == resolution_px:
            return []
        return [
            f"model {self.model} was trained at {trained_px} "
            f"px; at {resolution_px} px the mouth may look worse"
        ]


def resolution_of(
    manifest: Manifest, options: SyncOptions, runtime: RuntimeOptions | None = None
) -> int:
    """Returns height and width of the aligned faces of a run, in pixels.

    Raises:
        InputError: the bundle does not support that of `options`, or `runtime` fixes its engines at
            another one.
    """
    wanted_px = options.resolution
    own_px = manifest.resolution_px
    others_px = manifest.resolutions_px
    if wanted_px in (None, own_px):
        return own_px
    if wanted_px not in others_px:
        offered = f"{own_px} px"
        if len(others_px) > 1:
            offered = f"{others_px[0]} to {offered} in steps of {others_px.step}"
        sizes = (
            f"--resolution {max(wanted_px, own_px)} --min-resolution {min(wanted_px, others_px[0])}"
        )
        cure = f"make one for both with `latentsync-trt export --dynamic {sizes}`"
        if manifest.model == DEMO_NAME:
            cure = "leave it out, or name another bundle with --bundle"
        raise InputError(
            f"--resolution {wanted_px}: bundle {manifest.name} is made for {offered}; {cure}"
        )
    if runtime is not None and runtime.dynamic is False:
        raise InputError(
            f"--resolution {wanted_px}: --static fixes engines at {own_px} px; leave it out"
        )
    return wanted_px


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle whose manifest and files were checked."""

    folder: Path
    manifest: Manifest

    @classmethod
    def load(cls, folder: Path, *, verify: bool = True) -> Self:
        """Opens a bundle; the contents of graphs are compared with their SHA-256, with `verify`
        those of weights, too.

        Raises:
            BundleError: no bundle, another format, a file missing, changed or of another size, or a
                graph reads from one that the manifest does not name, whose content is never
                compared.
        """
        manifest = read_manifest(folder)
        files = manifest.files
        graphs: set[str] = set()
        used: set[str] = set()
        for graph in manifest.graphs.values():
            graphs.update((graph.file, *graph.forms.values()))
            used.add(graph.weights)
        used |= graphs
        for name in used | files.keys():
            if name not in files or Path(name).name != name:
                raise BundleError(
                    f"{folder}: the manifest names {name!r}, which is no file of this folder"
                )

        def check(name: str) -> None:
            path = folder / name
            is_graph = name in graphs or path.suffix == ".onnx"
            problem = file_problem(path, files[name], hashes=verify or is_graph)
            if problem:
                raise BundleError(f"{folder}: {problem}; export the model again")
            if is_graph:
                _check_reads(path, used)

        # hashlib releases the GIL, so a large bundle is checked at the speed of the disk.
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(check, files))
        return cls(folder, manifest)

    def graph_path(self, name: str, variant: GraphVariant = "portable") -> Path:
        """Returns the `.onnx` file of a graph; raises `BundleError` if the bundle lacks it."""
        if name not in self.manifest.graphs:
            raise BundleError(f"{self.folder}: has no graph {name}; export the model again")
        entry = self.manifest.graphs[name]
        file = entry.file
        if variant != "portable":
            file = entry.forms[variant]
        return self.folder / file

    def graph_hash(self, name: str) -> str:
        """Returns the SHA-256 over a graph and the weights it reads, from the manifest."""
        entry = self.manifest.graphs[name]
        files = self.manifest.files
        contents = f"{files[entry.file].sha256} {files[entry.weights].sha256}"
        return hashlib.sha256(contents.encode()).hexdigest()


def _check_reads(graph: Path, allowed: Iterable[str]) -> None:
    """Raises `BundleError` if the file is no graph, or reads from a file that is not `allowed`."""
    try:
        names = {*external_files(graph.read_bytes())}
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{graph}: is no graph ({error}); export the model again") from error
    if not names.issubset(name.encode(errors="surrogatepass") for name in allowed):
        raise BundleError(f"{graph}: reads a file that the manifest does not name; export it again")


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_of(folder: Path) -> dict[str, FileEntry]:
    """Returns the files in a folder and below, for its manifest, by name."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            files[name] = FileEntry(sha256_file(path), path.stat().st_size)
    return files


def file_problem(path: Path, expected: FileEntry, *, hashes: bool) -> str:
    """Returns what is wrong with a file, with `hashes` also with its content; begins with its name,
    empty if nothing.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes != expected.bytes:
            return f"{path.name} has {size_bytes} bytes instead of {expected.bytes}"
        if hashes and sha256_file(path) != expected.sha256:
            return f"{path.name} was changed (its SHA-256 differs)"
    except FileNotFoundError:
        return f"{path.name} is missing"
    except OSError as error:
        return f"{path.name} cannot be read ({error.strerror or error})"
    return ""


def write_manifest(folder: Path, manifest: Manifest) -> Path:
    """Writes `manifest.json` into `folder`, sealed with its own SHA-256; returns its path."""
    path = folder / MANIFEST_NAME
    content = asdict(manifest)
    content["sha256"] = _sha256(content)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


def read_manifest(folder: Path) -> Manifest:
    """Reads and checks `manifest.json`.

    Raises:
        BundleError: missing, not JSON, edited, incomplete, or of another format.
    """
    return from_values(Manifest, _content(folder), folder / MANIFEST_NAME, BundleError)


def manifest_sha256(folder: Path) -> str:
    """Returns the SHA-256 of the manifest, which covers all files of the bundle. Raises as
    `read_manifest`.
    """
    return _sha256(_content(folder))


def _content(folder: Path) -> dict[str, Any]:
    """Returns what `manifest.json` contains, without its SHA-256."""
    path = folder / MANIFEST_NAME
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise BundleError(f"{path}: has more than {_MOST_BYTES} bytes; export the model again")
        content: dict[str, Any] = json.loads(text.decode())
        version = content.get("format_version")
        sha256 = content.pop("sha256", None)
    except (FileNotFoundError, NotADirectoryError):
        raise BundleError(
            f"{folder}: not a bundle (no {MANIFEST_NAME}); make one with `latentsync-trt export`",
            usage=True,
        ) from None
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise BundleError(f"{path}: cannot be read ({error}); export the model again") from error
    if version != FORMAT_VERSION:
        raise BundleError(
            f"{path}: format {version}, this version reads {FORMAT_VERSION}; export the model again"
        )
    if sha256 != _sha256(content):
        raise BundleError(
            f"{path}: edited or damaged (its SHA-256 differs); export the model again"
        )
    return content


def _sha256(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_target(target: Path) -> None:
    """Raises `InputError` if `target` is a file, cannot be written, or is a folder with anything
    but a bundle.
    """
    check_folder_to_write(target, "--output")
    if target.is_dir() and any(target.iterdir()) and not (target / MANIFEST_NAME).is_file():
        raise InputError(
            f"{target}: contains files but no bundle; choose another folder for --output"
        )


def tool_versions(packages: Iterable[str], *, extra: str) -> dict[str, str]:
    """Returns the versions of this package and of `packages`, which the extra `extra` installs, for
    `Manifest.tools`.

    Raises:
        MissingDependency: packages are not installed; the message contains the command that
            installs them.
    """
    # A source tree has no metadata, or that of another version.
    versions = {"latentsync-trt": __version__}
    missing = []
    for package in packages:
        version = distribution_version(package)
        if version is None:
            missing.append(package)
        else:
            versions[package] = version
    if missing:
        raise MissingDependency(
            f"{', '.join(missing)}: not installed, or without "
            f"their metadata; pip install 'latentsync-trt[{extra}]'"
        )
    return versions
