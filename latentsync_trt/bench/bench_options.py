"""What a bench measures, and how often."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latentsync_trt.config import PRESETS, PROVIDER_CHOICES
from latentsync_trt.errors import InputError
from latentsync_trt.option_fields import check_limits, option

REPETITIONS = {"graph": (20, 3), "loop": (5, 1), "end-to-end": (3, 1)}
"""Timed runs and warm-up runs per scenario."""


def _names(default: tuple[str, ...], choices: tuple[str, ...], help_text: str) -> Any:
    """An option that takes names of `choices`, separated by commas: "a,b" → ("a", "b")."""

    def parse(given: str | tuple[str, ...]) -> tuple[str, ...]:
        parts = given.split(",") if isinstance(given, str) else given
        names = tuple(dict.fromkeys(part.strip() for part in parts))
        unknown = [name for name in names if name not in choices]
        if unknown:
            raise InputError(f"{', '.join(map(repr, unknown))}: not among {', '.join(choices)}")
        return names

    return option(default, help_text, parse=parse, show=",".join, metavar="NAMES")


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to measure, and how often. Raises `InputError` on a value outside its limits."""

    provider: tuple[str, ...] = _names(
        ("auto",),
        PROVIDER_CHOICES,
        "Execution providers, separated by commas; auto takes the fastest available, naming one disables fallback.",
    )
    preset: tuple[str, ...] = _names(tuple(PRESETS), tuple(PRESETS), "Presets of sync, separated by commas.")
    scenario: tuple[str, ...] = _names(
        ("graph", "loop", "end-to-end"),
        tuple(REPETITIONS),
        "What to measure, separated by commas: graph (each by itself), loop (a window: VAE and denoising), "
        "end-to-end (whole clips).",
    )
    runs: int | None = option(
        None, "Timed runs of everything.  [default: 20 of a graph, 5 of a loop, else 3]", minimum=1, maximum=10_000
    )
    warm_up: int | None = option(
        None, "Runs before those, not timed.  [default: 3 of a graph, else 1]", minimum=0, maximum=1_000
    )
    video: str | Path | None = option(None, "Clip for all but graph.  [default: the built-in portrait]")
    audio: str | Path | None = option(None, "Speech for them.  [default: the built-in sentence]")

    def __post_init__(self) -> None:
        check_limits(self)

    def repetitions(self, scenario: str) -> tuple[int, int]:
        """Timed runs and warm-up runs of a scenario."""
        runs, warm_up = REPETITIONS[scenario]
        return runs if self.runs is None else self.runs, warm_up if self.warm_up is None else self.warm_up
