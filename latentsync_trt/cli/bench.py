"""`latentsync-trt bench` and `compare`: speed, memory and quality of a bundle; two bundles or videos side by side."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from latentsync_trt.bench.rows import bundle_facts, environment, plain
from latentsync_trt.bundle.find import describe_choice, find_bundle
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.cli import echo
from latentsync_trt.cli.options import (
    build,
    bundle_option,
    json_option,
    options_from,
    overwrite_option,
    path_option,
    provider_option,
    quiet_option,
)
from latentsync_trt.cli.show import notices_to, print_table, progress_bar
from latentsync_trt.config import PRESETS, RuntimeOptions, SyncOptions
from latentsync_trt.option_fields import QUALITY
from latentsync_trt.paths import check_file_to_write, check_free, exists, make_folder
from latentsync_trt.runtime.providers.table import PROVIDER_CHOICES
from latentsync_trt.unexpected import without_paths

if TYPE_CHECKING:
    from latentsync_trt.bench.rows import Row
    from latentsync_trt.measure.syncnet import SyncMeter, SyncNet
    from latentsync_trt.media.demo_clip import Clip
    from latentsync_trt.types import SyncReport

_NOT_FOR_BENCH = ("build", "preset", "verify")
"""Options that bench does not offer: it waits for engines, lists presets, verifies nothing."""

_HEADS = "what", "median", "rate", "longest parts", "graphs", "memory", "on the GPU", "lips"

_FORMAT = 5

_LEAST_SIDE_PX = 256
"""Faces are compared at this resolution, or at the networks' where that is higher."""


@click.command("bench")
@bundle_option
@click.option(
    "--provider",
    "providers",
    multiple=True,
    type=click.Choice(PROVIDER_CHOICES),
    default=("auto",),
    show_default=True,
    help="Execution provider; repeat it for each.",
)
@click.option(
    "--preset",
    "presets",
    multiple=True,
    type=click.Choice(list(PRESETS)),
    default=tuple(PRESETS),
    show_default=True,
    help="Preset of sync; repeat it for each.",
)
@click.option("--runs", type=click.IntRange(1), default=3, show_default=True, help="Timed runs of each.")
@click.option("--warm-up", type=click.IntRange(0), default=1, show_default=True, help="Runs before those, not timed.")
@path_option("--video", help="Clip to sync.  [default: the built-in portrait]")
@path_option("--audio", help="Speech for it.  [default: the built-in sentence]")
@options_from(SyncOptions, groups=(QUALITY,), leave_out=_NOT_FOR_BENCH)
@options_from(RuntimeOptions, leave_out=_NOT_FOR_BENCH)
@path_option("--out", help="File (.json) for the rows.")
@overwrite_option
@quiet_option
def bench(
    bundle: str | None,
    providers: tuple[str, ...],
    presets: tuple[str, ...],
    runs: int,
    warm_up: int,
    video: Path | None,
    audio: Path | None,
    out: Path | None,
    overwrite: bool,
    quiet: bool,
    **fields: Any,
) -> None:
    from latentsync_trt.bench.run import run_bench, settings_for
    from latentsync_trt.measure.syncnet import open_syncnet
    from latentsync_trt.media.files import check_file

    runtime, sync, say = build(RuntimeOptions, fields), build(SyncOptions, fields), notices_to(silent=quiet)
    folder, why = find_bundle(bundle)
    for path in filter(None, (video, audio)):
        check_file(path)
    if out is not None:
        check_file_to_write(out, "--out")
        check_free(out, overwrite=overwrite)
        make_folder(out.parent)
    say(describe_choice(folder, why))
    network, plain_runtime = open_syncnet(runtime.syncnet), replace(runtime, syncnet=None)
    settings = settings_for(Bundle.load(folder), plain_runtime, sync, providers, presets, say)
    settings = [replace(setting, runs=runs, warm_up=warm_up) for setting in settings]
    for results in run_bench(settings, network, video, audio, _command()):
        if out is not None:
            results.write(out)
    if not quiet:
        print_table(_HEADS, map(_cells, results.rows))


