"""`latentsync-trt bench`: speed, memory and quality relative to the best preset."""

import re
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from latentsync_trt.bench.bench_options import BenchOptions
from latentsync_trt.cli.options import LocalPath, build, bundle_option, options_from, quiet_option
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.option_fields import QUALITY

if TYPE_CHECKING:
    from latentsync_trt.bench.rows import Results

_NOT_FOR_BENCH = ("build", "preset", "verify")
"""Options that bench does not offer: it waits for engines, lists presets, verifies nothing."""


@click.command("bench")
@bundle_option
@options_from(BenchOptions)
@options_from(SyncOptions, groups=(QUALITY,), leave_out=_NOT_FOR_BENCH)
@options_from(RuntimeOptions, leave_out=_NOT_FOR_BENCH)
@click.option(
    "--out",
    type=LocalPath(),
    default="benchmarks",
    show_default=True,
    help="Where the rows go: a folder, or a file that ends in .json.",
)
@quiet_option
def command(bundle: str | None, out: Path, quiet: bool, **fields: Any) -> None:
    """Measure a bundle: graphs, loop, whole clips; time, memory and quality."""
    from latentsync_trt.bench.files import make_folder
    from latentsync_trt.bench.run import run_bench
    from latentsync_trt.bench.table import show_rows
    from latentsync_trt.bundle.find import describe_choice, find_bundle
    from latentsync_trt.bundle.manifest import Bundle
    from latentsync_trt.cli.show import say
    from latentsync_trt.media.files import check_file
    from latentsync_trt.paths import check_file_to_write, check_folder_to_write

    options, runtime = build(BenchOptions, fields), build(RuntimeOptions, fields)
    sync = build(SyncOptions, {name: value for name, value in fields.items() if name != "preset"})
    folder, why = find_bundle(bundle)
    for path in (options.video, options.audio):
        if path is not None:
            check_file(Path(path))
    (check_file_to_write if _is_file(out) else check_folder_to_write)(out, "--out")
    make_folder(out.parent if _is_file(out) else out)
    notice = (lambda _: None) if quiet else say
    notice(describe_choice(folder, why))
    words = ["latentsync-trt", *sys.argv[1:]]
    for results in run_bench(Bundle.load(folder), options, runtime, sync, say=notice, command=words):
        rows = _rows_file(out, results)
        results.write(rows)
    if not quiet:
        show_rows(results)
        click.echo(f"{rows}: {len(results.rows)} rows")


def _is_file(out: Path) -> bool:
    return out.suffix.lower() == ".json"


def _rows_file(out: Path, results: "Results") -> Path:
    """For example "bench-cuda-nvidia-h100-80gb-hbm3-1.6-512-fp16-20261121-120000.json" in the folder `out`."""
    if _is_file(out):
        return out
    facts = results.environment
    machine = facts.get("gpu", facts["cpu"])
    measured_at = datetime.fromisoformat(facts["measured_at"])
    name = f"bench {facts['providers']} {machine} {results.bundle.name} {measured_at:%Y%m%d-%H%M%S}"
    return out / f"{re.sub(r'[^a-z0-9.]+', '-', name.lower()).strip('-')}.json"
