"""What `demo` measures and draws, on clips whose mouth is known."""

from pathlib import Path

import numpy as np
import pytest

from latentsync_trt.errors import InputError
from latentsync_trt.measure.clips import face_views, masked, measure_clip
from latentsync_trt.measure.lips import Curves, score
from latentsync_trt.measure.page import SHOWN_PX
from latentsync_trt.media.demo_clip import SPEECH, SpokenMouth, spoken_mouth
from latentsync_trt.types import Progress, UInt8Array
from scripts.train_demo.scene import PortraitRenderer, Scene
from tests.clips import write_face, write_video

pytestmark = pytest.mark.integration

FRAMES = 76
"""Of the built-in sentence: two pauses' worth, and the words up to "Papa, mama"."""

SEEN_CORRELATION = 0.85
"""FaceMesh on what the renderer draws gives 0.92 here."""


@pytest.fixture(scope="module")
def mouth() -> SpokenMouth:
    known = spoken_mouth()
    return SpokenMouth(known.opening[:FRAMES], known.shut[:FRAMES], known.silent[:FRAMES])


@pytest.fixture(scope="module")
def filmed(mouth: SpokenMouth) -> tuple[list[UInt8Array], list[UInt8Array]]:
    """A still face, and the same saying the sentence's beginning."""
    rest = np.zeros_like(mouth.opening)
    track = np.stack([mouth.opening, rest, rest], axis=1)
    renderer, scene = PortraitRenderer(), Scene(np.random.default_rng(3))
    still, spoken = zip(*(renderer.variants(scene, (None, track[i]), i) for i in range(FRAMES)), strict=True)
    return list(still), list(spoken)


@pytest.fixture(scope="module")
def curves(
    filmed: tuple[list[UInt8Array], list[UInt8Array]], mouth: SpokenMouth, tmp_path_factory: pytest.TempPathFactory
) -> Curves:
    clip = write_video(tmp_path_factory.mktemp("spoken") / "out.mp4", filmed[1])
    reports: list[Progress] = []
    found = measure_clip(clip, SPEECH, mouth, on_progress=reports.append)
    assert [progress.done for progress in reports] == list(range(1, FRAMES + 1))
    return found


def test_a_known_mouth_is_scored_by_what_it_should_do(curves: Curves) -> None:
    assert curves.mouth is not None
    found = score(curves.gaps, curves.mouth)
    assert found.opening > SEEN_CORRELATION
    assert found.lag_frames == 0
    assert (found.closures, found.silence) == (1.0, 1.0)
    for part in (f"spoken mouth at r = {found.opening:.2f}", "0 frames late", "m, b, p shown shut: 100%", "silence"):
        assert part in str(found)


def test_faces_are_cut_out_where_the_source_has_them_and_masked(
    filmed: tuple[list[UInt8Array], list[UInt8Array]],
) -> None:
    source, made = filmed
    blank = np.zeros_like(source[0])
    views = face_views([[source[0], source[26], blank], [made[0], made[26], blank]], SHOWN_PX)
    _, faces, nothing = views
    assert nothing is None
    own, new = (face.astype(int) for face in faces)
    given = masked(faces[0], 128).astype(int)
    chin, forehead = np.s_[150:220, 90:170], np.s_[20:70, 60:200]
    assert np.abs(given[chin] - 128).max() <= 1
    assert np.abs(given[forehead] - own[forehead]).mean() < 4  # reduced to 128 px and enlarged again
    assert np.abs(new[forehead] - own[forehead]).mean() < 1  # the renderer's light
    assert np.abs(new[chin] - own[chin]).mean() > 4


def test_a_clip_without_a_face_cannot_be_scored(tmp_path: Path) -> None:
    found = measure_clip(write_face(tmp_path / "blank.mp4", 5, blank=range(5)), SPEECH, spoken_mouth())
    assert found.mouth is not None
    with pytest.raises(InputError, match="too few show a face"):
        score(found.gaps, found.mouth)
