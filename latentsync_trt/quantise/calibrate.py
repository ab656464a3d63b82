"""The order of a calibration: look at clips, choose what keeps its precision, write the bundle."""

from collections.abc import Callable
from pathlib import Path

from latentsync_trt.quantise.bundle_out import Provenance, quantise_bundle
from latentsync_trt.quantise.calibration import Calibration
from latentsync_trt.types import Progress

Notice = Callable[[str], None]


def calibrate(calibration: Calibration, out: Path, on_progress: Callable[[Progress], None], on_notice: Notice) -> Path:
    """Writes the calibration's bundle in eight bits to `out`; returns it.

    Args:
        on_progress: told how far each stage is. on_notice: told, in a sentence, what the clips lack, and what was
            reached.

    Raises: as `Calibration.run` and `quantise_bundle`.
    """
    seen = calibration.run(on_progress)
    for lack in seen.missing:
        on_notice(f"warning: {lack}")
    options = calibration.options
    settings = {**options.of_the_loops(), "windows": seen.windows}
    on_progress(Progress("write", 0, None))
    return quantise_bundle(
        calibration.bundle.folder,
        seen.ranges,
        options.quantise_options(),
        out,
        Provenance(seen.clips, settings),
    )
