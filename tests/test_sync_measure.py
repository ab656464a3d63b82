"""The sync measure, on gaps whose mouth is known; tests/test_demo_pictures.py has what it sees of
drawn mouths.
"""

import numpy as np
import pytest

from latentsync_trt.errors import InputError
from latentsync_trt.measure.clips import choose_moments
from latentsync_trt.measure.lips import Curves, closed_rate
from scripts.train_demo.score import agreement, score, spoken_mouth

MOUTH = spoken_mouth()
GAPS = (
    0.025 + 0.2 * MOUTH.opening + np.random.default_rng(5).uniform(0, 0.01, len(MOUTH.opening))
).astype(np.float32)
"""As FaceMesh measures them on the mouth of the built-in sentence."""


@pytest.mark.parametrize("late_frames", [-4, -1, 2, 5])
def test_a_shifted_mouth_is_measured_as_shifted(late_frames: int) -> None:
    late = agreement(np.roll(GAPS, late_frames), MOUTH.opening)
    assert late.lag_frames == late_frames
    assert late.correlation < agreement(GAPS, MOUTH.opening).correlation


def test_closures_and_silence_are_seen() -> None:
    scored = score(GAPS, MOUTH)
    assert scored.closures == 1.0
    assert scored.silence == 1.0
    assert closed_rate(GAPS, MOUTH.opening > 0.2) == 0.0


def test_frames_without_a_face_are_left_out() -> None:
    with pytest.raises(InputError, match="too few frames"):
        agreement(np.full(3, np.nan, np.float32), np.arange(3, dtype=np.float32))
    curve = np.array([0.1, np.nan, 0.3, 0.2, 0.6], np.float32)
    assert agreement(curve, curve).correlation == pytest.approx(1.0)


def test_labels_of_moments_agree_with_the_plot() -> None:
    """Where lips never touch, or always, no frame is called the other."""
    gaps = np.array(
        [0.02, 0.12, 0.1, 0.08, 0.06, 0.02, 0.03, 0.02, np.nan, np.nan, 0.09, 0.03], np.float32
    )
    moments = choose_moments(Curves(gaps, np.zeros((len(gaps), 3), np.float32)))
    assert [(index, text.partition("\n")[2]) for index, text in moments.items()] == [
        (1, "wide"), (2, "wide"), (4, "wide"), (7, "shut"), (11, "shut")
    ]  # fmt: skip
