"""How well the lips of a finished clip follow the speech."""

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np

from latentsync_trt.bench.material import square_rgb
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.face.choice import MainFace
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.demo_clip import SpokenMouth
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import read_frames
from latentsync_trt.sync.lips import Curves, gap_of, joined, loudness
from latentsync_trt.types import Float32Array, Progress, ProgressCallback, UInt8Array


def measure_clip(
    video: Path,
    audio: Path,
    mouth: SpokenMouth | None = None,
    *,
    delay_s: Fraction = Fraction(0),
    on_progress: ProgressCallback | None = None,
) -> Curves:
    """The lips of `video` and the speech in `audio`; holds one frame at a time.

    Args:
        mouth: the one that belongs to the audio, if known. delay_s: when the audio starts in the video.
        on_progress: called after every frame.

    Raises:
        MediaError, InputError: a file cannot be read.
    """
    frames = square_rgb(video, read_frames(video, Playback(Fraction(MODEL_FPS))))
    level_db = loudness(read_audio_blocks(audio, delay_s=delay_s))
    return joined(mouth_gaps(_reporting(frames, len(level_db), on_progress)), level_db, mouth)


def mouth_gaps(frames: Iterable[UInt8Array], detector: MediaPipeDetector | None = None) -> Float32Array:
    """The gap between the lips of the tracked face, in distances between the outer corners of the eyes.

    Args:
        frames: uint8 `(H, W, 3)` RGB each, consecutive.
        detector: finds the face and its mesh; a new one if None.

    Returns:
        float32 `(n,)`, one value per frame; NaN without a face.
    """
    detector = detector or MediaPipeDetector()
    tracker = MainFace(detector)
    return np.array([_gap(frame, tracker, detector) for frame in frames], np.float32)


def _gap(frame: UInt8Array, tracker: MainFace, detector: MediaPipeDetector) -> float:
    tracked = tracker.update(frame)
    found = detector.mesh(frame, tracked.face) if tracked is not None else None
    return math.nan if found is None else gap_of(found)


def _reporting(frames: Iterable[UInt8Array], total: int, on_progress: ProgressCallback | None) -> Iterator[UInt8Array]:
    for done, frame in enumerate(frames, 1):
        yield frame
        if on_progress is not None:
            on_progress(Progress("measuring", done, total))
