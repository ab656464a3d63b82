"""Voice activity: when somebody speaks, and silence between."""

import hashlib
from collections.abc import Iterable
from contextlib import closing
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latentsync_trt.audio import vad
from latentsync_trt.audio.mel import SAMPLE_RATE_HZ
from latentsync_trt.audio.vad import (
    AFTER_S,
    BEFORE_S,
    ENTER,
    FADE_S,
    LEAST_PAUSE_S,
    NETWORK,
    STEP,
    STEP_S,
    Speech,
    chances_of_speech,
    find_speech,
    spans_of,
    steps_of,
)
from latentsync_trt.config import MODEL_FPS, Silence, SyncOptions
from latentsync_trt.media.demo_clip import SPEECH, spoken_mouth
from latentsync_trt.media.soundtrack import SoundPiece
from latentsync_trt.sync.speech import OpenSpeech, SpeechTracks
from latentsync_trt.types import Float32Array
from tests.clips import read_audio
from tests.sounds import mel_filters, write_samples

REPOSITORY = Path(__file__).resolve().parents[1]


@cache
def sentence() -> Float32Array:
    return read_audio(SPEECH)


def hum(samples: int, level: float) -> Float32Array:
    """A chord, as music under speech."""
    times_s = np.arange(samples) / SAMPLE_RATE_HZ
    return sum(level * np.sin(2 * np.pi * hz * times_s) for hz in (220.0, 261.6, 329.6)).astype(np.float32)  # type: ignore[union-attr]


def noise(samples: int, level: float) -> Float32Array:
    return np.random.default_rng(2).normal(0, level, samples).astype(np.float32)


def test_the_network_is_the_one_that_notice_names() -> None:
    digest = hashlib.sha256(NETWORK.read_bytes()).hexdigest()
    assert digest == "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85"
    notice = (REPOSITORY / "NOTICE").read_text(encoding="utf-8")
    assert f"sha256 {digest}" in notice
    assert "Copyright (c) 2020-present Silero Team" in notice


@pytest.mark.parametrize("under", ["nothing", "noise", "music"])
def test_speech_is_found_alone_and_over_noise_and_music(under: str) -> None:
    samples, level = np.pad(sentence(), SAMPLE_RATE_HZ), 10 ** (-10 / 20) * float(sentence().std())
    below = {"nothing": noise, "noise": noise, "music": hum}[under](len(samples), 0 if under == "nothing" else level)
    speech, mouth = find_speech([samples + below]), spoken_mouth()
    opened = 1 + np.flatnonzero(mouth.opening > 0.1) / MODEL_FPS
    assert speech.at(opened).mean() > 0.99
    rest = np.arange(0, 0.95, 0.04)
    assert not speech.at(rest).any()
    assert speech.at(len(samples) / SAMPLE_RATE_HZ - rest).mean() < 0.2


def test_nobody_speaks_in_noise_music_and_silence() -> None:
    seconds = 4 * SAMPLE_RATE_HZ
    for sound in (np.zeros(seconds, np.float32), noise(seconds, 0.1), hum(seconds, 0.2), np.zeros(1, np.float32)):
        assert find_speech([sound]).spans_s == ()
    assert not find_speech([]).spans_s


@given(st.lists(st.integers(0, 400_000), max_size=8))
def test_blocks_of_any_lengths_become_the_same_steps(sizes: list[int]) -> None:
    samples = noise(sum(sizes), 0.1)
    parts = list(steps_of(np.split(samples, np.cumsum(sizes)[:-1]) if sizes else []))
    joined = np.concatenate([np.zeros((0, STEP), np.float32), *parts]).reshape(-1)
    assert len(joined) - len(samples) in range(STEP)
    assert np.array_equal(joined[: len(samples)], samples)
    assert not joined[len(samples) :].any()
    assert all(len(part) == len(parts[0]) for part in parts[:-1])


