"""The first run of each network, in which providers choose kernels and record CUDA graphs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from latentsync_trt.bundle.manifest import AUDIO_ENCODER, VAE_DECODER, VAE_ENCODER, step_graph
from latentsync_trt.runtime.denoiser import GraphDenoiser
from latentsync_trt.runtime.engines.output_comparison import random_inputs
from latentsync_trt.runtime.engines.session import Array, Session
from latentsync_trt.runtime.engines.shapes import DimensionRanges
from latentsync_trt.runtime.stages import Stage
from latentsync_trt.runtime.vae import VaeCodec

STAGES: dict[str, Stage] = {VAE_ENCODER: "encode", AUDIO_ENCODER: "encode", VAE_DECODER: "decode"}
"""The stage in whose thread a graph runs; all other graphs are steps of denoising."""

_TIMESTEP = 500
"""In the middle of the noise levels; any other one would do."""


@dataclass(frozen=True, slots=True)
class FirstRuns:
    """Runs graphs as a clip will, with the same buffers, in their threads."""

    session: Callable[[str], Session]
    """Waits until a graph is open, and returns its session."""
    ranges: DimensionRanges
    vae: VaeCodec
    denoiser: GraphDenoiser

    def network(self, graph: str) -> None:
        """Runs one graph of `STAGES`."""
        inputs = self._random(graph)
        if graph == VAE_ENCODER:
            count, channels, height_px, width_px = inputs["image"].shape
            faces = np.zeros((count, height_px, width_px, channels), np.uint8)
            self.vae.encode_faces(faces, np.ones((height_px, width_px), np.float32))
        elif graph == VAE_DECODER:
            self.vae.decode_faces(inputs["latent"])
        else:
            self.session(graph).run(inputs)

    def steps(self, graphs: Sequence[str], *, recorded: bool) -> None:
        """Runs those of `graphs` that are steps, with `recorded` as CUDA graphs where the sessions
        record them.
        """
        for guided in (True, False):
            full = step_graph(guided=guided, cached=False)
            if full not in graphs:
                continue
            inputs = self._random(full)
            self.denoiser.begin(
                inputs["latents"][0],
                inputs["conditioning"][0],
                inputs["audio"][0],
                guidance=2.0 if guided else 1.0,
            )
            self._step(cached=False, recorded=recorded)
            if step_graph(guided=guided, cached=True) in graphs:
                self._step(cached=True, recorded=recorded)

    def _step(self, *, cached: bool, recorded: bool) -> None:
        coefficients = np.zeros(5, np.float32)
        self.denoiser.step(_TIMESTEP, coefficients, cached=cached, recorded=recorded)

    def _random(self, graph: str) -> dict[str, Array]:
        return random_inputs(self.session(graph).inputs, self.ranges)
