"""`latentsync-trt calibrate`: an 8-bit bundle from a bundle."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import rich_click as click

from latentsync_trt.bundle import find
from latentsync_trt.bundle.manifest import PRECISIONS, Bundle, read_manifest, tool_versions
from latentsync_trt.cli import echo
from latentsync_trt.cli import options as flags
from latentsync_trt.cli.export import check_bundle_target, note_on_default
from latentsync_trt.cli.show import notices_to, print_line, progress_bar
from latentsync_trt.errors import ProviderUnavailable
from latentsync_trt.option_fields import FILES
from latentsync_trt.quantize.calibration_options import (
    CALIBRATE_EXTRA,
    CALIBRATE_TOOLS,
    CalibrateOptions,
    CalibrationClip,
    clips_in,
)
from latentsync_trt.runtime.providers.choice import select_provider
from latentsync_trt.runtime.providers.diagnosis import shows_no_gpu
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.runtime.providers.table import CPU, CUDA


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateRequest:
    bundle: str | None = flags.bundle_option()
    video: Path | None = flags.command_field(None, "A video of a talking face.", group=FILES)
    audio: Path | None = flags.command_field(
        None, "Speech for --video.  [default: the video's own sound]", group=FILES
    )
    clips: Path | None = flags.command_field(
        None, "A folder of videos with sound, or a sound file of the same name.", group=FILES
    )
    output: Path | None = flags.command_field(
        None, "New bundle's folder.  [default: below checkpoints/]", group=FILES, folder=True
    )
    calibration: CalibrateOptions = flags.options_of()
    provider: str = flags.provider_option()
    overwrite: bool = flags.overwrite_option()
    quiet: bool = flags.quiet_option()


@click.command("calibrate")
@flags.takes(CalibrateRequest)
def calibrate(request: CalibrateRequest) -> None:
    tool_versions(CALIBRATE_TOOLS, extra=CALIBRATE_EXTRA)
    from latentsync_trt.quantize.calibrate import Calibration
    from latentsync_trt.quantize.eight_bit_bundle import open_parent

    # TensorRT would build observed graphs that are used once
    if request.provider not in ("auto", CUDA.name, CPU.name):
        raise click.UsageError("--provider: clips are denoised with cuda or cpu")
    clips = _clips_of(request)
    on_notice = notices_to(silent=request.quiet)
    folder, why = find.find_bundle(request.bundle)
    on_notice(find.describe_choice(folder, why))
    parent = open_parent(folder)
    target = request.output or find.checkpoints_folder() / _default_name(folder, request)
    check_bundle_target(target, overwrite=request.overwrite)
    selection = _selection_of(request.provider, on_notice)

    def on_note(text: str) -> None:
        on_notice(f"note: {text}")

    with progress_bar(hidden=request.quiet) as on_progress:
        options = request.calibration
        Calibration(parent, clips, options, selection, on_progress, on_note).run(target)
    if not request.quiet:
        _print_bundle(target, parent)


def _clips_of(request: CalibrateRequest) -> list[CalibrationClip]:
    from latentsync_trt.media.files import check_file

    video = request.video
    audio = request.audio
    if video is None and (audio is not None or request.clips is None):
        raise click.UsageError(
            "no video to calibrate on: give --video with --audio, or --clips with a folder"
        )
    clips = []
    for path in (video, audio):
        if path is not None:
            check_file(path)
    if video is not None:
        clips.append(CalibrationClip(video, audio or video))
    if request.clips is not None:
        clips += clips_in(request.clips)
    return clips


def _default_name(parent: Path, request: CalibrateRequest) -> str:
    """Returns the new bundle's name: of "1.6-512-fp16", "1.6-512-int8"."""
    precision = rf"(-({'|'.join(PRECISIONS)}))?$"  # a name without one gets it appended
    return re.sub(precision, f"-{request.calibration.precision}", parent.name, count=1)


def _selection_of(provider: str, on_notice: Callable[[str], None]) -> Selection:
    """Returns the provider that denoises clips; "auto" takes the CPU where CUDA does not load."""
    if provider != "auto":
        return select_provider(provider)
    try:
        return select_provider(CUDA.name)
    except ProviderUnavailable as error:
        why = "" if shows_no_gpu() else f" ({error})"
        on_notice(f"calibrating on the CPU, which takes hours at full size{why}")
        return select_provider(CPU.name)


def _print_bundle(folder: Path, parent: Bundle) -> None:
    facts = read_manifest(folder)
    if facts.quantization is not None:
        share = facts.quantization.share
        texts = [f"{folder}: {facts.precision} in {share:.0%} of the U-Net's arithmetic"]
        against = f"PSNR of faces against {parent.manifest.precision}"
        psnrs_db = facts.quantization.distance.values()
        texts += [f"{against} {psnr_db:.1f} dB" for psnr_db in psnrs_db]
        echo(", ".join(texts))
    note = note_on_default(folder)
    if note:
        print_line(f"note: {note}")
