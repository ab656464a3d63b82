"""Option objects. A field's help, default and limits are declared here once; the command line reads them from here."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from latentsync_trt.errors import InputError

MODEL_FPS = 25
"""Frames per second that LatentSync was trained at; the audio windows are cut for it."""

Length = Literal["audio", "video", "shortest"]
Extend = Literal["loop", "hold"]
Build = Literal["now", "background"]
GraphFormChoice = Literal["auto", "portable", "cuda"]
Solver = Literal["ddim", "dpmpp"]
Encoder = Literal["x264", "nvenc", "auto"]
PresetName = Literal["quality", "balanced", "fast"]

PROVIDER_CHOICES = ("auto", "tensorrt", "rtx", "cuda", "cpu")
"""What `--provider` takes: best first, after the choice to leave it to us."""


def option(default: Any, help_text: str, **limits: Any) -> Any:
    """A dataclass field that carries its own help and limits (`minimum`, `maximum`, `choices`).

    `parse` reads the value from a command line's text, shown there as `metavar`, and raises `InputError`.
    """
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


def parse_full_steps(text: str) -> tuple[int, ...]:
    """ "0,1,5" → (0, 1, 5); raises `InputError` where that is no list of whole numbers."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--full-steps {text}: whole numbers and commas are needed, as in 0,1,5") from None


def parse_guidance_interval(text: str) -> tuple[float, float]:
    """ "0.2-0.8" → (0.2, 0.8); raises `InputError` where that is no pair of numbers."""
    try:
        start, end = map(float, text.split("-"))
    except ValueError:
        raise InputError(f"--guidance-interval {text}: two parts of the schedule are needed, as in 0.2-0.8") from None
    return start, end


def check_full_steps(full_steps: Sequence[int], steps: int) -> None:
    """Raises `InputError` unless `full_steps` begin with 0, rise, and are among the first `steps` steps."""
    shown = f"--full-steps {','.join(map(str, full_steps))}"
    if not full_steps or full_steps[0] != 0:
        raise InputError(f"{shown}: step 0 must run the whole network, for there is nothing to reuse yet")
    if not set(full_steps) <= set(range(steps)):
        raise InputError(f"{shown}: the {steps} steps are counted from 0 to {steps - 1}")
    if list(full_steps) != sorted(set(full_steps)):
        raise InputError(f"{shown}: give each step once, in rising order")


