"""Options of `export`, and the checkpoints it reads."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from latentsync_trt.bundle.find import checkpoints_folder
from latentsync_trt.config import MODEL_RESOLUTION_PX
from latentsync_trt.errors import CheckpointError, InputError
from latentsync_trt.export.published import (
    LATENTSYNC,
    UNET_FILE,
    VAE,
    WHISPER_FILE,
    PublishedModel,
)
from latentsync_trt.option_fields import FILES, RESOLUTION_STEP_PX, check_limits, option
from latentsync_trt.paths import path_exists, why_missing

EXPORT_TOOLS = ("torch", "onnx", "onnx-ir", "onnxscript", "diffusers", "safetensors")
"""Packages that make the graphs; manifests have their versions."""

EXPORT_EXTRA = "export"
"""The extra that installs them."""

_file_option = partial(option, group=FILES)
_model_option = partial(option, group="Model")
_graph_option = partial(option, group="Graphs")


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What `export` makes. Raises `InputError` on a value outside its limits."""

    model: PublishedModel = _model_option(
        "1.6", "Published model: 1.6 is made for 512 px, 1.5 for 256."
    )
    unet: str | Path | None = _file_option(
        None, "latentsync_unet.pt.  [default: checkpoints/latentsync-<model>/latentsync_unet.pt]"
    )
    vae: str | Path | None = _file_option(
        None, "VAE folder, diffusers' layout.  [default: checkpoints/sd-vae-ft-mse]"
    )
    whisper: str | Path | None = _file_option(
        None, "Whisper .pt file.  [default: checkpoints/latentsync-<model>/whisper/tiny.pt]"
    )
    output: str | Path | None = _file_option(
        None,
        "Folder to write.  [default: "
        "checkpoints/<model>-[<min-resolution>-]<resolution>-<precision>[-dynamic]]",
        folder=True,
    )
    resolution: int | None = _model_option(
        None,
        "Face resolution in pixels, divisible by 64.  [default: the model's own]",
        minimum=64,
        maximum=2048,
        multiple=RESOLUTION_STEP_PX,
    )
    frames: int = _model_option(
        16,
        "Frames in a window; the models were trained at 16.",
        advanced=True,
        minimum=2,
        maximum=24,  # positions in the published checkpoints
    )
    precision: Literal["fp32", "fp16"] = _model_option(
        "fp32",
        "Weights and arithmetic inside the graphs; for INT8 and FP8 see `calibrate`.",
    )
    dynamic: bool = _graph_option(
        False,
        "The number of windows in a run may vary, or all shapes are fixed (fastest).",
        off="--static",
    )
    max_windows: int = _graph_option(
        4, "With --dynamic, most windows in one run.", advanced=True, minimum=2, maximum=64
    )
    min_resolution: int | None = _graph_option(
        None,
        "With --dynamic, smallest face resolution; --resolution "
        "is the largest, and `sync --resolution` chooses among "
        "all divisible by 64.  [default: only one]",
        advanced=True,
        minimum=64,
        multiple=RESOLUTION_STEP_PX,
        maximum=2048,
    )
    cuda_form: bool = _graph_option(
        True,
        "Also write the graphs of VAE and denoiser in the "
        "form that ONNX Runtime's CUDA provider runs fastest.",
        off="--portable-only",
    )
    verify: bool = _graph_option(
        True, "Compare every graph with PyTorch before the bundle appears.", off="--no-verify"
    )

    def __post_init__(self) -> None:
        check_limits(self)
        if self.min_resolution is not None and not self.dynamic:
            raise InputError(
                f"--min-resolution {self.min_resolution}: fixed shapes have one resolution; "
                "add `--dynamic`"
            )
        if self.min_resolution_px > self.resolution_px:
            raise InputError(
                f"--min-resolution {self.min_resolution}: above the largest, {self.resolution_px}; "
                "give a smaller one, or a larger --resolution"
            )

    @property
    def resolution_px(self) -> int:
        """Returns the face resolution; the model's own if none was named."""
        return self.resolution or MODEL_RESOLUTION_PX[self.model]

    @property
    def min_resolution_px(self) -> int:
        """Returns the smallest face resolution; if none was named, the only one."""
        return self.min_resolution or self.resolution_px

    @property
    def folder(self) -> Path:
        """Returns where the bundle goes to."""
        if self.output is not None:
            return Path(self.output)
        shapes = "-dynamic" if self.dynamic else ""
        sizes = str(self.resolution_px)
        if self.min_resolution_px != self.resolution_px:
            sizes = f"{self.min_resolution_px}-{sizes}"
        return checkpoints_folder() / f"{self.model}-{sizes}-{self.precision}{shapes}"


@dataclass(frozen=True, slots=True)
class Sources:
    """Paths of the published files that a bundle is made from."""

    unet: Path
    vae: Path
    whisper: Path


def find_sources(options: ExportOptions) -> Sources:
    """Returns the files that the options name, or else those at the default paths.

    Raises:
        CheckpointError: one is missing; for a default path the message contains the command that
            downloads it.
    """
    model = options.model
    folder = LATENTSYNC[model].folder
    return Sources(
        unet=_source(options.unet, folder / UNET_FILE, model),
        vae=_source(options.vae, VAE.folder, model),
        whisper=_source(options.whisper, folder / WHISPER_FILE, model),
    )


def _source(named: str | Path | None, default: Path, model: str) -> Path:
    path = default if named is None else Path(named)
    if path_exists(path):
        return path
    if named is None:
        message = f"{path}: not there; get it with `latentsync-trt download {model}`"
    else:
        message = why_missing(path, "file or folder")
    raise CheckpointError(message, usage=True)


def check_model(options: ExportOptions, unet: Path, origin: str) -> None:
    """Raises `CheckpointError` if the U-Net, published at `origin`, is that of another model or
    resolution.

    With `unet` and `resolution` both named, the resolution is the user's decision.
    """
    model: str = options.model
    for each, repository in LATENTSYNC.items():
        if origin.startswith(f"{repository.name}@"):
            model = each
    is_of_other = model != options.model
    is_decided = options.unet is not None and options.resolution is not None
    if origin and not is_decided:
        others_px = {px for each, px in MODEL_RESOLUTION_PX.items() if each != model}
        is_of_other = is_of_other or options.resolution_px in others_px
    if is_of_other:
        raise CheckpointError(
            f"{unet}: weights of LatentSync {model} ({origin}), "
            f"made for {MODEL_RESOLUTION_PX[model]} px: as model "
            f"{options.model} at {options.resolution_px} px the "
            f"mouth gets blurred; give `--model {model}` and no "
            "--resolution, or, if you want this resolution, "
            f"`--model {model}` with --unet and --resolution",
            usage=True,
        )
