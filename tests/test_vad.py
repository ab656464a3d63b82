"""Voice activity: when somebody speaks, and silence between."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, closing
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latentsync_trt.audio.mel import SAMPLE_RATE_HZ
from latentsync_trt.audio.vad import (
    AFTER_S,
    BEFORE_S,
    LEAST_PAUSE_S,
    SPEECH_FADE_S,
    STEP_S,
    Speech,
    VoiceActivity,
    find_speech,
    speech_spans,
    steps_of,
)
from latentsync_trt.config import MODEL_FPS, Silence, SyncOptions
from latentsync_trt.media.demo_clip import SPEECH
from latentsync_trt.media.sound_pieces import SoundPiece
from latentsync_trt.sync.sound import Sound
from latentsync_trt.sync.speech import OpenSpeech
from latentsync_trt.types import Float32Array, within
from scripts.train_demo.score import spoken_mouth
from tests.clips import read_audio
from tests.sounds import mel_filters, write_samples


@cache
def sentence() -> Float32Array:
    return read_audio(SPEECH)


def hum(samples: int, level: float) -> Float32Array:
    """A chord, as music under speech."""
    times_s = np.arange(samples) / SAMPLE_RATE_HZ
    return sum(level * np.sin(2 * np.pi * hz * times_s) for hz in (220.0, 261.6, 329.6)).astype(
        np.float32
    )  # type: ignore[union-attr]


def noise(samples: int, level: float) -> Float32Array:
    return np.random.default_rng(2).normal(0, level, samples).astype(np.float32)


@pytest.mark.parametrize("under", ["nothing", "noise", "music"])
def test_speech_is_found_alone_and_over_noise_and_music(under: str) -> None:
    samples = np.pad(sentence(), SAMPLE_RATE_HZ)
    level = 10 ** (-10 / 20) * float(sentence().std())
    below = {"nothing": noise, "noise": noise, "music": hum}[under](
        len(samples), 0 if under == "nothing" else level
    )
    speech = find_speech(lambda: np.array_split(samples + below, 7))
    mouth = spoken_mouth()
    opened = 1 + np.flatnonzero(mouth.opening > 0.1) / MODEL_FPS
    assert within(opened, speech.spans_s).mean() > 0.99
    rest = np.arange(0, 0.95, 0.04)
    assert not within(rest, speech.spans_s).any()
    assert within(len(samples) / SAMPLE_RATE_HZ - rest, speech.spans_s).mean() < 0.2


@pytest.mark.parametrize("level_db", [0, -60])
def test_nobody_speaks_in_noise_music_and_silence_at_any_level(level_db: int) -> None:
    seconds = 4 * SAMPLE_RATE_HZ
    gain = 10 ** (level_db / 20)
    for sound in (np.zeros(seconds), noise(seconds, 0.1), hum(seconds, 0.2), np.zeros(1)):
        quiet = in_16_bits((gain * sound).astype(np.float32))
        assert find_speech(lambda quiet=quiet: [quiet]).spans_s == ()  # type: ignore[misc]
    assert not find_speech(list).spans_s
    assert "no speech found" in str(find_speech(lambda: [hum(seconds, 0.1)]).notice)
    room = in_16_bits(
        np.concatenate([sentence(), noise(10 * SAMPLE_RATE_HZ, 0.1 * gain), sentence()])
    )
    pause_s = np.arange(1, 9, 0.1) + len(sentence()) / SAMPLE_RATE_HZ
    assert not within(pause_s, find_speech(lambda: [room]).spans_s).any()


def kept(quiet: Float32Array, from_s: float = 0, full: Float32Array | None = None) -> float:
    """The share of what is speech in the sentence at its full level that is speech in `quiet` too,
    from there on.
    """
    loud = sentence() if full is None else full
    times_s = np.arange(0, len(loud) / SAMPLE_RATE_HZ, 0.01)
    times_s = times_s[within(times_s, find_speech(lambda: [loud]).spans_s)]
    return float(within(times_s + from_s, find_speech(lambda: [quiet]).spans_s).mean())


def in_16_bits(samples: Float32Array) -> Float32Array:
    return (np.rint(samples * 32768) / 32768).astype(np.float32)


@pytest.mark.parametrize(
    "name", ["the demo's", "demo1_audio.wav", "demo2_audio.wav", "demo3_audio.wav"]
)
@pytest.mark.parametrize(("level_db", "least_in_16_bits"), [(-30, 0.98), (-60, 0.92)])
def test_speech_is_found_at_any_level(
    request: pytest.FixtureRequest, name: str, level_db: int, least_in_16_bits: float
) -> None:
    """16 bits leave 20 dB between speech at −60 dB and their rounding."""
    if name == "the demo's":
        full = sentence()
    else:
        full = read_audio(request.getfixturevalue("assets") / name)
    quiet = full * np.float32(10 ** (level_db / 20))
    assert kept(quiet, full=full) == 1
    assert kept(in_16_bits(quiet), full=full) >= least_in_16_bits


def test_quiet_speech_is_found_beside_louder_sounds() -> None:
    """A cough, other speech, a long pause with room noise: their level does not decide."""
    cough = (
        0.9
        * noise(SAMPLE_RATE_HZ // 4, 1).clip(-1, 1)
        * np.exp(-np.arange(SAMPLE_RATE_HZ // 4) / 1500)
    )
    quiet = np.float32(1e-3) * sentence()
    assert kept(np.concatenate([cough.astype(np.float32), quiet]), 0.25) > 0.9
    assert kept(np.concatenate([sentence(), 3 * quiet]), len(sentence()) / SAMPLE_RATE_HZ) > 0.8
    pause = np.zeros(30 * SAMPLE_RATE_HZ, np.float32)
    room = np.concatenate([pause, quiet, pause]) + noise(2 * len(pause) + len(quiet), 5e-6)
    assert kept(room, 30) > 0.9


def test_sound_as_loud_as_speech_that_is_silenced_is_named() -> None:
    """Music, with what makes the mouth follow it; coughs, soft music and silence are nothing to
    speak of.
    """
    speech = sentence()
    music = 2 * hum(3 * SAMPLE_RATE_HZ, 0.04)
    for level_db in (0, -40):
        gain = np.float32(10 ** (level_db / 20))
        notice = str(find_speech(lambda gain=gain: [gain * speech, gain * music]).notice)  # type: ignore[misc]
        assert "3.1 s " in notice and " 5.1 s " in notice
    assert find_speech(lambda: [speech, music / 20, speech]).notice is None
    assert "--silence" not in str(find_speech(lambda: [0 * speech]).notice)  # which would not help


def test_what_the_network_remembers_goes_on_from_run_to_run() -> None:
    (parts,) = steps_of([sentence()])
    gains = np.ones(len(parts))
    with closing(VoiceActivity()) as whole, closing(VoiceActivity()) as pieces:
        expected = whole.chances(parts, gains)
        found = [
            pieces.chances(parts[at : at + 7], gains[at : at + 7]) for at in range(0, len(parts), 7)
        ]
    assert np.allclose(np.concatenate(found), expected, atol=1e-5)


def steps(*parts: tuple[float, float]) -> Float32Array:
    """Probabilities that last for some seconds each."""
    stretches = (
        np.full(round(length_s / STEP_S), chance, np.float32) for chance, length_s in parts
    )
    return np.concatenate([np.zeros(0, np.float32), *stretches])


def test_speech_lasts_through_short_dips_and_pauses_and_clicks_are_none() -> None:
    dip = (0.4, 0.2)
    pause = (0.1, 0.15)
    click = (0.9, 0.06)
    chances = steps(
        (0.1, 1), (0.9, 0.5), dip, (0.9, 0.5), pause, (0.9, 0.5), (0.1, 1), click, (0.1, 1)
    )
    assert len(speech_spans(chances)) == 1
    start_s, end_s = speech_spans(chances)[0]
    assert abs(start_s - (1 - BEFORE_S)) < STEP_S
    assert abs(end_s - (2.85 + AFTER_S)) < 3 * STEP_S
    assert len(speech_spans(steps((0.9, 1), (0.1, LEAST_PAUSE_S + STEP_S), (0.9, 1)))) == 2
    assert speech_spans(steps((0.2, 1), (0.45, 1), (0.2, 1))) == ()  # never certain


def test_pauses_become_silent_with_soft_borders_and_speech_stays_as_it_is() -> None:
    speech = Speech(((-0.05, 0.5), (1.0, 1.5)))
    samples = np.ones(2 * SAMPLE_RATE_HZ, np.float32)
    whole = np.concatenate([*speech.gated([samples])])
    times_s = np.arange(len(samples)) / SAMPLE_RATE_HZ
    now, later, earlier = (
        within(times_s + by_s, speech.spans_s) for by_s in (0, SPEECH_FADE_S, -SPEECH_FADE_S)
    )
    assert (whole[now] == 1).all()
    silent = ~now & ~later & ~earlier
    assert (whole[silent] == 0).all()
    assert silent.mean() > 0.4
    assert np.abs(np.diff(whole)).max() <= 1.01 / SPEECH_FADE_S / SAMPLE_RATE_HZ
    pieces: Iterable[Float32Array] = [samples[:7], samples[7:20_000], samples[20_000:]]
    assert np.array_equal(np.concatenate([*speech.gated(pieces)]), whole)


def louder(mel: Float32Array) -> Float32Array:
    """Stands in for the audio encoder: each feature is the level of its moment."""
    return mel.mean(axis=1)[:, ::2, None, None]


def opened_speech(*paths: Path, **options: Any) -> AbstractContextManager[OpenSpeech]:
    sound = Sound(tuple(SoundPiece(path) for path in paths))
    return closing(OpenSpeech(sound, louder, mel_filters(), SyncOptions(**options)))


@pytest.mark.parametrize("silence", ["closed", "model"])
def test_where_nobody_speaks_the_model_gets_silence(tmp_path: Path, silence: Silence) -> None:
    """The same windows as beyond the recording's end, though music goes on; where somebody speaks,
    both are heard.
    """
    speech = np.pad(sentence(), 2 * SAMPLE_RATE_HZ)
    path = write_samples(
        tmp_path / "music.wav", 0.5 * (speech + hum(len(speech), 0.02)), SAMPLE_RATE_HZ
    )
    with opened_speech(path, silence=silence) as opened:
        times_s = [
            Fraction(0.5),
            Fraction(3),
            Fraction(len(speech) / SAMPLE_RATE_HZ - 1),
            Fraction(1000),
        ]
        before, spoken, after, beyond = opened.windows(0, times_s)
    assert np.array_equal(before, beyond) == np.array_equal(after, beyond) == (silence == "closed")
    assert spoken.min() > beyond.max() + 0.3


def test_channels_that_cancel_each_other_out_are_named(tmp_path: Path) -> None:
    """The lips get what they would get from one of them."""
    speech = np.stack([sentence(), -sentence()], axis=1)
    mono = write_samples(tmp_path / "mono.wav", speech[:, 0], SAMPLE_RATE_HZ)
    with opened_speech(
        mono, write_samples(tmp_path / "stereo.wav", speech, SAMPLE_RATE_HZ)
    ) as opened:
        (notice,) = opened.notices
        times_s = [Fraction(index, MODEL_FPS) for index in range(100)]
        assert np.array_equal(opened.windows(0, times_s), opened.windows(1, times_s))
    # of 5.1, without the silence before
    assert "stereo.wav: " in notice and " 4.8 s" in notice
