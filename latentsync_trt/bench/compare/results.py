"""What a comparison found, as one object that becomes JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from latentsync_trt.bench.files import plain
from latentsync_trt.bench.pictures import Likeness
from latentsync_trt.bench.sync_measure import Curves, SyncScore

KIND = "latentsync-trt compare"
FORMAT = 3

Area = Literal["generated", "mouth"]


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
class ClipResults:
    """What was measured on the clip; `picture` and `video`: names of the files that show both side by side."""

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
    """B against A."""

    environment: Mapping[str, str]
    a: Side
    b: Side
    settings: str
    clip: ClipResults
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """All numbers, rounded to six digits; null for what was not measured, and for the PSNR of equal pictures."""
        content: dict[str, Any] = plain({"kind": KIND, "format": FORMAT, **asdict(self)})
        return content
