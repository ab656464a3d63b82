"""The rows that a bench writes, and the file that holds them: JSON, read back as what was written."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self

from latentsync_trt.bench.spread import Spread
from latentsync_trt.errors import InputError, OutputError

FORMAT = 1
KIND = "latentsync-trt bench"

CEILING = "matmul"
"""What the names of ceilings' rows begin with."""

Scenario = Literal["graph", "loop", "stage", "end-to-end", "pytorch"]
SCENARIOS: tuple[Scenario, ...] = ("graph", "loop", "stage", "end-to-end", "pytorch")


@dataclass(frozen=True, slots=True)
class BundleFacts:
    """What was measured; `sha256` is over all graphs and weights."""

    name: str
    resolution_px: int
    frames: int
    precision: str
    shapes: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Matrix arithmetic of one run, the rate that comes to, and its share of the rate that a plain matrix product
    reached in the same process on the same provider (None where that was not measured)."""

    tflop: float
    tflop_per_s: float
    ceiling_tflop_per_s: float | None = None

    @property
    def ceiling_share(self) -> float | None:
        """Rate over ceiling."""
        return self.tflop_per_s / self.ceiling_tflop_per_s if self.ceiling_tflop_per_s else None


@dataclass(frozen=True, slots=True)
class Memory:
    """Highest memory while a row was measured: resident on the host, and in use on the device beyond what was before
    the bench began (None on the CPU, or where the driver does not say)."""

    host_bytes: int
    device_bytes: int | None


@dataclass(frozen=True, slots=True)
class Quality:
    """How near the generated part of the faces is to that of `reference`.

    `psnr_db`: None where they are equal. `lpips`: None where it was not measured. `frames`: how many were compared.
    """

    reference: str
    psnr_db: float | None
    ssim: float
    lpips: float | None
    frames: int


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Denoising steps of one kind: how many a run has, and the milliseconds of every one that was timed."""

    full: bool
    guided: bool
    in_a_run: int
    times_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement.

    `case`: which graph, stage or clip. `provider` and `preset`: None where they make no difference. `frames`: video
    frames that one run makes, 0 where that means nothing. `parts_s`: seconds of a run by part, the median run's;
    parts of an end-to-end run overlap. `start_up_s`: seconds before the first run by part: building and opening.
    `facts`: further numbers, by name.
    """

    scenario: Scenario
    case: str
    provider: str | None
    preset: str | None
    time: Spread
    warm_up: int
    frames: int = 0
    arithmetic: Arithmetic | None = None
    memory: Memory | None = None
    quality: Quality | None = None
    parts_s: Mapping[str, float] = field(default_factory=dict)
    start_up_s: Mapping[str, float] = field(default_factory=dict)
    steps: tuple[StepTimes, ...] = ()
    engines: tuple[Mapping[str, Any], ...] = ()
    facts: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What makes two rows of different files comparable."""
        return self.scenario, self.case, self.provider or "", self.preset or ""

    @property
    def frames_per_s(self) -> float | None:
        """Video frames a second; None where that means nothing."""
        return 1000 * self.frames / self.time.median_ms if self.frames else None

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Self:
        """A row of parsed JSON; raises KeyError, TypeError or ValueError where it is misshapen."""
        if raw["scenario"] not in SCENARIOS:
            raise ValueError(f"scenario {raw['scenario']}")
        parsed = {
            **raw,
            "time": Spread(**raw["time"]),
            "arithmetic": _optional(Arithmetic, raw["arithmetic"]),
            "memory": _optional(Memory, raw["memory"]),
            "quality": _optional(Quality, raw["quality"]),
            "steps": tuple(StepTimes(**{**step, "times_ms": tuple(step["times_ms"])}) for step in raw["steps"]),
            "engines": tuple(raw["engines"]),
            "notes": tuple(raw["notes"]),
        }
        return cls(**parsed)


@dataclass(frozen=True, slots=True)
class Results:
    """A run of the bench: what it ran as and on (`environment`: names and versions as text), and its rows."""

    environment: Mapping[str, str]
    bundle: BundleFacts
    rows: tuple[Row, ...]

    def write(self, path: Path) -> None:
        """Writes the file; raises `OutputError` if that cannot be done."""
        content = {"kind": KIND, "format": FORMAT, **_rounded(asdict(self))}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise OutputError(f"{path}: cannot be written ({error.strerror})") from error


def read_results(path: Path) -> Results:
    """Reads what `Results.write` wrote.

    Raises:
        InputError: no such file, or something else than rows of this format.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise InputError(f"{path}: not a JSON file ({error})") from error
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise InputError(f"{path}: not rows of `latentsync-trt bench`")
    if content.get("format") != FORMAT:
        raise InputError(f"{path}: rows of format {content.get('format')}, this version reads {FORMAT}")
    try:
        rows = tuple(Row.from_json(row) for row in content["rows"])
        return Results(content["environment"], BundleFacts(**content["bundle"]), rows)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: rows are damaged or incomplete ({error!r})") from error


def is_ceiling(row: Row) -> bool:
    """Whether a row is the matrix product that others are measured against."""
    return row.scenario == "graph" and row.case.startswith(CEILING)


def _optional(kind: type[Any], raw: Any) -> Any:
    return None if raw is None else kind(**{spec.name: raw[spec.name] for spec in fields(kind)})


# Clocks and counters do not give more than this.
_DIGITS = 6


def _rounded(value: Any) -> Any:
    """The same with floats of at most six significant digits."""
    if isinstance(value, float):
        return value if not math.isfinite(value) else float(f"{value:.{_DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list | tuple) else value
