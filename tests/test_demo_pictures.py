"""What `demo` measures and draws, on clips whose mouth is known."""

import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from latentsync_trt.bench.canvas import Canvas
from latentsync_trt.bench.clip_sync import Curves, joined, measure_clip, score
from latentsync_trt.bench.moments import CELL_PX, Moment, choose_moments, draw_moments
from latentsync_trt.bench.sync_plot import draw_plot
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.media.audio import probe_audio
from latentsync_trt.media.demo_clip import SPEECH, SpokenMouth, spoken_mouth
from latentsync_trt.types import Progress, UInt8Array
from scripts.train_demo.scene import Studio, draw_scene
from scripts.train_demo.visemes import MouthTrack
from tests.clips import write_face, write_video
from tests.conftest import REPOSITORY

FRAMES = 76
"""Of the built-in sentence: two pauses' worth, and the words up to "Papa, mama"."""

SEEN_CORRELATION = 0.85
"""FaceMesh on what the studio draws gives 0.92 here."""

CLOSURES = 9
"""My liPs … PaPa, MaMa, … Boats By … Pier."""

_MEASURED = (224, 92, 30)
"""The plot's color of measured gaps."""


@pytest.fixture(scope="module")
def mouth() -> SpokenMouth:
    known = spoken_mouth()
    return SpokenMouth(known.opening[:FRAMES], known.shut[:FRAMES], known.silent[:FRAMES])


@pytest.fixture(scope="module")
def filmed(mouth: SpokenMouth) -> tuple[list[UInt8Array], list[UInt8Array]]:
    """A still face, and the same saying the sentence's beginning."""
    rest = np.zeros_like(mouth.opening)
    track = MouthTrack(mouth.opening, rest, rest, mouth.shut, mouth.silent)
    studio, scene = Studio(), draw_scene(np.random.default_rng(3))
    return list(studio.film(scene, None, FRAMES)), list(studio.film(scene, track, FRAMES))


@pytest.fixture(scope="module")
def curves(
    filmed: tuple[list[UInt8Array], list[UInt8Array]], mouth: SpokenMouth, tmp_path_factory: pytest.TempPathFactory
) -> Curves:
    clip = write_video(tmp_path_factory.mktemp("spoken") / "out.mp4", filmed[1])
    told: list[Progress] = []
    found = measure_clip(clip, SPEECH, mouth, on_progress=told.append)
    assert [progress.done for progress in told] == list(range(1, FRAMES + 1))
    return found


def test_the_built_in_mouth_is_as_long_as_its_speech() -> None:
    known = spoken_mouth()
    assert len(known.opening) == len(known.shut) == len(known.silent)
    assert probe_audio(SPEECH).duration_s * MODEL_FPS == len(known.opening)
    assert not known.opening[known.shut | known.silent].any()
    assert np.diff(known.shut.astype(int), prepend=0).clip(0).sum() == CLOSURES
    assert known.silent[0]
    assert known.silent[-6]


REMADE = """
import numpy as np
from latentsync_trt.media.demo_clip import SENTENCE, SPEECH, spoken_mouth
from latentsync_trt.media.audio import read_audio_mono
from scripts.make_demo_assets import VOICE, with_rests
from scripts.train_demo.espeak import Speaker
spoken = Speaker().say(SENTENCE, VOICE)
samples, track = with_rests(spoken)
assert np.array_equal(read_audio_mono(SPEECH, spoken.rate_hz) * 32768, samples)
known = spoken_mouth()
assert np.abs(known.opening - track.opening).max() <= 0.5e-4
assert np.array_equal(known.shut, track.shut) and np.array_equal(known.silent, track.silent)
"""


def test_speech_and_mouth_are_what_their_script_makes() -> None:
    command = [sys.executable, "-c", REMADE]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_known_mouth_is_scored_by_what_it_should_do(curves: Curves) -> None:
    found = score(curves)
    assert found.known
    assert found.opening > SEEN_CORRELATION
    assert found.lag_frames == 0
    assert (found.closures, found.silence) == (1.0, 1.0)
    for part in (f"spoken mouth at r = {found.opening:.2f}", "0 frames late", "m, b, p shown shut: 100%", "silence"):
        assert part in str(found)


