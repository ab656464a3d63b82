"""Calibration: record windows of clips, observe ranges, choose the layers to keep, measure, write the bundle."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from latentsync_trt.bundle.manifest import Bundle, step_graph
from latentsync_trt.diffusion.plan import cache_plan
from latentsync_trt.diffusion.scheduler import solver_schedule
from latentsync_trt.errors import NoFaceError
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.quantize.bundle import check_out, quantize_bundle
from latentsync_trt.quantize.clips import Clip, ClipSummary, warnings_of
from latentsync_trt.quantize.observe import write_observed
from latentsync_trt.quantize.options import CalibrateOptions
from latentsync_trt.quantize.ranges import ActivationRange, Ranges
from latentsync_trt.quantize.replay import Replay
from latentsync_trt.quantize.search import SearchResult, search
from latentsync_trt.quantize.steps import QuantizedSteps, step_graphs
from latentsync_trt.quantize.windows import Loop, RecordedWindow, record_windows
from latentsync_trt.quantize.work import WorkFolder
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.networks.uncached import ObservedTensor, ObservingDenoiser
from latentsync_trt.runtime.providers.select import FP8_FROM, Selection
from latentsync_trt.types import Float32Array, Progress, ProgressCallback

DISTANCE = "faces_psnr_db"
"""The manifest's name for the PSNR of faces after whole loops, compared with the parent."""

CACHE_INTERVAL = 3
"""Every third step is full, as in the default preset."""

UNGUIDED = 1.0
"""A guidance scale at which the unconditional half is left out."""

_SOLVER = "ddim"
_MOST_HELD_OUT = 4
# One window in this many is denoised without guidance; guided graphs show both halves to their layers anyway.
_UNGUIDED_EVERY = 4


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """Ranges of all layers, the number of windows they come from, and the windows held out for measuring."""

    ranges: Ranges
    windows: int
    held_out: tuple[Path, ...]


