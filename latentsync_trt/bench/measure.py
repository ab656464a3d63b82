"""What measurements are taken with: a clock around runs and around calls of the networks, and a watch on memory."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Self

import psutil

from latentsync_trt.bench.rows import Memory, StepTimes
from latentsync_trt.runtime.providers.gpu import free_memory_bytes
from latentsync_trt.types import Denoiser, Float32Array, ImageCodec, UInt8Array, UInt16Array, WindowBatch

ENCODE, LOOP, DECODE = "VAE encode", "denoising", "VAE decode"

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
        self._host_bytes, self._least_free_bytes = 0, free_before_bytes
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
        if self._free_before_bytes is None or self._least_free_bytes is None:
            return Memory(self._host_bytes, None)
        return Memory(self._host_bytes, max(self._free_before_bytes - self._least_free_bytes, 0))

    def _poll(self) -> None:
        while not self._stopped.wait(_POLL_S):
            self._look()

    def _look(self) -> None:
        self._host_bytes = max(self._host_bytes, self._process.memory_info().rss)
        if self._gpu_index is not None and self._least_free_bytes is not None:
            free_bytes = free_memory_bytes(self._gpu_index)
            if free_bytes is not None:
                self._least_free_bytes = min(self._least_free_bytes, free_bytes)


class TimedNetworks:
    """An `ImageCodec` and a `Denoiser` that time every call: the inpainter that uses them is unchanged.

    `parts_s`: seconds by part since the last `clear`. `steps_ms`: milliseconds of each step by kind (full, guided).
    """

    def __init__(self, codec: ImageCodec, denoiser: Denoiser) -> None:
        self._codec, self._denoiser = codec, denoiser
        self._guidance = False
        self._start_s = 0.0
        self.parts_s: dict[str, float] = {}
        self.steps_ms: dict[tuple[bool, bool], list[float]] = {}

    def clear(self) -> None:
        """Forgets all times."""
        self.parts_s.clear()
        self.steps_ms.clear()

    def steps(self, runs: int) -> tuple[StepTimes, ...]:
        """All steps of `runs` runs by kind."""
        return tuple(
            StepTimes(full, guided, len(times_ms) // runs, tuple(times_ms))
            for (full, guided), times_ms in self.steps_ms.items()
        )

    def encode_faces(self, faces: UInt8Array, mask: Float32Array) -> tuple[Float32Array, Float32Array]:
        """As `ImageCodec.encode_faces`."""
        with self._timed(ENCODE):
            return self._codec.encode_faces(faces, mask)

    def decode_faces(self, latents: Float32Array) -> Sequence[UInt16Array]:
        """As `ImageCodec.decode_faces`."""
        with self._timed(DECODE):
            return self._codec.decode_faces(latents)

    def begin(self, batch: WindowBatch) -> None:
        """As `Denoiser.begin`; the time of the loop runs from here to the end of `latents`."""
        self._start_s = perf_counter()
        self._guidance = batch.guidance > 1.0
        self._denoiser.begin(batch)

    def step(self, timestep: int, coefficients: Float32Array, *, cached: bool, guided: bool = True) -> None:
        """As `Denoiser.step`."""
        start_s = perf_counter()
        self._denoiser.step(timestep, coefficients, cached=cached, guided=guided)
        kind = (not cached, guided and self._guidance)
        self.steps_ms.setdefault(kind, []).append(1000 * (perf_counter() - start_s))

    def latents(self) -> Float32Array:
        """As `Denoiser.latents`."""
        with self._timed(LOOP, self._start_s):
            return self._denoiser.latents()

    @contextmanager
    def _timed(self, part: str, start_s: float | None = None) -> Iterator[None]:
        start_s = perf_counter() if start_s is None else start_s
        yield
        self.parts_s[part] = self.parts_s.get(part, 0.0) + perf_counter() - start_s
