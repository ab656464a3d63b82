"""What measurements are taken with: a clock around runs and around calls of the networks, and a watch on memory."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Self

import psutil

from latentsync_trt.bench.rows import Memory
from latentsync_trt.runtime.providers.gpu import free_memory_bytes
from latentsync_trt.types import Denoiser, Float32Array, ImageCodec, UInt8Array, UInt16Array, WindowBatch

_POLL_S = 0.02
"""Shorter than a denoising step, and long enough not to slow it down."""


def measure(run: Callable[[], object], *, runs: int, warm_up: int) -> list[float]:
    """Milliseconds of each of `runs` calls, after `warm_up` untimed ones; `run` must return when it is done."""
    for _ in range(warm_up):
        run()
    times_ms = []
    for _ in range(runs):
        start_s = perf_counter()
        run()
        times_ms.append(1000 * (perf_counter() - start_s))
    return times_ms


class MemoryWatch:
    """Polls memory in a thread of its own while the block runs.

    Args:
        gpu_index: of the GPU to watch; None for none. free_before_bytes: what was free on it before the bench began.
    """

    def __init__(self, gpu_index: int | None, free_before_bytes: int | None) -> None:
        self._gpu_index, self._free_before_bytes = gpu_index, free_before_bytes
        self._process = psutil.Process()
        self._host_bytes, self._device_bytes = 0, 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    @property
    def peak(self) -> Memory:
        """The highest until now."""
        self._look()
        return Memory(self._host_bytes, None if self._free_before_bytes is None else self._device_bytes)

    def _poll(self) -> None:
        while not self._stopped.wait(_POLL_S):
            self._look()

    def _look(self) -> None:
        self._host_bytes = max(self._host_bytes, self._process.memory_info().rss)
        if self._gpu_index is not None and self._free_before_bytes is not None:
            free_bytes = free_memory_bytes(self._gpu_index)
            if free_bytes is not None:
                self._device_bytes = max(self._device_bytes, self._free_before_bytes - free_bytes)


class TimedNetworks:
    """An `ImageCodec` and a `Denoiser` that time every call: the inpainter that uses them is unchanged.

    `parts_s`: seconds so far by part: VAE encode, each kind of denoising step, VAE decode.
    """

    def __init__(self, codec: ImageCodec, denoiser: Denoiser) -> None:
        self._codec, self._denoiser = codec, denoiser
        self._guidance = False
        self.parts_s: dict[str, float] = {}

    def encode_faces(self, faces: UInt8Array, mask: Float32Array) -> tuple[Float32Array, Float32Array]:
        """As `ImageCodec.encode_faces`."""
        with self._timed("VAE encode"):
            return self._codec.encode_faces(faces, mask)

    def decode_faces(self, latents: Float32Array) -> Sequence[UInt16Array]:
        """As `ImageCodec.decode_faces`."""
        with self._timed("VAE decode"):
            return self._codec.decode_faces(latents)

    def begin(self, batch: WindowBatch) -> None:
        """As `Denoiser.begin`."""
        self._guidance = batch.guidance > 1.0
        self._denoiser.begin(batch)

    def step(self, timestep: int, coefficients: Float32Array, *, cached: bool, guided: bool = True) -> None:
        """As `Denoiser.step`."""
        kind = "cached steps" if cached else "full steps"
        with self._timed(kind if guided and self._guidance else f"{kind}, unguided"):
            self._denoiser.step(timestep, coefficients, cached=cached, guided=guided)

    def latents(self) -> Float32Array:
        """As `Denoiser.latents`."""
        return self._denoiser.latents()

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        start_s = perf_counter()
        yield
        self.parts_s[part] = self.parts_s.get(part, 0.0) + perf_counter() - start_s
