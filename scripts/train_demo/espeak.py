"""Speech and the times of its phonemes from espeak-ng.

espeak-ng (GPL 3) only generates training audio; nothing of it is shipped. The library comes from the package
espeakng-loader, whose version determines the audio.
"""

import ctypes
from dataclasses import dataclass

import espeakng_loader
import numpy as np

from latentsync_trt.types import Float32Array
from scripts.train_demo.visemes import Phoneme

_SYNCHRONOUS = 2
_PHONEME_EVENTS, _IPA, _DONT_EXIT = 0x1, 0x2, 0x8000
_PHONEME_EVENT = 7
_UTF8 = 1
_RATE, _PITCH, _PITCH_RANGE = 1, 3, 4
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
    """`samples (n,)` float32, full scale ±1, at `rate_hz`; phonemes in order, without gaps."""

    samples: Float32Array
    rate_hz: int
    phonemes: tuple[Phoneme, ...]


class _Id(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Id),
    )


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


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
            raise RuntimeError(f"espeak-ng failed to start with the data in {data.decode()}; reinstall espeakng-loader")
        self._library.espeak_ng_SetRandSeed(ctypes.c_long(seed))
        self._pieces: list[Float32Array] = []
        self._events: list[tuple[int, str]] = []
        # The library keeps the pointer, so the callback must live as long as this object.
        self._callback = _Callback(self._collect)
        self._library.espeak_SetSynthCallback(self._callback)

    def say(self, text: str, voice: Voice) -> Utterance:
        """Speaks `text`.

        Raises:
            ValueError: espeak-ng does not know the voice, or produces no audio for the text.
        """
        name = f"{voice.language}+{voice.variant}"
        if self._library.espeak_SetVoiceByName(name.encode()) != 0:
            raise ValueError(f"espeak-ng has no voice {name}")
        self._library.espeak_SetParameter(_RATE, voice.words_per_minute, 0)
        self._library.espeak_SetParameter(_PITCH, voice.pitch, 0)
        self._library.espeak_SetParameter(_PITCH_RANGE, voice.pitch_range, 0)
        self._pieces.clear()
        self._events.clear()
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
        return Utterance(samples, self.rate_hz, tuple(phonemes))

    def _collect(
        self, samples: "ctypes._Pointer[ctypes.c_short]", count: int, events: "ctypes._Pointer[_Event]"
    ) -> int:
        if samples and count:
            self._pieces.append(np.ctypeslib.as_array(samples, (count,)).astype(np.float32) / _FULL_SCALE)
        index = 0
        while events[index].type:
            event = events[index]
            if event.type == _PHONEME_EVENT:
                self._events.append((event.sample, event.id.string.decode()))
            index += 1
        return 0
