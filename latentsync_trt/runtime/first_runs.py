"""First runs of networks on random numbers: a GPU provider loads and chooses its kernels then, for seconds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from latentsync_trt.bundle.manifest import AUDIO_ENCODER, VAE_DECODER, VAE_ENCODER, step_graph
from latentsync_trt.runtime.denoiser import GraphDenoiser
from latentsync_trt.runtime.engines.output_comparison import Ranges, random_inputs
from latentsync_trt.runtime.engines.session import Array, Session
from latentsync_trt.runtime.stages import Stage
from latentsync_trt.runtime.vae import VaeCodec

STAGES: dict[str, Stage] = {VAE_ENCODER: "encode", AUDIO_ENCODER: "encode", VAE_DECODER: "decode"}
"""In whose thread a graph runs; all others are steps."""

_TIMESTEP = 500


@dataclass(frozen=True, slots=True)
class FirstRuns:
    """Runs graphs as a clip will, with the same buffers, in their threads. `session`: waits until a graph is open."""

    session: Callable[[str], Session]
    ranges: Ranges
    vae: VaeCodec
    denoiser: GraphDenoiser

    def network(self, graph: str) -> None:
        """Runs one graph of `STAGES`."""
        given = self._random(graph)
        if graph == VAE_ENCODER:
            count, _, *size = given["image"].shape
            self.vae.encode_faces(np.zeros((count, *size, 3), np.uint8), np.ones(size, np.float32))
        elif graph == VAE_DECODER:
            self.vae.decode_faces(given["latent"])
        else:
            self.session(graph).run(given)

    def steps(self, graphs: Sequence[str], *, recorded: bool) -> None:
        """Runs those of `graphs` that are steps; `recorded`: as CUDA graphs, where the sessions record them."""
        for guided in (True, False):
            kinds = [cached for cached in (False, True) if step_graph(guided=guided, cached=cached) in graphs]
            if kinds:
                given = self._random(step_graph(guided=guided, cached=False))
                latents, conditioning, audio = (given[name][0] for name in ("latents", "conditioning", "audio"))
                self.denoiser.begin(latents, conditioning, audio, 2.0 if guided else 1.0)
            for cached in kinds:
                self.denoiser.step(_TIMESTEP, np.zeros(5, np.float32), cached=cached, recorded=recorded)

    def _random(self, graph: str) -> dict[str, Array]:
        return random_inputs(self.session(graph).inputs, self.ranges)
