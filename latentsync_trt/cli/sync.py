"""`latentsync-trt sync`, `demo` and `faces`: a clip lip-synced, the built-in clip, and the people
of a clip.
"""

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from latentsync_trt.cli import BEGAN_S, echo, interruption
from latentsync_trt.cli import options as flags
from latentsync_trt.config import MODEL_FPS, PRESETS, PresetName, RuntimeOptions, SyncOptions
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.option_fields import FILES
from latentsync_trt.paths import check_folder_to_write, check_free, make_folder
from latentsync_trt.runtime.providers.table import CPU

if TYPE_CHECKING:
    from latentsync_trt.media.demo_clip import SpokenClip
    from latentsync_trt.sync.api import LipSync
    from latentsync_trt.types import ProgressCallback

SOURCE = "source.mp4"
RESULT = "out.mp4"
PICTURE = "side_by_side.png"
PLOT = "sync.png"


@click.command("sync")
@click.argument("files", nargs=-1, type=flags.LocalPath(), metavar="[VIDEO] [AUDIO]")
@flags.path_option("--video", panel=FILES, help="Video with a face; also a picture or a GIF.")
@flags.path_option(
    "--audio",
    "--voice",
    panel=FILES,
    help="File with the speech that the lips follow; for several people --speaker.",
)
@flags.path_option(
    "--output",
    "-o",
    panel=FILES,
    written=True,
    help="File to write (.mp4, .mov, .mkv).  [default: <video>-synced.mp4]",
)
@flags.bundle_option
@flags.options_from(SyncOptions)
@flags.provider_option
@flags.options_from(RuntimeOptions, leave_out=("verify",))
@click.option("--verbose", is_flag=True, help="Print the figures behind the verdict, too.")
@flags.quiet_option
@flags.json_option
def sync(
    files: tuple[Path, ...], bundle: str | None, quiet: bool, as_json: bool, **fields: Any
) -> None:
    """VIDEO and AUDIO may also be given as --video and --audio."""
    video, audio = _clip_of([*files], fields["video"], fields["audio"])
    options = flags.build(SyncOptions, fields)
    runtime = flags.build(RuntimeOptions, fields)
    from latentsync_trt.cli.show import (
        new_notices,
        notices_to,
        print_json,
        progress_bar,
        show_report,
    )
    from latentsync_trt.runtime.stages import POLL_S, results

    silent = quiet or as_json
    notices = new_notices()
    say = notices_to(silent=silent)

    def opened() -> "LipSync":
        from latentsync_trt.bundle.find import describe_choice, find_bundle
        from latentsync_trt.runtime.providers.choice import select_provider

        # loads libraries while modules are imported; `from_bundle` tells errors
        with suppress(LatentSyncError):
            select_provider(fields["provider"], runtime.one_device)
        from latentsync_trt.sync.api import LipSync
        from latentsync_trt.sync.threads import tune_process

        tune_process()
        folder, why = find_bundle(bundle)
        if bundle is None:
            say(describe_choice(folder, why))
        return LipSync.from_bundle(
            folder, fields["provider"], runtime, on_notice=None if silent else notices.add
        )

    with meanwhile(opened) as opening:
        from latentsync_trt.media.encoder_choice import default_suffix
        from latentsync_trt.sync.inputs import check_inputs

        what = "synced" if options.preview_s is None else "preview"
        target = fields["output"] or video.parent / f"{video.stem}-{what}{default_suffix(options)}"
        inputs = check_inputs(video, audio, target, options)
        from latentsync_trt.sync import api  # noqa: F401 -- else only after libraries are loaded
    (lip_sync,) = results([opening])
    with lip_sync:
        with progress_bar(hidden=silent) as on_progress:
            report = lip_sync.run(inputs, on_progress=on_progress)
        if as_json:
            print_json({**asdict(report), "total_s": time.monotonic() - BEGAN_S})
        elif not quiet:
            show_report(report, notices, inputs.page, verbose=fields["verbose"])
        if (building := lip_sync.build) is not None:
            if not building.done():
                say(
                    "engines for the next run are still being "
                    "built; Ctrl-C stops that, the output is complete"
                )
            with interruption(
                "interrupted while engines were built for the next run; the output is complete"
            ):
                while wait([building], POLL_S).not_done:
                    pass
            if problem := building.result():
                say(f"building engines failed: {problem}")