def _cells(row: "Row") -> tuple[str, ...]:
    longest, memory = sorted(row.parts_s.items(), key=lambda part: -part[1])[:3], row.memory
    device_bytes = memory and memory.device_bytes
    return (
        " · ".join(filter(None, (row.case, row.preset, row.provider))),
        f"{row.time.median_ms / 1000:.2f} s",
        f"{1000 * row.frames / row.time.median_ms:.1f} frames/s",
        ", ".join(f"{name} {time_s:.2f} s" for name, time_s in longest),
        ", ".join(f"{name} {mean_ms:.1f} ms" for name, mean_ms in row.engines_ms.items()),
        f"{memory.host_bytes / 1e9:.2f} GB" if memory else "",
        f"{device_bytes / 1e9:.2f} GB" if device_bytes else "",
        str(row.syncnet or ""),
    )


def _command() -> list[str]:
    return ["latentsync-trt", *sys.argv[1:]]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two that are compared; of a finished video only the name is known. `size_bytes`: of all its files."""

    name: str
    precision: str | None = None
    resolution_px: int | None = None
    size_bytes: int | None = None

    @property
    def title(self) -> str:
        return self.name if self.precision is None else f"{self.name} ({self.precision})"


@click.command("compare")
@click.argument("a")
@click.argument("b")
@path_option("--clip", help="A face to dub.  [default: the built-in portrait]")
@path_option("--audio", help="The speech.  [default: the clip's own sound; the built-in sentence without a clip]")
@path_option("--out", default="compare.html", show_default=True, help="The report; picture and video go beside it.")
@provider_option
@options_from(SyncOptions, groups=(QUALITY,))
@options_from(RuntimeOptions, leave_out=("build", "verify"))
@overwrite_option
@quiet_option
@json_option
def compare(
    a: str,
    b: str,
    clip: Path | None,
    audio: Path | None,
    out: Path,
    provider: str,
    overwrite: bool,
    quiet: bool,
    as_json: bool,
    **fields: Any,
) -> None:
    from latentsync_trt.files import temporary_folder
    from latentsync_trt.measure.compare import HEADS, lines_of, measure, write_report
    from latentsync_trt.measure.page import page_path
    from latentsync_trt.measure.syncnet import open_syncnet
    from latentsync_trt.media.demo_clip import choose_clip
    from latentsync_trt.media.writer import check_output_path
    from latentsync_trt.runtime.providers.select import select_provider
    from latentsync_trt.sync.api import LipSync

    page_path(out, "--out", overwrite=overwrite)
    given = [Path(name) for name in (a, b, clip, audio) if name is not None]
    check_output_path(out.with_suffix(".mp4"), *given, overwrite=overwrite)
    are_videos, others = (exists(name) and Path(name).is_file() for name in (a, b))
    if are_videos != others:
        raise click.UsageError(f"give two bundles or two videos: {a} and {b} are not")
    sync, runtime = build(SyncOptions, fields), build(RuntimeOptions, fields)
    device, network = runtime.one_device, open_syncnet(runtime.syncnet)
    folders = [] if are_videos else [find_bundle(name)[0] for name in (a, b)]
    sides = [Side(Path(name).name) for name in (a, b)] if are_videos else _sides(folders, sync, runtime)
    make_folder(out.parent)
    with temporary_folder(out.parent) as folder, progress_bar(hidden=quiet or as_json) as on_progress:
        chosen = choose_clip(clip, audio or clip, folder)
        meters = [] if network is None else _meters(network, chosen)
        videos = (Path(a), Path(b)) if are_videos else (folder / "a.mkv", folder / "b.mkv")
        reports, lossless = list["SyncReport"](), replace(sync, codec="ffv1")
        for bundle, video in zip(folders, videos, strict=False):
            with LipSync.from_bundle(bundle, provider, replace(runtime, syncnet=None)) as lip_sync:
                reports.append(lip_sync.sync(chosen.video, chosen.audio, video, lossless, on_progress=on_progress))
        side_px = max(_LEAST_SIDE_PX, *(side.resolution_px or 0 for side in sides))
        measured = {"extend": sync.extend, "on_progress": on_progress, "meters": meters}
        found = measure(videos, chosen, out, side_px, **measured)
    facts = environment(_command(), [select_provider(report.provider, device) for report in reports])
    settings = "finished videos" if are_videos else _settings(sync)
    lines, notes = [*_lines(*sides), *lines_of(found)], [*_notes(sides, reports)]
    known = [(name.replace("_", " "), value) for name, value in facts.items()]
    texts = {"lines": lines, "settings": settings, "facts": known, "notes": notes}
    write_report(out, found, meters, title=f"{sides[1].title} against {sides[0].title}", **texts)
    if as_json:
        content = {"kind": "latentsync-trt compare", "format": _FORMAT, "environment": facts}
        content |= {"a": asdict(sides[0]), "b": asdict(sides[1]), "settings": settings}
        click.echo(json.dumps(plain({**content, "clip": asdict(found), "notes": notes}), allow_nan=False))
    elif not quiet:
        echo(f"A: {sides[0].title}\nB: {sides[1].title}\n{settings}\n{found.name}, {found.frames} frames")
        print_table(HEADS, lines)
        for note in notes:
            echo(f"note: {note}", err=True)
        echo(f"{out.parent / found.video}: side by side\n{out}: all of it, with plots")


def _meters(network: "SyncNet", clip: "Clip") -> "list[SyncMeter]":
    """For each of the two, one that hears the speech."""
    from latentsync_trt.measure.syncnet import SyncMeter
    from latentsync_trt.media.reader import delays_of

    delay_s = delays_of(clip.video, clip.audio).sound_s
    return [SyncMeter(network, clip.audio, delay_s) for _ in "AB"]


def _sides(folders: Sequence[Path], sync: SyncOptions, runtime: RuntimeOptions) -> list[Side]:
    """What is known of two bundles."""
    from latentsync_trt.bundle.manifest import resolution_of

    manifests = [Bundle.load(folder).manifest for folder in folders]
    names = [manifest.name for manifest in manifests]
    if names[0] == names[1]:
        names = [folder.resolve().name for folder in folders]
    sides = []
    for name, manifest in zip(names, manifests, strict=True):
        facts, size_bytes = bundle_facts(manifest), sum(entry.bytes for entry in manifest.files.values())
        sides.append(Side(name, facts.precision, resolution_of(manifest, sync, runtime), size_bytes))
    return sides


def _settings(sync: SyncOptions) -> str:
    chosen = {**asdict(sync.sampling), "guidance": sync.guidance}
    return ", ".join(f"{name} {value}" for name, value in {**chosen, "seed": sync.seed}.items() if value is not None)


def _lines(a: Side, b: Side) -> Iterator[tuple[str, str, str, str]]:
    if a.size_bytes is not None and b.size_bytes is not None:
        yield "precision", f"{a.precision}", f"{b.precision}", ""
        yield "resolution", f"{a.resolution_px} px", f"{b.resolution_px} px", ""
        ratio = f"{b.size_bytes / a.size_bytes:.2f}×"
        yield "size", f"{a.size_bytes / 1e6:.1f} MB", f"{b.size_bytes / 1e6:.1f} MB", ratio


def _notes(sides: Sequence[Side], reports: Sequence["SyncReport"]) -> Iterator[str]:
    """What else the two differ by, which the pictures show, too, and the notices of both runs."""
    if not reports:
        yield "finished videos: what their encoders lost is part of the difference"
        return
    a_px, b_px = (side.resolution_px for side in sides)
    on_a, on_b = (report.provider for report in reports)
    if on_a != on_b:
        yield f"A ran on {on_a}, B on {on_b}: part of the difference is the providers'"
    if a_px != b_px:
        yield (
            f"A works at {a_px} px, B at {b_px} px, so they start from different noise: look at the "
            "lips' numbers and at the video rather than at PSNR"
        )
    yield from dict.fromkeys(without_paths(text) for report in reports for text in report.notices)
