"""Synthetic recordings of speech with pauses, echo, equalization and noise; each is determined by its seed."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from latentsync_trt.audio.mel import SAMPLE_RATE_HZ
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.types import Float32Array
from scripts.train_demo.espeak import Speaker, Voice
from scripts.train_demo.texts import HELD_OUT, TRAINING, draw_text
from scripts.train_demo.visemes import MouthTrack, Phoneme, mouth_track

Split = Literal["train", "held-out"]

SAMPLES_PER_FRAME = SAMPLE_RATE_HZ // MODEL_FPS

TRAINING_VARIANTS = (
    *("f1", "f2", "f4", "f5", "m1", "m2", "m3", "m4", "m5", "m7", "m8", "klatt", "klatt2", "klatt3"),
    *("Andy", "Annie", "Alicia", "Gene", "Lee", "Mario", "Michael", "linda", "john", "max", "quincy", "steph"),
)
HELD_OUT_VARIANTS = ("f3", "m6", "belinda", "paul")

_LENGTH_S = (5.0, 24.0)
_PAUSE_S = (0.12, 1.4)
_WORDS_PER_MINUTE = (110, 230)
_PITCH = (15, 85)
_PITCH_RANGE = (25, 80)
_SILENT_SHARE = 0.04
"""Share of recordings without speech: only background noise, and the mouth stays shut."""

_PEAK = 0.5
_GAIN_DB = (-18.0, 4.0)
_NOISE_DB = (-55.0, -18.0)
_NOISY_SHARE, _ECHO_SHARE, _EQUALIZED_SHARE = 0.6, 0.4, 0.6
_ECHO_S = (0.05, 0.35)
_EQUALIZER_DB, _EQUALIZER_POINTS = 10.0, 7


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """`samples (n,)` float32 at 16 kHz, a whole number of frames; the mouth, voice and phonemes that belong to them."""

    samples: Float32Array
    track: MouthTrack
    voice: Voice
    phonemes: tuple[Phoneme, ...]


def record(speaker: Speaker, seed: int, split: Split) -> Recording:
    """The recording with this seed; the two splits share no sentence, voice variant or random numbers."""
    generator = np.random.Generator(np.random.PCG64([seed, int(split == "held-out")]))
    voice = _draw_voice(generator, split)
    length_s = generator.uniform(*_LENGTH_S)
    if generator.random() < _SILENT_SHARE:
        dry, phonemes = np.zeros(int(length_s * SAMPLE_RATE_HZ), np.float32), []
    else:
        dry, phonemes = _speak_sentences(speaker, generator, voice, split, length_s)
    clean = _recording(dry, voice, phonemes)
    return replace(clean, samples=_degraded(generator, clean.samples))


def say(speaker: Speaker, text: str, voice: Voice, *, pause_s: float = 0.2) -> Recording:
    """One sentence without noise, with a pause before and after it."""
    samples, phonemes = _speak_sentence(speaker, text, voice, pause_s)
    rest = np.zeros(round(pause_s * SAMPLE_RATE_HZ), np.float32)
    return _recording(np.concatenate([rest, samples, rest]), voice, phonemes)


def _recording(samples: Float32Array, voice: Voice, phonemes: list[Phoneme]) -> Recording:
    """Pads to whole frames and adds the mouth."""
    frames = -(-len(samples) // SAMPLES_PER_FRAME)
    samples = np.pad(samples, (0, frames * SAMPLES_PER_FRAME - len(samples)))
    return Recording(samples, mouth_track(phonemes, frames / MODEL_FPS), voice, tuple(phonemes))


def _draw_voice(generator: np.random.Generator, split: Split) -> Voice:
    texts = TRAINING if split == "train" else HELD_OUT
    variants = TRAINING_VARIANTS if split == "train" else HELD_OUT_VARIANTS
    return Voice(
        str(generator.choice(list(texts))),
        str(generator.choice(variants)),
        int(generator.integers(*_WORDS_PER_MINUTE)),
        int(generator.integers(*_PITCH)),
        int(generator.integers(*_PITCH_RANGE)),
    )


def _speak_sentences(
    speaker: Speaker, generator: np.random.Generator, voice: Voice, split: Split, length_s: float
) -> tuple[Float32Array, list[Phoneme]]:
    """Sentences with pauses between them, at least `length_s` long, with peaks at `_PEAK`."""
    pieces: list[Float32Array] = []
    phonemes: list[Phoneme] = []
    time_s = 0.0
    while time_s < length_s:
        pause = np.zeros(round(generator.uniform(*_PAUSE_S) * SAMPLE_RATE_HZ), np.float32)
        if split == "train":
            text = draw_text(generator, voice.language)
        else:
            text = str(generator.choice(HELD_OUT[voice.language]))
        samples, spoken = _speak_sentence(speaker, text, voice, time_s + len(pause) / SAMPLE_RATE_HZ)
        pieces += [pause, samples]
        phonemes += spoken
        time_s += (len(pause) + len(samples)) / SAMPLE_RATE_HZ
    pieces.append(np.zeros(round(generator.uniform(*_PAUSE_S) * SAMPLE_RATE_HZ), np.float32))
    return np.concatenate(pieces), phonemes


def _speak_sentence(speaker: Speaker, text: str, voice: Voice, start_s: float) -> tuple[Float32Array, list[Phoneme]]:
    spoken = speaker.say(text, voice)
    samples = _resampled(spoken.samples, spoken.rate_hz)
    samples *= np.float32(_PEAK) / max(float(np.abs(samples).max()), 1e-6)
    phonemes = [Phoneme(p.symbol, p.start_s + start_s, p.end_s + start_s) for p in spoken.phonemes]
    return samples.astype(np.float32), phonemes


def _resampled(samples: Float32Array, rate_hz: int) -> Float32Array:
    """Resamples to 16 kHz by truncating the spectrum; padding keeps the end from wrapping around to the start."""
    margin = rate_hz // 10
    length = -(-(len(samples) + margin) // rate_hz) * rate_hz
    size = length * SAMPLE_RATE_HZ // rate_hz
    spectrum = np.fft.rfft(np.pad(samples, (0, length - len(samples))))[: size // 2 + 1]
    whole = np.fft.irfft(spectrum, size) * (size / length)
    return whole[: len(samples) * SAMPLE_RATE_HZ // rate_hz].astype(np.float32)


def _degraded(generator: np.random.Generator, dry: Float32Array) -> Float32Array:
    """Adds echo, equalization, gain and noise at random, without delay."""
    sound = dry
    if generator.random() < _ECHO_SHARE:
        sound = _with_echo(generator, sound)
    if generator.random() < _EQUALIZED_SHARE:
        sound = _equalized(generator, sound, _EQUALIZER_DB)
    sound = sound * np.float32(10 ** (generator.uniform(*_GAIN_DB) / 20))
    noisy = generator.random() < _NOISY_SHARE
    level_db = generator.uniform(*_NOISE_DB) if noisy else _NOISE_DB[0] - 25
    noise = _equalized(generator, generator.standard_normal(len(sound)).astype(np.float32), 2 * _EQUALIZER_DB)
    loudness = float(np.abs(sound).max()) or _PEAK
    scale = loudness * 10 ** (level_db / 20) / max(float(noise.std()), 1e-9)
    return np.clip(sound + np.float32(scale) * noise, -1, 1).astype(np.float32)


def _with_echo(generator: np.random.Generator, sound: Float32Array) -> Float32Array:
    """Adds an exponentially decaying echo."""
    decay_s = generator.uniform(*_ECHO_S)
    time = np.arange(int(2 * decay_s * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
    echo = generator.standard_normal(len(time)) * np.exp(-3 * time / decay_s)
    echo *= generator.uniform(0.1, 0.6) / np.sqrt((echo**2).sum())
    echo[0] = 1.0
    size = 1 << (len(sound) + len(echo) - 1).bit_length()
    product = np.fft.irfft(np.fft.rfft(sound, size) * np.fft.rfft(echo, size), size)
    return product[: len(sound)].astype(np.float32)


def _equalized(generator: np.random.Generator, sound: Float32Array, spread_db: float) -> Float32Array:
    """Applies a smooth random zero-phase filter."""
    size = 1 << (len(sound) - 1).bit_length()
    position = np.linspace(0, 1, size // 2 + 1) ** 0.5 * (_EQUALIZER_POINTS - 1)
    gain_db = np.interp(position, np.arange(_EQUALIZER_POINTS), generator.normal(0, spread_db / 2, _EQUALIZER_POINTS))
    filtered = np.fft.irfft(np.fft.rfft(sound, size) * 10 ** (gain_db / 20), size)
    return filtered[: len(sound)].astype(np.float32)
