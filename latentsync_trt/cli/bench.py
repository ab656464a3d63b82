"""`latentsync-trt bench`: speed, memory and quality of a bundle."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import rich_click as click

from latentsync_trt.bench.rows import Row, bundle_facts, environment, write_rows
from latentsync_trt.bundle.find import describe_choice, find_bundle
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.cli import options as flags
from latentsync_trt.cli.show import notices_to, print_table
from latentsync_trt.config import PRESETS, RuntimeOptions, SyncOptions
from latentsync_trt.files import temporary_folder
from latentsync_trt.measure.syncnet import open_syncnet
from latentsync_trt.media.demo_clip import choose_clip
from latentsync_trt.option_fields import QUALITY
from latentsync_trt.paths import check_file_to_write, check_free, make_folder
from latentsync_trt.runtime.providers.table import PROVIDER_CHOICES

_NOT_FOR_BENCH = ("build", "preset", "verify")


_several = partial(click.option, multiple=True, show_default=True, help="Repeat it for each.")


@click.command("bench")
@flags.bundle_option
@_several("--provider", "providers", type=click.Choice(PROVIDER_CHOICES), default=("auto",))
@_several("--preset", "presets", type=click.Choice(list(PRESETS)), default=tuple(PRESETS))
@click.option(
    "--runs", type=click.IntRange(1), default=3, show_default=True, help="Timed runs of each."
)
@click.option(
    "--warm-up",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Runs before those, not timed.",
)
@flags.path_option("--video", help="Clip to sync.  [default: the built-in portrait]")
@flags.path_option("--audio", help="Speech for it.  [default: the built-in sentence]")
@flags.options_from(SyncOptions, groups=(QUALITY,), leave_out=_NOT_FOR_BENCH)
@flags.options_from(RuntimeOptions, leave_out=_NOT_FOR_BENCH)
@flags.path_option("--output", written=True, help="File (.json) for the rows.")
@flags.overwrite_option
@flags.quiet_option
def bench(
    providers: tuple[str, ...],
    presets: tuple[str, ...],
    output: Path | None,
    quiet: bool,
    **fields: Any,
) -> None:
    from latentsync_trt.bench.run import run_bench, settings_for

    runtime = flags.build(RuntimeOptions, fields)
    sync = flags.build(SyncOptions, fields)
    say = notices_to(silent=quiet)
    (folder, why), chosen = (
        find_bundle(fields["bundle"]),
        [replace(sync, preset=name) for name in presets],
    )
    video = fields["video"]
    audio = fields["audio"]
    if output is not None:
        check_file_to_write(output, "--output")
        check_free(output, overwrite=fields["overwrite"])
        make_folder(output.parent)
    say(describe_choice(folder, why))
    network = open_syncnet(runtime.syncnet)
    loaded = Bundle.load(folder)
    settings = settings_for(loaded, replace(runtime, syncnet=None), sync, providers, say)
    settings = [
        replace(setting, runs=fields["runs"], warm_up=fields["warm_up"]) for setting in settings
    ]
    used = [setting.selection.name for setting in settings]
    facts = environment(["latentsync-trt", *sys.argv[1:]], used, runtime.one_device)
    about = bundle_facts(loaded.manifest, settings[0].resolution_px)
    rows = list[Row]()
    with temporary_folder() as folder:
        for row in run_bench(settings, chosen, choose_clip(video, audio, folder), folder, network):
            rows.append(row)
            if output is not None:
                write_rows(output, facts, about, rows)
    if not quiet:
        heads = "what", "median", "rate", "longest parts", "graphs", "memory", "on the GPU", "lips"
        print_table(heads, map(_cells, rows))


def _cells(row: Row) -> tuple[str, ...]:
    longest = sorted(row.parts_s.items(), key=lambda part: -part[1])[:3]
    median_ms = row.time["median_ms"]
    return (
        " · ".join(filter(None, (row.case, row.preset, row.provider))),
        f"{median_ms / 1000:.2f} s",
        f"{1000 * row.frames / median_ms:.1f} frames/s",
        ", ".join(f"{name} {time_s:.2f} s" for name, time_s in longest),
        ", ".join(f"{name} {mean_ms:.1f} ms" for name, mean_ms in row.engines_ms.items()),
        *(
            f"{used / 1e9:.2f} GB" if used else ""
            for used in map(row.memory.get, ("host_bytes", "device_bytes"))
        ),
        str(row.syncnet or ""),
    )
