"""`latentsync-trt sync`: a video and a speech recording in, the lip-synced video out."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from latentsync_trt.cli.options import (
    LocalPath,
    build,
    bundle_option,
    json_option,
    options_from,
    provider_option,
    quiet_option,
)
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.option_fields import FILES
from latentsync_trt.stopping import interruption

if TYPE_CHECKING:
    from latentsync_trt.sync.api import LipSync


@click.command("sync")
@click.option(
    "--video",
    required=True,
    type=LocalPath(),
    panel=FILES,
    help="Video with a face; also a picture, numbered pictures as in frames/%05d.png, or a GIF.",
)
@click.option(
    "--audio",
    "--voice",
    type=LocalPath(),
    panel=FILES,
    help="Speech that the lips follow: an audio file, or a video with sound, such as --video itself. For several "
    "people use --speaker.",
)
@click.option(
    "--output",
    "-o",
    type=LocalPath(),
    panel=FILES,
    help="File to write (.mp4, .mov, .mkv).  [default: <video>-synced.mp4 beside the video]",
)
@bundle_option
@options_from(SyncOptions)
@provider_option
@options_from(RuntimeOptions, leave_out=("engine_store", "verify"))
@quiet_option
@json_option
def command(
    video: Path,
    audio: Path | None,
    output: Path | None,
    bundle: str | None,
    provider: str,
    quiet: bool,
    as_json: bool,
    **fields: Any,
) -> None:
    """Lip-sync a video to a speech recording."""
    from latentsync_trt.bundle.find import describe_choice, find_bundle
    from latentsync_trt.media.codecs import default_suffix
    from latentsync_trt.sync.inputs import check_inputs

    options, runtime = build(SyncOptions, fields), build(RuntimeOptions, fields)
    target = output or default_output(video, default_suffix(options))
    # Now, not after the seconds that bundle and provider take to open.
    inputs = check_inputs(video, audio, target, options)
    folder, why = find_bundle(bundle)

    from latentsync_trt.cli.show import Notices, process_age_s, progress_bar, say, show_report
    from latentsync_trt.sync.api import LipSync
    from latentsync_trt.sync.threads import tune_process

    silent, notices = quiet or as_json, Notices()
    if bundle is None and not silent:
        say(describe_choice(folder, why))
    tune_process()
    with LipSync.from_bundle(folder, provider, runtime, on_notice=None if silent else notices) as lip_sync:
        with progress_bar(hidden=silent) as on_progress:
            report = lip_sync.run(inputs, on_progress=on_progress)
        if as_json:
            click.echo(json.dumps({**asdict(report), "total_s": process_age_s()}))
        elif not quiet:
            show_report(report, notices, process_age_s())
        _wait_for_build(lip_sync, silent=silent)


def _wait_for_build(lip_sync: "LipSync", *, silent: bool) -> None:
    """Waits until the engines that this run is building are in the cache, for the next run."""
    from latentsync_trt.cli.show import say

    if lip_sync.building and not silent:
        say("engines for the next run are still being built; Ctrl-C stops that, the output is complete")
    with interruption("interrupted while engines were built for the next run; the output is complete"):
        problem = lip_sync.wait_for_build()
    if problem and not silent:
        say(f"building engines failed: {problem}")


def default_output(video: Path, suffix: str) -> Path:
    """`clip.mov` → `clip-synced.mp4`, `frames/%05d.png` → `frames-synced.mp4` beside it, for the suffix ".mp4"."""
    from latentsync_trt.media.files import is_sequence

    if is_sequence(video):
        folder = video.parent if video.parent.name else video.parent.absolute()
        return folder.with_name(f"{folder.name}-synced{suffix}")
    return video.parent / f"{video.stem}-synced{suffix}"
