"""`latentsync-trt sync`: a video and a recording in, the lip-synced video out."""

from pathlib import Path
from typing import Any

import click

from latentsync_trt.cli.options import build, options_from
from latentsync_trt.config import SyncOptions

PROVIDER_CHOICES = ("auto", "tensorrt", "cuda", "cpu")


@click.command("sync")
@click.option("--video", required=True, type=click.Path(path_type=Path), help="Video whose lips are to move.")
@click.option(
    "--audio", required=True, type=click.Path(path_type=Path), help="Speech: an audio file, or a video's sound."
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    help="Where to write (.mp4, .mov, .mkv).  [default: <video>-synced beside the video]",
)
@click.option(
    "--bundle", help="An exported model: path, name below checkpoints/, or demo.  [default: newest, else demo]"
)
@click.option(
    "--provider", type=click.Choice(PROVIDER_CHOICES), default="auto", show_default=True, help="What runs the graphs."
)
@options_from(SyncOptions)
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with the report, or the error, to stdout.")
def command(
    video: Path,
    audio: Path,
    output: Path | None,
    bundle: str | None,
    provider: str,
    quiet: bool,
    as_json: bool,
    **fields: Any,
) -> None:
    """Lip-sync VIDEO to AUDIO."""
    from latentsync_trt.bundle import find_bundle
    from latentsync_trt.cli.show import progress_bar, show_report
    from latentsync_trt.pipeline import LipSync

    options = build(SyncOptions, fields)
    target = output or default_output(video, lossless=options.lossless)
    folder, why = find_bundle(bundle)
    if not (quiet or as_json):
        click.echo(f"bundle {folder.name} ({why})", err=True)
    with progress_bar(hidden=quiet or as_json) as on_progress:
        lip_sync = LipSync.from_bundle(folder, provider)
        report = lip_sync.sync(video, audio, target, options, on_progress=on_progress)
    show_report(report, quiet=quiet, as_json=as_json)


def default_output(video: Path, *, lossless: bool) -> Path:
    """`clip.mov` → `clip-synced.mp4` beside it; `.mkv` for lossless output."""
    return video.with_name(f"{video.stem}-synced{'.mkv' if lossless else '.mp4'}")
