"""`latentsync-trt faces`: the people of a clip."""

import os
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from latentsync_trt.cli import echo
from latentsync_trt.cli import options as flags
from latentsync_trt.paths import check_folder_to_write, check_free, make_folder

if TYPE_CHECKING:
    pass


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
