"""Which frames of a finished clip show how its mouth speaks."""

from collections.abc import Sequence

import numpy as np

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.measure.lips import CLOSED_GAP, SILENCE_DB, Curves
from latentsync_trt.media.demo_clip import SpokenWord
from latentsync_trt.types import BoolArray, runs_of_true

_APART_FRAMES = 3
"""Two moments that are nearer show the same."""


def speaking_moments(curves: Curves, words: Sequence[SpokenWord]) -> dict[int, str]:
    """Returns labels by frame: where the mouth is widest, round, shut in speech, and silent, as
    far as the clip has such frames; with the word that is spoken then, if `words` tell. They tell
    where lips are round, too: FaceMesh finds the corners of round lips as far apart as usual.
    """
    gaps = curves.gaps
    is_open = np.nan_to_num(gaps) >= CLOSED_GAP
    is_shut = gaps < CLOSED_GAP
    is_loud = curves.levels_db[:, 0] > SILENCE_DB
    chosen = dict[int, str]()

    def choose(kind: str, costs: np.ndarray, candidates: BoolArray) -> None:
        """Adds the candidate that costs least, away from the moments before."""
        free = candidates.copy()
        for index in chosen:
            free[max(0, index - _APART_FRAMES) : index + _APART_FRAMES + 1] = False
        if free.any():
            chosen[int(np.where(free, costs, np.inf).argmin())] = kind

    choose("widest", -gaps, is_open)
    choose("rounded", -gaps, is_open & _rounded(words, len(curves)))
    choose("shut", gaps, is_shut & is_loud & ~curves.silent)
    choose("silent", _from_the_middle(curves.silent), is_shut & curves.silent)
    return {index: _label(chosen[index], index, words) for index in sorted(chosen)}


def _rounded(words: Sequence[SpokenWord], frames: int) -> BoolArray:
    """Returns in which frames, `(n,)`, the lips are as round as they get in a word."""
    times_s = [word.rounded_s for word in words if word.rounded_s is not None]
    indices = [round(time_s * MODEL_FPS) for time_s in times_s]
    return np.isin(np.arange(frames), indices)


def _from_the_middle(silent: BoolArray) -> np.ndarray:
    """Returns how far each frame `(n,)` is from the middle of the longest silence."""
    spans = runs_of_true(silent)
    start, end = max(spans, key=lambda span: span[1] - span[0], default=(0, 0))
    middle = (start + end) / 2
    return np.abs(np.arange(len(silent)) - middle)


def _label(kind: str, index: int, words: Sequence[SpokenWord]) -> str:
    time_s = index / MODEL_FPS
    spoken = [word.text for word in words if word.start_s <= time_s < word.end_s]
    if spoken and kind != "silent":
        kind = f"{kind}: “{spoken[0]}”"
    return f"{kind}\n{time_s:.2f} s"
