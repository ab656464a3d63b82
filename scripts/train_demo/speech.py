"""The speech to train on, as one small file: spectrograms in steps of 1 dB, and mouth tracks.

`synthesis` makes the file, so that the training machine needs neither espeak-ng nor an audio decoder.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from latentsync_trt.types import Float32Array, UInt8Array
from scripts.train_demo.visemes import MouthTrack

MEL_PER_FRAME = 4
"""100 spectrogram columns and 25 frames a second."""

LOWEST = -10.0
STEPS_PER_DECADE = 10
RANGE_DECADES = 8.0
"""Whisper clips a recording this far below its loudest value."""


@dataclass(frozen=True, slots=True, eq=False)
class Speech:
    """Recordings end to end.

    `power (80, 4·n)` uint8: log10 of the mel power in tenths above 1e-10; `peaks (r,)` float32: each recording's
    largest log10; `track (n, 3)` float32, `shut`, `silent` `(n,)` as in `MouthTrack`; `starts (r + 1,)`: first frames.
    """

    power: UInt8Array
    peaks: Float32Array
    track: Float32Array
    shut: NDArray[np.bool_]
    silent: NDArray[np.bool_]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.peaks)

    def frames(self, index: int) -> int:
        """Number of frames of recording `index`."""
        return int(self.starts[index + 1] - self.starts[index])

    def mouth(self, index: int) -> MouthTrack:
        """The mouth of recording `index`."""
        frames = slice(self.starts[index], self.starts[index + 1])
        columns = self.track[frames].T
        return MouthTrack(columns[0], columns[1], columns[2], self.shut[frames], self.silent[frames])

    def mel(self, index: int) -> Float32Array:
        """The audio encoder's input for recording `index`, float32 `(80, 4·frames)`."""
        columns = self.power[:, self.starts[index] * MEL_PER_FRAME : self.starts[index + 1] * MEL_PER_FRAME]
        log_power = columns.astype(np.float32) / STEPS_PER_DECADE + LOWEST
        return (np.maximum(log_power, self.peaks[index] - RANGE_DECADES) + 4) / np.float32(4)

    def save(self, path: Path) -> None:
        """Writes the speech as differences along time, which compress well."""
        steps = np.diff(self.power, axis=1, prepend=np.zeros((len(self.power), 1), np.uint8))
        flags = np.packbits(np.stack([self.shut, self.silent]), axis=1)
        np.savez_compressed(
            path, steps=steps, peaks=self.peaks, track=self.track.astype(np.float16), flags=flags, starts=self.starts
        )


def load_speech(path: Path) -> Speech:
    """Reads what `Speech.save` wrote."""
    with np.load(path) as stored:
        count = int(stored["starts"][-1])
        shut, silent = np.unpackbits(stored["flags"], axis=1, count=count).astype(np.bool_)
        power = np.cumsum(stored["steps"], axis=1, dtype=np.uint8)
        return Speech(power, stored["peaks"], stored["track"].astype(np.float32), shut, silent, stored["starts"])