@pytest.mark.parametrize("at_once", [1, 7])
def test_what_the_network_remembers_goes_on_from_run_to_run(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    whole = np.concatenate(list(chances_of_speech([sentence()])))
    monkeypatch.setattr(vad, "_STEPS_AT_ONCE", at_once)
    parts = list(chances_of_speech([sentence()]))
    assert len(parts) == -(-len(whole) // at_once)
    assert np.allclose(np.concatenate(parts), whole, atol=1e-5)


def steps(*parts: tuple[float, float]) -> Float32Array:
    """Probabilities that last for some seconds each."""
    stretches = (np.full(round(length_s / STEP_S), chance, np.float32) for chance, length_s in parts)
    return np.concatenate([np.zeros(0, np.float32), *stretches])


def test_speech_lasts_through_short_dips_and_pauses_and_clicks_are_none() -> None:
    dip, pause, click = (0.4, 0.2), (0.1, 0.15), (0.9, 0.06)
    chances = steps((0.1, 1), (0.9, 0.5), dip, (0.9, 0.5), pause, (0.9, 0.5), (0.1, 1), click, (0.1, 1))
    assert len(spans_of(chances)) == 1
    start_s, end_s = spans_of(chances)[0]
    assert abs(start_s - (1 - BEFORE_S)) < STEP_S
    assert abs(end_s - (2.85 + AFTER_S)) < 3 * STEP_S
    assert len(spans_of(steps((0.9, 1), (0.1, LEAST_PAUSE_S + STEP_S), (0.9, 1)))) == 2
    assert spans_of(steps((0.4, 3))) == ()  # never certain
    assert spans_of(steps((0.2, 1), (0.45, 1), (0.2, 1))) == ()


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 20)), max_size=30))
def test_spans_are_apart_and_hold_every_certain_stretch(parts: list[tuple[float, int]]) -> None:
    chances = steps(*((chance, length * STEP_S) for chance, length in parts))
    spans = spans_of(chances)
    edges = [edge for span in spans for edge in span]
    assert edges == sorted(edges)
    assert all(later[0] - before[1] >= 2 * FADE_S for before, later in pairwise(spans))
    certain = Speech(spans).at((np.arange(len(chances)) + 0.5) * STEP_S)
    for start in range(len(chances) - 4):
        if (chances[start : start + 4] >= ENTER).all():
            assert certain[start : start + 4].all()


def test_pauses_become_silent_with_soft_borders_and_speech_stays_as_it_is() -> None:
    speech = Speech(((-0.05, 0.5), (1.0, 1.5)))
    samples = np.ones(2 * SAMPLE_RATE_HZ, np.float32)
    whole = np.concatenate([*speech.gated([samples])])
    times_s = np.arange(len(samples)) / SAMPLE_RATE_HZ
    assert (whole[speech.at(times_s)] == 1).all()
    silent = ~speech.at(times_s) & ~speech.at(times_s - FADE_S) & ~speech.at(times_s + FADE_S)
    assert (whole[silent] == 0).all()
    assert silent.mean() > 0.4
    assert np.abs(np.diff(whole)).max() <= 1.01 / FADE_S / SAMPLE_RATE_HZ
    pieces: Iterable[Float32Array] = [samples[:7], samples[7:20_000], samples[20_000:]]
    assert np.array_equal(np.concatenate([*speech.gated(pieces)]), whole)
    assert not np.concatenate([*Speech(()).gated([samples])]).any()


class Louder:
    """Stands in for the audio encoder: each feature is the level of its moment."""

    def __call__(self, mel: Float32Array) -> Float32Array:
        return mel.mean(axis=1)[:, ::2, None, None]


@pytest.mark.parametrize("silence", ["closed", "model"])
def test_where_nobody_speaks_the_model_gets_silence(tmp_path: Path, silence: Silence) -> None:
    """The same windows as beyond the recording's end, though music goes on; where somebody speaks, both are heard."""
    speech = np.pad(sentence(), 2 * SAMPLE_RATE_HZ)
    path = write_samples(tmp_path / "music.wav", 0.5 * (speech + hum(len(speech), 0.02)), SAMPLE_RATE_HZ)
    tracks, options = SpeechTracks((SoundPiece(path),)), SyncOptions(silence=silence)
    with closing(OpenSpeech(tracks, Louder(), mel_filters(), options)) as opened:
        times_s = [Fraction(0.5), Fraction(3), Fraction(len(speech) / SAMPLE_RATE_HZ - 1), Fraction(1000)]
        before, spoken, after, beyond = opened.windows(0, times_s)
    assert np.array_equal(before, beyond) == np.array_equal(after, beyond) == (silence == "closed")
    assert spoken.min() > beyond.max() + 0.3


def test_a_recording_without_speech_is_named(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "music.wav", hum(SAMPLE_RATE_HZ, 0.1), SAMPLE_RATE_HZ)
    with closing(OpenSpeech(SpeechTracks((SoundPiece(path),)), Louder(), mel_filters(), SyncOptions())) as opened:
        (notice,) = opened.notices
    assert "music.wav: no speech found" in notice and "--silence model" in notice
