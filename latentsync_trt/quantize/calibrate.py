"""Calibration: record windows of clips, observe ranges, choose the layers to keep, measure, write the bundle."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.diffusion.plan import cache_plan
from latentsync_trt.diffusion.scheduler import solver_schedule
from latentsync_trt.errors import NoFaceError
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.quantize.bundle import Provenance, quantize_bundle
from latentsync_trt.quantize.clips import Clip, ClipSummary, clip_names, warnings_of
from latentsync_trt.quantize.observe import write_observed
from latentsync_trt.quantize.options import CalibrateOptions
from latentsync_trt.quantize.ranges import ActivationRange, Ranges
from latentsync_trt.quantize.replay import Replay
from latentsync_trt.quantize.search import SearchResult, measure, search
from latentsync_trt.quantize.steps import step_graphs
from latentsync_trt.quantize.windows import Loop, OnStep, RecordedWindow, record_windows
from latentsync_trt.quantize.work import WorkFolder
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.networks.uncached import ObservedTensor, ObservingDenoiser
from latentsync_trt.runtime.providers.select import FP8_FROM, Selection
from latentsync_trt.types import Float32Array, Progress, ProgressCallback

DISTANCE = "faces_psnr_db"
"""The manifest's name for the PSNR of faces after whole loops, against the parent's."""

CACHE_INTERVAL = 3
"""Every third step is full, as in the default preset."""

UNGUIDED = 1.0
"""A guidance scale at which the unconditional half is left out."""

_SOLVER = "ddim"

_MOST_HELD_OUT = 4

# One window of this many is denoised without guidance: the guided graphs' layers see both halves anyway.
_UNGUIDED_EVERY = 4


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """What a calibration observed.

    `ranges` of all layers, from `windows` windows. `held_out`: files of windows to measure with, which are not among
    them unless `warnings` says so. `clips`: SHA-256 of their files by name.
    """

    ranges: Ranges
    windows: int
    held_out: tuple[Path, ...]
    clips: dict[str, str]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Calibrated:
    """An 8-bit bundle in `folder`; `distance` from its parent by name of the measure, empty if not measured; `search`:
    how its layers were chosen, if by a search."""

    folder: Path
    distance: dict[str, float]
    search: SearchResult | None = None


@dataclass(frozen=True)
class Calibration:
    """One calibration of `bundle`, not in 8 bits, on at least one of `clips`.

    `selection`: CPU or CUDA. `root`: a folder for intermediate results, from which an interrupted one resumes.
    """

    bundle: Bundle
    clips: Sequence[Clip]
    options: CalibrateOptions
    selection: Selection
    root: Path

    @cached_property
    def work(self) -> WorkFolder:
        """Intermediate results; raises `InputError` if a clip cannot be read."""
        options = self.options
        settings = {"samples": options.samples, "steps": options.steps, "guidance": options.guidance}
        return WorkFolder(self.root, self.bundle, self.clips, settings)

    def run(self, out: Path, on_progress: ProgressCallback, on_notice: Callable[[str], None]) -> Calibrated:
        """Writes the 8-bit bundle to `out`; `on_notice` gets warnings about the clips and the GPU, a sentence each.

        Raises:
            InputError: the target PSNR is out of reach, all layers are kept, or `out` contains something else.
            OutputError: `out` cannot be written. Others: as `observe`.
        """
        for warning in gpu_warnings(self.options.precision, self.selection):
            on_notice(f"warning: {warning}")
        observed = self.observe(on_progress)
        for warning in observed.warnings:
            on_notice(f"warning: {warning}")
        options, distance, found = self._choose(observed, on_progress)
        on_progress(Progress("write", 0, None))
        settings = {
            "samples": options.samples,
            "steps": options.steps,
            "cache_interval": CACHE_INTERVAL,
            "guidance": options.guidance,
            "windows": observed.windows,
            "windows_measured": len(observed.held_out) if distance else 0,
            "target_psnr_db": options.target_psnr,
        }
        provenance = Provenance(observed.clips, settings, distance)
        return Calibrated(
            quantize_bundle(self.bundle.folder, observed.ranges, options, out, provenance), distance, found
        )

    def observe(self, on_progress: ProgressCallback) -> Observed:
        """Records windows and denoises them with observed graphs, as far as it was not done before.

        Raises:
            NoFaceError: no clip shows a face. MediaError, InputError: a clip cannot be read.
            OutputError: the folder for intermediate results cannot be written, or is in use.
            InferenceError, OutOfMemory: a graph failed.
        """
        with self.work.locked():
            summaries = dict(zip(clip_names(self.clips), self._record(on_progress), strict=True))
            windows = self.work.windows()
            if not windows:
                raise NoFaceError(
                    f"{', '.join(summaries)}: no face in any frame; a face must look at the camera and be at least "
                    "50 px wide and 80 px high"
                )
            samples, held_out = split(windows, self.options.samples)
            warnings = warnings_of(summaries, self.options.samples, self.bundle.manifest.frames)
            if not held_out and self.options.needs_held_out:
                warnings += ("no window is left to measure on, so the result is measured on a calibrated one",)
            ranges = self._observe(samples, on_progress)
            return Observed(ranges, len(samples), held_out or samples[:1], self.work.clips, warnings)

    def _record(self, on_progress: ProgressCallback) -> list[ClipSummary]:
        known = [self.work.summary(clip) for clip in range(len(self.clips))]
        if None not in known:
            return [summary for summary in known if summary is not None]
        networks, detector = Networks(self.bundle, self.selection, RuntimeOptions()), MediaPipeDetector()
        wanted = -(-_recorded(self.options.samples) // len(self.clips))

        def record(index: int, clip: Clip) -> ClipSummary:
            summary = record_windows(
                clip,
                wanted,
                networks,
                detector,
                lambda number: self.work.window(index, number),
                lambda done, total: on_progress(Progress(f"record {clip.video.name}", done, total)),
            )
            self.work.save_summary(index, summary)
            return summary

        try:
            return [summary or record(index, self.clips[index]) for index, summary in enumerate(known)]
        finally:
            networks.close()

    def _observe(self, windows: Sequence[Path], on_progress: ProgressCallback) -> Ranges:
        graphs = step_graphs(self.bundle)
        loops = loops_of(windows, self.options, unguided="denoise_step_unguided" in graphs)
        done, ranges = self.work.ranges()
        if done == len(loops):
            return ranges

        def take(tensor: ObservedTensor, _: int, channel_amax: Float32Array, sample: Float32Array) -> None:
            observed = ActivationRange.of_step(channel_amax, sample)
            for layer in tensor.layers:
                ranges[layer] = ranges[layer].merged(observed) if layer in ranges else observed

        with TemporaryDirectory(prefix="graphs-", dir=self.work.folder) as folder:
            observed_graphs = {name: write_observed(self.bundle, name, Path(folder)) for name in graphs}
            denoiser = ObservingDenoiser(observed_graphs, self.selection, take)
            try:
                for number, (window, loop) in enumerate(loops[done:], start=done):
                    loop.run(
                        denoiser, RecordedWindow.load(window), self._step_progress(number, len(loops), on_progress)
                    )
                    self.work.save_ranges(number + 1, ranges)
            finally:
                denoiser.close()
        return ranges

    def _step_progress(self, number: int, loops: int, on_progress: ProgressCallback) -> OnStep:
        steps = self.options.steps
        return lambda done, _: on_progress(Progress("observe", number * steps + done, loops * steps))

    def _choose(
        self, observed: Observed, on_progress: ProgressCallback
    ) -> tuple[CalibrateOptions, dict[str, float], SearchResult | None]:
        """Options with the layers to keep, the distance that results, and the search that found them."""
        options, ranges, work = self.options, observed.ranges, self.work.folder
        if not options.needs_held_out:
            return options, {}, None
        windows = [RecordedWindow.load(path) for path in observed.held_out]
        plan = cache_plan(options.steps, CACHE_INTERVAL)
        loop = Loop(options.guidance, solver_schedule(_SOLVER, options.steps), plan)
        with Replay(self.bundle, self.selection, windows, loop) as replay:
            if options.target_psnr is not None:
                found = search(ranges, options, replay, work, on_progress)
                return replace(options, keep=found.best.kept), {DISTANCE: found.best.psnr_db}, found
            on_progress(Progress("measure", 0, None))
            return options, {DISTANCE: measure(ranges, options, replay, work)}, None


def gpu_warnings(precision: str, selection: Selection) -> tuple[str, ...]:
    """Why the GPU that calibrates, if any, cannot run the result; calibrating on it works all the same."""
    gpu = selection.gpu
    if precision != "fp8" or gpu is None or gpu.capability >= FP8_FROM:
        return ()
    needed = ".".join(map(str, FP8_FROM))
    return (f"{gpu} has no FP8, which needs compute capability {needed}: TensorRT will not run the result here",)


def loops_of(windows: Sequence[Path], options: CalibrateOptions, *, unguided: bool) -> list[tuple[Path, Loop]]:
    """How each window is denoised: guided ones first, then, if there are `unguided` graphs, one of four without.

    Full steps start one step later in each window, so that full and cached graphs are observed at all timesteps.
    """
    schedule, loops = solver_schedule(_SOLVER, options.steps), []
    for number, window in enumerate(windows):
        full = sorted({0, *range(number % CACHE_INTERVAL, options.steps, CACHE_INTERVAL)})
        guidance = UNGUIDED if unguided and number % _UNGUIDED_EVERY == _UNGUIDED_EVERY - 1 else options.guidance
        plan = cache_plan(options.steps, CACHE_INTERVAL, full_steps=full)
        loops.append((window, Loop(guidance, schedule, plan)))
    return sorted(loops, key=lambda loop: loop[1].guidance == UNGUIDED)


def split(windows: Sequence[Path], samples: int) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """At most `samples` windows to calibrate on, and those held out to measure on, both spread over all."""
    held = min(_recorded(samples) - samples, len(windows) // 3)
    held_indices = sorted({(2 * index + 1) * len(windows) // (2 * held) for index in range(held)})
    calibrated_on = [window for index, window in enumerate(windows) if index not in held_indices]
    return tuple(calibrated_on[:samples]), tuple(windows[index] for index in held_indices)


def _recorded(samples: int) -> int:
    """Windows to record for `samples` to calibrate on."""
    return samples + max(1, min(_MOST_HELD_OUT, samples // 4))
