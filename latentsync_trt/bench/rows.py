"""The rows that a bench writes, and the JSON file that holds them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

import numpy as np

from latentsync_trt.bench.files import plain
from latentsync_trt.measure.page import write_file
from latentsync_trt.measure.pictures import Likeness
from latentsync_trt.runtime.compiler.layers import LayerSummary

FORMAT = 2
KIND = "latentsync-trt bench"


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

    `case`: which graph or clip. `provider`, `preset`: None if irrelevant. `frames`: video frames of one run, 0
    if none. `parts_s`: seconds of a run by part; the parts of an end-to-end run overlap. `start_up_s`: seconds of
    building and opening before the first run. `layers`: those of the graph's engine, where TensorRT describes them.
    """

    scenario: str
    case: str
    provider: str | None
    preset: str | None
    time: Spread
    warm_up: int
    frames: int = 0
    memory: Memory | None = None
    quality: Quality | None = None
    parts_s: Mapping[str, float] = field(default_factory=dict)
    start_up_s: Mapping[str, float] = field(default_factory=dict)
    layers: LayerSummary | None = None
    notes: tuple[str, ...] = ()

    @property
    def frames_per_s(self) -> float | None:
        """Video frames per second; None for a row without frames."""
        return 1000 * self.frames / self.time.median_ms if self.frames else None


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