def test_another_speech_is_scored_by_its_loudness(curves: Curves) -> None:
    found = score(joined(curves.gaps, curves.level_db))
    assert not found.known
    assert 0.3 < found.opening < score(curves).opening
    assert np.isnan(found.closures)
    assert "loudness" in str(found)
    assert "m, b, p" not in str(found)


def test_moments_show_every_state_and_lie_apart(curves: Curves, mouth: SpokenMouth) -> None:
    moments = choose_moments(curves)
    indices = [moment.index for moment in moments]
    assert indices == sorted(indices)
    assert min(np.diff(indices)) > FRAMES // 12
    shown = [moment.shows for moment in moments]
    assert sorted(shown) == ["half open", "m, b or p", "m, b or p", "silence", "widest", "widest"]
    for moment in moments:
        assert mouth.shut[moment.index] == (moment.shows == "m, b or p")
        assert mouth.silent[moment.index] == (moment.shows == "silence")
    assert int(mouth.opening.argmax()) in indices


def test_moments_of_a_short_clip_without_silence() -> None:
    gaps = np.array([0.1, np.nan, 0.3, 0.02], np.float32)
    moments = choose_moments(Curves(gaps, np.zeros(4, np.float32)))
    assert [(moment.index, moment.shows) for moment in moments] == [(0, "widest"), (2, "widest"), (3, "narrowest")]


def test_the_picture_holds_what_the_network_is_given(filmed: tuple[list[UInt8Array], list[UInt8Array]]) -> None:
    source, made = filmed
    canvas = draw_moments(iter(source), iter(made), [Moment(0, "silence"), Moment(26, "widest")], 128)
    left, step = 112 + CELL_PX + 8, CELL_PX + 8
    own, masked, new = (canvas.pixels[8 + row * step :, left:][:CELL_PX, :CELL_PX].astype(int) for row in range(3))
    chin, forehead = np.s_[150:220, 90:170], np.s_[20:70, 60:200]
    assert np.abs(masked[chin] - 128).max() <= 1
    assert np.abs(masked[forehead] - own[forehead]).mean() < 4  # once smaller and larger again
    assert np.abs(new[forehead] - own[forehead]).mean() < 1  # the studio's light
    assert np.abs(new[chin] - own[chin]).mean() > 4


def test_a_clip_without_faces_has_no_picture() -> None:
    blank = np.zeros((200, 200, 3), np.uint8)
    with pytest.raises(InputError, match="nothing to draw"):
        draw_moments([blank], [blank], [], 128)
    with pytest.raises(InputError, match="no face in frame 0"):
        draw_moments([blank], [blank], [Moment(0, "widest")], 128)


def test_the_plot_peaks_where_the_mouth_does(curves: Curves) -> None:
    pixels = draw_plot(curves, score(curves)).pixels[360:780]  # below the legend
    drawn = np.argwhere((pixels == _MEASURED).all(axis=2))
    peak_px = 96 + (1552 - 96) * (int(np.nanargmax(curves.gaps)) + 0.5) / FRAMES
    assert abs(drawn[drawn[:, 0].argmin(), 1] - peak_px) <= 5  # the radius of a dot, and a pixel


def test_a_long_plot_shows_its_beginning() -> None:
    gaps = np.full(MODEL_FPS * 60, 0.1, np.float32)
    long = Curves(gaps, np.zeros_like(gaps))
    assert draw_plot(long, score(long)).pixels.shape == (860, 1600, 3)


def test_a_picture_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    canvas = Canvas(40, 30)
    canvas.box(10, 10, 20, 20, (255, 0, 0))
    canvas.save(tmp_path / "one.png")
    assert cv2.imread(str(tmp_path / "one.png"))[15, 15].tolist() == [0, 0, 255]
    with pytest.raises(OutputError, match=r"two\.png: cannot be written"):
        canvas.save(tmp_path / "gone" / "two.png")
    (tmp_path / "two.png").mkdir()
    with pytest.raises(OutputError):
        canvas.save(tmp_path / "two.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.png", "two.png"]


def test_a_clip_without_a_face_cannot_be_scored(tmp_path: Path) -> None:
    blank = write_face(tmp_path / "blank.mp4", 5, blank=range(5))
    with pytest.raises(InputError, match="too few show a face"):
        score(measure_clip(blank, SPEECH))
