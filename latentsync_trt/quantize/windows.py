"""Recorded windows: the denoiser's inputs for windows of a clip, and how they are denoised to
calibrate.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction

from latentsync_trt.audio.mel import filters_of
from latentsync_trt.config import MODEL_FPS, SyncOptions
from latentsync_trt.diffusion import DenoisingPlan, cache_plan, ddim_schedule, denoise
from latentsync_trt.face.tracker import FaceTracker
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import delays_of, probe, read_frames
from latentsync_trt.media.sound_pieces import SoundPiece
from latentsync_trt.quantize.calibration_options import CalibrateOptions, CalibrationClip
from latentsync_trt.runtime.model import Model
from latentsync_trt.sync.faces import FaceFinder, Target
from latentsync_trt.sync.inpainter import Inpainter, make_inpainter
from latentsync_trt.sync.sound import Sound
from latentsync_trt.sync.speech import OpenSpeech
from latentsync_trt.sync.windows import Window, faces_of, gather
from latentsync_trt.types import Denoiser, FaceDetector, Float32Array, Frame

CACHE_INTERVAL = 3
"""Every third step is full, as in the default preset."""

UNGUIDED = 1.0
"""A guidance scale at which the unconditional half is left out."""

_MOST_HELD_OUT = 4
"""The most windows to measure on."""

_UNGUIDED_EVERY = 4
"""One window in this many is denoised without guidance; guided graphs show both halves to their
layers anyway.
"""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedWindow:
    """The denoiser's inputs for one window, all float32."""

    noise: Float32Array
    """The same for every frame, `(1, 4, 1, h, w)`."""
    conditioning: Float32Array
    """`(9, F, h, w)`."""
    audio: Float32Array
    """`(F, S, D)`."""


@dataclass(frozen=True, slots=True)
class Loop:
    """How a window is denoised."""

    guidance: float
    steps: int
    interval: int | tuple[int, ...] = CACHE_INTERVAL
    """Every how many steps a full one runs, or the numbers of the full steps."""

    def run(
        self,
        denoiser: Denoiser,
        window: RecordedWindow,
        on_step: Callable[[int, int], None] | None = None,
    ) -> Float32Array:
        """Returns the final latents `(4, F, h, w)`; after each step `on_step` gets the steps done
        and their total.
        """
        full = cache_plan(self.steps, self.interval)
        plan = DenoisingPlan(self.guidance, ddim_schedule(self.steps), full)
        return denoise(denoiser, window.noise, window.conditioning, window.audio, plan, on_step)


def record(
    clip: CalibrationClip,
    wanted: int,
    model: Model,
    detector: FaceDetector,
    on_frame: Callable[[int, int], None],
) -> list[RecordedWindow]:
    """Records up to `wanted` windows, spread evenly over a clip, with the stages of a usual run.

    Args:
        on_frame: called after each frame with the frames read so far and the expected total.

    Raises:
        MediaError: the clip cannot be read.
    """
    manifest = model.bundle.manifest
    delays = delays_of(clip.video, clip.audio)
    info = probe(clip.video)
    sound = Sound((SoundPiece(clip.audio, delays.sound_s),))
    speech = OpenSpeech(sound, model.audio_encoder, filters_of(model.bundle), SyncOptions())
    playback = Playback(Fraction(MODEL_FPS), speech.end_s, delay_s=delays.picture_s)
    frame_count = playback.expected_frames(info) or 1
    frames = _counted(read_frames(clip.video, playback), frame_count, on_frame)
    finder = FaceFinder(
        FaceTracker(detector), manifest.resolution_px, pixel_aspect=info.sample_aspect_ratio
    )
    inpainter = make_inpainter(model, SyncOptions())
    jobs = finder.cut_out(finder.find(frames))
    with closing(speech), closing(gather(jobs, manifest.frames)) as items:
        chosen = _spread(items, wanted, max(1, frame_count // manifest.frames))
        return [_recorded(window, inpainter, speech) for window in chosen]


def _counted(
    frames: Iterable[Frame], expected: int, on_frame: Callable[[int, int], None]
) -> Generator[Frame, None, None]:
    """Yields the frames; calls `on_frame` before each."""
    for count, frame in enumerate(frames, start=1):
        on_frame(count, max(count, expected))
        yield frame


def _spread(
    items: Iterable[object], wanted: int, count: int
) -> Generator[Window[Target], None, None]:
    """Yields at most `wanted` of the first `count` windows among items, spread evenly over them."""
    chosen = 0
    number = 0
    for item in items:
        if not isinstance(item, Window):
            continue
        number += 1
        due = number * min(wanted, count) // count
        if number <= count and chosen < due:
            chosen += 1
            yield item


def loops_of(
    windows: Sequence[RecordedWindow], options: CalibrateOptions, *, unguided: bool
) -> list[tuple[RecordedWindow, Loop]]:
    """Returns how each window is denoised. With `unguided` graphs, one window in four runs without
    guidance, after the others.

    The full steps of each window start one step later, so that full and cached graphs are observed
    at all timesteps.
    """
    guided_loops = []
    unguided_loops = []
    for number, window in enumerate(windows):
        full = {0, *range(number % CACHE_INTERVAL, options.steps, CACHE_INTERVAL)}
        interval = tuple(sorted(full))
        if unguided and (number + 1) % _UNGUIDED_EVERY == 0:
            unguided_loops.append((window, Loop(UNGUIDED, options.steps, interval)))
        else:
            guided_loops.append((window, Loop(options.guidance, options.steps, interval)))
    return guided_loops + unguided_loops


def split(
    windows: Sequence[RecordedWindow], samples: int
) -> tuple[list[RecordedWindow], list[RecordedWindow]]:
    """Returns at most `samples` windows to calibrate on, and those held out to measure on, spread
    over all.
    """
    count = min(recorded_for(samples) - samples, len(windows) // 3)
    middles = range(1, 2 * count, 2)  # of equal parts
    places = {middle * len(windows) // (2 * count) for middle in middles}
    calibrated_on = [window for place, window in enumerate(windows) if place not in places]
    held_out = [windows[place] for place in sorted(places)]
    return calibrated_on[:samples], held_out


def recorded_for(samples: int) -> int:
    """Returns how many windows to record, to calibrate on `samples` of them."""
    return samples + max(1, min(_MOST_HELD_OUT, samples // 4))


def _recorded(window: Window[Target], inpainter: Inpainter, speech: OpenSpeech) -> RecordedWindow:
    conditioning = inpainter.run("encode", lambda: inpainter.encode_faces(faces_of(window)))
    audio = speech.windows(0, [item.time_s for item in window.items])
    return RecordedWindow(inpainter.noise, conditioning, audio)
