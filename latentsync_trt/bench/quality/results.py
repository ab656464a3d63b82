"""What a comparison found, as one object that becomes JSON."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from latentsync_trt.bench.pictures import Likeness, pooled
from latentsync_trt.bench.sync_measure import Curves, SyncScore, mean_score

KIND = "latentsync-trt compare"
FORMAT = 2

Area = Literal["generated", "mouth"]

_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two that are compared; of a finished video only the name is known. `size_bytes`: of all its files."""

    name: str
    precision: str | None = None
    resolution_px: int | None = None
    size_bytes: int | None = None
    sha256: str | None = None

    @property
    def title(self) -> str:
        """Name and precision."""
        return self.name if self.precision is None else f"{self.name} ({self.precision})"


@dataclass(frozen=True, slots=True)
class Lips:
    """How the lips of both follow the speech, and B's follow A's.

    `missing_a`, `missing_b`: frames without a face. Of the gap between the lips, in distances between the outer corners
    of the eyes: `moved_a`, `moved_b`, its standard deviation; `alike`, the correlation of both; `apart`, their mean
    difference.
    """

    a: SyncScore
    b: SyncScore
    missing_a: int
    missing_b: int
    moved_a: float
    moved_b: float
    alike: float
    apart: float


@dataclass(frozen=True, slots=True)
class Flicker:
    """Change from frame to frame that is no movement, as the standard deviation of the noise that would cause it, in
    levels of 255, on the mouth: of the source, of both, and of B minus A; None in clips of less than three frames."""

    source: float | None
    a: float | None
    b: float | None
    difference: float | None


@dataclass(frozen=True, slots=True)
class ClipQuality:
    """All that was found on one clip; `picture` and `video`: names of the files that show both side by side."""

    name: str
    frames: int
    frames_with_face: int
    areas: Mapping[Area, Likeness]
    lips: Lips
    a: Curves
    b: Curves
    flicker: Flicker
    picture: str
    video: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """B against A, on every clip."""

    environment: Mapping[str, str]
    a: Side
    b: Side
    settings: str
    clips: tuple[ClipQuality, ...]
    notes: tuple[str, ...] = ()

    @property
    def areas(self) -> dict[Area, Likeness]:
        """Of all clips together."""
        return {area: pooled([clip.areas[area] for clip in self.clips]) for area in self.clips[0].areas}

    @property
    def mean_scores(self) -> tuple[SyncScore, SyncScore]:
        """How the lips of A and of B follow the speech, each clip weighing the same."""
        return mean_score([clip.lips.a for clip in self.clips]), mean_score([clip.lips.b for clip in self.clips])

    def to_json(self) -> dict[str, Any]:
        """All numbers, rounded to six digits; null for what was not measured, and for the PSNR of equal pictures."""
        a, b = self.mean_scores
        content: dict[str, Any] = _plain(
            {
                "kind": KIND,
                "format": FORMAT,
                **asdict(self),
                "areas": {area: asdict(found) for area, found in self.areas.items()},
                "mean_scores": {"a": asdict(a), "b": asdict(b)},
            }
        )
        return content


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
