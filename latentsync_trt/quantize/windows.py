"""Recorded windows: the denoiser's inputs for windows of a clip, so that loops can run without video and sound."""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from latentsync_trt.audio.encoder import SpeechStream
from latentsync_trt.config import MODEL_FPS, SyncOptions
from latentsync_trt.diffusion.loop import Denoiser, conditioning, denoise, initial_noise
from latentsync_trt.diffusion.plan import PlannedStep
from latentsync_trt.diffusion.scheduler import Step
from latentsync_trt.face.mask import latent_mask, mouth_mask
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.media.timing import frames_in
from latentsync_trt.quantize.clips import Clip, ClipSummary, silent_share
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.sync.faces import FaceFinder, Job
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.sync.windows import Window, WindowPlanner
from latentsync_trt.types import FaceDetector, Float32Array, Frame

SEED = SyncOptions().seed
"""Of the noise that every window starts from, as in a usual run."""

OnStep = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class RecordedWindow:
    """The denoiser's inputs for one window, all float32: `noise (1, 4, 1, h, w)`, the same for every frame;
    `conditioning (1, 9, F, h, w)`; `audio (1, F, S, D)`."""

    noise: Float32Array
    conditioning: Float32Array
    audio: Float32Array


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """How windows are denoised: `schedule` and `plan` have an entry for every step."""

    guidance: float
    schedule: tuple[Step, ...]
    plan: tuple[PlannedStep, ...]

    def run(self, denoiser: Denoiser, window: RecordedWindow, on_step: OnStep | None = None) -> Float32Array:
        """The latents `(1, 4, F, h, w)` at the end; `on_step` gets the steps done and their total after each."""
        inputs = window.noise, window.conditioning, window.audio
        return denoise(denoiser, *inputs, self.guidance, self.schedule, self.plan, on_step)


def record_windows(
    clip: Clip,
    wanted: int,
    networks: Networks,
    detector: FaceDetector,
    save: Callable[[int, Callable[[], RecordedWindow]], None],
    on_frame: Callable[[int, int], None],
) -> ClipSummary:
    """Records up to `wanted` windows, spread evenly over a clip, with the stages of a usual run.

    Args:
        save: gets the number of a window in the clip and a function that computes it.
        on_frame: gets the frames read so far and the expected total, after each frame.

    Raises:
        MediaError: the clip cannot be read. Others: as `save` and the networks.
    """
    manifest, speech = networks.bundle.manifest, SpeechStream(_opener(clip.audio), networks.encode_mel)
    in_video = frames_in(probe(clip.video).duration_s, MODEL_FPS)
    expected = speech.frame_count if in_video is None else min(in_video, speech.frame_count)
    frames = _Counted(expected, on_frame)
    finder = FaceFinder(detector, manifest.resolution_px, StageClock())
    read = read_frames(clip.video, rgb_only=True, frame_count=speech.frame_count)
    windows = _windows(finder.cut_out(finder.find(frames.of(read))), manifest.frames)
    expected_windows, recorded = max(1, expected // manifest.frames), 0
    with closing(windows):
        for number, window in enumerate(windows):
            if _is_picked(number, wanted, expected_windows):
                save(number, lambda window=window: _inputs(window, networks, speech))  # type: ignore[misc]
                recorded += 1
    return ClipSummary(frames.count, finder.frames_with_face, recorded, silent_share(read_audio_blocks(clip.audio)))


def _opener(audio: Path) -> Callable[[], Iterator[Float32Array]]:
    return lambda: read_audio_blocks(audio)


class _Counted:
    """Counts frames as they pass."""

    def __init__(self, expected: int, on_frame: Callable[[int, int], None]) -> None:
        self._expected, self._on_frame = expected, on_frame
        self.count = 0

    def of(self, frames: Generator[Frame, None, None]) -> Generator[Frame, None, None]:
        """The frames."""
        with closing(frames):
            for frame in frames:
                self.count += 1
                self._on_frame(self.count, max(self.count, self._expected))
                yield frame


def _windows(jobs: Generator[Job, None, None], frames: int) -> Generator[Window[Job], None, None]:
    planner: WindowPlanner[Job] = WindowPlanner(frames)
    with closing(jobs):
        for job in jobs:
            yield from planner.push(job, job.track_id)
    yield from planner.finish()


def _is_picked(number: int, wanted: int, expected: int) -> bool:
    """Whether a window is one of `wanted`, spread evenly over `expected`."""
    wanted = min(wanted, expected)
    return number < expected and (number + 1) * wanted // expected > number * wanted // expected


def _inputs(window: Window[Job], networks: Networks, speech: SpeechStream) -> RecordedWindow:
    manifest = networks.bundle.manifest
    side_px, latent_px = manifest.resolution_px, manifest.latent_px
    faces = np.stack([job.face.image for job in window.items if job.face is not None])
    masked, reference = networks.encode_faces(faces, mouth_mask(side_px))
    known = conditioning(latent_mask(side_px), masked[None], reference[None])
    audio = speech.windows([job.frame.index for job in window.items])
    return RecordedWindow(initial_noise(SEED, latent_px, latent_px), known, audio[None])
