"""`latentsync-trt calibrate`: makes an INT8 or FP8 bundle from a bundle and clips of talking faces."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from latentsync_trt.bundle.find import checkpoints_folder, describe_choice, find_bundle
from latentsync_trt.bundle.manifest import FULL_STEP, PRECISIONS, Manifest, read_manifest, tool_versions
from latentsync_trt.cli.model import note_on_default
from latentsync_trt.cli.options import LocalPath, build, bundle_option, options_from, quiet_option
from latentsync_trt.cli.show import progress_bar, say
from latentsync_trt.errors import ProviderUnavailable
from latentsync_trt.option_fields import FILES, HARDWARE
from latentsync_trt.quantize.calibration_options import EXTRA, TOOLS, CalibrateOptions, Clip, clips_in
from latentsync_trt.runtime.providers.table import CPU, CUDA

if TYPE_CHECKING:
    from latentsync_trt.runtime.providers.select import Selection

_input_option = partial(click.option, type=LocalPath(), panel=FILES)
_folder_option = partial(click.option, type=LocalPath(folder=True), panel=FILES)


@click.command("calibrate")
@bundle_option
@_input_option("--video", help="A video of a talking face.")
@_input_option("--audio", help="Speech for --video.  [default: the video's own sound]")
@_input_option(
    "--clips", help="A folder of such videos, each with an audio file of the same name beside it, else its own sound."
)
@_folder_option("--out", help="Folder of the new bundle.  [default: below checkpoints/]")
@options_from(CalibrateOptions)
@click.option(
    "--provider",
    type=click.Choice(("auto", CUDA.name, CPU.name)),
    default="auto",
    show_default=True,
    panel=HARDWARE,
    help="Execution provider that denoises the clips; naming one disables fallback.",
)
@quiet_option
def command(
    bundle: str | None,
    video: Path | None,
    audio: Path | None,
    clips: Path | None,
    provider: str,
    out: Path | None,
    quiet: bool,
    **fields: Any,
) -> None:
    """Make an INT8 or FP8 bundle from a bundle, calibrated on clips."""
    tool_versions(TOOLS, extra=EXTRA)
    from latentsync_trt.quantize.calibrate import Calibration, open_parent

    options, chosen = build(CalibrateOptions, fields), _clips(video, audio, clips)
    folder, why = find_bundle(bundle)
    notice = (lambda _: None) if quiet else say
    notice(describe_choice(folder, why))
    parent, target = open_parent(folder), out or default_out(folder.name, options.precision)
    selection = _select(provider, notice)
    with progress_bar(hidden=quiet) as on_progress:
        Calibration(parent, chosen, options, selection, on_progress, lambda text: notice(f"warning: {text}")).run(
            target
        )
    if not quiet:
        click.echo(_summary(target, parent.manifest))
        if note := note_on_default(target):
            say(f"note: {note}")


def default_out(bundle: str, precision: str) -> Path:
    """ "1.6-512-fp16" → checkpoints/1.6-512-int8; a name without a precision gets it appended."""
    before = next((f"-{name}" for name in PRECISIONS if f"-{name}" in bundle), None)
    name = bundle.replace(before, f"-{precision}") if before else f"{bundle}-{precision}"
    return checkpoints_folder() / name


def _clips(video: Path | None, audio: Path | None, folder: Path | None) -> tuple[Clip, ...]:
    from latentsync_trt.media.files import check_file

    if audio is not None and video is None:
        raise click.UsageError("--audio: needs --video")
    if video is None and folder is None:
        raise click.UsageError("no clips to calibrate on: give --video with --audio, or --clips with a folder")
    for path in (video, audio):
        if path is not None:
            check_file(path)
    single = () if video is None else (Clip(video, audio or video),)
    return single + (() if folder is None else clips_in(folder))


def _select(request: str, notice: Callable[[str], None]) -> "Selection":
    """auto: CUDA, else the CPU; TensorRT would take minutes to build observed graphs that are used once."""
    from latentsync_trt.runtime.providers.select import select_provider

    try:
        return select_provider(CUDA.name if request == "auto" else request)
    except ProviderUnavailable as error:
        if request != "auto":
            raise
        notice(f"calibrating on the CPU, which takes hours at full size ({error})")
        return select_provider(CPU.name)


def _summary(folder: Path, parent: Manifest) -> str:
    made = read_manifest(folder)
    before, after = (manifest.files[manifest.graphs[FULL_STEP].weights].bytes for manifest in (parent, made))
    share, distance = (made.quantization.share, made.quantization.distance) if made.quantization else (0.0, {})
    measured = [f"PSNR of faces against {parent.precision} {value:.1f} dB" for value in distance.values()]
    sizes = f"U-Net weights {before / 1e6:.1f} → {after / 1e6:.1f} MB"
    return ", ".join([f"{folder}: {made.precision} in {share:.0%} of the U-Net's arithmetic", sizes, *measured])