@dataclass(frozen=True)
class Calibration:
    """One calibration of `bundle`, which is not in 8 bits, on `clips`, at least one.

    `selection`: CPU or CUDA. `root`: folder for intermediate results, from which an interrupted calibration resumes.
    `on_warning`: called with sentences about the clips and the GPU.
    """

    bundle: Bundle
    clips: Sequence[Clip]
    options: CalibrateOptions
    selection: Selection
    root: Path
    on_progress: ProgressCallback
    on_warning: Callable[[str], None]

    @cached_property
    def work(self) -> WorkFolder:
        """Intermediate results; raises `InputError` if a clip cannot be read."""
        return WorkFolder(self.root, self.bundle, self.clips, self.options)

    def run(self, out: Path) -> SearchResult | None:
        """Writes the 8-bit bundle to `out`; returns the result of the search for layers to keep, if there was one.

        Raises:
            InputError: the target PSNR is out of reach, all layers are kept, or `out` contains something else.
            OutputError: `out` cannot be written. Others: as `observe`.
        """
        check_out(self.bundle, out)
        self._warn_of_gpu()
        observed = self.observe()
        options, distance, found = self._choose(observed)
        self.on_progress(Progress("write", 0, None))
        settings = {
            "samples": options.samples,
            "steps": options.steps,
            "cache_interval": CACHE_INTERVAL,
            "guidance": options.guidance,
            "windows": observed.windows,
            "windows_measured": len(observed.held_out) if distance else 0,
            "target_psnr_db": options.target_psnr,
        }
        quantize_bundle(
            self.bundle, observed.ranges, options, out, clips=self.work.clips, settings=settings, distance=distance
        )
        return found

    def observe(self) -> Observed:
        """Records windows and denoises them with observed graphs, except those done before an interruption.

        Raises:
            NoFaceError: no clip shows a face. MediaError, InputError: a clip cannot be read.
            OutputError: the folder for intermediate results cannot be written.
            InferenceError, OutOfMemory: a graph failed.
        """
        summaries = self._record()
        windows = self.work.windows()
        if not windows:
            raise NoFaceError(
                f"{', '.join(summaries)}: no face in any frame; a face must look at the camera and be at least 50 px "
                "wide and 80 px high"
            )
        samples, held_out = split(windows, self.options.samples)
        for warning in warnings_of(summaries, self.options.samples, self.bundle.manifest.frames):
            self.on_warning(warning)
        if not held_out and (self.options.measure or self.options.target_psnr is not None):
            self.on_warning("no window is left to measure on, so the result is measured on one it was calibrated on")
        return Observed(self._observe(samples), len(samples), held_out or samples[:1])

    def _warn_of_gpu(self) -> None:
        gpu = self.selection.gpu
        if self.options.precision == "fp8" and gpu is not None and gpu.capability < FP8_FROM:
            needed = ".".join(map(str, FP8_FROM))
            self.on_warning(
                f"{gpu} has no FP8, which needs compute capability {needed}: TensorRT will not run the result here"
            )

    def _record(self) -> dict[str, ClipSummary]:
        wanted = -(-_recorded(self.options.samples) // len(self.clips))
        summaries = {}
        with closing(Networks(self.bundle, self.selection)) as networks:
            for number, clip in enumerate(self.clips):
                summary = self.work.summary(number)
                if summary is None:
                    path_of, report = partial(self.work.window, number), self._report(f"record {clip.video.name}")
                    summary = record_windows(clip, wanted, networks, MediaPipeDetector(), path_of, report)
                    self.work.save_summary(number, summary)
                summaries[str(clip.video)] = summary
        return summaries

    def _observe(self, windows: Sequence[Path]) -> Ranges:
        graphs = step_graphs(self.bundle)
        loops = loops_of(windows, self.options, unguided=step_graph(guided=False, cached=False) in graphs)
        done, ranges = self.work.ranges()
        if done == len(loops):
            return ranges

        def take(tensor: ObservedTensor, _: int, channel_amax: Float32Array, sample: Float32Array) -> None:
            observed = ActivationRange.of_step(channel_amax, sample)
            for layer in tensor.layers:
                ranges[layer] = ranges[layer].merged(observed) if layer in ranges else observed

        steps = self.options.steps
        with self.work.temporary() as folder:
            observed_graphs = {name: write_observed(self.bundle, name, folder) for name in graphs}
            with closing(ObservingDenoiser(observed_graphs, self.selection, take)) as denoiser:
                for number, (window, loop) in enumerate(loops[done:], start=done):
                    report = self._report("observe", number * steps, len(loops) * steps)
                    loop.run(denoiser, RecordedWindow.load(window), report)
                    self.work.save_ranges(number + 1, ranges)
        return ranges

    def _report(self, stage: str, before: int = 0, total: int | None = None) -> Callable[[int, int], None]:
        """A progress callback for a stage, or for the part of it that begins at `before` of `total`."""
        return lambda done, of: self.on_progress(Progress(stage, before + done, total or of))

    def _choose(self, observed: Observed) -> tuple[CalibrateOptions, dict[str, float], SearchResult | None]:
        """Options with the layers to keep, the resulting distance, and the search that found them."""
        options = self.options
        if not options.measure and options.target_psnr is None:
            return options, {}, None
        windows = [RecordedWindow.load(path) for path in observed.held_out]
        plan = cache_plan(options.steps, CACHE_INTERVAL)
        loop = Loop(options.guidance, solver_schedule(_SOLVER, options.steps), plan)
        with (
            self.work.temporary() as folder,
            QuantizedSteps(self.bundle, observed.ranges, options, folder) as steps,
            closing(Networks(self.bundle, self.selection)) as networks,
        ):
            replay = Replay(steps, networks, windows, loop)
            if options.target_psnr is not None:
                found = search(replay, options.target_psnr, self.on_progress)
                return replace(options, keep=found.best.kept), {DISTANCE: found.best.psnr_db}, found
            self.on_progress(Progress("measure", 0, None))
            return options, {DISTANCE: replay.psnr_db(steps.kept())}, None


def loops_of(windows: Sequence[Path], options: CalibrateOptions, *, unguided: bool) -> list[tuple[Path, Loop]]:
    """How each window is denoised. With `unguided` graphs, one window in four runs without guidance, after the others.

    The full steps of each window start one step later, so that full and cached graphs are observed at all timesteps.
    """
    schedule, loops = solver_schedule(_SOLVER, options.steps), []
    for number, window in enumerate(windows):
        full = sorted({0, *range(number % CACHE_INTERVAL, options.steps, CACHE_INTERVAL)})
        guidance = UNGUIDED if unguided and number % _UNGUIDED_EVERY == _UNGUIDED_EVERY - 1 else options.guidance
        plan = cache_plan(options.steps, tuple(full))
        loops.append((window, Loop(guidance, schedule, plan)))
    return sorted(loops, key=lambda loop: loop[1].guidance == UNGUIDED)


def split(windows: Sequence[Path], samples: int) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """At most `samples` windows to calibrate on, and those held out to measure on, both spread over all."""
    held = min(_recorded(samples) - samples, len(windows) // 3)
    held_indices = sorted({(2 * index + 1) * len(windows) // (2 * held) for index in range(held)})
    calibrated_on = [window for index, window in enumerate(windows) if index not in held_indices]
    return tuple(calibrated_on[:samples]), tuple(windows[index] for index in held_indices)


def _recorded(samples: int) -> int:
    """Number of windows to record for calibrating on `samples`."""
    return samples + max(1, min(_MOST_HELD_OUT, samples // 4))
