"""What the windows of a clip begin with, recorded with the stages of a real run, so that loops can be run again
without video, sound or their networks."""

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import numpy as np

from latentsync_trt.audio.encoder import SpeechStream
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.diffusion.loop import initial_noise
from latentsync_trt.diffusion.plan import PlannedStep
from latentsync_trt.diffusion.scheduler import solver_schedule
from latentsync_trt.face.mask import latent_mask, mouth_mask
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.media.timing import frames_in
from latentsync_trt.quantize.clips import Clip, Findings, silent_share
from latentsync_trt.quantize.files import load_arrays, save_arrays
from latentsync_trt.sync.faces import FaceFinder
from latentsync_trt.sync.inpaint import Inpainter
from latentsync_trt.sync.job import Job
from latentsync_trt.sync.paint import Painter
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.types import FaceDetector, Float32Array, UInt8Array, UInt16Array, WindowBatch


@dataclass(frozen=True, slots=True, eq=False)
class RecordedWindow:
    """What one window began with, as a batch of one: `latents (1, 4, F, h, w)`, the noise; `conditioning
    (1, 9, F, h, w)`; `audio (1, F, S, D)`; all float32."""

    latents: Float32Array
    conditioning: Float32Array
    audio: Float32Array

    @property
    def noise(self) -> Float32Array:
        """The noise that every frame begins with, `(1, 4, 1, h, w)`."""
        return np.ascontiguousarray(self.latents[:, :, :1])

    def save(self, path: Path) -> None:
        """Writes the file `path`, complete or not at all; raises `OutputError` if it cannot be written."""
        save_arrays(path, {"latents": self.latents, "conditioning": self.conditioning, "audio": self.audio})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads what `save` wrote; raises `InputError` if that is not what lies there."""
        return load_arrays(path, lambda arrays: cls(arrays["latents"], arrays["conditioning"], arrays["audio"]))


class Encoders(Protocol):
    """The networks that a window needs before it is denoised."""

    def encode_mel(self, mel: Float32Array) -> Float32Array:
        """Log mel spectrogram `(1, 80, 3000)` → features `(1, 1500, L, D)`."""
        ...

    def encode_faces(self, faces: UInt8Array, mask: Float32Array) -> tuple[Float32Array, Float32Array]:
        """As `ImageCodec.encode_faces`."""
        ...


class Recorder:
    """Records windows as a bundle's denoiser would get them.

    Args:
        networks: the bundle's. resolution_px, frames: as its manifest says. seed: of the noise.
        detector: finds faces.
    """

    def __init__(self, networks: Encoders, resolution_px: int, frames: int, seed: int, detector: FaceDetector) -> None:
        self._networks, self._detector = networks, detector
        self._resolution_px, self._frames, self._seed = resolution_px, frames, seed

    def record(
        self,
        clip: Clip,
        wanted: int,
        path_of: Callable[[int], Path],
        on_frame: Callable[[int, int], None],
    ) -> Findings:
        """Records up to `wanted` windows, spread evenly over the clip; those already on disk are left as they are.

        Args:
            path_of: the file of a window by its number in the clip.
            on_frame: told how many frames of how many were looked at, after each.

        Raises:
            MediaError: the clip cannot be read. OutputError: a window cannot be written.
        """
        speech = SpeechStream(lambda: read_audio_blocks(clip.audio), self._networks.encode_mel)
        of_video = frames_in(probe(clip.video).duration_s, MODEL_FPS)
        expected = speech.frame_count if of_video is None else min(of_video, speech.frame_count)
        clock = StageClock()
        finder = FaceFinder(self._detector, self._resolution_px, clock)
        read = read_frames(clip.video, rgb_only=True, frame_count=speech.frame_count)
        jobs = _Counted(finder.cut_out(finder.find(clock.measured("decode", read))), expected, on_frame)
        tap = _Tap(self._networks)
        inpainter = self._inpainter(tap)
        painter = Painter(inpainter, self._frames, speech.windows, clock, at_once=lambda: 1, before=_nothing)
        turns = painter.gather(jobs.all())
        picks = _Picks(wanted, max(1, expected // self._frames))
        with closing(turns):
            for window, faces in (pair for turn in turns for pair in turn.windows):
                number = picks.next()
                if number is None or path_of(number).is_file():
                    continue
                inpainter.paint([(faces, speech.windows([job.frame.index for job in window.items]))])
                tap.taken().save(path_of(number))
        return Findings(jobs.frames, finder.frames_with_face, picks.picked, silent_share(read_audio_blocks(clip.audio)))

    def _inpainter(self, tap: "_Tap") -> Inpainter:
        latent_px = self._resolution_px // 8
        return Inpainter(
            codec=tap,
            denoiser=tap,
            mask=mouth_mask(self._resolution_px),
            latent_mask=latent_mask(self._resolution_px),
            noise=initial_noise(self._seed, latent_px, latent_px),
            guidance=1.0,
            schedule=solver_schedule("ddim", 1),
            plan=(PlannedStep(True),),
        )


class _Tap:
    """An image codec that only encodes and a denoiser that only remembers what it was given."""

    def __init__(self, networks: Encoders) -> None:
        self._networks = networks
        self._batch: WindowBatch | None = None

    def taken(self) -> RecordedWindow:
        """What the last window began with."""
        if self._batch is None:
            raise ValueError("no window began")
        batch, self._batch = self._batch, None
        return RecordedWindow(batch.latents, batch.conditioning, batch.audio)

    def encode_faces(self, faces: UInt8Array, mask: Float32Array) -> tuple[Float32Array, Float32Array]:
        """The bundle's latents of `faces`, masked and whole."""
        return self._networks.encode_faces(faces, mask)

    def decode_faces(self, latents: Float32Array) -> list[UInt16Array]:
        """Nothing to see: a pixel for each."""
        return [np.zeros((1, 1, 3), np.uint16)] * len(latents)

    def begin(self, batch: WindowBatch) -> None:
        """Remembers the window."""
        self._batch = batch

    def step(self, timestep: int, coefficients: Float32Array, *, cached: bool, guided: bool = True) -> None:
        """Leaves the latents as they are."""

    def latents(self) -> Float32Array:
        """The noise that the window began with."""
        if self._batch is None:
            raise ValueError("no window began")
        return self._batch.latents


class _Counted:
    """Jobs, counted and told of as they come."""

    def __init__(self, jobs: Generator[Job, None, None], expected: int, on_frame: Callable[[int, int], None]) -> None:
        self._jobs, self._expected, self._on_frame = jobs, expected, on_frame
        self.frames = 0

    def all(self) -> Generator[Job, None, None]:
        """Every job in its order."""
        with closing(self._jobs):
            for job in self._jobs:
                self.frames += 1
                self._on_frame(self.frames, max(self.frames, self._expected))
                yield job


class _Picks:
    """Chooses `wanted` of about `expected` windows, spread evenly."""

    def __init__(self, wanted: int, expected: int) -> None:
        self._wanted, self._expected = min(wanted, expected), expected
        self._seen = self.picked = 0

    def next(self) -> int | None:
        """The number of the next window if it is chosen."""
        number = self._seen
        self._seen += 1
        due = self._seen * self._wanted // self._expected > number * self._wanted // self._expected
        if not due or self.picked == self._wanted:
            return None
        self.picked += 1
        return number


def _nothing() -> None:
    """Nothing else takes turns with these networks."""
