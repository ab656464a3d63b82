"""`latentsync-trt setup`: from nothing to a model that `sync` runs."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import rich_click as click

from latentsync_trt.bundle import find, manifest
from latentsync_trt.bundle.machine import cpu_step_bytes, machine_bytes
from latentsync_trt.bundle.manifest import read_manifest, tool_versions
from latentsync_trt.cli import echo, interruption
from latentsync_trt.cli import options as flags
from latentsync_trt.cli.export import HUB, INTERRUPTED, export
from latentsync_trt.cli.show import say
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import InputError
from latentsync_trt.export.export_options import EXPORT_EXTRA, EXPORT_TOOLS, ExportOptions
from latentsync_trt.export.published import (
    LATENTSYNC,
    PublishedModel,
    check_downloads,
    download_files,
    find_downloads,
    gigabytes,
)
from latentsync_trt.runtime.providers.choice import next_provider, select_provider, why_not_taken
from latentsync_trt.runtime.providers.remembered_tests import tested
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.runtime.providers.table import CPU

# Measured: the size of a bundle, and the memory of its export.
_BUNDLE_BYTES = {"fp16": 3_200_000_000, "fp32": 6_400_000_000}


_MEMORY_BYTES = {"fp16": 8_500_000_000, "fp32": 9_300_000_000}


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
    context: click.RichContext,
    /,
    model: PublishedModel,
    provider: str,
    use: str | None,
    **fields: Any,
) -> None:
    """Needs no other step before `sync`. Interrupted, or with another GPU, the same command does
    the rest.
    """
    if use is not None:
        folder = find.remember(use)
        echo(f"{folder}: runs where no --bundle is given ({find.facts(read_manifest(folder))})")
        return
    tool_versions((*EXPORT_TOOLS, HUB), extra=EXPORT_EXTRA)
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
    with interruption(INTERRUPTED):
        for each in downloads:
            download_files(each, say)
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
    from latentsync_trt.cli.selftest import test_provider
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
