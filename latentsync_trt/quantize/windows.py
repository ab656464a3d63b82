"""Recorded windows: the denoiser's inputs for windows of a clip, and how they are denoised to
calibrate.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction

from latentsync_trt.audio.mel import filters_of
from latentsync_trt.config import MODEL_FPS, SyncOptions
from latentsync_trt.diffusion import cache_plan, ddim_schedule, denoise
from latentsync_trt.face.tracker import FaceTracker
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import delays_of, probe, read_frames
from latentsync_trt.media.soundtrack import SoundPiece
from latentsync_trt.quantize.calibration_options import CalibrateOptions, Clip
from latentsync_trt.runtime.model import Model
from latentsync_trt.sync.faces import FaceFinder, Target
from latentsync_trt.sync.sound import Sound
from latentsync_trt.sync.speech import OpenSpeech
from latentsync_trt.sync.windows import Inpainter, Window, faces_of, gather, make_inpainter
from latentsync_trt.types import Denoiser, FaceDetector, Float32Array, Frame

CACHE_INTERVAL = 3
"""Every third step is full, as in the default preset."""

UNGUIDED = 1.0
"""A guidance scale at which the unconditional half is left out."""

_MOST_HELD_OUT = 4
# One window in this many is denoised without guidance; guided graphs show both halves to their
# layers anyway.
_UNGUIDED_EVERY = 4


@dataclass(frozen=True, slots=True, eq=False)
class RecordedWindow:
    """The denoiser's inputs for one window, all float32: `noise (1, 4, 1, h, w)`, the same for
    every frame; `conditioning (9, F, h, w)`; `audio (F, S, D)`."""

    noise: Float32Array
    conditioning: Float32Array
    audio: Float32Array


@dataclass(frozen=True, slots=True)
class Loop:
    """How a window is denoised; `interval` as for `cache_plan`."""

    guidance: float
    steps: int
    interval: int | tuple[int, ...] = CACHE_INTERVAL

    def run(
        self,
        denoiser: Denoiser,
        window: RecordedWindow,
        on_step: Callable[[int, int], None] | None = None,
    ) -> Float32Array:
        """The final latents `(4, F, h, w)`; after each step `on_step` gets the steps done and their
        total.
        """
        plan = cache_plan(self.steps, self.interval)
        inputs = window.noise, window.conditioning, window.audio
        return denoise(denoiser, *inputs, self.guidance, ddim_schedule(self.steps), plan, on_step)


def record(
    clip: Clip,
    wanted: int,
    model: Model,
    detector: FaceDetector,
    on_frame: Callable[[int, int], None],
) -> tuple[RecordedWindow, ...]:
    """Records up to `wanted` windows, spread evenly over a clip, with the stages of a usual run.

    Args:
        on_frame: called after each frame with the frames read so far and the expected total.

    Raises:
        MediaError: the clip cannot be read.
    """
    manifest = model.bundle.manifest
    delays = delays_of(clip.video, clip.audio)
    info = probe(clip.video)
    tracks = Sound((SoundPiece(clip.audio, delays.sound_s),))
    speech = OpenSpeech(tracks, model.audio_encoder, filters_of(model.bundle), SyncOptions())
    playback = Playback(Fraction(MODEL_FPS), speech.end_s, delay_s=delays.picture_s)
    expected = playback.expected_frames(info) or 1
    expected_windows = max(1, expected // manifest.frames)
    wanted = min(wanted, expected_windows)

    def read() -> Generator[Frame, None, None]:
        for count, frame in enumerate(read_frames(clip.video, playback), start=1):
            on_frame(count, max(count, expected))
            yield frame

    finder = FaceFinder(
        FaceTracker(detector), manifest.resolution_px, pixel_aspect=info.sample_aspect_ratio
    )
    inpainter = make_inpainter(model, SyncOptions())
    with (
        closing(speech),
        closing(gather(finder.cut_out(finder.find(read())), manifest.frames)) as gathered,
    ):
        windows = (item for item in gathered if isinstance(item, Window))
        return tuple(
            _inputs(window, inpainter, speech)
            for number, window in enumerate(windows)
            if number < expected_windows
            and (number + 1) * wanted // expected_windows > number * wanted // expected_windows
        )


def loops_of(
    windows: Sequence[RecordedWindow], options: CalibrateOptions, *, unguided: bool
) -> list[tuple[RecordedWindow, Loop]]:
    """How each window is denoised. With `unguided` graphs, one window in four runs without
    guidance, after the others.

    The full steps of each window start one step later, so that full and cached graphs are observed
    at all timesteps.
    """
    loops = []
    for number, window in enumerate(windows):
        full = tuple(sorted({0, *range(number % CACHE_INTERVAL, options.steps, CACHE_INTERVAL)}))
        without = unguided and number % _UNGUIDED_EVERY == _UNGUIDED_EVERY - 1
        loops.append((window, Loop(UNGUIDED if without else options.guidance, options.steps, full)))
    return sorted(loops, key=lambda loop: loop[1].guidance == UNGUIDED)


def split(
    windows: Sequence[RecordedWindow], samples: int
) -> tuple[tuple[RecordedWindow, ...], tuple[RecordedWindow, ...]]:
    """At most `samples` windows to calibrate on, and those held out to measure on, both spread over
    all.
    """
    held = min(recorded_for(samples) - samples, len(windows) // 3)
    held_indices = sorted({(2 * index + 1) * len(windows) // (2 * held) for index in range(held)})
    calibrated_on = [window for index, window in enumerate(windows) if index not in held_indices]
    return tuple(calibrated_on[:samples]), tuple(windows[index] for index in held_indices)


def recorded_for(samples: int) -> int:
    return samples + max(1, min(_MOST_HELD_OUT, samples // 4))


def _inputs(window: Window[Target], inpainter: Inpainter, speech: OpenSpeech) -> RecordedWindow:
    known = inpainter.run("encode", lambda: inpainter.encode(faces_of(window)))
    audio = speech.windows(0, [each.time_s for each in window.items])
    return RecordedWindow(inpainter.noise, known, audio)
