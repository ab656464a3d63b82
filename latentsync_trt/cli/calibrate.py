"""`latentsync-trt calibrate`: an 8-bit bundle from a bundle."""

import re
from pathlib import Path
from typing import Any

import rich_click as click

from latentsync_trt.bundle import find, manifest
from latentsync_trt.bundle.manifest import PRECISIONS, read_manifest, tool_versions
from latentsync_trt.cli import echo
from latentsync_trt.cli import options as flags
from latentsync_trt.cli.export import note_on_default
from latentsync_trt.cli.show import notices_to, progress_bar, say
from latentsync_trt.errors import ProviderUnavailable
from latentsync_trt.option_fields import FILES
from latentsync_trt.paths import check_free, path_exists
from latentsync_trt.quantize.calibration_options import (
    CALIBRATE_EXTRA,
    CALIBRATE_TOOLS,
    CalibrateOptions,
    CalibrationClip,
    clips_in,
)
from latentsync_trt.runtime.providers.choice import select_provider
from latentsync_trt.runtime.providers.diagnosis import shows_no_gpu
from latentsync_trt.runtime.providers.table import CPU, CUDA


@click.command("calibrate")
@flags.bundle_option
@flags.path_option("--video", panel=FILES, help="A video of a talking face.")
@flags.path_option(
    "--audio", panel=FILES, help="Speech for --video.  [default: the video's own sound]"
)
@flags.path_option(
    "--clips", panel=FILES, help="A folder of videos with sound, or a sound file of the same name."
)
@flags.path_option(
    "--output", panel=FILES, folder=True, help="New bundle's folder.  [default: below checkpoints/]"
)
@flags.options_from(CalibrateOptions)
@flags.provider_option
@flags.overwrite_option
@flags.quiet_option
def calibrate(
    bundle: str | None, video: Path | None, provider: str, quiet: bool, **fields: Any
) -> None:
    tool_versions(CALIBRATE_TOOLS, extra=CALIBRATE_EXTRA)
    from latentsync_trt.media.files import check_file
    from latentsync_trt.quantize.calibrate import Calibration, open_parent

    options = flags.build(CalibrateOptions, fields)
    notice = notices_to(silent=quiet)
    audio = fields["audio"]
    clips = fields["clips"]
    # TensorRT would build observed graphs that are used once
    if provider not in ("auto", CUDA.name, CPU.name):
        raise click.UsageError("--provider: clips are denoised with cuda or cpu")
    if video is None and (audio is not None or clips is None):
        raise click.UsageError(
            "no video to calibrate on: give --video with --audio, or --clips with a folder"
        )
    for path in filter(None, (video, audio)):
        check_file(path)
    given = [] if video is None else [CalibrationClip(video, audio or video)]
    given += [] if clips is None else clips_in(clips)
    folder, why = find.find_bundle(bundle)
    notice(find.describe_choice(folder, why))
    # "1.6-512-fp16" becomes "1.6-512-int8"; a name without a precision gets it appended.
    name = re.sub(rf"(-({'|'.join(PRECISIONS)}))?$", f"-{options.precision}", folder.name, count=1)
    parent = open_parent(folder)
    target = fields["output"] or find.checkpoints_folder() / name
    check_free(
        target, overwrite=fields["overwrite"] or not path_exists(target / manifest.MANIFEST_NAME)
    )
    try:
        selection = select_provider(CUDA.name if provider == "auto" else provider)
    except ProviderUnavailable as error:
        if provider != "auto":
            raise
        why = "" if shows_no_gpu() else f" ({error})"
        notice(f"calibrating on the CPU, which takes hours at full size{why}")
        selection = select_provider(CPU.name)
    with progress_bar(hidden=quiet) as on_progress:
        Calibration(
            parent, given, options, selection, on_progress, lambda text: notice(f"note: {text}")
        ).run(target)
    if not quiet:
        made = read_manifest(target)
        share, distance = (
            (made.quantization.share, made.quantization.distance)
            if made.quantization
            else (0.0, {})
        )
        measured = [
            f"PSNR of faces against {parent.manifest.precision} {value:.1f} dB"
            for value in distance.values()
        ]
        echo(
            ", ".join(
                [f"{target}: {made.precision} in {share:.0%} of the U-Net's arithmetic", *measured]
            )
        )
        if note := note_on_default(target):
            say(f"note: {note}")