_FIRST = {  # options that `--help` shows; the others are for `--help-all`
    *("video", "audio", "output", "preview_s", "overwrite", "resume", "report"),
    *("bundle", "preset", "face", "start", "end", "codec", "provider"),
}

for _each in sync.params:
    if isinstance(_each, click.Option):
        _each.hidden = _each.name not in _FIRST


def _clip_of(files: list[Path], video: Path | None, audio: Path | None) -> tuple[Path, Path | None]:
    """Video and audio by their options, or else by the arguments `files`, in their order."""
    given = [video, audio]
    left = iter(files)
    video, audio = (next(left, None) if file is None else file for file in given)
    if video is None:
        raise click.UsageError(
            "no video; give one and its speech, as in `latentsync-trt sync in.mp4 speech.wav`"
        )
    if (superfluous := next(left, None)) is not None:
        raise click.UsageError(f"{superfluous}: is one file too many; give VIDEO and AUDIO")
    return video, audio


@contextmanager
def meanwhile(action: Callable[[], "LipSync"]) -> "Iterator[Future[LipSync]]":
    """Runs `action` in a thread. An error of the block does not wait for it; what it returns later
    is closed then.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="open")
    result = thread.submit(action)
    thread.shutdown(wait=False)
    try:
        yield result
    except BaseException:
        result.add_done_callback(lambda done: None if done.exception() else done.result().close())
        raise


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
    from latentsync_trt.cli.show import new_notices, progress_bar, show_report
    from latentsync_trt.files import whole_file
    from latentsync_trt.media.demo_clip import SENTENCE, choose_clip
    from latentsync_trt.media.files import check_file, writing
    from latentsync_trt.sync.api import LipSync

    for given in filter(None, (audio, video)):
        check_file(given)
    make_folder(output)
    clip = choose_clip(video, audio, output, SOURCE)
    echo(f"{clip.video}: {clip.name}")
    echo("speech: " + (f"“{SENTENCE}”" if audio is None else str(audio)))
    notices = new_notices()
    with progress_bar(hidden=False) as on_progress:
        with (
            LipSync.from_bundle(bundle, CPU.name, on_notice=notices.add) as lip_sync,
            writing(output / RESULT),
            whole_file(output / RESULT, keep=True) as part,
        ):
            report = lip_sync.sync(
                clip.video, clip.audio, part, SyncOptions(preset=preset), on_progress=on_progress
            )
        found = look_at(output, clip, bundle, on_progress)
    show_report(replace(report, output=str(output / RESULT)), notices)
    echo(f"lips: {found}\nlook at {output / RESULT}, {output / PICTURE} and {output / PLOT}")


def look_at(
    out: Path, clip: "SpokenClip", bundle: str, on_progress: "ProgressCallback | None" = None
) -> str:
    """Measures the result of `clip` in the folder `out` and draws both pictures there; returns how
    lips follow.
    """
    from latentsync_trt.bundle.find import find_bundle
    from latentsync_trt.bundle.manifest import read_manifest
    from latentsync_trt.measure.clips import (
        choose_moments,
        face_views,
        masked,
        measure_clip,
        square_rgb,
    )
    from latentsync_trt.measure.lips import measured
    from latentsync_trt.measure.page import SHOWN_PX, face_grid, sync_figure, write_png
    from latentsync_trt.media.playback import Playback
    from latentsync_trt.media.reader import delays_of, read_frames

    delays = delays_of(clip.video, clip.audio)
    curves = measure_clip(out / RESULT, clip.audio, delay_s=delays.sound_s, on_progress=on_progress)
    found = measured(curves).with_figures
    write_png(out / PLOT, sync_figure({"measured in the result": curves}, f"Lips: {found}"))
    resolution_px = read_manifest(find_bundle(bundle)[0]).resolution_px
    extended = Playback(
        Fraction(MODEL_FPS),
        Fraction(len(curves), MODEL_FPS),
        SyncOptions().extend,
        delays.picture_s,
    )
    clips = {clip.video: extended, out / RESULT: Playback(Fraction(MODEL_FPS))}
    moments = choose_moments(curves)
    # Only these: to follow the face through all frames takes a second.
    shown = [
        (
            rgb
            for index, rgb in enumerate(square_rgb(path, read_frames(path, playback)))
            if index in moments
        )
        for path, playback in clips.items()
    ]
    columns = {
        moments[index]: (faces[0], masked(faces[0], resolution_px), faces[1])
        for index, faces in zip(sorted(moments), face_views(shown, SHOWN_PX), strict=False)
        if faces is not None
    }
    write_png(out / PICTURE, face_grid(("source", "masked", "result"), columns))
    return found


@click.command("faces")
@click.argument("video", type=flags.LocalPath())
@flags.path_option(
    "--output",
    "-o",
    written=True,
    help="Name of the .png and .json to write.  [default: the video's with -faces]",
)
@flags.overwrite_option
@flags.json_option
def faces(video: Path, output: Path | None, overwrite: bool, as_json: bool) -> None:
    """The numbers are those of --face index:N and --speaker N=FILE. The JSON can be edited: delete
    or renumber people and spans, and change who speaks when, for --face speaking. Of a crowd, the
    twelve largest faces at a time are followed.
    """
    from latentsync_trt.cli.show import print_json, print_table, progress_bar, say
    from latentsync_trt.face.detector import MediaPipeDetector
    from latentsync_trt.face.people import summaries
    from latentsync_trt.face.track_file import save_tracks
    from latentsync_trt.measure.page import contact_sheet, write_png
    from latentsync_trt.media.files import check_file
    from latentsync_trt.sync.faces import analyze
    from latentsync_trt.sync.source_speakers import detect_speakers

    check_file(video)
    base = output or video.with_name(f"{video.stem}-faces")
    check_folder_to_write(base.parent, "--output")
    sheet, saved = (base.with_name(f"{base.name}{suffix}") for suffix in (".png", ".json"))
    check_free(saved, overwrite=overwrite)
    make_folder(base.parent)
    with progress_bar(hidden=as_json) as show:
        tracks, portraits = analyze(video, MediaPipeDetector(), show)
        tracks, notice = detect_speakers(video, tracks)
    people = summaries(tracks)
    write_png(sheet, contact_sheet(people, portraits))
    save_tracks(tracks, saved)
    if as_json:
        print_json({"people": people, "sheet": sheet, "tracks": saved, "notice": notice}, indent=2)
        return
    heads = ("person", "seen s", "first s", "last s", "height px", "frontal", "speaks, s")
    rows = []
    for person in people:
        speaks = ", ".join(f"{start_s:.1f}-{end_s:.1f}" for start_s, end_s in person.speaks)
        span = person.times_s[0][0], person.times_s[-1][1]
        rows.append(
            (
                person.number,
                person.seen_s,
                *span,
                person.height_px,
                f"{person.frontal:.0%}",
                speaks or "-",
            )
        )
    print_table(heads, rows, left=0)
    if notice is not None:
        say(f"note: {notice}")
    echo(f"{sheet}: contact sheet")
    words = [
        "sync",
        str(video),
        "speech.wav",
        "--faces",
        str(saved),
        "--face",
        f"index:{people[0].number}",
    ]
    if os.name == "nt":
        line = subprocess.list2cmdline(words)
    else:
        line = shlex.join(words)
    echo(f"{saved}: tracks; next: latentsync-trt {line}")