def check_guidance_interval(interval: tuple[float, float]) -> None:
    """Raises `InputError` unless `interval` begins before it ends, within 0 to 1."""
    start, end = interval
    if not 0.0 <= start < end <= 1.0:
        raise InputError(f"--guidance-interval {start:g}-{end:g}: must begin before it ends, both within 0 to 1")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How noise becomes a picture; `full_steps` count instead of `cache_interval` if there are any."""

    steps: int
    solver: Solver
    cache_interval: int
    full_steps: tuple[int, ...] | None = None


PRESETS: dict[str, Sampling] = {
    "quality": Sampling(20, "ddim", 1),
    "balanced": Sampling(20, "ddim", 3),
    "fast": Sampling(8, "dpmpp", 3, full_steps=(0, 3, 7)),
}
"""What `--preset` stands for; options that are given count before it."""


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """How a video is lip-synced. Raises `InputError` on a value outside its limits, and on two that contradict.

    None stands for what the preset says; `sampling` puts both together.
    """

    preset: PresetName = option(
        "balanced",
        "Steps, solver and caching at once: quality = 20, ddim, none; balanced = 20, ddim, every 3rd step full; "
        "fast = 8, dpmpp, steps 0, 3 and 7 full. The options for each count before it.",
        choices=tuple(PRESETS),
    )
    steps: int | None = option(None, "Denoising steps.  [default: the preset's]", minimum=1, maximum=999)
    solver: Solver | None = option(
        None,
        "How to step: DDIM, or DPM-Solver++(2M), which is made for few steps.  [default: the preset's]",
        choices=("ddim", "dpmpp"),
    )
    guidance: float = option(
        1.5, "Classifier-free guidance scale; at 1 or below the unguided half is skipped.", minimum=0.0, maximum=20.0
    )
    guidance_interval: tuple[float, float] | None = option(
        None,
        "Guide only this part of the schedule, from 0 (pure noise) to 1 (picture), as in 0.2-0.8; the other steps cost "
        "half. Where guidance begins or ends, the whole network runs.  [default: everywhere]",
        parse=parse_guidance_interval,
        metavar="START-END",
    )
    seed: int = option(1247, "Seed of the noise every frame starts from.", minimum=0, maximum=2**63 - 1)
    cache_interval: int | None = option(
        None,
        "Run the whole network every N-th step and reuse its inner features between; 1 = every step.  "
        "[default: the preset's]",
        minimum=1,
        maximum=20,
    )
    full_steps: tuple[int, ...] | None = option(
        None,
        "Run the whole network at just these steps, counted from 0, as in 0,1,2,5,9,14; instead of --cache-interval.",
        parse=parse_full_steps,
        metavar="STEP,STEP,...",
    )
    crf: int = option(16, "H.264 quality: 0 is lossless, 51 worst.", minimum=0, maximum=51)
    encoder: Encoder = option(
        "x264",
        "What encodes H.264: x264 on the CPU; nvenc, the GPU's own encoder, which leaves the CPU to other stages; "
        "auto: nvenc where it opens.",
        choices=("x264", "nvenc", "auto"),
    )
    lossless: bool = option(False, "Write FFV1 RGB in .mkv instead of H.264.")
    length: Length = option("audio", "How long the output lasts.", choices=("audio", "video", "shortest"))
    extend: Extend = option(
        "loop",
        "What the picture does where the video ends first: start again, or hold its last frame.",
        choices=("loop", "hold"),
    )

    def __post_init__(self) -> None:
        check_limits(self)
        if self.full_steps is not None:
            if self.cache_interval is not None:
                raise InputError("--full-steps and --cache-interval both say when the whole network runs: give one")
            check_full_steps(self.full_steps, self.sampling.steps)
        if self.guidance_interval is not None:
            if self.guidance <= 1.0:
                raise InputError(f"--guidance-interval: at --guidance {self.guidance:g} no step is guided anyway")
            check_guidance_interval(self.guidance_interval)

    @property
    def sampling(self) -> Sampling:
        """What the preset says, and before it what was given; its full steps are of its own number of steps alone."""
        preset = PRESETS[self.preset]
        usual = preset.full_steps if self.steps in (None, preset.steps) and self.cache_interval is None else None
        return Sampling(
            steps=preset.steps if self.steps is None else self.steps,
            solver=self.solver or preset.solver,
            cache_interval=preset.cache_interval if self.cache_interval is None else self.cache_interval,
            full_steps=usual if self.full_steps is None else self.full_steps,
        )


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """How engines are made, kept and run. Raises `InputError` on a value outside its limits.

    `dynamic`, `max_windows`, `workspace_gb`, `optimization_level` and `graph_form` are part of what an engine is:
    changing one makes another engine.
    """

    dynamic: bool | None = option(
        None, "Engines for all shapes the bundle allows, or for one (fastest).  [default: as exported]", off="--static"
    )
    max_windows: int | None = option(
        None, "With --dynamic, most windows in one run.  [default: as exported]", minimum=1, maximum=64
    )
    windows_per_batch: int | None = option(
        None,
        "Windows of 16 frames that are denoised together; more than 1 needs --dynamic, more memory and a longer clip.  "
        "[default: on a GPU as many as the engines take and free memory holds]",
        minimum=1,
        maximum=64,
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
    graph_form: GraphFormChoice = option(
        "auto",
        "Which form of the graphs: auto = on CUDA the one made for it where the bundle has it and the provider takes "
        "it, else portable; cuda = that one, or none.",
        choices=("auto", "portable", "cuda"),
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


NOT_FOR_BUILDS = ("build", "cuda_graph", "low_memory", "profile", "windows_per_batch")
"""Fields of `RuntimeOptions` that are of a run alone and say nothing about engines."""
