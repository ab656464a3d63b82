"""The codec and the denoiser of a run, with a watch on each call: the inpainter itself is what is measured."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from latentsync_trt.bench.rows import StepTimes
from latentsync_trt.diffusion.loop import Denoiser
from latentsync_trt.sync.inpaint import ImageCodec
from latentsync_trt.types import Float32Array, UInt8Array, UInt16Array, WindowBatch

ENCODE, LOOP, DECODE = "VAE encode", "denoising", "VAE decode"


@dataclass(slots=True)
class Times:
    """Seconds by part, and milliseconds of each step by kind (full, guided), since the last `clear`."""

    parts_s: dict[str, float] = field(default_factory=dict)
    steps_ms: dict[tuple[bool, bool], list[float]] = field(default_factory=dict)

    def add(self, part: str, start_s: float) -> None:
        """Counts the time since `start_s` for `part`."""
        self.parts_s[part] = self.parts_s.get(part, 0.0) + perf_counter() - start_s

    def add_step(self, kind: tuple[bool, bool], start_s: float) -> None:
        """Counts the time since `start_s` as a step of `kind`."""
        self.steps_ms.setdefault(kind, []).append(1000 * (perf_counter() - start_s))

    def clear(self) -> None:
        """Forgets all."""
        self.parts_s.clear()
        self.steps_ms.clear()

    def steps(self, runs: int) -> tuple[StepTimes, ...]:
        """All steps by kind, of so many runs."""
        return tuple(
            StepTimes(full, guided, len(times_ms) // runs, tuple(times_ms))
            for (full, guided), times_ms in self.steps_ms.items()
        )


class TimedCodec:
    """An `ImageCodec` whose calls are counted in `times`."""

    def __init__(self, codec: ImageCodec, times: Times) -> None:
        self._codec, self._times = codec, times

    def encode_faces(self, faces: UInt8Array, mask: Float32Array) -> tuple[Float32Array, Float32Array]:
        """As `ImageCodec.encode_faces`."""
        start_s = perf_counter()
        latents = self._codec.encode_faces(faces, mask)
        self._times.add(ENCODE, start_s)
        return latents

    def decode_faces(self, latents: Float32Array) -> Sequence[UInt16Array]:
        """As `ImageCodec.decode_faces`."""
        start_s = perf_counter()
        faces = self._codec.decode_faces(latents)
        self._times.add(DECODE, start_s)
        return faces


class TimedDenoiser:
    """A `Denoiser` whose steps are counted one by one; upload and download belong to the loop as a whole."""

    def __init__(self, denoiser: Denoiser, times: Times) -> None:
        self._denoiser, self._times = denoiser, times
        self._guidance = False
        self._start_s = 0.0

    def begin(self, batch: WindowBatch) -> None:
        """As `Denoiser.begin`."""
        self._start_s = perf_counter()
        self._guidance = batch.guidance > 1.0
        self._denoiser.begin(batch)

    def step(self, timestep: int, coefficients: Float32Array, *, cached: bool, guided: bool = True) -> None:
        """As `Denoiser.step`."""
        start_s = perf_counter()
        self._denoiser.step(timestep, coefficients, cached=cached, guided=guided)
        self._times.add_step((not cached, guided and self._guidance), start_s)

    def latents(self) -> Float32Array:
        """As `Denoiser.latents`, which ends the loop."""
        found = self._denoiser.latents()
        self._times.add(LOOP, self._start_s)
        return found
