"""Recorded windows: the denoiser's inputs for windows of a clip, to run loops without video and sound."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Self

import numpy as np

from latentsync_trt.audio.mel import filters_of
from latentsync_trt.audio.windows import frame_count
from latentsync_trt.config import MODEL_FPS, SyncOptions
from latentsync_trt.diffusion.loop import conditioning, denoise, initial_noise
from latentsync_trt.diffusion.plan import PlannedStep
from latentsync_trt.diffusion.scheduler import Step
from latentsync_trt.face.mask import latent_mask, mouth_mask
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.playback import Playback, frames_in
from latentsync_trt.media.reader import delays_of, probe, read_frames
from latentsync_trt.media.soundtrack import SoundPiece
from latentsync_trt.quantize.clips import Clip, ClipSummary, silent_share
from latentsync_trt.quantize.work import load_arrays, save_arrays
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.sync.faces import FaceFinder
from latentsync_trt.sync.jobs import Job
from latentsync_trt.sync.paint import Sight
from latentsync_trt.sync.speakers import Voices
from latentsync_trt.sync.speech import OpenVoices
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.sync.windows import Window, WindowPlanner
from latentsync_trt.types import Denoiser, FaceDetector, Float32Array, Frame

SEED = SyncOptions().seed
"""Seed of the noise that every window starts from, the same as in a usual run."""

OnStep = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class RecordedWindow:
    """The denoiser's inputs for one window, all float32: `noise (1, 4, 1, h, w)`, the same for every frame;
    `conditioning (1, 9, F, h, w)`; `audio (1, F, S, D)`."""

    noise: Float32Array
    conditioning: Float32Array
    audio: Float32Array

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a file from `record_windows`; raises `InputError` if it is missing or damaged."""
        names = [spec.name for spec in fields(cls)]
        arrays = load_arrays(path, *names)
        return cls(*(arrays[name] for name in names))


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """How windows are denoised: `schedule` and `plan` have one entry per step."""

    guidance: float
    schedule: tuple[Step, ...]
    plan: tuple[PlannedStep, ...]

    def run(self, denoiser: Denoiser, window: RecordedWindow, on_step: OnStep | None = None) -> Float32Array:
        """The final latents `(1, 4, F, h, w)`; after each step `on_step` gets the steps done and their total."""
        inputs = window.noise, window.conditioning, window.audio
        return denoise(denoiser, *inputs, self.guidance, self.schedule, self.plan, on_step)


def record_windows(
    clip: Clip,
    wanted: int,
    networks: Networks,
    detector: FaceDetector,
    path_of: Callable[[int], Path],
    on_frame: Callable[[int, int], None],
) -> ClipSummary:
    """Records up to `wanted` windows, spread evenly over a clip, with the stages of a usual run.

    Args:
        path_of: number of a window in the clip → its file; windows whose file exists are not recorded again.
        on_frame: called after each frame with the frames read so far and the expected total.

    Raises:
        MediaError: the clip cannot be read. OutputError: a window cannot be written.
    """
    manifest, frames = networks.bundle.manifest, 0
    delays, info = delays_of(clip.video, clip.audio), probe(clip.video)
    voices = Voices((SoundPiece(clip.audio, delays.sound_s),))
    speech = OpenVoices(voices, networks.encode_mel, filters_of(networks.bundle), SyncOptions().silence)
    in_video = frames_in(None if info.duration_s is None else delays.picture_s + info.duration_s, MODEL_FPS)
    in_audio = frame_count(speech.end_s)
    expected = in_audio if in_video is None else min(in_video, in_audio)
    expected_windows, recorded = max(1, expected // manifest.frames), 0

    def read() -> Generator[Frame, None, None]:
        nonlocal frames
        playback = Playback(Fraction(MODEL_FPS), speech.end_s, delay_s=delays.picture_s)
        source = read_frames(clip.video, playback)
        for frames, frame in enumerate(source, start=1):
            on_frame(frames, max(frames, expected))
            yield frame

    aspect = info.sample_aspect_ratio
    finder = FaceFinder(detector, manifest.resolution_px, StageClock(), pixel_aspect=aspect)
    with closing(speech), closing(finder.cut_out(finder.find(read()))) as jobs:
        for number, window in enumerate(_windows(jobs, manifest.frames)):
            if _is_picked(number, wanted, expected_windows):
                recorded += 1
                if not path_of(number).is_file():
                    save_arrays(path_of(number), asdict(_inputs(window, networks, speech)))
    return ClipSummary(frames, finder.frames_with_face, recorded, silent_share(read_audio_blocks(clip.audio)))


def _windows(jobs: Iterable[Job], frames: int) -> Iterator[Window[Sight]]:
    planner: WindowPlanner[Sight] = WindowPlanner(frames)
    for job in jobs:
        yield from planner.push({target.track_id: (job.frame, target) for target in job.targets})
    yield from planner.finish()


def _is_picked(number: int, wanted: int, expected: int) -> bool:
    """Whether this is one of `wanted` windows spread evenly over `expected`."""
    wanted = min(wanted, expected)
    return number < expected and (number + 1) * wanted // expected > number * wanted // expected


def _inputs(window: Window[Sight], networks: Networks, speech: OpenVoices) -> RecordedWindow:
    manifest = networks.bundle.manifest
    side_px, latent_px = manifest.resolution_px, manifest.latent_px
    faces = np.stack([target.face.image for _, target in window.items if target.face is not None])
    masked, reference = networks.codec.encode_faces(faces, mouth_mask(side_px))
    known = conditioning(latent_mask(side_px), masked[None], reference[None])
    audio = speech.windows(0, [frame for frame, _ in window.items])
    return RecordedWindow(initial_noise(SEED, latent_px, latent_px), known, audio[None])
