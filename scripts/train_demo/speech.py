"""The speech that the networks train on, as one small file: spectrograms in steps of 1 dB, and mouth tracks.

A training machine then needs neither espeak-ng nor an audio decoder.
"""

import multiprocessing
from dataclasses import dataclass
from functools import partial
from multiprocessing.pool import Pool
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from latentsync_trt.audio.mel import log_power_blocks
from latentsync_trt.types import Float32Array, UInt8Array
from scripts.train_demo.espeak import Speaker
from scripts.train_demo.recordings import Recording, Split, record
from scripts.train_demo.visemes import MouthTrack

MEL_PER_FRAME = 4
"""100 spectrogram columns and 25 frames a second."""

_LOWEST = -10.0
_STEPS_PER_DECADE = 10
_RANGE_DECADES = 8.0
"""Whisper cuts a recording off this far below its loudest value."""


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
        """Frames of recording `index`."""
        return int(self.starts[index + 1] - self.starts[index])

    def mouth(self, index: int) -> MouthTrack:
        """The mouth of recording `index`."""
        place = slice(self.starts[index], self.starts[index + 1])
        columns = self.track[place].T
        return MouthTrack(columns[0], columns[1], columns[2], self.shut[place], self.silent[place])

    def mel(self, index: int) -> Float32Array:
        """The audio encoder's input for recording `index`, float32 `(80, 4·frames)`."""
        columns = self.power[:, self.starts[index] * MEL_PER_FRAME : self.starts[index + 1] * MEL_PER_FRAME]
        log_power = columns.astype(np.float32) / _STEPS_PER_DECADE + _LOWEST
        return (np.maximum(log_power, self.peaks[index] - _RANGE_DECADES) + 4) / np.float32(4)

    def save(self, path: Path) -> None:
        """Writes the speech; differences along time are small numbers, which pack well."""
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


def make_speech(seeds: range, split: Split, processes: int) -> Speech:
    """Records all `seeds`, so many at once; the result depends on the seeds alone.

    Every recording has a process of its own, since espeak-ng remembers what it said before.
    """
    with fresh_processes(processes) as pool:
        made = [_stored(recording) for recording in pool.imap(partial(_record, split), seeds)]
    powers, peaks, tracks = zip(*made, strict=True)
    return Speech(
        np.concatenate(powers, axis=1),
        np.array(peaks, np.float32),
        np.concatenate([track.values() for track in tracks]),
        np.concatenate([track.shut for track in tracks]),
        np.concatenate([track.silent for track in tracks]),
        np.cumsum([0, *map(len, tracks)]),
    )


def quantised(samples: Float32Array) -> tuple[UInt8Array, float]:
    """log10 of the mel power of a recording in tenths above 1e-10, `(80, n)` uint8, and its largest log10."""
    log_power = np.concatenate(list(log_power_blocks([samples])), axis=1)
    steps = np.rint((log_power - _LOWEST) * _STEPS_PER_DECADE)
    return np.clip(steps, 0, 255).astype(np.uint8), float(log_power.max())


def _record(split: Split, seed: int) -> Recording:
    return record(Speaker(seed), seed, split)


def _stored(recording: Recording) -> tuple[UInt8Array, float, MouthTrack]:
    power, peak = quantised(recording.samples)
    return power, peak, recording.track


def fresh_processes(count: int) -> Pool:
    """A pool in which every task has a process that did nothing before."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn").Pool(count, maxtasksperchild=1)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context.Pool(count, maxtasksperchild=1)
