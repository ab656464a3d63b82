"""How far two bundles drift apart in the denoising of one window, and how much of it each single step adds."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from latentsync_trt.bench.quality.results import StepNoise, decibels
from latentsync_trt.bench.quality.taps import RecordedStep, StepRecord
from latentsync_trt.diffusion.loop import Denoiser
from latentsync_trt.types import Float32Array


def replayed(denoiser: Denoiser, record: StepRecord) -> list[Float32Array | None]:
    """The latents after each recorded step, taken by itself from the latents before it, without a history.

    None for cached steps: they reuse what a full one left on the device.
    """
    return [None if step.cached else _alone(denoiser, record, step) for step in record.steps]


def step_noise(
    a: StepRecord, b: StepRecord, alone_a: Sequence[Float32Array | None], alone_b: Sequence[Float32Array | None]
) -> tuple[StepNoise, ...]:
    """A line for each step.

    Args:
        a, b: both loops. alone_a, alone_b: what `replayed` made of A's record with A's and with B's network.
    """
    return tuple(
        StepNoise(
            step=number,
            timestep=one.timestep,
            full=not one.cached,
            guided=one.guided and a.batch is not None and a.batch.guidance > 1.0,
            so_far_db=ratio_db(one.after, other.after),
            alone_db=_update_ratio_db(one.before, ours, theirs),
        )
        for number, (one, other, ours, theirs) in enumerate(zip(a.steps, b.steps, alone_a, alone_b, strict=True))
    )


def ratio_db(signal: Float32Array, other: Float32Array) -> float | None:
    """The power of `signal` over that of what `other` differs from it, dB; None where they are equal."""
    noise = signal.astype(np.float64) - other
    return decibels(float(np.mean(signal.astype(np.float64) ** 2)), float(np.mean(noise**2)))


def _alone(denoiser: Denoiser, record: StepRecord, step: RecordedStep) -> Float32Array | None:
    if record.batch is None:
        return None
    denoiser.begin(replace(record.batch, latents=step.before))
    denoiser.step(step.timestep, step.coefficients, cached=False, guided=step.guided)
    return denoiser.latents()


def _update_ratio_db(before: Float32Array, ours: Float32Array | None, theirs: Float32Array | None) -> float | None:
    if ours is None or theirs is None:
        return math.nan
    return ratio_db(ours - before, theirs - before)
