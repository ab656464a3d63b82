"""How the lips of two results of one clip follow the speech and each other."""

from pathlib import Path

import numpy as np

from latentsync_trt.bench.clip_sync import Curves, measure_clip, score
from latentsync_trt.bench.quality.results import LipCurves, Lips
from latentsync_trt.bench.quality.subjects import Subject
from latentsync_trt.bench.sync_measure import agreement
from latentsync_trt.errors import InputError
from latentsync_trt.types import ProgressCallback

LEAST_MOVED = 0.01
"""Lips that move less are still, as far as FaceMesh can tell: those that touch read 0.02 to 0.041."""


def watch_lips(
    a: Path, b: Path, subject: Subject, on_progress: ProgressCallback | None = None
) -> tuple[Curves, Curves]:
    """The gaps between the lips of both videos over time, beside the speech; both of one length.

    Raises:
        MediaError, InputError: a file cannot be read.
    """
    ours, theirs = (measure_clip(video, subject.audio, subject.mouth, on_progress=on_progress) for video in (a, b))
    count = min(len(ours), len(theirs))
    return _first(ours, count), _first(theirs, count)


def compare_lips(a: Curves, b: Curves, name: str) -> Lips:
    """The numbers of both.

    Raises:
        InputError: too few frames of one, or of both at the same time, show a face.
    """
    try:
        scores = score(a), score(b)
        alike = agreement(b.gaps, a.gaps).correlation
    except InputError as error:
        raise InputError(f"{name}: {error}; give a longer clip, or one that shows the face") from error
    return Lips(
        *scores,
        unseen_a=int(np.isnan(a.gaps).sum()),
        unseen_b=int(np.isnan(b.gaps).sum()),
        moved_a=float(np.nanstd(a.gaps)),
        moved_b=float(np.nanstd(b.gaps)),
        alike=1.0 if np.array_equal(a.gaps, b.gaps, equal_nan=True) else alike,
        apart=float(np.nanmean(np.abs(a.gaps - b.gaps))),
    )


def as_numbers(a: Curves, b: Curves) -> LipCurves:
    """Both over time, as the report draws them."""
    wanted = None if a.mouth is None else tuple(a.mouth.opening.tolist())
    return LipCurves(tuple(a.gaps.tolist()), tuple(b.gaps.tolist()), wanted, tuple(a.silent.tolist()))


def _first(curves: Curves, count: int) -> Curves:
    mouth = curves.mouth
    if mouth is not None:
        mouth = type(mouth)(mouth.opening[:count], mouth.shut[:count], mouth.silent[:count])
    return Curves(curves.gaps[:count], curves.level_db[:count], mouth)
