"""What to export and where to find it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from latentsync_trt.bundle.find import checkpoints_folder
from latentsync_trt.bundle.manifest import ATTENTION_FORMS, AttentionForm
from latentsync_trt.config import check_limits, option
from latentsync_trt.errors import CheckpointError, InputError

Model = Literal["1.6", "1.5"]

RESOLUTION_STEP_PX = 64
"""The VAE and the U-Net each halve the picture three times."""

DEFAULT_RESOLUTION_PX: dict[str, int] = {"1.6": 512, "1.5": 256}
FEWEST_FRAMES = 2
LONGEST_WINDOW = 24
"""Frame positions in the published checkpoints; below two frames there is nothing temporal to attend to."""

_VAE_REPOSITORY = "stabilityai/sd-vae-ft-mse"
_VAE_FOLDER = "sd-vae-ft-mse"


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What `export` makes. Raises `InputError` on a value outside its limits."""

    model: Model = option("1.6", "Published model: 1.6 is made for 512 px, 1.5 for 256.", choices=("1.6", "1.5"))
    unet: str | Path | None = option(
        None, "latentsync_unet.pt.  [default: checkpoints/latentsync-<model>/latentsync_unet.pt]"
    )
    vae: str | Path | None = option(None, f"VAE folder, diffusers' layout.  [default: checkpoints/{_VAE_FOLDER}]")
    whisper: str | Path | None = option(
        None, "Whisper .pt file.  [default: checkpoints/latentsync-<model>/whisper/tiny.pt]"
    )
    out: str | Path | None = option(
        None, "Folder to write.  [default: checkpoints/<model>-<resolution>-<precision>[-dynamic][-matmul]]"
    )
    resolution: int | None = option(
        None, "Face resolution in pixels, divisible by 64.  [default: the model's own]", minimum=64, maximum=2048
    )
    frames: int = option(
        16, "Frames in a window; the models were trained at 16.", minimum=FEWEST_FRAMES, maximum=LONGEST_WINDOW
    )
    precision: Literal["fp32", "fp16"] = option(
        "fp32",
        "Weights and arithmetic inside the graphs; for INT8 and FP8 see `calibrate`.",
        choices=("fp32", "fp16"),
    )
    dynamic: bool = option(
        False, "Shapes: numbers of windows and frames may vary from run to run, or are fixed (fastest).", off="--static"
    )
    max_windows: int = option(4, "With --dynamic, most windows in one run.", minimum=2, maximum=64)
    attention: AttentionForm = option(
        "fused",
        "Attention in the portable graphs: fused = one ONNX operator Attention where TensorRT takes it (float16); "
        "matmul = MatMul, Softmax and MatMul, for providers without that operator. matmul can be slower, and where the "
        "provider does not fuse the three again, it holds the scores of a whole layer in memory: 9 GB at 512 px in "
        "float16.",
        choices=ATTENTION_FORMS,
    )
    cuda_form: bool = option(
        True,
        "Write the graphs of VAE and denoiser once more, as ONNX Runtime's CUDA provider runs them fastest; other "
        "providers do not need it.",
        off="--portable-only",
    )
    verify: bool = option(True, "Compare every graph with PyTorch before the bundle appears.", off="--no-verify")

    def __post_init__(self) -> None:
        check_limits(self)
        if self.resolution is not None and self.resolution % RESOLUTION_STEP_PX:
            below = self.resolution // RESOLUTION_STEP_PX * RESOLUTION_STEP_PX
            raise InputError(
                f"--resolution {self.resolution}: not divisible by {RESOLUTION_STEP_PX}; "
                f"the nearest are {below or RESOLUTION_STEP_PX} and {below + RESOLUTION_STEP_PX}"
            )

    @property
    def resolution_px(self) -> int:
        """Face resolution, the model's own where none was given."""
        return self.resolution or DEFAULT_RESOLUTION_PX[self.model]

    @property
    def folder(self) -> Path:
        """Where the bundle goes."""
        if self.out is not None:
            return Path(self.out)
        shapes = "-dynamic" if self.dynamic else ""
        attention = "" if self.attention == "fused" else f"-{self.attention}"
        return checkpoints_folder() / f"{self.model}-{self.resolution_px}-{self.precision}{shapes}{attention}"


@dataclass(frozen=True, slots=True)
class Sources:
    """The published files that a bundle is made from."""

    unet: Path
    vae: Path
    whisper: Path

    def items(self) -> tuple[tuple[str, Path], ...]:
        """Roles with their paths."""
        return ("unet", self.unet), ("vae", self.vae), ("whisper", self.whisper)


def find_sources(options: ExportOptions) -> Sources:
    """The given files, or those at the default places.

    Raises:
        CheckpointError: one is missing; for a default place the message holds the command that downloads it.
    """
    root = checkpoints_folder()
    local = root / f"latentsync-{options.model}"
    repository = f"ByteDance/LatentSync-{options.model}"
    vae_root = root / _VAE_FOLDER
    return Sources(
        _find(options.unet, local / "latentsync_unet.pt", f"{repository} latentsync_unet.pt", local),
        _find(options.vae, vae_root, f"{_VAE_REPOSITORY} config.json diffusion_pytorch_model.safetensors", vae_root),
        _find(options.whisper, local / "whisper" / "tiny.pt", f"{repository} whisper/tiny.pt", local),
    )


def _find(given: str | Path | None, default: Path, download: str, local: Path) -> Path:
    if given is not None:
        if not Path(given).exists():
            raise CheckpointError(f"{given}: no such file or folder")
        return Path(given)
    if not default.exists():
        raise CheckpointError(f"{default}: not there; get it with `hf download {download} --local-dir {local}`")
    return default
