"""`latentsync-trt download` and `export`: from published weights to a bundle that runs."""

from pathlib import Path
from typing import Any

import rich_click as click

from latentsync_trt.bundle import find, manifest
from latentsync_trt.bundle.manifest import read_manifest, tool_versions
from latentsync_trt.cli import echo, interruption
from latentsync_trt.cli import options as flags
from latentsync_trt.cli.show import progress_bar, say
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
    check_downloads,
    download_files,
    find_downloads,
    gigabytes,
)
from latentsync_trt.option_fields import FILES
from latentsync_trt.paths import check_free, path_exists, why_missing

HUB = "huggingface-hub"


INTERRUPTED = "interrupted; what was finished is kept: the same command goes on there"


@click.command("download")
@click.argument("model", type=click.Choice(tuple(LATENTSYNC)), default="1.6")
def download(model: str) -> None:
    """Interrupted, the same command goes on; what is there needs no network. $HF_ENDPOINT names a
    mirror.
    """
    tool_versions((HUB,), extra=EXPORT_EXTRA)
    downloads = find_downloads(model)
    if downloads:
        check_downloads(downloads)
    with interruption(INTERRUPTED):
        for each in downloads:
            say(each.summary)
            download_files(each, say)
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
    tool_versions(EXPORT_TOOLS, extra=EXPORT_EXTRA)
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
        folder = export_bundle(options, move)
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
