"""`latentsync-trt export`: makes a bundle of ONNX graphs from published checkpoints."""

from importlib.util import find_spec
from typing import Any

import rich_click as click

from latentsync_trt.cli.options import build, options_from
from latentsync_trt.errors import MissingDependency
from latentsync_trt.export.options import ExportOptions, find_sources
from latentsync_trt.types import Progress

_NEEDED = ("torch", "diffusers", "onnx", "onnxscript", "safetensors")


@click.command("export")
@options_from(ExportOptions)
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
def command(quiet: bool, **fields: Any) -> None:
    """Export LatentSync's checkpoints to a bundle that `sync` runs without PyTorch."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise MissingDependency(f"export needs {', '.join(missing)}: pip install 'latentsync-trt[export]'")
    options = build(ExportOptions, fields)
    find_sources(options)  # missing files are reported before torch is imported, which takes seconds
    from latentsync_trt.bundle.manifest import read_manifest
    from latentsync_trt.cli.show import progress_bar
    from latentsync_trt.cli.use import note_on_default
    from latentsync_trt.export.exporter import export_bundle

    with progress_bar(hidden=quiet) as move:
        folder = export_bundle(options, lambda stage, share: move(Progress(stage, round(100 * share), 100)))
    if quiet:
        return
    manifest = read_manifest(folder)
    size_bytes = sum(entry.bytes for entry in manifest.files.values())
    worst = max(manifest.verification.values(), default=None)
    verdict = "not verified" if worst is None else f"within {worst:.1e} of PyTorch"
    click.echo(f"{folder}: {len(manifest.graphs)} graphs, {manifest.precision}, {size_bytes / 1e9:.2f} GB, {verdict}")
    for note in (*manifest.notes, note_on_default(folder)):
        if note:
            click.echo(f"note: {note}", err=True)
