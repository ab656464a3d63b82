"""`latentsync-trt compare`: two bundles or videos side by side."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import rich_click as click

from latentsync_trt.bench.rows import bundle_facts, environment, to_json
from latentsync_trt.bundle.find import find_bundle
from latentsync_trt.bundle.manifest import Bundle, resolution_of
from latentsync_trt.cli import echo
from latentsync_trt.cli import options as flags
from latentsync_trt.cli.show import print_table, progress_bar
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.files import temporary_folder
from latentsync_trt.measure.syncnet import open_syncnet
from latentsync_trt.media.demo_clip import choose_clip
from latentsync_trt.media.encoders import CONTAINERS
from latentsync_trt.media.files import check_file
from latentsync_trt.option_fields import QUALITY, command_line
from latentsync_trt.paths import make_folder, path_exists
from latentsync_trt.types import SyncReport
from latentsync_trt.unexpected import without_paths

_LEAST_SIDE_PX = 256  # faces are compared at this resolution, or at the networks'


@click.command("compare")
@click.argument("a")
@click.argument("b")
@flags.path_option(
    "--video",
    help="Clip to sync, or that A and B were made from.  [default: the built-in portrait]",
)
@flags.path_option(
    "--audio",
    help="Speech for it.  [default: the sound of --video; the built-in sentence without one]",
)
@flags.path_option(
    "--output",
    default="compare.html",
    show_default=True,
    written=True,
    help="The page; picture and video go beside it.",
)
@flags.provider_option
@flags.options_from(SyncOptions, groups=(QUALITY,))
@flags.options_from(RuntimeOptions, leave_out=("build", "verify"))
@flags.overwrite_option
@flags.quiet_option
@flags.json_option
def compare(a: str, b: str, output: Path, quiet: bool, as_json: bool, **fields: Any) -> None:
    """A and B are two bundles, as for `--bundle`, or two finished videos of the clip `--video`."""
    from latentsync_trt.measure.compare import HEADS, compare_results, labeled
    from latentsync_trt.measure.page import page_path, write_page
    from latentsync_trt.media.output_path import check_output_path
    from latentsync_trt.sync.api import LipSync

    video = fields["video"]
    audio = fields["audio"]
    overwrite = fields["overwrite"]
    page_path(output, "--output", overwrite=overwrite)
    given = [Path(name) for name in (a, b, video, audio) if name is not None]
    check_output_path(output.with_suffix(".mp4"), *given, overwrite=overwrite)
    are_videos = _are_videos(a, b)
    if are_videos and video is None:
        raise click.UsageError(
            "name the video that A and B were made from with --video, and its speech with --audio"
        )
    sync = flags.build(SyncOptions, fields)
    runtime = flags.build(RuntimeOptions, fields)
    network = open_syncnet(runtime.syncnet)
    if are_videos:
        bundles = []
    else:
        bundles = [Bundle.load(find_bundle(name)[0]) for name in (a, b)]
    sides = _sides(bundles, sync, runtime)
    names = [f"{side['name']} ({side['precision']})" for side in sides] or [
        Path(a).name,
        Path(b).name,
    ]
    make_folder(output.parent)
    with (
        temporary_folder(output.parent) as folder,
        progress_bar(hidden=quiet or as_json) as on_progress,
    ):
        clip = choose_clip(video, audio or video, folder)
        reports = list[SyncReport]()
        if are_videos:
            results = (Path(a), Path(b))
        else:
            results = (folder / "a.mkv", folder / "b.mkv")
        for side, bundle, result in zip("AB", bundles, results, strict=False):
            with LipSync.from_bundle(
                bundle.folder, fields["provider"], replace(runtime, syncnet=None)
            ) as lip_sync:
                options = replace(sync, codec="ffv1")
                told = labeled(on_progress, side)
                reports.append(
                    lip_sync.sync(clip.video, clip.audio, result, options, on_progress=told)
                )
        least_px = max([_LEAST_SIDE_PX, *(side["resolution_px"] for side in sides)])
        found, figures = compare_results(results, clip, output, least_px, network, on_progress)
    providers = [report.provider for report in reports]
    facts = environment(["latentsync-trt", *sys.argv[1:]], providers, runtime.one_device)
    if are_videos:
        settings = "finished videos"
    else:
        settings = " ".join(command_line(sync)) or "all options at their defaults"
    lines = [*_lines(sides), *found.lines()]
    notes = [*_notes(sides, reports)]
    named = [(name.replace("_", " "), text) for name, text in facts.items()]
    texts = {
        "title": f"{names[1]} against {names[0]}",
        "heads": HEADS,
        "lines": lines,
        "settings": settings,
    }
    figures |= {"facts": named, "notes": notes, "finished": are_videos}
    write_page(output, "compare.html.j2", clip=found, **figures, **texts)
    if as_json:
        about = sides or [{"name": name} for name in names]
        content = {"environment": facts, "a": about[0], "b": about[1], "settings": settings}
        click.echo(to_json("compare", 7, {**content, "clip": asdict(found), "notes": notes}))
    elif not quiet:
        echo(f"A: {names[0]}\nB: {names[1]}\n{settings}\n{found.name}, {found.frames} frames")
        print_table(HEADS, lines)
        for note in notes:
            echo(f"note: {note}", err=True)
        echo(f"{output.with_suffix('.mp4')}: side by side\n{output}: all of it, with plots")


def _are_videos(a: str, b: str) -> bool:
    """Whether these are two finished videos; False for names of bundles."""
    suffixes = {suffix for several in CONTAINERS.values() for suffix in several}
    if not any(
        Path(name).suffix.lower() in suffixes or (path_exists(name) and Path(name).is_file())
        for name in (a, b)
    ):
        return False
    for name in (a, b):
        check_file(Path(name))
    return True


def _sides(
    bundles: Sequence[Bundle], sync: SyncOptions, runtime: RuntimeOptions
) -> list[dict[str, Any]]:
    """What is known of the bundles, as they run; where both have one name, that of their folder."""
    sides = [
        bundle_facts(each.manifest, resolution_of(each.manifest, sync, runtime)) for each in bundles
    ]
    if len({side["name"] for side in sides}) == 1:
        return [
            {**side, "name": each.folder.resolve().name}
            for side, each in zip(sides, bundles, strict=True)
        ]
    return sides


def _lines(sides: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, str, str]]:
    if sides:
        a, b = sides
        yield "precision", a["precision"], b["precision"], ""
        yield "resolution", f"{a['resolution_px']} px", f"{b['resolution_px']} px", ""
        ratio = f"{b['size_bytes'] / a['size_bytes']:.2f}×"
        yield "size", f"{a['size_bytes'] / 1e6:.1f} MB", f"{b['size_bytes'] / 1e6:.1f} MB", ratio


def _notes(sides: Sequence[dict[str, Any]], reports: Sequence[SyncReport]) -> Iterator[str]:
    """What else the two differ by, which the pictures show, too, and the notices of both runs."""
    if not reports:
        yield "finished videos: what their encoders lost is part of the difference"
        return
    a_px, b_px = (side["resolution_px"] for side in sides)
    on_a, on_b = (report.provider for report in reports)
    if on_a != on_b:
        yield f"A ran on {on_a}, B on {on_b}: part of the difference is the providers'"
    if a_px != b_px:
        why = (
            "so they start from different noise: look at the "
            "lips' numbers and at the video rather than at PSNR"
        )
        yield f"A works at {a_px} px, B at {b_px} px, {why}"
    yield from dict.fromkeys(without_paths(text) for report in reports for text in report.notices)
