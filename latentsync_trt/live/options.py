"""Options of a live session."""

from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Literal

from latentsync_trt.config import FinishKind, Occluders, Paste, PresetName, Solver, SyncOptions
from latentsync_trt.diffusion import full_steps
from latentsync_trt.errors import InputError
from latentsync_trt.option_fields import check_limits, option

LIVE = "Live"

_LEAST_FULL_STEPS = 2
"""The fewest steps that run the whole network: with one, or without guidance, lips move less."""

_live_option = partial(option, group=LIVE)


def _as_for_sync(name: str, **other: Any) -> Any:
    """Returns the option of `SyncOptions` with that name, of which some settings are `other`."""
    spec = SyncOptions.__dataclass_fields__[name]
    return field(default=other.pop("default", spec.default), metadata={**spec.metadata, **other})


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """How a live session paints. Raises `InputError` for values outside their limits."""

    hop: int = _live_option(
        8,
        "Frames painted at once, up to those of the "
        "bundle's windows: fewer answer sooner and cost more.",
        minimum=1,
        maximum=64,
    )
    look_ahead_ms: int = _live_option(
        160,
        "Milliseconds of speech that must follow a frame "
        "before it is painted: with less, lips follow worse.",
        minimum=0,
        maximum=1000,
    )
    buffer_s: float = _live_option(
        60.0, "Seconds of speech that may wait.", minimum=1.0, maximum=600.0
    )
    memory_gb: float = _live_option(
        2.0,
        "Memory for the pictures of the idle clip; a larger clip is refused.",
        minimum=0.001,
        maximum=256.0,
    )
    sound_rate_hz: Literal["16000", "24000", "48000"] = _live_option(
        "48000", "Samples per second of the sound."
    )
    slow: bool = _live_option(
        False,
        "Open a session although painting is slower than "
        "real time here: pictures and sound come with pauses.",
    )
    # As in `SyncOptions`.
    preset: PresetName = _as_for_sync("preset", default="fast")
    steps: int | None = _as_for_sync("steps")
    solver: Solver | None = _as_for_sync("solver")
    cache_interval: int | tuple[int, ...] | None = _as_for_sync("cache_interval")
    guidance: float = _as_for_sync("guidance", minimum=1.01)
    seed: int = _as_for_sync("seed")
    face: str = _as_for_sync("face", help="Whose mouth: largest, left, right, or at:X,Y in pixels.")
    occluders: Occluders = _as_for_sync("occluders")
    paste: Paste = _as_for_sync("paste")
    finish: FinishKind = _as_for_sync("finish")

    def __post_init__(self) -> None:
        check_limits(self)
        if self.face.startswith("index"):
            raise InputError(
                f"--face {self.face}: numbers are for sync; name it by its place, as at:640,360"
            )
        full = sum(full_steps(self.sync_options()))
        if full < _LEAST_FULL_STEPS:
            raise InputError(
                f"live: {full} of its steps run the whole network, "
                f"and lips follow with {_LEAST_FULL_STEPS} or more; "
                "raise --steps, or lower --cache-interval"
            )

    def sync_options(self) -> SyncOptions:
        names = {spec.name for spec in fields(SyncOptions)}
        common = names & {spec.name for spec in fields(self)}
        return SyncOptions(**{name: getattr(self, name) for name in common})
