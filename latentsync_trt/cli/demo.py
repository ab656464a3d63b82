"""`latentsync-trt demo`: the built-in clip, lip-synced and shown in pictures."""

from dataclasses import dataclass, replace
from pathlib import Path

import rich_click as click

from latentsync_trt.cli import echo
from latentsync_trt.cli import options as flags
from latentsync_trt.config import PresetName, SyncOptions
from latentsync_trt.paths import make_folder
from latentsync_trt.runtime.providers.table import CPU

SOURCE = "source.mp4"
RESULT = "out.mp4"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRequest:
    output: Path = flags.command_field(Path("demo"), "Folder to write to.", folder=True)
    audio: Path | None = flags.command_field(
        None, "Speech of your own.  [default: a built-in sentence]"
    )
    video: Path | None = flags.command_field(
        None, "A face of your own.  [default: a built-in portrait]"
    )
    bundle: str = flags.command_field("demo", "The model to run: a path, a name, or demo.")
    preset: PresetName = flags.command_field("balanced", "As for sync.")


@click.command("demo")
@flags.takes(DemoRequest)
def demo(request: DemoRequest) -> None:
    """Writes source.mp4, out.mp4, side_by_side.png (source, masked, result) and sync.png (speech
    and mouth over time) to the folder, over those of an earlier run, and prints how well the lips
    follow.
    """
    from latentsync_trt.bundle.find import find_bundle
    from latentsync_trt.bundle.manifest import read_manifest
    from latentsync_trt.cli.show import new_notices, progress_bar, show_report
    from latentsync_trt.files import whole_file
    from latentsync_trt.measure.demo_pictures import SIDE_BY_SIDE, SYNC_PLOT, write_demo_pictures
    from latentsync_trt.media.demo_clip import SENTENCE, choose_clip
    from latentsync_trt.media.files import writing
    from latentsync_trt.sync.api import LipSync

    _check_files(request)
    folder = request.output
    make_folder(folder)
    clip = choose_clip(request.video, request.audio, folder, SOURCE)
    echo(f"{clip.video}: {clip.name}")
    speech = f"“{SENTENCE}”" if request.audio is None else str(request.audio)
    echo(f"speech: {speech}")
    result = folder / RESULT
    options = SyncOptions(preset=request.preset)
    notices = new_notices()
    with progress_bar(hidden=False) as on_progress:
        with (
            LipSync.from_bundle(request.bundle, CPU.name, on_notice=notices.add) as lip_sync,
            writing(result),
            whole_file(result, keep=True) as part,
        ):
            report = lip_sync.sync(clip.video, clip.audio, part, options, on_progress=on_progress)
        resolution_px = read_manifest(find_bundle(request.bundle)[0]).resolution_px
        lips = write_demo_pictures(result, clip, resolution_px, on_progress)
    show_report(replace(report, output=str(result)), notices)
    echo(f"lips: {lips}")
    echo(f"look at {result}, {folder / SIDE_BY_SIDE} and {folder / SYNC_PLOT}")


def _check_files(request: DemoRequest) -> None:
    """Checks that the inputs are files, and that none of them is written over."""
    from latentsync_trt.media.files import check_file
    from latentsync_trt.media.output_path import check_output_path

    inputs = [path for path in (request.audio, request.video) if path is not None]
    for path in inputs:
        check_file(path)
    check_output_path(request.output / RESULT, *inputs, overwrite=True)
    if request.video is None:
        check_output_path(request.output / SOURCE, *inputs, overwrite=True)
