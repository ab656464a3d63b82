"""`latentsync-trt download` and `export`: from published weights to a bundle that runs."""

from dataclasses import dataclass
from pathlib import Path

import rich_click as click

from latentsync_trt.bundle import find, manifest
from latentsync_trt.bundle.manifest import read_manifest, tool_versions
from latentsync_trt.cli import echo, interruption
from latentsync_trt.cli import options as flags
from latentsync_trt.cli.show import print_line, progress_bar
from latentsync_trt.errors import CheckpointError
from latentsync_trt.export.export_options import (
    EXPORT_EXTRA,
    EXPORT_TOOLS,
    ExportOptions,
    find_sources,
)
from latentsync_trt.export.published import (
    LATENTSYNC,
    VAE,
    PublishedModel,
    check_downloads,
    download_files,
    find_downloads,
    gigabytes,
)
from latentsync_trt.option_fields import FILES
from latentsync_trt.paths import check_free, path_exists, why_missing

HUB = "huggingface-hub"


SETUP_INTERRUPTED = "interrupted; what was finished is kept: the same command goes on there"


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadRequest:
    model: PublishedModel = flags.argument(default="1.6")


@click.command("download")
@flags.takes(DownloadRequest)
def download(request: DownloadRequest) -> None:
    """Interrupted, the same command goes on; what is there needs no network. $HF_ENDPOINT names a
    mirror.
    """
    tool_versions((HUB,), extra=EXPORT_EXTRA)
    downloads = find_downloads(request.model)
    if downloads:
        check_downloads(downloads)
    with interruption(SETUP_INTERRUPTED):
        for repository in downloads:
            print_line(repository.summary)
            download_files(repository, print_line)
    for repository in (LATENTSYNC[request.model], VAE):
        echo(f"{repository.folder}: {repository}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    export: ExportOptions = flags.options_of()
    syncnet: Path | None = flags.command_field(
        None,
        "Write no bundle but syncnet.onnx, from the published syncnet_v2.model. With it in "
        "checkpoints/, reports, `compare` and `bench` have LSE-C and LSE-D.",
        group=FILES,
    )
    overwrite: bool = flags.overwrite_option()
    quiet: bool = flags.quiet_option()


@click.command("export")
@flags.takes(ExportRequest)
def export(request: ExportRequest) -> None:
    if request.syncnet is None:
        write_bundle(request.export, overwrite=request.overwrite, quiet=request.quiet)
    else:
        _write_syncnet(request, request.syncnet)


def _write_syncnet(request: ExportRequest, weights: Path) -> None:
    tool_versions(EXPORT_TOOLS, extra=EXPORT_EXTRA)
    folder = Path(request.export.output or find.checkpoints_folder())
    check_free(folder / find.SYNCNET_FILE, overwrite=request.overwrite)
    if not path_exists(weights):
        raise CheckpointError(why_missing(weights), usage=True)
    from latentsync_trt.export.syncnet import export_syncnet

    summary = export_syncnet(weights, folder)
    if not request.quiet:
        echo(summary)


def write_bundle(options: ExportOptions, *, overwrite: bool = False, quiet: bool = False) -> None:
    """Exports a bundle, and prints what it is unless `quiet`."""
    # What is missing is reported before torch is imported, which takes seconds.
    tool_versions(EXPORT_TOOLS, extra=EXPORT_EXTRA)
    check_bundle_target(options.folder, overwrite=overwrite)
    find_sources(options)
    from latentsync_trt.export.exporter import export_bundle

    with progress_bar(hidden=quiet) as on_progress:
        folder = export_bundle(options, on_progress)
    if quiet:
        return
    facts = read_manifest(folder)
    size = gigabytes(sum(entry.bytes for entry in facts.files.values()))
    verdict = "not verified"
    if facts.verification:
        verdict = f"within {max(facts.verification.values()):.1e} of PyTorch"
    echo(f"{folder}: {len(facts.graphs)} graphs, {facts.precision}, {size}, {verdict}")
    for note in (*facts.notes, note_on_default(folder)):
        if note:
            print_line(f"note: {note}")


def check_bundle_target(folder: Path, *, overwrite: bool) -> None:
    """Raises `LatentSyncError` where no bundle may be written to a folder: without `overwrite`, as
    one is there; else, as there is anything but a bundle.
    """
    is_bundle = path_exists(folder / manifest.MANIFEST_NAME)
    check_free(folder, overwrite=overwrite or not is_bundle)
    manifest.check_target(folder)


def note_on_default(folder: Path) -> str:
    """Says which bundle commands run without `--bundle`, and how they run the new one, in `folder`;
    empty if that is it.
    """
    default, _ = find.default_bundle()
    runs = f"without --bundle, {default or 'no bundle'} runs"
    if not any(one.samefile(folder) for one in find.exported_bundles()):
        return f"{runs}; name the new one with `--bundle {folder}`"
    if default == folder.name:
        return ""
    return f"{runs}; `latentsync-trt setup --use {folder.name}` chooses the new one"
