"""The speech to train on: synthetic recordings with pauses, echo, equalization and noise, each made
from its seed.

espeak-ng (GPL 3) speaks; nothing of it is shipped. The library comes from the package
espeakng-loader, whose version determines the audio.
"""

import ctypes
import multiprocessing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import espeakng_loader
import numpy as np
from numpy.typing import NDArray

from latentsync_trt.audio.mel import SAMPLE_RATE_HZ, computed_filters, log_power_blocks
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.types import BoolArray, Float32Array, UInt8Array
from scripts.train_demo.visemes import MouthTrack, Phoneme, mouth_track

Int64Array = NDArray[np.int64]

SAMPLES_PER_FRAME = SAMPLE_RATE_HZ // MODEL_FPS
MEL_PER_FRAME = 4  # 100 spectrogram columns and 25 frames a second
LOWEST = -10.0
STEPS_PER_DECADE = 10
RANGE_DECADES = 8.0  # whisper clips a recording this far below its loudest value
VARIANTS = (
    *(
        "f1",
        "f2",
        "f4",
        "f5",
        "m1",
        "m2",
        "m3",
        "m4",
        "m5",
        "m7",
        "m8",
        "klatt",
        "klatt2",
        "klatt3",
    ),
    *(
        "Andy",
        "Annie",
        "Alicia",
        "Gene",
        "Lee",
        "Mario",
        "Michael",
        "linda",
        "john",
        "max",
        "quincy",
        "steph",
    ),
)

_LENGTH_S = (5.0, 24.0)
_PAUSE_S = (0.12, 1.4)
_WORDS_PER_MINUTE = (110, 230)
_PITCH = (15, 85)
_PITCH_RANGE = (25, 80)
# share of recordings without speech: only background noise, and the mouth stays shut
_SILENT_SHARE = 0.04
_PEAK = 0.5
_GAIN_DB = (-18.0, 4.0)
_NOISE_DB = (-55.0, -18.0)
_NOISY_SHARE = 0.6
_ECHO_SHARE = 0.4
_EQUALIZED_SHARE = 0.6
_ECHO_S = (0.05, 0.35)
_EQUALIZER_DB = 10.0
_EQUALIZER_POINTS = 7
_RANDOM_WORDS_SHARE = 0.6
_RANDOM_WORDS = (3, 11)

SENTENCES = dict[str, list[str]]()  # by espeak-ng's codes of languages; written for this project
for _line in Path(__file__).with_name("sentences.txt").read_text("utf-8").splitlines():
    if _line.startswith("["):
        SENTENCES[_line[1:-1]] = []
    else:
        SENTENCES[next(reversed(SENTENCES))].append(_line)


_SYNCHRONOUS = 2
_PHONEME_EVENTS = 0x1
_IPA = 0x2
_DONT_EXIT = 0x8000
_WORD_EVENT = 1
_PHONEME_EVENT = 7
_UTF8 = 1
_SET_RATE = 1
_SET_PITCH = 3
_SET_PITCH_RANGE = 4
_FULL_SCALE = np.float32(32768)


@dataclass(frozen=True, slots=True)
class Voice:
    """espeak-ng's language and voice variant, words per minute, pitch and its range (0 to 100)."""

    language: str
    variant: str
    words_per_minute: int = 165
    pitch: int = 50
    pitch_range: int = 50


@dataclass(frozen=True, slots=True, eq=False)
class Utterance:
    """`samples (n,)` float32, full scale ±1, at `rate_hz`; phonemes in order, without gaps; each
    word of the text with the second at which it begins.
    """

    samples: Float32Array
    rate_hz: int
    phonemes: tuple[Phoneme, ...]
    words: tuple[tuple[str, float], ...]


