"""`latentsync-trt setup`: from nothing to a model that `sync` runs: download, export, build, self-test, choice.

Steps whose result is there are left out, so an interrupted set-up goes on. The choice is the last result: where it is
there, nothing is left to do.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil
import rich_click as click

from latentsync_trt import stopping
from latentsync_trt.bundle.find import checkpoints_folder, exported_bundles, remember, remembered_choice
from latentsync_trt.bundle.manifest import PIXELS_PER_LATENT, REQUIRED_GRAPHS, tool_versions
from latentsync_trt.cli.download import HUB, INTERRUPTED
from latentsync_trt.cli.options import provider_option
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import InputError
from latentsync_trt.export.export_options import EXTRA, TOOLS, ExportOptions
from latentsync_trt.export.published import LATENTSYNC, Download, Model, check_space, fetch, find_downloads, gigabytes
from latentsync_trt.runtime.providers.table import CPU, CUDA

if TYPE_CHECKING:
    from latentsync_trt.runtime.providers.select import Selection

# Measured: the size of a bundle, and the memory of its export.
_BUNDLE_BYTES = {"fp16": 2_800_000_000, "fp32": 5_600_000_000}
_MEMORY_BYTES = {"fp16": 8_500_000_000, "fp32": 9_300_000_000}


@click.command("setup")
@click.option("--model", type=click.Choice(tuple(LATENTSYNC)), default="1.6", show_default=True, help="LatentSync's.")
@click.option("--precision", type=click.Choice(("fp16", "fp32")), help="[default: fp16 on a GPU, fp32 on the CPU]")
@provider_option
@click.option("--yes", "-y", is_flag=True, help="Do not ask before gigabytes are downloaded and written.")
@click.pass_context
def command(
    context: click.Context, model: Model, precision: Literal["fp16", "fp32"] | None, provider: str, yes: bool
) -> None:
    """Download the published weights, export them for this machine, build engines, test, and choose the result.

    Needs no other step before `sync`. Interrupted, the same command goes on.
    """
    tool_versions((*TOOLS, HUB), extra=EXTRA)
    from latentsync_trt.cli import export
    from latentsync_trt.cli.show import say
    from latentsync_trt.runtime.providers.select import select_provider

    selection = select_provider(provider)
    on_cpu = selection.gpu is None
    options = ExportOptions(model=model, precision=precision or ("fp32" if on_cpu else "fp16"), cuda_form=not on_cpu)
    folder, is_exported = options.folder, options.folder in exported_bundles()
    if is_exported and remembered_choice() == folder.name:
        click.echo(f"{folder}: is set up, and runs where no --bundle is given")
        return
    if on_cpu:
        _check_memory(options)
    downloads = [] if is_exported else find_downloads(model)
    for line in _plan(None if is_exported else options, selection, downloads):
        say(line)
    check_space(checkpoints_folder(), downloads, 0 if is_exported else _BUNDLE_BYTES[options.precision])
    if not (yes or is_exported):
        if not sys.stdin.isatty():
            raise InputError("setup: nobody is there to ask; add --yes to download and export as shown")
        click.confirm("Go on?", default=True, abort=True, err=True)
    with stopping.interruption(INTERRUPTED):
        for download in downloads:
            fetch(download, say)
        if not is_exported:
            context.invoke(export.command, model=model, precision=options.precision, cuda_form=options.cuda_form)
        _test(context, folder, provider, on_cpu=on_cpu)
        remember(folder.name)
    click.echo(f"{folder}: ready; next: latentsync-trt sync --video in.mp4 --audio speech.wav")


def _test(context: click.Context, folder: Path, provider: str, *, on_cpu: bool) -> None:
    """Builds what a default run opens, on the provider that it will use, and compares it with CUDA's portable form.

    On the CPU, the built-in model stands for the new one, which would take an hour.
    """
    from latentsync_trt.cli import selftest
    from latentsync_trt.cli.show import say
    from latentsync_trt.runtime.cache.store import cache_folder
    from latentsync_trt.sync.api import LipSync

    if on_cpu:
        context.invoke(selftest.command, provider=CPU.name, reference="none")
        return
    with LipSync.from_bundle(folder, provider, RuntimeOptions(verify=True), on_notice=say) as lip_sync:
        lip_sync.warm_up()
        chosen = lip_sync.provider
    tested = {"bundle": str(folder), "graphs": REQUIRED_GRAPHS, "engine_cache": str(cache_folder())}
    context.invoke(selftest.command, provider=chosen, reference=CUDA.name, **tested)


def _check_memory(options: ExportOptions) -> None:
    """Raises `InputError` if the machine has too little memory to run the model on the CPU."""
    from latentsync_trt.export.layers import HEADS

    # The largest attention matrix of a guided step and its softmax, float32.
    matrix_bytes = 4 * 2 * options.frames * HEADS * (options.resolution_px // PIXELS_PER_LATENT) ** 4
    needed, there = 2 * matrix_bytes, psutil.virtual_memory().total
    if needed > there:
        raise InputError(
            f"--model {options.model}: at {options.resolution_px} px a step on the CPU takes {gigabytes(needed)} of "
            f"memory, this machine has {gigabytes(there)}; take `--model 1.5`, which is made for 256 px, or a GPU"
        )


def _plan(options: ExportOptions | None, selection: "Selection", downloads: list[Download]) -> Iterator[str]:
    """What is left to do, for the user; `options`: of the export, if it is to do."""

    yield f"provider: {selection.name}" + (f" on {selection.gpu}" if selection.gpu else "")
    yield from selection.notices()
    yield from (f"download: {download}" for download in downloads)
    if options is not None:
        forms = "portable and CUDA form" if options.cuda_form else "portable form"
        size, memory = (gigabytes(known[options.precision]) for known in (_BUNDLE_BYTES, _MEMORY_BYTES))
        yield (
            f"export: {options.precision}, {options.resolution_px} px, {forms}, about {size} to {options.folder}; takes"
            f" minutes and about {memory} of memory ({gigabytes(psutil.virtual_memory().available)} free)"
        )
    if selection.provider.builds:
        yield "build: the engines of a default run for this GPU, which takes minutes"
    tested = "with the small built-in model" if selection.gpu is None else "values and pictures beside provider cuda"
    yield f"self-test: {tested}; then the new bundle is what commands run without --bundle"
