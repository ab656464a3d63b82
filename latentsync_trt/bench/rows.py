"""The rows that a bench writes, and the JSON file that holds them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np

from latentsync_trt.bench.files import plain
from latentsync_trt.bench.pictures import Likeness
from latentsync_trt.errors import InputError
from latentsync_trt.paths import why_missing
from latentsync_trt.sync.html import write_file

FORMAT = 1
KIND = "latentsync-trt bench"

CEILING = "matmul"
"""First word of a ceiling row's case."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds of `runs` runs: the median, and the 5th and 95th percentile (interpolated where runs are few)."""

    median_ms: float
    p5_ms: float
    p95_ms: float
    runs: int

    @classmethod
    def of(cls, times_ms: Sequence[float]) -> Self:
        """The spread of at least one measured time."""
        lower, median, upper = np.percentile(times_ms, [5, 50, 95]).tolist()
        return cls(median, lower, upper, len(times_ms))

    def against(self, before: Self) -> str:
        """ "faster" or "slower" than `before`, or "within noise" where the ranges overlap."""
        if self.p95_ms < before.p5_ms:
            return "faster"
        return "slower" if self.p5_ms > before.p95_ms else "within noise"


@dataclass(frozen=True, slots=True)
class BundleFacts:
    """The measured bundle; `sha256` is over all graphs and weights."""

    name: str
    resolution_px: int
    frames: int
    precision: str
    shapes: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Matrix arithmetic of one run and its rate; the ceiling is the rate of one large matrix product on the
    same provider, None if not measured."""

    tflop: float
    tflop_per_s: float
    ceiling_tflop_per_s: float | None = None

    @property
    def ceiling_share(self) -> float | None:
        """Rate divided by ceiling; None without a ceiling."""
        return self.tflop_per_s / self.ceiling_tflop_per_s if self.ceiling_tflop_per_s else None


@dataclass(frozen=True, slots=True)
class Memory:
    """Peak memory during a row: resident on the host, and in use on the device beyond the use before the bench began
    (None if unknown)."""

    host_bytes: int
    device_bytes: int | None


@dataclass(frozen=True, slots=True)
class Quality(Likeness):
    """Likeness of the generated part of the faces to that of `reference`."""

    reference: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement.

    `case`: which graph, stage or clip. `provider`, `preset`: None if irrelevant. `frames`: video frames of one run, 0
    if none. `parts_s`: seconds of a run by part; the parts of an end-to-end run overlap. `start_up_s`: seconds of
    building and opening before the first run.
    """

    scenario: str
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
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Equal for rows of two files that measure the same."""
        return self.scenario, self.case, self.provider or "", self.preset or ""

    @property
    def frames_per_s(self) -> float | None:
        """Video frames per second; None for a row without frames."""
        return 1000 * self.frames / self.time.median_ms if self.frames else None

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Self:
        """A row of parsed JSON, fields of other versions left out; KeyError, TypeError or ValueError if malformed."""
        known = {spec.name: raw[spec.name] for spec in fields(cls)}
        for name, kind in {"time": Spread, "arithmetic": Arithmetic, "memory": Memory, "quality": Quality}.items():
            known[name] = None if known[name] is None else kind(**known[name])
        return cls(**{**known, "notes": tuple(known["notes"])})


@dataclass(frozen=True, slots=True)
class Results:
    """A run of the bench: command, versions and machine as text (`environment`), and its rows."""

    environment: Mapping[str, str]
    bundle: BundleFacts
    rows: tuple[Row, ...]

    def write(self, path: Path) -> None:
        """Writes the file, floats with six significant digits; raises `OutputError` if it cannot be written."""
        content = plain({"kind": KIND, "format": FORMAT, **asdict(self)})
        write_file(path, json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def read_results(path: Path) -> Results:
    """Reads what `Results.write` wrote.

    Raises:
        InputError: there is no such file, or it does not contain rows of this format.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(why_missing(path)) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a JSON file ({error})", usage=False) from error
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise InputError(f"{path}: not rows of `latentsync-trt bench`", usage=False)
    if content.get("format") != FORMAT:
        problem = f"rows of format {content.get('format')}, this version reads {FORMAT}"
        raise InputError(f"{path}: {problem}", usage=False)
    try:
        rows = tuple(Row.from_json(row) for row in content["rows"])
        return Results(content["environment"], BundleFacts(**content["bundle"]), rows)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: rows are damaged or incomplete ({error!r})", usage=False) from error
