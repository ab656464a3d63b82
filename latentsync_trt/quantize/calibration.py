"""From clips to ranges: record windows, then denoise them with observed graphs. Goes on where it was interrupted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.diffusion.loop import denoise
from latentsync_trt.diffusion.plan import PlannedStep, cache_plan
from latentsync_trt.diffusion.scheduler import solver_schedule
from latentsync_trt.errors import NoFaceError
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.quantize.clips import Clip, Findings, what_is_missing
from latentsync_trt.quantize.observe import write_observed
from latentsync_trt.quantize.ranges import LayerInput, Ranges, merged, observed
from latentsync_trt.quantize.record import RecordedWindow, Recorder
from latentsync_trt.quantize.settings import CalibrateOptions
from latentsync_trt.quantize.work import Work
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.networks.observer import ObservedTensor, ObservingDenoiser
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.types import Float32Array, Progress

STEP_PREFIX = "denoise_step"
_UNGUIDED = f"{STEP_PREFIX}_unguided"

SOLVER = "ddim"

UNGUIDED = 1.0
"""A guidance scale at which the unconditional half is left out."""

# Windows that are recorded besides the samples, to measure with what was not seen.
_MOST_HELD_OUT = 4

# Of so many windows one is denoised without guidance: in the other loops the same network sees both halves.
_UNGUIDED_EVERY = 4


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What a calibration saw.

    `ranges` of all layers, from so many `windows`; `held_out`: files of recorded windows to measure with, which are no
    part of the ranges unless `missing` says so; `clips`: SHA-256 of the clips' files by name; `missing`: what the clips
    lack, a sentence each.
    """

    ranges: Ranges
    windows: int
    held_out: tuple[Path, ...]
    clips: dict[str, str]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """How one window is denoised to be looked at."""

    window: Path
    guidance: float
    plan: tuple[PlannedStep, ...]


