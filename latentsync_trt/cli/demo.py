"""`latentsync-trt demo`: the built-in clip, lip-synced and shown in pictures."""

from dataclasses import replace
from pathlib import Path

import rich_click as click

from latentsync_trt.cli import echo
from latentsync_trt.cli import options as flags
from latentsync_trt.config import PRESETS, PresetName, SyncOptions
from latentsync_trt.paths import make_folder
from latentsync_trt.runtime.providers.table import CPU

SOURCE = "source.mp4"
RESULT = "out.mp4"


@click.command("demo")
@flags.path_option(
    "--output", help="Folder to write to.", folder=True, default="demo", show_default=True
)
@flags.path_option("--audio", help="Speech of your own.  [default: a built-in sentence]")
@flags.path_option("--video", help="A face of your own.  [default: a built-in portrait]")
@click.option(
    "--bundle", default="demo", show_default=True, help="The model to run: a path, a name, or demo."
)
@click.option(
    "--preset",
    default="balanced",
    show_default=True,
    type=click.Choice(list(PRESETS)),
    help="As for sync.",
)
def demo(
    output: Path, audio: Path | None, video: Path | None, bundle: str, preset: PresetName
) -> None:
    """Writes source.mp4, out.mp4, side_by_side.png (source, masked, result) and sync.png (speech
    and mouth over time) to the folder, and prints how well the lips follow.
    """
    from latentsync_trt.bundle.find import find_bundle
    from latentsync_trt.bundle.manifest import read_manifest
    from latentsync_trt.cli.show import new_notices, progress_bar, show_report
    from latentsync_trt.files import whole_file
    from latentsync_trt.measure.demo_pictures import SIDE_BY_SIDE, SYNC_PLOT, write_demo_pictures
    from latentsync_trt.media.demo_clip import SENTENCE, choose_clip
    from latentsync_trt.media.files import check_file, writing
    from latentsync_trt.sync.api import LipSync

    for path in (audio, video):
        if path is not None:
            check_file(path)
    make_folder(output)
    clip = choose_clip(video, audio, output, SOURCE)
    echo(f"{clip.video}: {clip.name}")
    echo("speech: " + (f"“{SENTENCE}”" if audio is None else str(audio)))
    result = output / RESULT
    notices = new_notices()
    with progress_bar(hidden=False) as on_progress:
        with (
            LipSync.from_bundle(bundle, CPU.name, on_notice=notices.add) as lip_sync,
            writing(result),
            whole_file(result, keep=True) as part,
        ):
            options = SyncOptions(preset=preset)
            report = lip_sync.sync(clip.video, clip.audio, part, options, on_progress=on_progress)
        resolution_px = read_manifest(find_bundle(bundle)[0]).resolution_px
        lips = write_demo_pictures(result, clip, resolution_px, on_progress)
    show_report(replace(report, output=str(result)), notices)
    echo(f"lips: {lips}")
    echo(f"look at {result}, {output / SIDE_BY_SIDE} and {output / SYNC_PLOT}")
