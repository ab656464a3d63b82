"""The training data of the small model: mouths that match phonemes, rendered scenes, reproducible speech."""

from pathlib import Path

import numpy as np
import pytest

from scripts.train_demo.atlas import Atlas, draw_atlas
from scripts.train_demo.mouth import MouthPose
from scripts.train_demo.scene import PortraitRenderer, draw_scene
from scripts.train_demo.texts import HELD_OUT, TRAINING
from scripts.train_demo.visemes import Phoneme, mouth_track
from tests.sounds import log_mel

STEP_OF_MEL = 0.5 * 0.1 / 4
"""Half a step of 1 dB, in the units of the audio encoder's input."""


def track_of(*sounds: tuple[str, float], before_s: float = 0.4, after_s: float = 0.4):
    ends = np.cumsum([length for _, length in sounds]) + before_s
    phonemes = [Phoneme(symbol, end - length, end) for (symbol, length), end in zip(sounds, ends, strict=True)]
    return mouth_track(phonemes, float(ends[-1]) + after_s)


@pytest.mark.parametrize("symbol", ["m", "b"])
def test_lips_are_shut_during_m_and_b(symbol: str) -> None:
    track = track_of(("a", 0.2), (symbol, 0.1), ("a", 0.2))
    during = slice(16, 18)  # 0.64 and 0.68 s; the sound lasts from 0.6 to 0.7
    assert track.opening[during].max() == 0.0
    assert track.shut[during].all()
    assert track.opening[12] > 0.5
    assert track.opening[20] > 0.5


def test_p_is_shut_before_its_burst() -> None:
    track = track_of(("a", 0.2), ("p", 0.04), ("a", 0.2))
    assert track.opening[14] == 0.0  # 0.56 s; the burst is at 0.6
    assert track.shut.sum() in (1, 2)


@pytest.mark.parametrize("offset_s", np.linspace(0, 0.04, 5))
def test_every_closure_covers_a_frame(offset_s: float) -> None:
    track = track_of(("a", 0.2), ("p", 0.02), ("a", 0.2), ("b", 0.02), ("a", 0.2), before_s=0.4 + offset_s)
    edges = np.flatnonzero(np.diff(track.shut.astype(np.int8)) == 1)
    assert len(edges) == 2


def test_silence_is_shut_and_flagged() -> None:
    track = track_of(("a", 0.3), ("", 0.6), ("a", 0.3))
    assert track.silent[[0, 5, 22, 24]].all()
    assert not track.silent[[12, 32]].any()
    assert track.opening[track.silent].max() == 0.0


def test_vowels_have_their_typical_mouth_shapes() -> None:
    peak = {vowel: track_of((vowel, 0.3)).values()[13] for vowel in "aiu"}
    assert peak["a"][0] > peak["i"][0] > 0.1
    assert peak["i"][1] > 0.4 > -0.4 > peak["u"][1]
    assert peak["u"][2] > 0.7 > 0.2 > peak["i"][2]


def test_held_out_sentences_and_language_are_not_trained_on() -> None:
    from scripts.train_demo.recordings import HELD_OUT_VARIANTS, TRAINING_VARIANTS

    trained = {sentence for sentences in TRAINING.values() for sentence in sentences}
    assert trained.isdisjoint(sentence for sentences in HELD_OUT.values() for sentence in sentences)
    assert HELD_OUT.keys() - TRAINING.keys() == {"it"}
    assert set(TRAINING_VARIANTS).isdisjoint(HELD_OUT_VARIANTS)


def test_rendering_a_scene_is_reproducible_and_it_moves() -> None:
    track = track_of(("a", 0.3))
    scene = draw_scene(np.random.default_rng(1))
    first, second = (np.stack(list(PortraitRenderer().frames(scene, track, 2, first=12))) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert (first[0] != first[1]).mean() > 0.2


def test_a_mouth_pose_changes_only_the_lower_face() -> None:
    renderer, scene = PortraitRenderer(), draw_scene(np.random.default_rng(3))
    still = renderer.frame(scene, None, 0).astype(np.int16)
    spoken = renderer.frame(scene, MouthPose(0.8, 0.0, 0.0), 0).astype(np.int16)
    changed = np.abs(still - spoken).max(axis=2) > 8
    assert 0.005 < changed.mean() < 0.2
    assert not changed[:60].any()


class SerialPool:
    """Runs tasks in this process."""

    def imap(self, function, items, chunksize):
        return map(function, items)


def test_mouths_between_those_of_the_atlas_are_interpolated(tmp_path: Path) -> None:
    def draw(pose: MouthPose) -> np.ndarray:
        return np.full((2, 3, 3), (100 * pose.opening, 50 + 50 * pose.width, 200 * pose.rounding), np.uint8)

    draw_atlas(tmp_path / "mouths.npy", (3, 2, 2), draw, SerialPool())  # type: ignore[arg-type]
    atlas = Atlas(tmp_path / "mouths.npy", (3, 2, 2))
    for pose in (MouthPose(0.5, -1, 1), MouthPose(0.25, 0.5, 0.1), MouthPose(1.2, 1, 0)):
        expected = 100 * min(pose.opening, 1), 50 + 50 * pose.width, 200 * pose.rounding
        np.testing.assert_allclose(atlas.mouth(pose)[0, 0], expected, atol=0.51)


def test_synthesized_speech_is_reproducible_and_survives_storage(tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader", reason="needs the extra `train`")
    from scripts.train_demo.recordings import SAMPLES_PER_FRAME
    from scripts.train_demo.speech import load_speech
    from scripts.train_demo.synthesis import fresh_processes, record_seed, synthesize

    speech = synthesize(range(18, 20), "train", 1)
    again = synthesize(range(19, 20), "train", 2)
    np.testing.assert_array_equal(speech.mel(1), again.mel(0))
    speech.save(tmp_path / "speech.npz")
    stored = load_speech(tmp_path / "speech.npz")
    np.testing.assert_array_equal(stored.power, speech.power)
    np.testing.assert_array_equal(stored.shut, speech.shut)
    with fresh_processes(1) as pool:
        recording = pool.apply(record_seed, ("train", 18))
    assert len(recording.samples) == SAMPLES_PER_FRAME * len(recording.track) == SAMPLES_PER_FRAME * stored.frames(0)
    assert np.abs(stored.mel(0) - log_mel(recording.samples)).max() <= STEP_OF_MEL + 1e-5
    assert stored.mouth(0).opening.max() > 0.5