class _Id(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _numbers = ("type", "unique_identifier", "text_position", "length", "audio_position", "sample")
    _fields_ = (
        *((name, ctypes.c_int) for name in _numbers),
        ("user_data", ctypes.c_void_p),
        ("id", _Id),
    )


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


class Speaker:
    """espeak-ng. Its state is global to the process and carries over from sentence to sentence.

    Samples are reproducible only for the same calls in the same order in a new process.
    """

    def __init__(self, seed: int = 0) -> None:
        """Raises `RuntimeError` if the library does not start."""
        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        flags = _PHONEME_EVENTS | _IPA | _DONT_EXIT
        data = str(espeakng_loader.get_data_path()).encode()
        self.rate_hz = int(self._library.espeak_Initialize(_SYNCHRONOUS, 0, data, flags))
        if self.rate_hz <= 0:
            raise RuntimeError(
                "espeak-ng failed to start with the data in "
                f"{data.decode()}; reinstall espeakng-loader"
            )
        self._library.espeak_ng_SetRandSeed(ctypes.c_long(seed))
        self._pieces: list[Float32Array] = []
        self._events: list[tuple[int, str]] = []
        self._words: list[tuple[int, int, int]] = []
        # The library keeps the pointer, so the callback must live as long as this object.
        self._callback = _Callback(self._collect)
        self._library.espeak_SetSynthCallback(self._callback)

    def say(self, text: str, voice: Voice) -> Utterance:
        """Speaks `text`; raises `ValueError` if espeak-ng does not know the voice or makes no sound
        of the text.
        """
        name = f"{voice.language}+{voice.variant}"
        if self._library.espeak_SetVoiceByName(name.encode()) != 0:
            raise ValueError(f"espeak-ng has no voice {name}")
        self._library.espeak_SetParameter(_SET_RATE, voice.words_per_minute, 0)
        self._library.espeak_SetParameter(_SET_PITCH, voice.pitch, 0)
        self._library.espeak_SetParameter(_SET_PITCH_RANGE, voice.pitch_range, 0)
        self._pieces.clear()
        self._events.clear()
        self._words.clear()
        encoded = text.encode()
        self._library.espeak_Synth(encoded, len(encoded) + 1, 0, 0, 0, _UTF8, None, None)
        self._library.espeak_Synchronize()
        if not self._pieces:
            raise ValueError(f"espeak-ng produced no audio for “{text}”")
        samples = np.concatenate(self._pieces)
        ends = [start for start, _ in self._events[1:]] + [len(samples)]
        phonemes = (
            Phoneme(symbol, start / self.rate_hz, max(start, end) / self.rate_hz)
            for (start, symbol), end in zip(self._events, ends, strict=True)
        )
        words = (
            (text[place - 1 : place - 1 + length], start / self.rate_hz)
            for place, length, start in self._words
        )
        return Utterance(samples, self.rate_hz, tuple(phonemes), tuple(words))

    def _collect(self, samples: Any, count: int, events: Any) -> int:
        if samples and count:
            self._pieces.append(
                np.ctypeslib.as_array(samples, (count,)).astype(np.float32) / _FULL_SCALE
            )
        index = 0
        while events[index].type:
            event = events[index]
            if event.type == _PHONEME_EVENT:
                self._events.append((event.sample, event.id.string.decode()))
            elif event.type == _WORD_EVENT:
                self._words.append((event.text_position, event.length, event.sample))
            index += 1
        return 0


@dataclass(frozen=True, slots=True, eq=False)
class Speech:
    """Recordings end to end.

    `power (80, 4·n)` uint8: log10 of the mel power in tenths above 1e-10; `peaks (r,)` float32:
    each recording's largest log10; `track (n, 5)` float32, `shut`, `silent` `(n,)` as in
    `MouthTrack`; `starts (r + 1,)`: first frames.
    """

    power: UInt8Array
    peaks: Float32Array
    track: Float32Array
    shut: BoolArray
    silent: BoolArray
    starts: Int64Array

    def __len__(self) -> int:
        return len(self.peaks)

    def frames(self, index: int) -> int:
        """Number of frames of recording `index`."""
        return int(self.starts[index + 1] - self.starts[index])


def synthesize(seeds: range, processes: int) -> Speech:
    """Synthesizes one recording per seed in `processes` processes; the result depends on the seeds
    alone.

    Every recording has a process of its own, since espeak-ng's output depends on what it spoke
    before.
    """
    # Forks share what is loaded, PyTorch as well; Windows has none.
    methods = multiprocessing.get_all_start_methods()
    method = "fork" if "fork" in methods else "spawn"
    work = partial(_spectrogram, computed_filters())
    with multiprocessing.get_context(method).Pool(processes, maxtasksperchild=1) as pool:
        powers, peaks, tracks = zip(*pool.imap(work, seeds), strict=True)
    return Speech(
        np.concatenate(powers, axis=1),
        np.array(peaks, np.float32),
        # Halves, as the shipped weights were trained on.
        np.concatenate([track.values() for track in tracks]).astype(np.float16).astype(np.float32),
        np.concatenate([track.shut for track in tracks]),
        np.concatenate([track.silent for track in tracks]),
        np.cumsum([0, *map(len, tracks)]),
    )


def _spectrogram(filters: Float32Array, seed: int) -> tuple[UInt8Array, float, MouthTrack]:
    """A recording's mel power as in `Speech`, its largest log10, and the mouth."""
    samples, track = record(Speaker(seed), seed)
    log_power = np.concatenate(list(log_power_blocks([samples], filters)), axis=1)
    steps = np.rint((log_power - LOWEST) * STEPS_PER_DECADE)
    return np.clip(steps, 0, 255).astype(np.uint8), float(log_power.max()), track


def record(speaker: Speaker, seed: int) -> tuple[Float32Array, MouthTrack]:
    """Samples `(n,)` at 16 kHz, a whole number of frames, and the mouth that belongs to them."""
    generator = np.random.Generator(np.random.PCG64([seed, 0]))
    voice = Voice(
        str(generator.choice(list(SENTENCES))),
        str(generator.choice(VARIANTS)),
        int(generator.integers(*_WORDS_PER_MINUTE)),
        int(generator.integers(*_PITCH)),
        int(generator.integers(*_PITCH_RANGE)),
    )
    length_s = generator.uniform(*_LENGTH_S)
    if generator.random() < _SILENT_SHARE:
        dry = np.zeros(int(length_s * SAMPLE_RATE_HZ), np.float32)
        phonemes = list[Phoneme]()
    else:
        dry, phonemes = _sentences(speaker, generator, voice, length_s)
    frames = -(-len(dry) // SAMPLES_PER_FRAME)
    dry = np.pad(dry, (0, frames * SAMPLES_PER_FRAME - len(dry)))
    return _degraded(generator, dry), mouth_track(phonemes, frames / MODEL_FPS)


def _sentences(
    speaker: Speaker, generator: np.random.Generator, voice: Voice, length_s: float
) -> tuple[Float32Array, list[Phoneme]]:
    """Sentences with pauses around them, at least `length_s` long, with peaks at `_PEAK`."""
    pieces = list[Float32Array]()
    phonemes = list[Phoneme]()
    time_s = 0.0
    while time_s < length_s:
        pause = np.zeros(round(generator.uniform(*_PAUSE_S) * SAMPLE_RATE_HZ), np.float32)
        spoken = speaker.say(_text(generator, voice.language), voice)
        samples = _resampled(spoken.samples, spoken.rate_hz)
        samples *= np.float32(_PEAK) / max(float(np.abs(samples).max()), 1e-6)
        start_s = time_s + len(pause) / SAMPLE_RATE_HZ
        phonemes += [
            Phoneme(p.symbol, p.start_s + start_s, p.end_s + start_s) for p in spoken.phonemes
        ]
        pieces += [pause, samples.astype(np.float32)]
        time_s += (len(pause) + len(samples)) / SAMPLE_RATE_HZ
    pieces.append(np.zeros(round(generator.uniform(*_PAUSE_S) * SAMPLE_RATE_HZ), np.float32))
    return np.concatenate(pieces), phonemes


def _text(generator: np.random.Generator, language: str) -> str:
    """A sentence, or random words from all of a language, for more combinations of sounds."""
    sentences = SENTENCES[language]
    if generator.random() >= _RANDOM_WORDS_SHARE:
        return sentences[generator.integers(len(sentences))]
    words = (word.strip(".,:;!?¿") for sentence in sentences for word in sentence.split())
    known = [word for word in dict.fromkeys(words) if word]
    count = int(generator.integers(*_RANDOM_WORDS))
    return " ".join(known[index] for index in generator.integers(len(known), size=count)) + "."


def _resampled(samples: Float32Array, rate_hz: int) -> Float32Array:
    """Resamples to 16 kHz by truncating the spectrum; padding keeps the end from wrapping around to
    the start.
    """
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
    noise = _equalized(
        generator, generator.standard_normal(len(sound)).astype(np.float32), 2 * _EQUALIZER_DB
    )
    loudness = float(np.abs(sound).max()) or _PEAK
    scale = loudness * 10 ** (level_db / 20) / max(float(noise.std()), 1e-9)
    return np.clip(sound + np.float32(scale) * noise, -1, 1).astype(np.float32)


def _with_echo(generator: np.random.Generator, sound: Float32Array) -> Float32Array:
    decay_s = generator.uniform(*_ECHO_S)
    time = np.arange(int(2 * decay_s * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
    echo = generator.standard_normal(len(time)) * np.exp(-3 * time / decay_s)
    echo *= generator.uniform(0.1, 0.6) / np.sqrt((echo**2).sum())
    echo[0] = 1.0
    size = 1 << (len(sound) + len(echo) - 1).bit_length()
    both = np.fft.irfft(np.fft.rfft(sound, size) * np.fft.rfft(echo, size), size)
    return both[: len(sound)].astype(np.float32)


def _equalized(
    generator: np.random.Generator, sound: Float32Array, spread_db: float
) -> Float32Array:
    """Applies a smooth random zero-phase filter."""
    size = 1 << (len(sound) - 1).bit_length()
    position = np.linspace(0, 1, size // 2 + 1) ** 0.5 * (_EQUALIZER_POINTS - 1)
    gain_db = np.interp(
        position,
        np.arange(_EQUALIZER_POINTS),
        generator.normal(0, spread_db / 2, _EQUALIZER_POINTS),
    )
    filtered = np.fft.irfft(np.fft.rfft(sound, size) * 10 ** (gain_db / 20), size)
    return filtered[: len(sound)].astype(np.float32)
