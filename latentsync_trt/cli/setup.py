"""`latentsync-trt setup`: from nothing to a model that `sync` runs: download, export, build, self-test, choice.

Steps whose result is there are left out, so an interrupted set-up goes on. The choice is the last result: where it is
there, nothing is left to do.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import psutil
import rich_click as click

from latentsync_trt import stopping
from latentsync_trt.bundle.find import checkpoints_folder, exported_bundles, remember, remembered_choice
from latentsync_trt.bundle.manifest import MANIFEST_NAME
from latentsync_trt.bundle.tools import tool_versions
from latentsync_trt.cli.download import INTERRUPTED
from latentsync_trt.cli.options import provider_option
from latentsync_trt.export.options import EXTRA, TOOLS, ExportOptions
from latentsync_trt.export.published import LATENTSYNC, VAE, Model
from latentsync_trt.runtime.sessions.engines import COMPILING_PROVIDERS

if TYPE_CHECKING:
    from latentsync_trt.export.download import Download
    from latentsync_trt.runtime.providers.select import Selection

# Measured with the published checkpoints, relative to their size of 5.5 GB: a bundle, and the memory of an export.
_BUNDLE_SHARE = {"fp16": 0.51, "fp32": 1.02}
_MEMORY_SHARE = {"fp16": 1.55, "fp32": 1.7}


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is left to do. `weights_bytes`: size of all checkpoints, 0 if there is nothing to export."""

    options: ExportOptions
    selection: "Selection"
    downloads: "tuple[Download, ...]"
    weights_bytes: int

    @property
    def bundle_bytes(self) -> int:
        return round(self.weights_bytes * _BUNDLE_SHARE[self.options.precision])

    def lines(self) -> Iterator[str]:
        """The plan for the user."""
        from latentsync_trt.export.download import gigabytes

        yield f"provider: {self.selection.name}" + (f" on {self.selection.gpu}" if self.selection.gpu else "")
        yield from (f"skipped: {text}" for text in self.selection.notices())
        yield from (f"download: {download}" for download in self.downloads)
        if self.weights_bytes:
            forms = "portable and CUDA form" if self.options.cuda_form else "portable form"
            size, memory = (gigabytes(share * self.weights_bytes) for share in self._shares())
            free = gigabytes(psutil.virtual_memory().available)
            yield (
                f"export: {self.options.precision}, {self.options.resolution_px} px, {forms}, about {size} to "
                f"{self.options.folder}; takes some minutes and about {memory} of memory, {free} are free"
            )
        if self.selection.name in COMPILING_PROVIDERS:
            yield "build: engines for this GPU, which takes minutes"
        yield "self-test: the small built-in model; then the new one is what commands run without --bundle"

    def _shares(self) -> tuple[float, float]:
        return _BUNDLE_SHARE[self.options.precision], _MEMORY_SHARE[self.options.precision]


@click.command("setup")
@click.option(
    "--model", type=click.Choice(tuple(LATENTSYNC)), default="1.6", show_default=True, help="Published model."
)
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
    tool_versions((*TOOLS, "huggingface-hub"), extra=EXTRA)
    from latentsync_trt.export.download import check_space
    from latentsync_trt.runtime.providers.select import select_provider

    selection = select_provider(provider)
    on_cpu = selection.name == "cpu"
    options = ExportOptions(model=model, precision=precision or ("fp32" if on_cpu else "fp16"), cuda_form=not on_cpu)
    if options.folder in exported_bundles() and remembered_choice() == options.folder.name:
        click.echo(f"{options.folder}: is set up, and runs where no --bundle is given")
        return
    plan = _plan(options, selection)
    for line in plan.lines():
        click.echo(line, err=True)
    check_space(checkpoints_folder(), plan.downloads, plan.bundle_bytes)
    if plan.weights_bytes and not yes:
        _ask()
    with stopping.interruption(INTERRUPTED):
        _carry_out(plan, context)
    click.echo(f"{options.folder}: ready; next: latentsync-trt sync --video in.mp4 --audio speech.wav")


def _plan(options: ExportOptions, selection: "Selection") -> _Plan:
    from latentsync_trt.export.download import ask_hub, downloaded

    if (options.folder / MANIFEST_NAME).is_file():
        return _Plan(options, selection, (), 0)
    downloads, weights_bytes = list["Download"](), 0
    for repository in (LATENTSYNC[options.model], VAE):
        there = downloaded(repository)
        if there is None:
            downloads.append(ask_hub(repository))
        files = downloads[-1].files if there is None else there.files
        weights_bytes += sum(entry.bytes for entry in files.values())
    return _Plan(options, selection, tuple(downloads), weights_bytes)


def _ask() -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("nobody is there to ask; add --yes to download and export as shown")
    click.confirm("Go on?", default=True, abort=True, err=True)


def _carry_out(plan: _Plan, context: click.Context) -> None:
    from latentsync_trt.cli import build, export, selftest
    from latentsync_trt.cli.show import say
    from latentsync_trt.export.download import fetch

    options, provider = plan.options, plan.selection.name
    for download in plan.downloads:
        fetch(download, say)
    if plan.weights_bytes:
        names = ("model", "precision", "cuda_form")
        context.invoke(export.command, **{name: getattr(options, name) for name in names})
    if provider in COMPILING_PROVIDERS:
        context.invoke(build.command, bundle=str(options.folder), provider=provider)
    context.invoke(selftest.command, provider=provider, reference="none" if provider == "cpu" else "cpu")
    remember(options.folder.name)
