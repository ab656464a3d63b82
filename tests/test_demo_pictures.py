"""What `demo` measures and draws, on clips whose mouth is known."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import InputError
from latentsync_trt.measure.clips import SHOWN_PX, choose_moments, face_views, masked, measure_clip
from latentsync_trt.measure.figures import sync_figure
from latentsync_trt.measure.lips import Curves, score
from latentsync_trt.media.demo_clip import SPEECH, SpokenMouth, spoken_mouth
from latentsync_trt.types import Progress, UInt8Array
from scripts.train_demo.scene import PortraitRenderer, draw_scene
from scripts.train_demo.visemes import MouthTrack
from tests.clips import write_face, write_video
from tests.conftest import REPOSITORY

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
    track = MouthTrack(mouth.opening, rest, rest, mouth.shut, mouth.silent)
    renderer, scene = PortraitRenderer(), draw_scene(np.random.default_rng(3))
    return list(renderer.frames(scene, None, FRAMES)), list(renderer.frames(scene, track, FRAMES))


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
    found = score(curves)
    assert found.known
    assert found.opening > SEEN_CORRELATION
    assert found.lag_frames == 0
    assert (found.closures, found.silence) == (1.0, 1.0)
    for part in (f"spoken mouth at r = {found.opening:.2f}", "0 frames late", "m, b, p shown shut: 100%", "silence"):
        assert part in str(found)


def test_moments_show_the_mouth_wide_and_shut_and_lie_apart(curves: Curves, mouth: SpokenMouth) -> None:
    moments = choose_moments(curves)
    indices = list(moments)
    parts = np.array_split(np.arange(FRAMES), 6)
    assert all(index in part for index, part in zip(indices, parts, strict=True))
    assert [label.split("\n")[1] for label in moments.values()] == ["wide", "shut"] * 3
    assert moments[indices[0]].startswith(f"{indices[0] / MODEL_FPS:.2f} s")
    assert mouth.opening[indices[::2]].min() > 0
    for shut, part in zip(indices[1::2], parts[1::2], strict=True):
        assert mouth.shut[shut] == mouth.shut[part].any()
    assert int(mouth.opening.argmax()) in indices


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


def test_the_plot_shows_gaps_speech_and_what_the_words_require(curves: Curves) -> None:
    figure = sync_figure({"result": curves}, "Lips")
    speech, lips = figure.axes
    lines = {line.get_label(): line for line in lips.get_lines()}
    time_s, gaps = lines["result"].get_data()
    assert time_s[int(np.nanargmax(gaps))] == (int(np.nanargmax(curves.gaps)) + 0.5) / MODEL_FPS
    target = lines["what the words require (scaled)"].get_ydata()
    assert np.corrcoef(target, curves.target)[0, 1] == pytest.approx(1.0)
    assert "dB" in speech.get_ylabel()
    assert (lips.get_xlabel(), lips.get_xlim()) == ("time, s", (0, FRAMES / MODEL_FPS))
    assert lips.get_ylim()[1] > np.nanmax(curves.gaps)
    legend = {text.get_text() for text in figure.legends[0].get_texts()}
    assert legend >= {"result", "nothing is said", "m, b, p: lips must touch"}


def test_matplotlib_is_loaded_only_when_something_is_drawn() -> None:
    code = "import sys, latentsync_trt.cli, latentsync_trt.sync.run; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "False", done.stderr


def test_a_clip_without_a_face_cannot_be_scored(tmp_path: Path) -> None:
    blank = write_face(tmp_path / "blank.mp4", 5, blank=range(5))
    with pytest.raises(InputError, match="too few show a face"):
        score(measure_clip(blank, SPEECH))
