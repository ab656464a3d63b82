"""Recorded windows, denoised again: how far does another set of step graphs end from a bundle's own?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.diffusion.loop import Denoiser, denoise
from latentsync_trt.diffusion.plan import PlannedStep
from latentsync_trt.diffusion.scheduler import Step
from latentsync_trt.errors import InputError
from latentsync_trt.quantize.record import RecordedWindow
from latentsync_trt.runtime.networks.denoiser import step_graph
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.networks.trial import trial_steps
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.types import Float32Array, WindowBatch

PROBES = 5
"""Steps of a loop at which single steps are compared, spread from its first to its last."""

_PEAK = 2.0
"""Faces lie in [−1, 1]."""

_FARTHEST_DB = 200.0
"""What stands for no difference at all."""


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """How windows are denoised: `schedule` and `plan` have an entry for every step."""

    guidance: float
    schedule: tuple[Step, ...]
    plan: tuple[PlannedStep, ...]

    @property
    def guided(self) -> bool:
        """Whether any step is."""
        return self.guidance > 1.0

    @property
    def graphs(self) -> tuple[str, ...]:
        """The step graphs that it runs."""
        used = (step_graph(guided=self.guided and step.guided, cached=not step.full) for step in self.plan)
        return tuple(dict.fromkeys(used))


@dataclass(frozen=True, slots=True, eq=False)
class _Probe:
    """One full step of a loop: the latents before it, and by how much the bundle's own step changes them."""

    step: Step
    latents: Float32Array
    update: Float32Array


@dataclass(frozen=True, slots=True, eq=False)
class _Reference:
    faces: tuple[Float32Array, ...]
    probes: tuple[_Probe, ...]


class Replay:
    """What the bundle itself makes of the windows, to compare with; a context manager.

    Args:
        selection: CPU or CUDA. windows: at least one; whole loops run over all, single steps over the first.

    Raises:
        InputError: there are no windows.
    """

    def __init__(self, bundle: Bundle, selection: Selection, windows: Sequence[RecordedWindow], loop: Loop) -> None:
        if not windows:
            raise InputError("nothing to compare with: no window was recorded")
        self.bundle = bundle
        self.loop = loop
        self._selection, self._windows = selection, tuple(windows)
        self._networks = Networks(bundle, selection, RuntimeOptions())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._networks.close()

    @property
    def probed_graph(self) -> str:
        """The graph whose single steps are compared."""
        return step_graph(guided=self.loop.guided, cached=False)

    def step_noise(self, folder: Path) -> tuple[float, ...]:
        """The power of what full steps in `folder` do otherwise, over that of what they do, at each probe."""
        probes = self._reference.probes
        with trial_steps(folder, self._selection) as denoiser:
            return tuple(
                _power(self._update(denoiser, probe) - probe.update) / _power(probe.update) for probe in probes
            )

    def psnr_db(self, folder: Path) -> float:
        """Peak signal-to-noise ratio of faces after whole loops with the steps in `folder`, over all windows."""
        reference = self._reference
        with trial_steps(folder, self._selection) as denoiser:
            errors = [
                _power(self._faces(denoiser, window) - faces)
                for window, faces in zip(self._windows, reference.faces, strict=True)
            ]
        return decibel(_PEAK**2, float(np.mean(errors)))

    @cached_property
    def _reference(self) -> _Reference:
        denoiser, schedule = self._networks.denoiser(), self.loop.schedule
        probed = {round(index * (len(schedule) - 1) / (PROBES - 1)) for index in range(PROBES)}
        before = {0: self._windows[0].latents}

        def keep(done: int, _: int) -> None:
            if done in probed:
                before[done] = denoiser.latents()

        faces = [self._faces(denoiser, self._windows[0], keep)]
        faces += [self._faces(denoiser, window) for window in self._windows[1:]]
        probes = [_Probe(schedule[index], latents, latents) for index, latents in sorted(before.items())]
        return _Reference(tuple(faces), tuple(replace(probe, update=self._update(denoiser, probe)) for probe in probes))

    def _faces(
        self, denoiser: Denoiser, window: RecordedWindow, on_step: Callable[[int, int], None] | None = None
    ) -> Float32Array:
        loop = self.loop
        latents = denoise(
            denoiser,
            window.noise,
            window.conditioning,
            window.audio,
            loop.guidance,
            loop.schedule,
            loop.plan,
            on_step,
        )
        decoded = self._networks.decode(np.ascontiguousarray(latents[0].transpose(1, 0, 2, 3)))
        return np.clip(decoded, -1, 1)

    def _update(self, denoiser: Denoiser, probe: _Probe) -> Float32Array:
        window = self._windows[0]
        denoiser.begin(WindowBatch(probe.latents, window.conditioning, window.audio, self.loop.guidance))
        denoiser.step(probe.step.timestep, probe.step.coefficients, cached=False)
        return denoiser.latents() - probe.latents


def decibel(signal: float, noise: float) -> float:
    """Ratio of two powers in dB, at most 200."""
    return min(_FARTHEST_DB, 10 * float(np.log10(signal / noise))) if noise > 0 else _FARTHEST_DB


def _power(values: Float32Array) -> float:
    return float(np.mean(np.square(values, dtype=np.float64)))
