"""Compares other step graphs with a bundle's own by denoising recorded windows with both."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from latentsync_trt.bundle.manifest import Bundle, step_graph
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.diffusion.scheduler import Step
from latentsync_trt.errors import InputError
from latentsync_trt.quantize.windows import Loop, OnStep, RecordedWindow
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.networks.uncached import folder_denoiser
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.types import Denoiser, Float32Array, WindowBatch

PROBES = 5
"""Steps at which single steps are compared, spread from the first to the last of a loop."""

_LARGEST_DB = 200.0


@dataclass(frozen=True, slots=True, eq=False)
class _Probe:
    """A full step: the latents before it, and how the bundle's own graph changes them."""

    step: Step
    latents: Float32Array
    update: Float32Array


class Replay:
    """The bundle's own results on recorded windows, to compare with; a context manager.

    Args:
        selection: CPU or CUDA. windows: at least one; whole loops run on all, single steps on the first.

    Raises:
        InputError: there are no windows.
    """

    def __init__(self, bundle: Bundle, selection: Selection, windows: Sequence[RecordedWindow], loop: Loop) -> None:
        if not windows:
            raise InputError("nothing to compare with: no window was recorded")
        self.bundle, self.loop = bundle, loop
        self._selection, self._windows = selection, tuple(windows)
        self._networks = Networks(bundle, selection, RuntimeOptions())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._networks.close()

    @property
    def loop_graphs(self) -> tuple[str, ...]:
        """The step graphs that whole loops run."""
        guided = self.loop.guidance > 1
        used = (step_graph(guided=guided and step.guided, cached=not step.full) for step in self.loop.plan)
        return tuple(dict.fromkeys(used))

    @property
    def probed_graph(self) -> str:
        """The graph whose single steps are compared."""
        return step_graph(guided=self.loop.guidance > 1, cached=False)

    def step_noise(self, folder: Path) -> tuple[float, ...]:
        """Power of the error of full steps with the graphs in `folder`, relative to the change they make, per probe."""
        _, probes = self._reference
        with folder_denoiser(folder, self._selection) as denoiser:
            return tuple(
                _power(self._update(denoiser, probe.step, probe.latents) - probe.update) / _power(probe.update)
                for probe in probes
            )

    def psnr_db(self, folder: Path) -> float:
        """PSNR of the faces of all windows after whole loops with the graphs in `folder`."""
        reference, _ = self._reference
        with folder_denoiser(folder, self._selection) as denoiser:
            errors = [
                _power(self._faces(denoiser, window) - faces)
                for window, faces in zip(self._windows, reference, strict=True)
            ]
        return decibel(1.0, float(np.mean(errors)))

    @cached_property
    def _reference(self) -> tuple[list[Float32Array], list[_Probe]]:
        denoiser, schedule, first = self._networks.denoiser, self.loop.schedule, self._windows[0]
        probed = {round(index * (len(schedule) - 1) / (PROBES - 1)) for index in range(PROBES)}
        shape = (1, first.noise.shape[1], *first.conditioning.shape[2:])
        before = {0: np.ascontiguousarray(np.broadcast_to(first.noise, shape))}

        def keep_latents(done: int, _: int) -> None:
            if done in probed:
                before[done] = denoiser.latents()

        faces = [self._faces(denoiser, first, keep_latents)]
        faces += [self._faces(denoiser, window) for window in self._windows[1:]]
        probes = [
            _Probe(schedule[index], latents, self._update(denoiser, schedule[index], latents))
            for index, latents in sorted(before.items())
        ]
        return faces, probes

    def _faces(self, denoiser: Denoiser, window: RecordedWindow, on_step: OnStep | None = None) -> Float32Array:
        latents = self.loop.run(denoiser, window, on_step)
        faces = self._networks.codec.decode_faces(np.ascontiguousarray(latents[0].transpose(1, 0, 2, 3)))
        return np.asarray(np.stack(faces) / 65535, np.float32)

    def _update(self, denoiser: Denoiser, step: Step, latents: Float32Array) -> Float32Array:
        window = self._windows[0]
        denoiser.begin(WindowBatch(latents, window.conditioning, window.audio, self.loop.guidance))
        denoiser.step(step.timestep, step.coefficients, cached=False)
        return denoiser.latents() - latents


def decibel(signal: float, noise: float) -> float:
    """Ratio of two powers in dB, at most 200."""
    return min(_LARGEST_DB, 10 * float(np.log10(signal / noise))) if noise > 0 else _LARGEST_DB


def _power(values: Float32Array) -> float:
    return float(np.mean(np.square(values, dtype=np.float64)))
