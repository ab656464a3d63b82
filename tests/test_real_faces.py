"""Filmed people are told apart in scenes made of parts of their clips that no limit was chosen by."""

from itertools import combinations
from pathlib import Path

import pytest

from latentsync_trt.face.detector import MediaPipeDetector
from scripts.measure_faces import heads, scenes, told_apart

MOST_SPLIT, MOST_MISSING = 0.04, 0.01
"""Measured: 0.028, those of two people who come back mirrored, smaller and in other light; and 0.004."""


@pytest.mark.slow
@pytest.mark.integration
def test_filmed_people_keep_their_numbers(assets: Path) -> None:
    with MediaPipeDetector() as detector:
        people = [heads(assets / f"demo{number}_video.mp4", detector, 75) for number in (1, 2, 3)]
        told = [told_apart(scene, *pair, detector) for pair in combinations(people, 2) for scene in scenes()]
    faces = sum(one.faces for one in told)
    assert sum(one.confused for one in told) == 0
    assert sum(one.split for one in told) <= MOST_SPLIT * faces
    assert sum(one.missing for one in told) <= MOST_MISSING * faces
