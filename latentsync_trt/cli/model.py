"""`latentsync-trt download`, `export`, `calibrate` and `setup`: from weights to a bundle that
runs.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import rich_click as click

from latentsync_trt.bundle import find, manifest
from latentsync_trt.bundle.machine import cpu_step_bytes, machine_bytes
from latentsync_trt.bundle.manifest import PRECISIONS, read_manifest, tool_versions
from latentsync_trt.cli import echo, interruption
from latentsync_trt.cli import options as flags
from latentsync_trt.cli.show import notices_to, progress_bar, say
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import CheckpointError, InputError, ProviderUnavailable
from latentsync_trt.export.export_options import EXTRA, TOOLS, ExportOptions, find_sources
from latentsync_trt.export.published import (
    LATENTSYNC,
    VAE,
    Model,
    check_downloads,
    fetch,
    find_downloads,
    gigabytes,
)
from latentsync_trt.option_fields import FILES
from latentsync_trt.paths import check_free, path_exists, why_missing
from latentsync_trt.quantize import calibration_options
from latentsync_trt.quantize.calibration_options import CalibrateOptions, Clip, clips_in
from latentsync_trt.runtime.providers.choice import next_provider, select_provider, why_not_taken
from latentsync_trt.runtime.providers.diagnosis import shows_no_gpu
from latentsync_trt.runtime.providers.remembered_tests import tested
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.runtime.providers.table import CPU, CUDA
from latentsync_trt.types import Progress

_HUB = "huggingface-hub"
_INTERRUPTED = "interrupted; what was finished is kept: the same command goes on there"

# Measured: the size of a bundle, and the memory of its export.
_BUNDLE_BYTES = {"fp16": 3_200_000_000, "fp32": 6_400_000_000}
_MEMORY_BYTES = {"fp16": 8_500_000_000, "fp32": 9_300_000_000}


@click.command("download")
@click.argument("model", type=click.Choice(tuple(LATENTSYNC)), default="1.6")
def download(model: str) -> None:
    """Interrupted, the same command goes on; what is there needs no network. $HF_ENDPOINT names a
    mirror.
    """
    tool_versions((_HUB,), extra=EXTRA)
    downloads = find_downloads(model)
    if downloads:
        check_downloads(downloads)
    with interruption(_INTERRUPTED):
        for each in downloads:
            say(each.summary)
            fetch(each, say)
    for repository in (LATENTSYNC[model], VAE):
        echo(f"{repository.folder}: {repository}")


@click.command("export")
@flags.options_from(ExportOptions)
@flags.path_option(
    "--syncnet",
    panel=FILES,
    help="Write no bundle but syncnet.onnx, from the published "
    "syncnet_v2.model. With it in checkpoints/, reports, "
    "`compare` and `bench` have LSE-C and LSE-D.",
)
@flags.overwrite_option
@flags.quiet_option
def export(quiet: bool, overwrite: bool, syncnet: Path | None, **fields: Any) -> None:
    # What is missing is reported before torch is imported, which takes seconds.
    tool_versions(TOOLS, extra=EXTRA)
    options = flags.build(ExportOptions, fields)
    if syncnet is not None:
        folder = Path(options.output or find.checkpoints_folder())
        check_free(folder / find.SYNCNET_FILE, overwrite=overwrite)
        if not path_exists(syncnet):
            raise CheckpointError(why_missing(syncnet), usage=True)
        from latentsync_trt.export.syncnet import export_syncnet

        said = export_syncnet(syncnet, folder)
        if not quiet:
            echo(said)
        return
    check_free(
        options.folder,
        overwrite=overwrite or not path_exists(options.folder / manifest.MANIFEST_NAME),
    )
    manifest.check_target(options.folder)
    find_sources(options)
    from latentsync_trt.export.exporter import export_bundle

    with progress_bar(hidden=quiet) as move:
        folder = export_bundle(
            options, lambda stage, share: move(Progress(stage, round(100 * share), 100))
        )
    if quiet:
        return
    made = read_manifest(folder)
    size = gigabytes(sum(entry.bytes for entry in made.files.values()))
    worst = max(made.verification.values(), default=None)
    if worst is None:
        verdict = "not verified"
    else:
        verdict = f"within {worst:.1e} of PyTorch"
    echo(f"{folder}: {len(made.graphs)} graphs, {made.precision}, {size}, {verdict}")
    for note in filter(None, (*made.notes, note_on_default(folder))):
        say(f"note: {note}")


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
    tool_versions(calibration_options.TOOLS, extra=calibration_options.EXTRA)
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
    given = [] if video is None else [Clip(video, audio or video)]
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


def note_on_default(made: Path) -> str:
    """Which bundle commands run without `--bundle`, and how they run the new one, `made`; empty if
    that is it.
    """
    default, _ = find.default_bundle()
    runs = f"without --bundle, {default or 'none'} runs"
    if not any(one.samefile(made) for one in find.exported_bundles()):
        return f"{runs}; name the new one with `--bundle {made}`"
    if default == made.name:
        return ""
    return f"{runs}; `latentsync-trt setup --use {made.name}` chooses the new one"


@click.command("setup")
@click.option(
    "--model",
    type=click.Choice(tuple(LATENTSYNC)),
    default="1.6",
    show_default=True,
    help="LatentSync's.",
)
@click.option(
    "--precision",
    type=click.Choice(("fp16", "fp32")),
    help="[default: fp16 on a GPU, fp32 on the CPU]",
)
@flags.provider_option
@click.option(
    "--yes", "-y", is_flag=True, help="Do not ask before gigabytes are downloaded and written."
)
@click.option(
    "--use", metavar="NAME", help="Only choose this exported bundle for commands without --bundle."
)
@click.pass_context
def setup(
    context: click.RichContext, /, model: Model, provider: str, use: str | None, **fields: Any
) -> None:
    """Needs no other step before `sync`. Interrupted, or with another GPU, the same command does
    the rest.
    """
    if use is not None:
        folder = find.remember(use)
        echo(f"{folder}: runs where no --bundle is given ({find.facts(read_manifest(folder))})")
        return
    tool_versions((*TOOLS, _HUB), extra=EXTRA)
    selection = select_provider(provider)  # by what loads alone: this tests it
    on_cpu = selection.gpu is None
    precision: Literal["fp16", "fp32"] = fields["precision"] or ("fp32" if on_cpu else "fp16")
    options = ExportOptions(model=model, precision=precision, cuda_form=not on_cpu)
    folder = options.folder
    is_exported = options.folder in find.exported_bundles()
    sha256 = manifest.manifest_sha256(folder) if is_exported else ""  # of none that was tested
    result = tested(selection, sha256)
    notices = selection.notices()
    if result in ("failed", "slower") and not selection.is_named:
        notices.append(f"{selection.name} is not tested again: {why_not_taken(selection, sha256)}")
        selection = next_provider(selection, sha256)
        notices += selection.notices()
        result = tested(selection, sha256)
    is_tested = is_exported and (
        on_cpu or result == "passed" or (result == "slower" and selection.is_named)
    )
    if is_tested and find.remembered_choice() == folder.name:
        echo(f"{folder}: is set up, and runs where no --bundle is given")
        return
    if on_cpu:
        _check_memory(options)
    downloads = [] if is_exported else find_downloads(model)
    check_downloads(downloads, 0 if is_exported else _BUNDLE_BYTES[options.precision])
    say(f"provider: {selection.name}" + (f" on {selection.gpu}" if selection.gpu else ""))
    coming = (f"download: {each.summary}" for each in downloads)
    for text in (*notices, *coming, *_plan(None if is_exported else options, selection)):
        say(text)
    if not (fields["yes"] or is_exported):
        if not sys.stdin.isatty():
            raise InputError(
                "setup: nobody is there to ask; add --yes to download and export as shown"
            )
        click.confirm("Go on?", default=True, abort=True, err=True)
    with interruption(_INTERRUPTED):
        for each in downloads:
            fetch(each, say)
        if not is_exported:
            context.invoke(
                export, model=model, precision=options.precision, cuda_form=options.cuda_form
            )
        _test(folder, selection, options)
        find.remember(folder.name)
    echo(f"{folder}: ready; next: latentsync-trt sync in.mp4 speech.wav")


def _test(folder: Path, selection: Selection, exported: ExportOptions) -> None:
    """Builds what a default run opens, and tests it; under "auto" with the next provider where one
    fails. On the CPU, the built-in model stands for the new one, which would take an hour.
    """
    from latentsync_trt.cli.checks import test_provider
    from latentsync_trt.runtime.engines.cache import cache_folder

    options = RuntimeOptions(engine_cache=cache_folder())
    made = manifest.Bundle.load(folder, verify=True)
    while selection.gpu is not None:
        report = test_provider(made, selection.name, options, manifest.REQUIRED_GRAPHS)
        if report.result == "passed" or (report.passed and selection.is_named):
            return
        if selection.is_named:
            raise SystemExit(1)
        selection = next_provider(selection, manifest.manifest_sha256(folder))
        say(f"going on with {selection.name}")
    _check_memory(exported)
    bundle = manifest.Bundle.load(find.demo_folder())
    if not test_provider(bundle, CPU.name, RuntimeOptions(), tuple(bundle.manifest.graphs)).passed:
        raise SystemExit(1)


def _check_memory(options: ExportOptions) -> None:
    """Raises `InputError` if the machine has too little memory to run the model on the CPU."""
    needed = cpu_step_bytes(options.resolution_px, options.frames)
    there = machine_bytes()
    if needed > there:
        raise InputError(
            f"--model {options.model}: at {options.resolution_px} "
            f"px a step on the CPU takes {gigabytes(needed)} of "
            f"memory, this machine has {gigabytes(there)}; take "
            "`--model 1.5`, which is made for 256 px, or a GPU"
        )


def _plan(options: ExportOptions | None, selection: Selection) -> Iterator[str]:
    """What is left to do, for the user; `options`: of the export, if it is to do."""
    if options is not None:
        size, memory = (
            gigabytes(known[options.precision]) for known in (_BUNDLE_BYTES, _MEMORY_BYTES)
        )
        what = f"{options.precision}, {options.resolution_px} px, about {size} to {options.folder}"
        yield f"export: {what}; takes minutes and about {memory} of memory"
    if selection.provider.builds:
        yield "build: the engines of a default run for this GPU, which takes minutes"
    if selection.gpu is None:
        tested = "with the small built-in model"
    else:
        tested = "values and pictures beside provider cuda"
    yield f"self-test: {tested}; then the new bundle is what commands run without --bundle"
