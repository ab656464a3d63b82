"""`latentsync-trt bench`: speed, memory and quality of a bundle."""

import sys
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from latentsync_trt.bench.rows import BenchRow, bundle_facts, environment, write_rows
from latentsync_trt.bundle.find import describe_choice, find_bundle
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.cli import options as flags
from latentsync_trt.cli.show import notices_to, print_table
from latentsync_trt.config import PRESETS, PresetName, RuntimeOptions, SyncOptions
from latentsync_trt.files import temporary_folder
from latentsync_trt.measure.syncnet import open_syncnet
from latentsync_trt.media.demo_clip import choose_clip
from latentsync_trt.option_fields import QUALITY
from latentsync_trt.paths import check_file_to_write, check_free, make_folder
from latentsync_trt.runtime.providers.table import PROVIDER_CHOICES

if TYPE_CHECKING:
    from latentsync_trt.bench.run import Setting

_NOT_FOR_BENCH = ("build", "preset", "verify")
"""Options of `sync` that `bench` decides itself, or has in another form."""

_BENCH_HEADS = ("what", "median", "rate", "longest parts", "graphs", "memory", "on the GPU", "lips")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    bundle: str | None = flags.bundle_option()
    providers: tuple[str, ...] = flags.command_field(
        ("auto",),
        "Repeat it for each.",
        names=("--provider",),
        choices=PROVIDER_CHOICES,
        several=True,
    )
    presets: tuple[PresetName, ...] = flags.command_field(
        tuple(PRESETS), "Repeat it for each.", names=("--preset",), several=True
    )
    runs: int = flags.command_field(3, "Timed runs of each.", type=click.IntRange(1))
    warm_up: int = flags.command_field(1, "Runs before those, not timed.", type=click.IntRange(0))
    video: Path | None = flags.command_field(
        None, "Clip to sync.  [default: the built-in portrait]"
    )
    audio: Path | None = flags.command_field(
        None, "Speech for it.  [default: the built-in sentence]"
    )
    sync: SyncOptions = flags.options_of(groups=(QUALITY,), leave_out=_NOT_FOR_BENCH)
    runtime: RuntimeOptions = flags.options_of(leave_out=_NOT_FOR_BENCH)
    output: Path | None = flags.command_field(None, "File (.json) for the rows.", written=True)
    overwrite: bool = flags.overwrite_option()
    quiet: bool = flags.quiet_option()


@click.command("bench")
@flags.takes(BenchRequest)
def bench(request: BenchRequest) -> None:
    from latentsync_trt.bench.run import run_bench

    output = request.output
    if output is not None:
        check_file_to_write(output, "--output")
        check_free(output, overwrite=request.overwrite)
        make_folder(output.parent)
    settings = _settings_of(request)
    providers = [setting.selection.name for setting in settings]
    facts = environment(["latentsync-trt", *sys.argv[1:]], providers, request.runtime.one_device)
    about = bundle_facts(settings[0].bundle.manifest, settings[0].resolution_px)
    network = open_syncnet(request.runtime.syncnet)
    presets = [replace(request.sync, preset=name) for name in request.presets]
    rows: list[BenchRow] = []
    with temporary_folder() as folder:
        clip = choose_clip(request.video, request.audio, folder)
        for row in run_bench(settings, presets, clip, folder, network):
            rows.append(row)
            if output is not None:
                write_rows(output, facts, about, rows)
    if not request.quiet:
        print_table(_BENCH_HEADS, map(_cells_of_row, rows))


def _settings_of(request: BenchRequest) -> "list[Setting]":
    from latentsync_trt.bench.run import settings_for

    on_notice = notices_to(silent=request.quiet)
    folder, why = find_bundle(request.bundle)
    on_notice(describe_choice(folder, why))
    bundle = Bundle.load(folder)
    runtime = replace(request.runtime, syncnet=None)
    settings = settings_for(bundle, runtime, request.sync, request.providers, on_notice)
    return [replace(each, runs=request.runs, warm_up=request.warm_up) for each in settings]


def _cells_of_row(row: BenchRow) -> list[str]:
    """Returns a row of the table below `_BENCH_HEADS`."""
    median_s = row.time["median_ms"] / 1000
    longest = sorted(row.parts_s.items(), key=itemgetter(1), reverse=True)[:3]
    return [
        " · ".join(filter(None, (row.case, row.preset, row.provider))),
        f"{median_s:.2f} s",
        f"{row.frames / median_s:.1f} frames/s",
        ", ".join(f"{name} {time_s:.2f} s" for name, time_s in longest),
        ", ".join(f"{name} {mean_ms:.1f} ms" for name, mean_ms in row.engines_ms.items()),
        _gigabytes(row.memory.get("host_bytes")),
        _gigabytes(row.memory.get("device_bytes")),
        str(row.syncnet or ""),
    ]


def _gigabytes(used_bytes: int | None) -> str:
    return f"{used_bytes / 1e9:.2f} GB" if used_bytes else ""
