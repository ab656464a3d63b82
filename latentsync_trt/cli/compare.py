"""`latentsync-trt compare`: two bundles or videos side by side."""

import sys
from dataclasses import dataclass
from pathlib import Path

import rich_click as click

from latentsync_trt.bench import comparison
from latentsync_trt.bench.comparison import Comparison, SideOptions, Sides
from latentsync_trt.bench.rows import environment
from latentsync_trt.bundle.find import find_bundle
from latentsync_trt.bundle.manifest import Bundle, resolution_of
from latentsync_trt.cli import echo
from latentsync_trt.cli import options as flags
from latentsync_trt.cli.show import print_table, progress_bar
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.files import temporary_folder
from latentsync_trt.measure.compare import COMPARISON_HEADS
from latentsync_trt.measure.page import page_path
from latentsync_trt.measure.syncnet import open_syncnet
from latentsync_trt.media.demo_clip import choose_clip
from latentsync_trt.media.output_path import check_output_path
from latentsync_trt.option_fields import QUALITY
from latentsync_trt.paths import make_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    a: str = flags.argument()
    b: str = flags.argument()
    video: Path | None = flags.command_field(
        None, "Clip to sync, or that A and B were made from.  [default: the built-in portrait]"
    )
    audio: Path | None = flags.command_field(
        None,
        "Speech for it.  [default: the sound of --video; the built-in sentence without one]",
    )
    output: Path = flags.command_field(
        Path("compare.html"), "The page; picture and video go beside it.", written=True
    )
    provider: str = flags.provider_option()
    sync: SyncOptions = flags.options_of(groups=(QUALITY,))
    runtime: RuntimeOptions = flags.options_of(leave_out=("build", "verify"))
    overwrite: bool = flags.overwrite_option()
    quiet: bool = flags.quiet_option()
    as_json: bool = flags.json_option()


@click.command("compare")
@flags.takes(CompareRequest)
def compare(request: CompareRequest) -> None:
    """A and B are two bundles, as for `--bundle`, or two finished videos of the clip `--video`."""
    output = request.output
    page_path(output, "--output", overwrite=request.overwrite)
    files = (request.a, request.b, request.video, request.audio)
    inputs = [Path(file) for file in files if file is not None]
    check_output_path(output.with_suffix(".mp4"), *inputs, overwrite=request.overwrite)
    bundles = _bundles_of(request)
    network = open_syncnet(request.runtime.syncnet)
    options = SideOptions(request.provider, request.sync, request.runtime)
    make_folder(output.parent)
    with (
        temporary_folder(output.parent) as folder,
        progress_bar(hidden=request.quiet or request.as_json) as on_progress,
    ):
        clip = choose_clip(request.video, request.audio or request.video, folder)
        if bundles:
            sides = comparison.run_sides(bundles, clip, folder, options, on_progress)
        else:
            sides = Sides(clip, (Path(request.a), Path(request.b)), "finished videos")
        providers = [report.provider for report in sides.reports]
        command = ["latentsync-trt", *sys.argv[1:]]
        facts = environment(command, providers, request.runtime.one_device)
        outcome = comparison.write_comparison(sides, facts, output, network, on_progress)
    if request.as_json:
        click.echo(outcome.to_json())
    elif not request.quiet:
        _print_comparison(outcome, output)


def _bundles_of(request: CompareRequest) -> list[Bundle]:
    """Returns A and B as bundles; none where they are finished videos."""
    if comparison.are_finished_videos(request.a, request.b):
        if request.video is None:
            raise click.UsageError(
                "name the video that A and B were made from with --video, and its speech with "
                "--audio"
            )
        return []
    bundles = [Bundle.load(find_bundle(name)[0]) for name in (request.a, request.b)]
    for bundle in bundles:  # before anything runs
        resolution_of(bundle.manifest, request.sync, request.runtime)
    return bundles


def _print_comparison(outcome: Comparison, page: Path) -> None:
    sides = outcome.sides
    results = outcome.results
    echo(f"A: {sides.names[0]}\nB: {sides.names[1]}\n{sides.settings}")
    echo(f"{results.name}, {results.frames} frames")
    print_table(COMPARISON_HEADS, outcome.lines)
    for note in sides.notes():
        echo(f"note: {note}", err=True)
    echo(f"{page.with_suffix('.mp4')}: side by side\n{page.with_suffix('.png')}: moments")
    echo(f"{page}: all of it, with plots")
