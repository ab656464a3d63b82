"""Synthesizes the speech to train on with espeak-ng."""

import multiprocessing
from functools import partial
from multiprocessing.pool import Pool

import numpy as np

from latentsync_trt.audio.mel import computed_filters, log_power_blocks
from latentsync_trt.types import Float32Array, UInt8Array
from scripts.train_demo.espeak import Speaker
from scripts.train_demo.recordings import Recording, Split, record
from scripts.train_demo.speech import LOWEST, STEPS_PER_DECADE, Speech


def synthesize(seeds: range, split: Split, processes: int) -> Speech:
    """Synthesizes one recording per seed in `processes` processes; the result depends on the seeds alone.

    Every recording has a process of its own, since espeak-ng's output depends on what it spoke before.
    """
    with fresh_processes(processes) as pool:
        recordings = pool.imap(partial(record_seed, split), seeds)
        parts = [(*quantized(recording.samples), recording.track) for recording in recordings]
    powers, peaks, tracks = zip(*parts, strict=True)
    return Speech(
        np.concatenate(powers, axis=1),
        np.array(peaks, np.float32),
        np.concatenate([track.values() for track in tracks]),
        np.concatenate([track.shut for track in tracks]),
        np.concatenate([track.silent for track in tracks]),
        np.cumsum([0, *map(len, tracks)]),
    )


def quantized(samples: Float32Array) -> tuple[UInt8Array, float]:
    """log10 of a recording's mel power in tenths above 1e-10, `(80, n)` uint8, and its largest log10."""
    log_power = np.concatenate(list(log_power_blocks([samples], computed_filters())), axis=1)
    steps = np.rint((log_power - LOWEST) * STEPS_PER_DECADE)
    return np.clip(steps, 0, 255).astype(np.uint8), float(log_power.max())


def record_seed(split: Split, seed: int) -> Recording:
    return record(Speaker(seed), seed, split)


def fresh_processes(count: int) -> Pool:
    """A pool that runs every task in a new process."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn").Pool(count, maxtasksperchild=1)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context.Pool(count, maxtasksperchild=1)
