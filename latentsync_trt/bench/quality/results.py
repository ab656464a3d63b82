"""What a comparison found, as one object; in decibels, None stands for two things that are equal."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import fmean
from typing import Any, Literal, Self

from latentsync_trt.bench.clip_sync import SyncScore

KIND = "latentsync-trt compare"
FORMAT = 1

Area = Literal["face", "generated", "mouth"]

_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two that are compared; of a finished video only the name is known. `size_bytes`: of all its files."""

    name: str
    precision: str | None = None
    resolution_px: int | None = None
    size_bytes: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class AreaLikeness:
    """How near B's faces are to A's in a part of them: see `areas.Area`. `ssim`: mean over `frames`, at most 1."""

    area: Area
    psnr_db: float | None
    ssim: float
    frames: int


@dataclass(frozen=True, slots=True)
class Lips:
    """How the lips of both follow the speech, and B's follow A's.

    `unseen_a`, `unseen_b`: frames without a face. Of the gap between the lips, in distances between the outer corners
    of the eyes: `moved_a`, `moved_b`, its standard deviation; `alike`, the correlation of both; `apart`, their mean
    difference.
    """

    a: SyncScore
    b: SyncScore
    unseen_a: int
    unseen_b: int
    moved_a: float
    moved_b: float
    alike: float
    apart: float


@dataclass(frozen=True, slots=True)
class MeanScore:
    """The means of `SyncScore`'s numbers over clips; NaN where no clip has one."""

    opening: float
    lag_frames: float
    closures: float
    silence: float

    @classmethod
    def of(cls, scores: Sequence[SyncScore]) -> Self:
        """Of at least one."""
        return cls(*(_mean([getattr(score, spec.name) for score in scores]) for spec in fields(cls)))


@dataclass(frozen=True, slots=True)
class Flicker:
    """Change from frame to frame that is no movement, as the standard deviation of the noise that would cause it, in
    levels of 255, on the mouth: of the source, of both, and of what B has over A; None in clips too short for it."""

    source: float | None
    a: float | None
    b: float | None
    difference: float | None


@dataclass(frozen=True, slots=True)
class StepNoise:
    """What becomes of one window in a denoising step.

    `so_far_db`: A's latents over what B's differ from them, after this step of each one's own loop. `alone_db`: A's
    update over what B's differs from it, both from the same latents; NaN where it was not measured.
    """

    step: int
    timestep: int
    full: bool
    guided: bool
    so_far_db: float | None
    alone_db: float | None


@dataclass(frozen=True, slots=True)
class LayerNoise:
    """A layer's output in A over what B's differs from it, in single steps from the same inputs; `kind` as in ONNX."""

    layer: str
    kind: str
    median_db: float | None
    worst_db: float | None


@dataclass(frozen=True, slots=True)
class LipCurves:
    """The gap between the lips of both, frame by frame, NaN without a face; the opening that the speech asks for, where
    that is known; and where nothing is said."""

    a: tuple[float, ...]
    b: tuple[float, ...]
    wanted: tuple[float, ...] | None
    silent: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class ClipQuality:
    """All that was found on one clip; `picture` and `video`: names of the files that show both side by side."""

    name: str
    frames: int
    frames_with_face: int
    areas: tuple[AreaLikeness, ...]
    lips: Lips
    curves: LipCurves
    flicker: Flicker
    picture: str
    video: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """B beside A. `steps` and `layers`: of the first window of the first clip; empty where they were not measured,
    which `notes` explain."""

    environment: Mapping[str, str]
    a: Side
    b: Side
    settings: str
    clips: tuple[ClipQuality, ...]
    steps: tuple[StepNoise, ...] = ()
    layers: tuple[LayerNoise, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def areas(self) -> tuple[AreaLikeness, ...]:
        """All clips together."""
        by_area: dict[Area, list[AreaLikeness]] = {}
        for clip in self.clips:
            for found in clip.areas:
                by_area.setdefault(found.area, []).append(found)
        return tuple(_together(area, parts) for area, parts in by_area.items())

    @property
    def mean_scores(self) -> tuple[MeanScore, MeanScore]:
        """How the lips of A and of B follow the speech, each clip counting the same."""
        a, b = ([getattr(clip.lips, side) for clip in self.clips] for side in ("a", "b"))
        return MeanScore.of(a), MeanScore.of(b)

    def to_json(self) -> dict[str, Any]:
        """As JSON takes it; what is not a number, or was not measured, is null."""
        scores = dict(zip("ab", map(asdict, self.mean_scores), strict=True))
        sums = {"areas": [asdict(area) for area in self.areas], "mean_scores": scores}
        content = {"kind": KIND, "format": FORMAT, **asdict(self), **sums}
        plain: dict[str, Any] = _plain(content)
        return plain


def decibels(signal: float, noise: float) -> float | None:
    """Of two powers; None without noise."""
    if noise == 0:
        return None
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def median_db(values: Iterable[float | None]) -> float | None:
    """The middle one, the lower of two; what is equal lies above all."""
    ordered = sorted(values, key=lambda value: math.inf if value is None else value)
    return ordered[(len(ordered) - 1) // 2]


def worst_db(values: Iterable[float | None]) -> float | None:
    """The lowest."""
    return min(values, key=lambda value: math.inf if value is None else value)


def _together(area: Area, parts: list[AreaLikeness]) -> AreaLikeness:
    frames = sum(part.frames for part in parts)
    noise = sum(part.frames * (0.0 if part.psnr_db is None else 10 ** (-part.psnr_db / 10)) for part in parts)
    ssim = sum(part.frames * part.ssim for part in parts) / frames
    return AreaLikeness(area, decibels(1.0, noise / frames), ssim, frames)


def _mean(values: Iterable[float]) -> float:
    known = [float(value) for value in values if not math.isnan(value)]
    return fmean(known) if known else math.nan


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
