"""`latentsync-trt bench`: speed, memory and quality relative to the best preset."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from latentsync_trt.bench.rows import BenchOptions
from latentsync_trt.cli.options import LocalPath, build, bundle_option, options_from, quiet_option
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.option_fields import QUALITY

if TYPE_CHECKING:
    from latentsync_trt.bench.rows import Memory, Results, Row

_NOT_FOR_BENCH = ("build", "preset", "verify")
"""Options that bench does not offer: it waits for engines, lists presets, verifies nothing."""

_HEADS = "what", "scenario", "median", "p5–p95 ms", "runs", "rate", "longest parts", "quality", "memory"


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
    from latentsync_trt.bench.run import run_bench
    from latentsync_trt.bundle.find import describe_choice, find_bundle
    from latentsync_trt.bundle.manifest import Bundle
    from latentsync_trt.cli.show import notices_to, print_table
    from latentsync_trt.media.files import check_file
    from latentsync_trt.paths import check_file_to_write, check_folder_to_write, make_folder

    options, runtime = build(BenchOptions, fields), build(RuntimeOptions, fields)
    sync = build(SyncOptions, {name: value for name, value in fields.items() if name != "preset"})
    folder, why = find_bundle(bundle)
    for path in (options.video, options.audio):
        if path is not None:
            check_file(Path(path))
    is_file = out.suffix.lower() == ".json"
    (check_file_to_write if is_file else check_folder_to_write)(out, "--out")
    make_folder(out.parent if is_file else out)
    say = notices_to(silent=quiet)
    say(describe_choice(folder, why))
    words = ["latentsync-trt", *sys.argv[1:]]
    for results in run_bench(Bundle.load(folder), options, runtime, sync, say=say, command=words):
        rows = out if is_file else out / _file_name(results)
        results.write(rows)
    if not quiet:
        filled = [column for column in zip(_HEADS, *map(_cells, results.rows), strict=True) if any(column[1:])]
        heads, *lines = zip(*filled, strict=True)
        print_table(heads, lines, left=2)
        click.echo(f"{rows}: {len(results.rows)} rows")


def _file_name(results: "Results") -> str:
    """For example "bench-cuda-nvidia-h100-80gb-hbm3-1.6-512-fp16-2026-11-21t12-00-00.json"."""
    facts = results.environment
    machine, measured_at = facts.get("gpu", facts["cpu"]), facts["measured_at"].partition("+")[0]
    name = f"bench {facts['providers']} {machine} {results.bundle.name} {measured_at}"
    return f"{re.sub(r'[^a-z0-9.]+', '-', name.lower()).strip('-')}.json"


def _cells(row: "Row") -> tuple[str, ...]:
    time, longest = row.time, sorted(row.parts_s.items(), key=lambda part: -part[1])[:3]
    return (
        " · ".join(part for part in (row.case, row.preset, row.provider) if part),
        row.scenario,
        _milliseconds(time.median_ms),
        "one run" if time.runs == 1 else f"{_number(time.p5_ms)}–{_number(time.p95_ms)}",
        f"{time.runs} after {row.warm_up}",
        f"{_number(1000 * row.frames / time.median_ms)} frames/s" if row.frames else "",
        ", ".join(f"{name} {_milliseconds(1000 * time_s)}" for name, time_s in longest),
        str(row.quality or ""),
        _memory(row.memory),
    )


def _number(value: float) -> str:
    """Three significant digits, without an exponent where that is readable: 0.0123, 1.23, 12.3, 123, 1230."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _milliseconds(value_ms: float) -> str:
    return f"{_number(value_ms)} ms" if value_ms < 10_000 else f"{_number(value_ms / 1000)} s"


def _memory(found: "Memory | None") -> str:
    if found is None:
        return ""
    device = "" if found.device_bytes is None else f" + {found.device_bytes / 1e9:.2f} device"
    return f"{found.host_bytes / 1e9:.2f} GB host{device}"
