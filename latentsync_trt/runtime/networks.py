"""The networks of one bundle on one provider; sessions open when first needed."""

import threading
from collections.abc import Iterator

import numpy as np

from latentsync_trt.bundle import Bundle
from latentsync_trt.runtime.denoiser import GraphDenoiser
from latentsync_trt.runtime.providers import Selection
from latentsync_trt.runtime.session import Session
from latentsync_trt.types import Float32Array


class Networks:
    """Image codec, audio encoder and denoiser of `bundle`, run by the selected provider."""

    def __init__(self, bundle: Bundle, selection: Selection) -> None:
        self.bundle = bundle
        self.selection = selection
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()

    def session(self, graph: str) -> Session:
        """The session of a graph, opened at the first call."""
        with self._lock:
            if graph not in self._sessions:
                self._sessions[graph] = Session(self.bundle.graph_path(graph), self.selection.ort_providers)
            return self._sessions[graph]

    def denoiser(self) -> GraphDenoiser:
        """A denoiser with buffers of its own."""
        return GraphDenoiser(self.session, self.selection.device)

    def encode(self, images: Float32Array) -> Float32Array:
        """Images `(N, 3, H, W)` in [−1, 1] → scaled latents `(N, 4, h, w)`, any N."""
        return self._in_batches("vae_encoder", "image", images)

    def decode(self, latents: Float32Array) -> Float32Array:
        """Scaled latents `(N, 4, h, w)` → images `(N, 3, H, W)`, about [−1, 1], any N."""
        return self._in_batches("vae_decoder", "latent", latents)

    def _in_batches(self, graph: str, name: str, array: Float32Array) -> Float32Array:
        session = self.session(graph)
        size = session.inputs[0].shape[0]
        if not isinstance(size, int):
            size = self.bundle.manifest.frames
        return np.concatenate([session.run({name: batch})[0][:used] for batch, used in _padded_batches(array, size)])


def _padded_batches(array: Float32Array, size: int) -> Iterator[tuple[Float32Array, int]]:
    """Cuts `array` into batches of exactly `size`, the last filled up by repeating its end; with the used length."""
    for start in range(0, len(array), size):
        batch = array[start : start + size]
        missing = size - len(batch)
        yield (np.concatenate([batch, np.repeat(batch[-1:], missing, axis=0)]) if missing else batch), len(batch)
