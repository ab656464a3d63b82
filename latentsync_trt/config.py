"""Option objects. A field's help, default and limits are declared here once; the command line reads them from here."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from latentsync_trt.errors import InputError

MODEL_FPS = 25
"""Frames per second that LatentSync was trained at; the audio windows are cut for it."""

Length = Literal["audio", "video", "shortest"]
Extend = Literal["loop", "hold"]
Build = Literal["now", "background"]

PROVIDER_CHOICES = ("auto", "tensorrt", "rtx", "cuda", "cpu")
"""What `--provider` takes: best first, after the choice to leave it to us."""


def option(default: Any, help_text: str, **limits: Any) -> Any:
    """A dataclass field that carries its own help and limits (`minimum`, `maximum`, `choices`)."""
    return field(default=default, metadata={"help": help_text, **limits})


def check_limits(options: Any) -> None:
    """Raises `InputError` if a field of the dataclass instance `options` breaks the limits it was declared with."""
    for spec in fields(options):
        value, limits = getattr(options, spec.name), spec.metadata
        if value is None:
            continue
        name = flag_name(spec.name)
        if "choices" in limits and value not in limits["choices"]:
            raise InputError(f"{name} {value}: not one of {', '.join(limits['choices'])}")
        if ("minimum" in limits and not value >= limits["minimum"]) or (
            "maximum" in limits and not value <= limits["maximum"]
        ):
            bounds = f"{limits.get('minimum', '-∞')} to {limits.get('maximum', '∞')}"
            raise InputError(f"{name} {value}: outside {bounds}")


def flag_name(field_name: str) -> str:
    """The command line's name of an option, e.g. "--max-windows"."""
    return "--" + field_name.replace("_", "-")


def command_line(options: Any, *, leave_out: tuple[str, ...] = ()) -> list[str]:
    """The flags that give the dataclass instance `options` again; what has its default is left out."""
    words: list[str] = []
    for spec in fields(options):
        value = getattr(options, spec.name)
        if spec.name in leave_out or value == spec.default:
            continue
        if isinstance(value, bool):
            words.append(flag_name(spec.name) if value else spec.metadata["off"])
        else:
            words += [flag_name(spec.name), str(value)]
    return words


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """How a video is lip-synced. Raises `InputError` on a value outside its limits."""

    steps: int = option(20, "Denoising steps.", minimum=1, maximum=999)
    guidance: float = option(
        1.5, "Classifier-free guidance scale; at 1 or below the unguided half is skipped.", minimum=0.0, maximum=20.0
    )
    seed: int = option(1247, "Seed of the noise every frame starts from.", minimum=0, maximum=2**63 - 1)
    cache_interval: int = option(
        3,
        "Run the whole network every N-th step and reuse its inner features between; 1 = every step.",
        minimum=1,
        maximum=20,
    )
    crf: int = option(16, "H.264 quality: 0 is lossless, 51 worst.", minimum=0, maximum=51)
    lossless: bool = option(False, "Write FFV1 RGB in .mkv instead of H.264.")
    length: Length = option("audio", "How long the output lasts.", choices=("audio", "video", "shortest"))
    extend: Extend = option(
        "loop",
        "What the picture does where the video ends first: start again, or hold its last frame.",
        choices=("loop", "hold"),
    )

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """How engines are made, kept and run. Raises `InputError` on a value outside its limits.

    `dynamic`, `max_windows`, `workspace_gb` and `optimization_level` are part of what an engine is: changing one makes
    another engine.
    """

    dynamic: bool | None = option(
        None, "Engines for all shapes the bundle allows, or for one (fastest).  [default: as exported]", off="--static"
    )
    max_windows: int | None = option(
        None, "With --dynamic, most windows in one run.  [default: as exported]", minimum=1, maximum=64
    )
    device: int = option(0, "Which GPU, as CUDA numbers them.", minimum=0, maximum=63)
    workspace_gb: float | None = option(
        None,
        "Most GPU memory TensorRT may use for scratch in an engine.  [default: no limit]",
        minimum=0.1,
        maximum=512,
    )
    optimization_level: int = option(
        3, "How hard TensorRT searches for fast kernels; higher builds longer.", minimum=0, maximum=5
    )
    cuda_graph: bool | None = option(
        None, "Replay a recorded CUDA graph; fixed shapes only.  [default: with TensorRT]", off="--no-cuda-graph"
    )
    build: Build = option(
        "now",
        "Missing engines: build before the run, or run on the next provider until they are ready.",
        choices=("now", "background"),
    )
    low_memory: bool = option(False, "Keep one network on the GPU at a time.")
    engine_cache: str | Path | None = option(
        None, "Folder of built engines.  [default: $LATENTSYNC_TRT_CACHE_DIR, engine_cache/ here, or the user's cache]"
    )
    profile: str | Path | None = option(None, "Folder to write a table of times and a Chrome trace to.")

    def __post_init__(self) -> None:
        check_limits(self)
