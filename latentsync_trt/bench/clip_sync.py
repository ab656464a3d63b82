"""A finished clip's lips beside the speech that they should follow, and the few numbers that sum this up."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from latentsync_trt.bench.sync_measure import (
    QUIET_DB,
    agreement,
    closed_rate,
    closure_recall,
    loudness,
    mouth_gaps,
    silences,
)
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.media.audio import SPEECH_RATE_HZ, read_audio_blocks
from latentsync_trt.media.demo_clip import SpokenMouth
from latentsync_trt.media.reader import read_frames
from latentsync_trt.types import BoolArray, Float32Array, Progress, ProgressCallback, UInt8Array


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """A clip over time, a value a frame at the model's rate.

    `gaps (n,)` float32: between the lips, as `mouth_gaps` gives them; `level_db (n,)` float32: as `loudness` does;
    `mouth`: what it should do, of n frames, where that is known.
    """

    gaps: Float32Array
    level_db: Float32Array
    mouth: SpokenMouth | None = None

    def __len__(self) -> int:
        return len(self.gaps)

    @property
    def wanted(self) -> Float32Array:
        """What the gaps are compared with: the opening of the known mouth, else the loudness, silence cut off."""
        return self.mouth.opening if self.mouth else np.maximum(self.level_db, np.float32(QUIET_DB))

    @property
    def silent(self) -> BoolArray:
        """Where nothing is said: known, else heard."""
        return self.mouth.silent if self.mouth else silences(self.level_db)


@dataclass(frozen=True, slots=True)
class SyncScore:
    """How well the lips of a clip follow.

    `known`: compared with the mouth that belongs to the speech, else with its loudness. `opening`: correlation at
    lag 0; `lag_frames`: how late the lips are where they agree best, `best` what they reach there. `closures`: share of
    m, b, p shown shut, NaN where they are not known; `silence`: share of silent frames shown shut, NaN without silence.
    """

    known: bool
    opening: float
    lag_frames: int
    best: float
    closures: float
    silence: float

    def __str__(self) -> str:
        """One line for a person."""
        against = "the spoken mouth" if self.known else "loudness"
        parts = [
            f"opening follows {against} at r = {self.opening:.2f}",
            f"best {self.lag_frames} frames late: {self.best:.2f}",
            *([] if math.isnan(self.closures) else [f"m, b, p shown shut: {self.closures:.0%}"]),
            *([] if math.isnan(self.silence) else [f"shut in silence: {self.silence:.0%}"]),
        ]
        return "; ".join(parts)


def measure_clip(
    video: Path, audio: Path, mouth: SpokenMouth | None = None, *, on_progress: ProgressCallback | None = None
) -> Curves:
    """Watches the lips of `video` and hears `audio`; holds one frame and one block of samples at a time.

    Args:
        mouth: what belongs to the audio, where known. on_progress: called after every frame.

    Raises:
        MediaError, InputError: a file cannot be read.
    """
    level_db = loudness(read_audio_blocks(audio), SPEECH_RATE_HZ)
    frames = (frame.rgb for frame in read_frames(video, rgb_only=True))
    return joined(mouth_gaps(_told(frames, len(level_db), on_progress), MediaPipeDetector()), level_db, mouth)


def joined(gaps: Float32Array, level_db: Float32Array, mouth: SpokenMouth | None = None) -> Curves:
    """Curves of one length: as long as the shortest of them."""
    count = min(len(gaps), len(level_db), *([len(mouth.opening)] if mouth else []))
    cut = SpokenMouth(mouth.opening[:count], mouth.shut[:count], mouth.silent[:count]) if mouth else None
    return Curves(gaps[:count], level_db[:count], cut)


def score(curves: Curves) -> SyncScore:
    """The numbers of a clip.

    Raises:
        InputError: fewer than three frames show a face.
    """
    found = agreement(curves.gaps, curves.wanted)
    return SyncScore(
        known=curves.mouth is not None,
        opening=found.correlation,
        lag_frames=found.lag_frames,
        best=found.best_correlation,
        closures=closure_recall(curves.gaps, curves.mouth.shut) if curves.mouth else float("nan"),
        silence=closed_rate(curves.gaps, curves.silent),
    )


def _told(frames: Iterable[UInt8Array], total: int, on_progress: ProgressCallback | None) -> Iterator[UInt8Array]:
    for done, frame in enumerate(frames, 1):
        yield frame
        if on_progress is not None:
            on_progress(Progress("measuring", done, total))