class Calibration:
    """One bundle, looked at while it denoises clips.

    Args:
        bundle: not in eight bits yet. clips: at least one. selection: CPU or CUDA.
        root: a folder for how far calibrations came.

    Raises:
        InputError: a clip cannot be read.
    """

    def __init__(
        self,
        bundle: Bundle,
        clips: Sequence[Clip],
        options: CalibrateOptions,
        selection: Selection,
        root: Path,
    ) -> None:
        self.bundle, self.options, self.selection = bundle, options, selection
        self._clips = tuple(clips)
        self._on_progress: Callable[[Progress], None] = _ignore
        self.work = Work(root, bundle, clips, options)

    def run(self, on_progress: Callable[[Progress], None]) -> Seen:
        """Does what is not done yet; `on_progress` is told how far each stage is.

        Raises:
            NoFaceError: no clip shows a face. MediaError: a clip cannot be read.
            OutputError: the folder of the work cannot be written, or is in use.
            InferenceError, OutOfMemory: a graph failed.
        """
        self._on_progress = on_progress
        with self.work.alone():
            findings = dict(zip(_names(self._clips), self._record(), strict=True))
            windows = self.work.windows()
            if not windows:
                raise NoFaceError(
                    f"{', '.join(findings)}: no face in any frame; a face must look at the camera, and be at least "
                    "50 px wide and 80 px high"
                )
            samples, held_out = split(windows, self.options.samples)
            missing = what_is_missing(findings, self.options.samples, self.bundle.manifest.frames)
            if not held_out and self.options.measures:
                missing += ("no window is left to measure with: the result is measured on one that was looked at",)
            return Seen(self._observe(samples), len(samples), held_out or samples[:1], self.work.clips, missing)

    def _record(self) -> list[Findings]:
        found = [self.work.findings(clip) for clip in range(len(self._clips))]
        if None in found:
            networks = Networks(self.bundle, self.selection, RuntimeOptions())
            manifest = self.bundle.manifest
            try:
                recorder = Recorder(
                    networks, manifest.resolution_px, manifest.frames, self.options.seed, MediaPipeDetector()
                )
                found = [self._record_clip(recorder, clip) if of is None else of for clip, of in enumerate(found)]
            finally:
                networks.close()
        return [of for of in found if of is not None]

    def _record_clip(self, recorder: Recorder, clip: int) -> Findings:
        stage = f"record {self._clips[clip].video.name}"
        wanted = -(-_recorded(self.options.samples) // len(self._clips))
        found = recorder.record(
            self._clips[clip],
            wanted,
            lambda number: self.work.window(clip, number),
            lambda done, total: self._on_progress(Progress(stage, done, total)),
        )
        self.work.keep_findings(clip, found)
        return found

    def _observe(self, windows: Sequence[Path]) -> Ranges:
        names = [name for name in self.bundle.manifest.graphs if name.startswith(STEP_PREFIX)]
        loops = loops_over(windows, self.options, unguided=_UNGUIDED in names)
        done, before = self.work.ranges()
        gathered = _Gathered(before)
        if done == len(loops):
            return gathered.ranges
        with TemporaryDirectory(prefix="graphs-", dir=self.work.folder) as folder:
            graphs = {name: write_observed(self.bundle, name, Path(folder)) for name in names}
            denoiser = ObservingDenoiser(graphs, self.selection, gathered.see)
            try:
                for number, loop in enumerate(loops[done:], start=done):
                    self._run(denoiser, loop, number, len(loops))
                    self.work.keep_ranges(number + 1, gathered.ranges)
            finally:
                denoiser.close()
        return gathered.ranges

    def _run(self, denoiser: ObservingDenoiser, loop: Loop, number: int, loops: int) -> None:
        window, steps = RecordedWindow.load(loop.window), self.options.steps

        def on_step(done: int, _: int) -> None:
            self._on_progress(Progress("observe", number * steps + done, loops * steps))

        schedule = solver_schedule(SOLVER, steps)
        denoise(denoiser, window.noise, window.conditioning, window.audio, loop.guidance, schedule, loop.plan, on_step)


class _Gathered:
    """Ranges that grow with every step."""

    def __init__(self, ranges: dict[str, LayerInput]) -> None:
        self.ranges = ranges

    def see(self, tensor: ObservedTensor, timestep: int, channel_amax: Float32Array, sample: Float32Array) -> None:
        """Takes what a step showed of a tensor."""
        seen = observed(channel_amax, sample, timestep)
        for layer in tensor.layers:
            self.ranges[layer] = merged(self.ranges[layer], seen) if layer in self.ranges else seen


def loops_over(windows: Sequence[Path], options: CalibrateOptions, *, unguided: bool) -> tuple[Loop, ...]:
    """How each window is denoised: guided ones first, then, if `unguided` graphs are there, one of four without.

    The whole network runs every N-th step, beginning one step later in each window, so that it is seen at all timesteps
    and so is the part of it that runs in between.
    """
    interval = options.cache_interval
    loops = []
    for number, window in enumerate(windows):
        offset = number % interval
        full = sorted({0, *range(offset, options.steps, interval)})
        guidance = UNGUIDED if unguided and number % _UNGUIDED_EVERY == _UNGUIDED_EVERY - 1 else options.guidance
        loops.append(Loop(window, guidance, cache_plan(options.steps, interval, full_steps=full)))
    return tuple(sorted(loops, key=lambda loop: loop.guidance == UNGUIDED))


def split(windows: Sequence[Path], samples: int) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """At most `samples` windows to look at, and those held out to measure with: both spread over all."""
    held = min(_recorded(samples) - samples, len(windows) // 3)
    places = {(2 * index + 1) * len(windows) // (2 * held) for index in range(held)}
    seen = [window for place, window in enumerate(windows) if place not in places]
    return tuple(seen[:samples]), tuple(windows[place] for place in sorted(places))


def _recorded(samples: int) -> int:
    """Windows to record for so many to look at."""
    return samples + max(1, min(_MOST_HELD_OUT, samples // 4))


def _names(clips: Sequence[Clip]) -> list[str]:
    """What to call each clip."""
    names = [clip.video.name for clip in clips]
    return [f"{name} (clip {number})" if names.count(name) > 1 else name for number, name in enumerate(names, start=1)]


def _ignore(_: Progress) -> None:
    """Nobody watches."""
