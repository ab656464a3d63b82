"""Measures while a clip runs, on faces whose lips are known."""

from fractions import Fraction

import numpy as np
import pytest

from latentsync_trt.measure.quality import PaintSample, Quality
from latentsync_trt.measures import LipMeasure
from latentsync_trt.media.audio import SPEECH_RATE_HZ
from latentsync_trt.types import AlignedFace, Face, Float32Array, Frame, Patch

SIZE_PX = (105, 140)
"""Of the pictures: the upright crop of a face at 128 px, so that both have the same pixels."""
PICTURE = np.full((140, 105, 3), 120, np.uint8)
EYES_PX = 60.0
SEED = 3


def mesh(gap: float) -> Float32Array:
    """A mesh whose lips are `gap` apart."""
    points = np.zeros((468, 2), np.float32)
    points[263] = EYES_PX, 0
    points[[87, 317, 178, 402, 88, 318]] = 0, gap * EYES_PX
    return points


def add(quality: Quality, index: int, gap: float, fps: int = 25) -> None:
    """A frame that is painted as it was."""
    time_s = Fraction(index, fps)
    painted = PICTURE.astype(np.uint16) * 257
    frame = Frame(index, time_s, Fraction(1, fps), time_s, PICTURE, None)
    face = Face(np.array([20, 20, 85, 120], np.float32), np.zeros((3, 2), np.float32))
    aligned = AlignedFace(PICTURE, np.eye(2, 3), SIZE_PX)
    patch = Patch(0, 0, painted, np.ones((140, 105), np.float32))
    quality.add(frame, 0, PaintSample(face, aligned, painted, patch, mesh(gap)))


def openings(count: int) -> Float32Array:
    """Syllables and pauses, per 25th of a second."""
    time_s = np.arange(count) / 25
    syllables = np.abs(np.sin(7 * time_s + np.sin(3 * time_s)))
    return np.where(np.sin(1.7 * time_s) > -0.4, syllables, 0).astype(np.float32)


def speech(opening: Float32Array) -> list[Float32Array]:
    """A sound as loud as the mouth is open, in blocks."""
    count = len(opening) * SPEECH_RATE_HZ // 25
    loud = np.interp(np.arange(count) / SPEECH_RATE_HZ, np.arange(len(opening)) / 25, opening)
    samples = loud * np.random.default_rng(SEED).normal(0, 0.2, count)
    return list(np.array_split(samples.astype(np.float32), 7))


def lips_of(time_s: Fraction, late_s: Fraction = Fraction(0)) -> float:
    opening = np.interp(float(time_s - late_s), np.arange(250) / 25, openings(250))
    return 0.02 + 0.2 * float(opening)


@pytest.mark.parametrize(
    ("fps", "start_s", "late_ms"),
    [(50, 0, 0), (25, 2, 0), (24, 1, 0), (25, 0, 40), (25, 0, -240), (25, 0, 320)],
)
def test_lips_that_follow(fps: int, start_s: int, late_ms: int) -> None:
    quality = Quality([Fraction(start_s)])
    for _ in range(2):  # `SpeechStream` reads the recording twice
        assert sum(block.size for block in quality.listen(0, speech(openings(250)))) == 250 * 640
    for index in range(start_s * fps, (start_s + 10) * fps):
        gap = lips_of(Fraction(index, fps) - start_s, Fraction(late_ms, 1000))
        add(quality, index, gap, fps)
    (lips,) = quality.result().lips
    assert lips.verdict == "follows"
    assert (lips.agreement or 0) > 0.7
    assert lips.late_ms == (pytest.approx(late_ms, abs=40) if abs(late_ms) > 120 else None)
    assert lips.frames > 235
    if not late_ms:
        assert lips.shut_in_silence == 1.0


@pytest.mark.parametrize(("frames", "verdict"), [(250, "weak"), (150, "cannot tell")])
def test_lips_of_other_speech(frames: int, verdict: str) -> None:
    quality = Quality([Fraction(0)])
    generator = np.random.default_rng(SEED)
    list(quality.listen(0, speech(np.maximum(openings(250), np.float32(0.1)))))
    for index, gap in enumerate(np.convolve(generator.uniform(0, 0.1, frames), np.ones(4), "same")):
        add(quality, index, float(gap))
    (lips,) = quality.result().lips
    assert (lips.verdict, lips.late_ms) == (verdict, None)


@pytest.mark.parametrize(("said", "painted", "shut"), [(True, 70, None), (False, 100, 1.0)])
def test_too_little_speech_to_compare_with(said: bool, painted: int, shut: float | None) -> None:
    """A few painted frames agree with any speech at some delay; where nothing is said, nothing can
    be followed.
    """
    quality = Quality([Fraction(0)])
    list(quality.listen(0, speech(np.full(250, 0.5 * said, np.float32))))
    for index in range(painted):
        add(quality, index, 0.03 + 0.001 * (index % 7))
    (lips,) = quality.result().lips
    assert lips == LipMeasure(None, painted, "cannot tell", shut_in_silence=shut)


def test_the_moments_that_matter_are_kept() -> None:
    quality = Quality([Fraction(0)], pictures=True)
    for index, gap in enumerate([0.1, 0.3, 0.1, 0.01, 0.1]):
        add(quality, index, gap)
    moments = [(moment.time_s, moment.label) for moment in quality.moments()]
    assert moments == [(0.0, "first"), (0.04, "widest open"), (0.12, "shut")]
