"""`latentsync-trt setup`: from nothing to a model that `sync` runs."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import rich_click as click

from latentsync_trt.bundle import find
from latentsync_trt.bundle.manifest import (
    REQUIRED_GRAPHS,
    Bundle,
    manifest_sha256,
    read_manifest,
    tool_versions,
)
from latentsync_trt.cli import echo, interruption
from latentsync_trt.cli import options as flags
from latentsync_trt.cli.export import HUB, SETUP_INTERRUPTED, write_bundle
from latentsync_trt.cli.show import print_line
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import InputError
from latentsync_trt.export.export_options import EXPORT_EXTRA, EXPORT_TOOLS
from latentsync_trt.export.published import PublishedModel, check_downloads, download_files
from latentsync_trt.export.setup_plan import (
    BUNDLE_BYTES,
    ExportPrecision,
    SetupState,
    SetupStep,
    check_cpu_memory,
    find_setup_state,
    missing_downloads,
    setup_plan,
)
from latentsync_trt.runtime.providers.choice import next_provider
from latentsync_trt.runtime.providers.table import CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupRequest:
    model: PublishedModel = flags.command_field("1.6", "LatentSync's.")
    precision: ExportPrecision | None = flags.command_field(
        None, "[default: fp16 on a GPU, fp32 on the CPU]"
    )
    provider: str = flags.provider_option()
    yes: bool = flags.command_field(
        False,
        "Do not ask before gigabytes are downloaded and written.",
        names=("--yes", "-y"),
    )
    use: str | None = flags.command_field(
        None,
        "Only choose this exported bundle for commands without --bundle.",
        metavar="NAME",
    )


@click.command("setup")
@flags.takes(SetupRequest)
def setup(request: SetupRequest) -> None:
    """Needs no other step before `sync`. Interrupted, or with another GPU, the same command does
    the rest.
    """
    if request.use is not None:
        folder = find.remember(request.use)
        echo(f"{folder}: runs where no --bundle is given ({find.facts(read_manifest(folder))})")
        return
    tool_versions((*EXPORT_TOOLS, HUB), extra=EXPORT_EXTRA)
    state = find_setup_state(request.model, request.provider, request.precision)
    folder = state.options.folder
    if state.is_complete:
        echo(f"{folder}: is set up, and runs where no --bundle is given")
        return
    if state.is_on_cpu:
        check_cpu_memory(state.options)
    downloads = missing_downloads(state)
    bundle_bytes = 0
    if not state.is_exported:
        bundle_bytes = BUNDLE_BYTES[state.options.precision]
    check_downloads(downloads, bundle_bytes)
    steps = [*setup_plan(state, downloads)]
    _print_plan(state, steps)
    if not (request.yes or state.is_exported):
        _ask()
    with interruption(SETUP_INTERRUPTED):
        _run_steps(state, steps)
    echo(f"{folder}: ready; next: latentsync-trt sync in.mp4 speech.wav")


def _print_plan(state: SetupState, steps: Sequence[SetupStep]) -> None:
    selection = state.selection
    gpu = f" on {selection.gpu}" if selection.gpu else ""
    print_line(f"provider: {selection.name}{gpu}")
    for line in (*state.notices, *steps):
        print_line(str(line))


def _ask() -> None:
    if not sys.stdin.isatty():
        raise InputError("setup: no one is there to ask; add --yes to download and export as shown")
    click.confirm("Go on?", default=True, abort=True, err=True)


def _run_steps(state: SetupState, steps: Sequence[SetupStep]) -> None:
    folder = state.options.folder
    for step in steps:
        if step.repository is not None:
            download_files(step.repository, print_line)
        elif step.name == "export":
            write_bundle(state.options)
        elif step.name == "self-test":
            _test(folder, state)  # builds what it tests
    find.remember(folder.name)


def _test(folder: Path, state: SetupState) -> None:
    """Builds what a default run opens, and tests it; under "auto" with the next provider where one
    fails. On the CPU, the built-in model stands for the new one, which would take an hour.
    """
    from latentsync_trt.cli.selftest import test_provider
    from latentsync_trt.runtime.engines.cache import cache_folder

    options = RuntimeOptions(engine_cache=cache_folder())
    bundle = Bundle.load(folder, verify=True)
    selection = state.selection
    while selection.gpu is not None:
        report = test_provider(bundle, selection.name, options, REQUIRED_GRAPHS)
        if report.result == "passed" or (report.passed and selection.is_named):
            return
        if selection.is_named:
            raise SystemExit(1)
        selection = next_provider(selection, manifest_sha256(folder))
        print_line(f"going on with {selection.name}")
    check_cpu_memory(state.options)
    demo = Bundle.load(find.demo_folder())
    if not test_provider(demo, CPU.name, RuntimeOptions(), tuple(demo.manifest.graphs)).passed:
        raise SystemExit(1)
