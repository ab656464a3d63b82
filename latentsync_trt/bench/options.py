"""What a bench measures, and how often."""

from dataclasses import dataclass
from pathlib import Path

from latentsync_trt.bench.rows import SCENARIOS
from latentsync_trt.config import PRESETS, PROVIDER_CHOICES, check_limits, option
from latentsync_trt.errors import InputError

_USUAL_RUNS = {"graph": (20, 3), "loop": (5, 1), "stage": (3, 1), "end-to-end": (3, 1), "pytorch": (20, 3)}
"""Timed runs and warm-up runs."""


def _parse_list(flag: str, text: str, choices: tuple[str, ...]) -> tuple[str, ...]:
    """ "a,b" → ("a", "b") without repetitions; raises `InputError` on a name that is not in `choices`."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    unknown = [name for name in names if name not in choices]
    if unknown:
        raise InputError(f"{flag} {', '.join(map(repr, unknown))}: not among {', '.join(choices)}")
    return names


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to measure, and how often. Raises `InputError` on a value outside its limits."""

    provider: tuple[str, ...] = option(
        ("auto",),
        "What runs the graphs, with commas between; naming a provider disables fallback.",
        parse=lambda text: _parse_list("--provider", text, PROVIDER_CHOICES),
        metavar="names",
    )
    preset: tuple[str, ...] = option(
        tuple(PRESETS),
        "Presets of sync, with commas between.",
        parse=lambda text: _parse_list("--preset", text, tuple(PRESETS)),
        metavar="names",
    )
    scenario: tuple[str, ...] = option(
        ("graph", "loop", "stage", "end-to-end"),
        "What to measure, with commas between: graph (each by itself), loop (a window: VAE and denoising), stage (each "
        "stage of sync by itself), end-to-end (whole clips), pytorch (our modules without ONNX; [export] extra).",
        parse=lambda text: _parse_list("--scenario", text, SCENARIOS),
        metavar="names",
    )
    runs: int | None = option(
        None, "Timed runs of everything.  [default: 20 of a graph, 5 of a loop, else 3]", minimum=1, maximum=10_000
    )
    warm_up: int | None = option(
        None, "Runs before those, not timed.  [default: 3 of a graph, else 1]", minimum=0, maximum=1_000
    )
    video: str | Path | None = option(None, "Clip for loop, stage and end-to-end.  [default: the built-in portrait]")
    audio: str | Path | None = option(None, "Speech for them.  [default: the built-in sentence]")

    def __post_init__(self) -> None:
        check_limits(self)

    def repetitions(self, scenario: str) -> tuple[int, int]:
        """Timed runs and warm-up runs of a scenario."""
        runs, warm_up = _USUAL_RUNS[scenario]
        return runs if self.runs is None else self.runs, warm_up if self.warm_up is None else self.warm_up
