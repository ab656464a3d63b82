"""`latentsync-trt demo`: runs the whole pipeline on a built-in clip without a download, and measures the result."""

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from latentsync_trt.cli.options import LocalPath, quiet_option
from latentsync_trt.config import MODEL_FPS, PRESETS, PresetName, SyncOptions
from latentsync_trt.runtime.providers.table import CPU

if TYPE_CHECKING:
    from latentsync_trt.measure.clips import Clip
    from latentsync_trt.measure.lips import SyncScore
    from latentsync_trt.types import ProgressCallback

SOURCE, RESULT, PICTURE, PLOT = "source.mp4", "out.mp4", "side_by_side.png", "sync.png"


@click.command("demo")
@click.option("--out", default="demo", show_default=True, type=LocalPath(folder=True), help="Folder to write to.")
@click.option("--audio", type=LocalPath(), help="Speech of your own.  [default: a built-in sentence]")
@click.option("--video", type=LocalPath(), help="A face of your own.  [default: a built-in portrait]")
@click.option("--bundle", default="demo", show_default=True, help="The model to run: a path, a name, or demo.")
@click.option("--preset", default="balanced", show_default=True, type=click.Choice(list(PRESETS)), help="As for sync.")
@quiet_option
def command(out: Path, audio: Path | None, video: Path | None, bundle: str, preset: PresetName, quiet: bool) -> None:
    """Lip-sync a built-in clip on the CPU, and look at the result.

    Writes source.mp4, out.mp4, side_by_side.png (source, masked, result) and sync.png (speech and
    mouth over time) to the folder, and prints how well the lips follow.
    """
    from latentsync_trt.cli.show import Notices, progress_bar, show_report
    from latentsync_trt.measure.clips import choose_clip
    from latentsync_trt.media.demo_clip import SENTENCE, SPEECH
    from latentsync_trt.media.files import check_file
    from latentsync_trt.media.soundtrack import SoundPiece, SoundPlan, choose_sound
    from latentsync_trt.paths import make_folder
    from latentsync_trt.sync.api import LipSync

    for given in (audio, video):
        if given is not None:
            check_file(given)
    make_folder(out)
    if video is None:
        (out / SOURCE).unlink(missing_ok=True)  # of an earlier run, perhaps for other speech
    clip = choose_clip(video, audio, out, SOURCE)
    if not quiet:
        click.echo(f"{clip.video}: {clip.name}")
        click.echo("speech: " + (f"“{SENTENCE}”" if audio is None else str(audio)))
    known = () if audio else choose_sound(SoundPlan((SoundPiece(SPEECH),)), Path(RESULT).suffix).notices
    notices = Notices(known=known)
    options = SyncOptions(preset=preset)
    with progress_bar(hidden=quiet) as on_progress:
        with LipSync.from_bundle(bundle, CPU.name, on_notice=None if quiet else notices) as lip_sync:
            report = lip_sync.sync(clip.video, clip.audio, out / RESULT, options, on_progress=on_progress)
        found = look_at(out, clip, bundle, on_progress)
    if not quiet:
        show_report(report, notices)
        click.echo(f"lips: {found}")
        click.echo(f"look at {out / RESULT}, {out / PICTURE} and {out / PLOT}")


def look_at(out: Path, clip: "Clip", bundle: str, on_progress: "ProgressCallback | None" = None) -> "SyncScore":
    """Measures the result of `clip` in the folder `out` and draws both pictures there.

    Raises:
        InputError: too few frames show a face. OutputError: a picture cannot be written.
    """
    from latentsync_trt.bundle.find import find_bundle
    from latentsync_trt.bundle.manifest import read_manifest
    from latentsync_trt.measure.clips import choose_moments, face_views, masked, measure_clip, square_rgb
    from latentsync_trt.measure.lips import score
    from latentsync_trt.measure.page import SHOWN_PX, face_grid, sync_figure, write_png
    from latentsync_trt.media.playback import Playback
    from latentsync_trt.media.reader import delays_of, read_frames

    delays = delays_of(clip.video, clip.audio)
    curves = measure_clip(out / RESULT, clip.audio, clip.mouth, delay_s=delays.sound_s, on_progress=on_progress)
    found = score(curves)
    write_png(out / PLOT, sync_figure({"measured in the result": curves}, f"Lips: {found}"))
    resolution_px = read_manifest(find_bundle(bundle)[0]).resolution_px
    extended = Playback(Fraction(MODEL_FPS), Fraction(len(curves), MODEL_FPS), SyncOptions().extend, delays.picture_s)
    clips = {
        clip.video: read_frames(clip.video, extended),
        out / RESULT: read_frames(out / RESULT, Playback(Fraction(MODEL_FPS))),
    }
    moments = choose_moments(curves)
    # Only these: to follow the face through all frames takes a second.
    shown = [(rgb for index, rgb in enumerate(square_rgb(*each)) if index in moments) for each in clips.items()]
    columns = {
        moments[index]: (faces[0], masked(faces[0], resolution_px), faces[1])
        for index, faces in zip(sorted(moments), face_views(shown, SHOWN_PX), strict=False)
        if faces is not None
    }
    write_png(out / PICTURE, face_grid(("source", "masked", "result"), columns))
    return found
