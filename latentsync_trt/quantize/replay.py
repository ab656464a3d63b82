"""Compares step graphs in 8 bits with those of their bundle by denoising recorded windows with both."""

from collections.abc import Collection, Sequence
from functools import cached_property

import numpy as np

from latentsync_trt.bundle.manifest import step_graph
from latentsync_trt.diffusion.scheduler import Step
from latentsync_trt.quantize.steps import QuantizedSteps
from latentsync_trt.quantize.windows import Loop, OnStep, RecordedWindow
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.networks.uncached import folder_denoiser
from latentsync_trt.types import Denoiser, Float32Array, WindowBatch

PROBES = 5
"""Number of steps compared one by one, spread over the whole loop."""

_LARGEST_DB = 200.0


_Probe = tuple[Step, Float32Array, Float32Array]
"""A full step, the latents before it, and the change that the bundle's own graph makes to them."""


class Replay:
    """The bundle's own results on recorded windows, as a reference.

    Args:
        steps: the graphs in 8 bits. networks: of the bundle itself, on CPU or CUDA.
        windows: at least one; whole loops run on all, single steps on the first.
    """

    def __init__(
        self, steps: QuantizedSteps, networks: Networks, windows: Sequence[RecordedWindow], loop: Loop
    ) -> None:
        self.steps = steps
        self._networks, self._windows, self._loop = networks, windows, loop

    @property
    def probed_graph(self) -> str:
        """The graph whose single steps are compared."""
        return step_graph(guided=self._loop.guidance > 1, cached=False)

    def step_noise(self, kept: Collection[str]) -> float:
        """Power of the error of full steps relative to their change of the latents, averaged over the probed steps.

        Args:
            kept: names of the layers that are not in 8 bits.
        """
        _, probes = self._reference
        self.steps.write(self.probed_graph, kept)
        with folder_denoiser(self.steps.folder, self._networks.selection) as denoiser:
            noises = [
                _power(self._update(denoiser, step, latents) - update) / _power(update)
                for step, latents, update in probes
            ]
        return float(np.mean(noises))

    def psnr_db(self, kept: Collection[str]) -> float:
        """PSNR of the faces of all windows after whole loops; `kept` as for `step_noise`."""
        faces, _ = self._reference
        guided = self._loop.guidance > 1
        for cached in {not planned.full for planned in self._loop.plan}:
            self.steps.write(step_graph(guided=guided, cached=cached), kept)
        with folder_denoiser(self.steps.folder, self._networks.selection) as denoiser:
            errors = [
                _power(self._faces(denoiser, window) - exact)
                for window, exact in zip(self._windows, faces, strict=True)
            ]
        return decibel(float(np.mean(errors)))

    @cached_property
    def _reference(self) -> tuple[list[Float32Array], list[_Probe]]:
        """Faces of all windows, and the probed steps of the first."""
        denoiser, schedule, first = self._networks.denoiser, self._loop.schedule, self._windows[0]
        probed = {round(index * (len(schedule) - 1) / (PROBES - 1)) for index in range(PROBES)}
        shape = (1, first.noise.shape[1], *first.conditioning.shape[2:])
        before = {0: np.ascontiguousarray(np.broadcast_to(first.noise, shape))}

        def keep_latents(done: int, _: int) -> None:
            if done in probed:
                before[done] = denoiser.latents()

        faces = [self._faces(denoiser, first, keep_latents)]
        faces += [self._faces(denoiser, window) for window in self._windows[1:]]
        probes = [
            (schedule[index], latents, self._update(denoiser, schedule[index], latents))
            for index, latents in sorted(before.items())
        ]
        return faces, probes

    def _faces(self, denoiser: Denoiser, window: RecordedWindow, on_step: OnStep | None = None) -> Float32Array:
        latents = self._loop.run(denoiser, window, on_step)
        faces = self._networks.codec.decode_faces(np.ascontiguousarray(latents[0].transpose(1, 0, 2, 3)))
        return np.asarray(np.stack(faces) / 65535, np.float32)

    def _update(self, denoiser: Denoiser, step: Step, latents: Float32Array) -> Float32Array:
        window = self._windows[0]
        denoiser.begin(WindowBatch(latents, window.conditioning, window.audio, self._loop.guidance))
        denoiser.step(step.timestep, step.coefficients, cached=False)
        return denoiser.latents() - latents


def decibel(noise: float) -> float:
    """Signal-to-noise ratio in dB of a noise power relative to the signal's, at most 200."""
    return min(_LARGEST_DB, -10 * float(np.log10(noise))) if noise > 0 else _LARGEST_DB


def _power(values: Float32Array) -> float:
    return float(np.mean(np.square(values, dtype=np.float64)))
