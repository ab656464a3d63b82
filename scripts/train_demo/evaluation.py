"""Evaluates a bundle on held-out sentences, voices, a language and camera paths."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from latentsync_trt.config import SyncOptions
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.measure.clips import mouth_gaps
from latentsync_trt.measure.pictures import ssim
from latentsync_trt.sync.api import LipSync
from latentsync_trt.types import BoolArray, UInt8Array
from scripts.train_demo.held_out import Case, aligned_faces, dub, held_out_cases, lip_scores, write_inputs
from scripts.train_demo.scene import PortraitRenderer

_ALIGNED_PX = 128
_MOUTH_ROWS, _MOUTH_COLUMNS = slice(54, 102), slice(28, 100)
"""The mouth in an aligned face of 128 pixels."""


@dataclass(frozen=True, slots=True)
class Score:
    """The scores of one sentence.

    `opening`: correlation of the measured gap with the mouth that belongs to the speech, at lag 0; `lag_frames`: the
    lag of the highest correlation; `wrong`: correlation with another sentence's mouth; `closures`: share of m, b, p
    shown shut; `silence`: share of silent frames shown shut; `ssim`: of the mouth against the rendered target;
    `still`: change from frame to frame beside the mouth, relative to the source's.
    """

    sentence: str
    voice: str
    frames: int
    opening: float
    lag_frames: int
    wrong: float
    closures: float
    silence: float
    ssim: float
    still: float


def evaluate(
    bundle: Path, folder: Path, options: SyncOptions, provider: str = "cpu", count: int | None = None
) -> list[Score]:
    """Dubs the portrait with every held-out sentence, or `count` of them; writes clips and scores to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    renderer, detector = PortraitRenderer(), MediaPipeDetector()
    scores = []
    with LipSync.from_bundle(bundle, provider) as lip_sync:
        for case in held_out_cases(count):
            inputs = write_inputs(case, renderer, folder)
            dubbed = dub(lip_sync, inputs, folder / f"{case.number}-out.mkv", options, len(case))
            scores.append(_score(case, dubbed, renderer, detector))
    (folder / "scores.json").write_text(json.dumps([asdict(score) for score in scores], indent=2, ensure_ascii=False))
    return scores


def mean_scores(scores: Sequence[Score]) -> dict[str, float]:
    """Means over all sentences, ignoring NaN."""
    names = ("opening", "lag_frames", "wrong", "closures", "silence", "ssim", "still")
    return {name: round(float(np.nanmean([getattr(score, name) for score in scores])), 4) for name in names}


def _score(case: Case, dubbed: UInt8Array, renderer: PortraitRenderer, detector: MediaPipeDetector) -> Score:
    found, wrong = lip_scores(mouth_gaps(dubbed, detector), case)
    source = list(renderer.frames(case.scene, None, len(case)))
    target = renderer.frames(case.scene, case.recording.track, len(case))
    faces = aligned_faces(source, [source, dubbed, target], _ALIGNED_PX, detector)
    mouths = faces[:, :, _MOUTH_ROWS, _MOUTH_COLUMNS]
    return Score(
        sentence=case.text,
        voice=case.voice,
        frames=len(case),
        opening=found.opening,
        lag_frames=found.lag_frames,
        wrong=wrong,
        closures=found.closures,
        silence=found.silence,
        ssim=float(np.mean([ssim(a, b) for a, b in zip(mouths[1], mouths[2], strict=True)])),
        still=_stillness(faces[0], faces[1]),
    )


def _stillness(source: UInt8Array, dubbed: UInt8Array) -> float:
    """Mean change from frame to frame in the generated part of the face beside the mouth, relative to the source's."""
    where: BoolArray = mouth_mask(_ALIGNED_PX) < 0.5
    where = where.copy()
    where[_MOUTH_ROWS, _MOUTH_COLUMNS] = False
    where[_MOUTH_ROWS.stop :] = False
    before, after = (np.abs(np.diff(clip.astype(np.float32), axis=0))[:, where].mean() for clip in (source, dubbed))
    return float(after / before)
