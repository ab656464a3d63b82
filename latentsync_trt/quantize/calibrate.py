"""The order of a calibration: look at clips, choose what keeps its precision, measure, write the bundle."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from latentsync_trt.diffusion.plan import cache_plan
from latentsync_trt.diffusion.scheduler import solver_schedule
from latentsync_trt.quantize.bundle_out import Provenance, quantize_bundle
from latentsync_trt.quantize.calibration import SOLVER, Calibration, Seen
from latentsync_trt.quantize.options import QuantizeOptions
from latentsync_trt.quantize.record import RecordedWindow
from latentsync_trt.quantize.replay import Loop, Replay
from latentsync_trt.quantize.search import SearchResult, measure, search
from latentsync_trt.quantize.settings import CalibrateOptions
from latentsync_trt.runtime.providers.select import FP8_FROM, Selection
from latentsync_trt.types import Progress

DISTANCE = "faces_psnr_db"
"""What the manifest calls the distance: PSNR of faces after whole loops, against the parent's."""

ProgressCallback = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, eq=False)
class Calibrated:
    """A bundle in eight bits: where it is, what was `seen` for it, and how its layers were chosen, if by a search.

    `distance`: by name of the measure; empty if none was asked for.
    """

    folder: Path
    seen: Seen
    distance: dict[str, float]
    search: SearchResult | None = None


def calibrate(
    calibration: Calibration, out: Path, on_progress: ProgressCallback, on_notice: Callable[[str], None]
) -> Calibrated:
    """Writes the calibration's bundle in eight bits to `out`.

    Args:
        on_progress: told how far each stage is. on_notice: told, in a sentence, what the clips or the GPU lack.

    Raises:
        InputError: the target is out of reach, no layer is left for eight bits, or `out` holds something else.
        Others: as `Calibration.run`, and `OutputError` where `out` cannot be written.
    """
    for lack in what_the_gpu_lacks(calibration.options.precision, calibration.selection):
        on_notice(f"warning: {lack}")
    seen = calibration.run(on_progress)
    for lack in seen.missing:
        on_notice(f"warning: {lack}")
    options, distance, found = _chosen(calibration, seen, on_progress)
    on_progress(Progress("write", 0, None))
    settings = _settings(calibration.options, seen, len(seen.held_out) if distance else 0)
    provenance = Provenance(seen.clips, settings, distance)
    folder = quantize_bundle(calibration.bundle.folder, seen.ranges, options, out, provenance)
    return Calibrated(folder, seen, distance, found)


def what_the_gpu_lacks(precision: str, selection: Selection) -> tuple[str, ...]:
    """Why the GPU that calibrates, if there is one, will not run the result; it can calibrate all the same."""
    gpu = selection.gpu
    if precision != "fp8" or gpu is None or gpu.capability >= FP8_FROM:
        return ()
    least = ".".join(map(str, FP8_FROM))
    return (f"{gpu} has no FP8, which takes compute capability {least}: TensorRT will refuse the result here",)


def _chosen(
    calibration: Calibration, seen: Seen, on_progress: ProgressCallback
) -> tuple[QuantizeOptions, dict[str, float], SearchResult | None]:
    """What to quantize how, what that does to faces, and the search that found it."""
    asked = calibration.options
    options, target_db, work = asked.quantize_options(), asked.target_psnr, calibration.work.folder
    if not asked.measures:
        return options, {}, None
    windows = [RecordedWindow.load(path) for path in seen.held_out]
    with Replay(calibration.bundle, calibration.selection, windows, _usual_loop(asked)) as replay:
        if target_db is None:
            on_progress(Progress("measure", 0, None))
            return options, {DISTANCE: measure(seen.ranges, options, replay, work)}, None
        found = search(seen.ranges, options, replay, target_db, work, on_progress)
        return replace(options, kept=found.kept), {DISTANCE: found.reached_db}, found


def _usual_loop(options: CalibrateOptions) -> Loop:
    """The loop that faces are measured after."""
    plan = cache_plan(options.steps, options.cache_interval)
    return Loop(options.guidance, solver_schedule(SOLVER, options.steps), plan)


def _settings(options: CalibrateOptions, seen: Seen, measured: int) -> dict[str, Any]:
    """What the manifest says of the calibration, besides how graphs were rewritten."""
    return {
        **options.of_the_loops(),
        "windows": seen.windows,
        "windows_measured": measured,
        "target_psnr_db": options.target_psnr,
    }
