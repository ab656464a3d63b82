"""`latentsync-trt faces`: the people of a clip."""

import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from latentsync_trt.cli import echo
from latentsync_trt.cli import options as flags
from latentsync_trt.paths import check_folder_to_write, check_free, make_folder

if TYPE_CHECKING:
    from latentsync_trt.face.people import PersonSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class FacesRequest:
    video: Path = flags.argument()
    output: Path | None = flags.command_field(
        None,
        "Name of the .png and .json to write.  [default: the video's with -faces]",
        names=("--output", "-o"),
        written=True,
    )
    overwrite: bool = flags.overwrite_option()
    as_json: bool = flags.json_option()


@click.command("faces")
@flags.takes(FacesRequest)
def faces(request: FacesRequest) -> None:
    """The numbers are those of --face index:N and --speaker N=FILE. The JSON can be edited: delete
    or renumber people and spans, and change who speaks when, for --face speaking. Of a crowd, the
    twelve largest faces at a time are followed.
    """
    from latentsync_trt.cli.show import print_json, print_line, progress_bar
    from latentsync_trt.compositing.occluders import OccluderFinder
    from latentsync_trt.face.detector import MediaPipeDetector
    from latentsync_trt.face.people import summaries
    from latentsync_trt.face.track_file import save_tracks
    from latentsync_trt.measure.page import contact_sheet, write_png
    from latentsync_trt.media.files import check_file
    from latentsync_trt.sync.faces import analyze
    from latentsync_trt.sync.source_speakers import detect_speakers

    video = request.video
    check_file(video)
    base = request.output or video.with_name(f"{video.stem}-faces")
    check_folder_to_write(base.parent, "--output")
    sheet = base.with_name(f"{base.name}.png")
    track_file = base.with_name(f"{base.name}.json")
    check_free(track_file, overwrite=request.overwrite)
    make_folder(base.parent)
    with progress_bar(hidden=request.as_json) as on_progress:
        detector = MediaPipeDetector()
        tracks, portraits = analyze(video, detector, on_progress, OccluderFinder(detector))
        tracks, notice = detect_speakers(video, tracks)
    people = summaries(tracks)
    write_png(sheet, contact_sheet(people, portraits))
    save_tracks(tracks, track_file)
    if request.as_json:
        content = {"people": people, "sheet": sheet, "tracks": track_file, "notice": notice}
        print_json(content, indent=2)
        return
    _print_people(people)
    if notice is not None:
        print_line(f"note: {notice}")
    echo(f"{sheet}: contact sheet")
    call = ["sync", str(video), "speech.wav", "--faces", str(track_file)]
    call += ["--face", f"index:{people[0].number}"]
    echo(f"{track_file}: tracks; next: latentsync-trt {_shell_line(call)}")


def _print_people(people: "Sequence[PersonSummary]") -> None:
    from latentsync_trt.cli.show import print_table

    heads = (
        "person",
        "seen s",
        "first s",
        "last s",
        "height px",
        "frontal",
        "covered s",
        "speaks, s",
    )
    rows = []
    for person in people:
        turns = [f"{start_s:.1f}-{end_s:.1f}" for start_s, end_s in person.speaks]
        speaks = ", ".join(turns)
        row = [
            *(person.number, person.seen_s, person.times_s[0][0], person.times_s[-1][1]),
            *(person.height_px, f"{person.frontal:.0%}", person.covered_s, speaks or "-"),
        ]
        rows.append(row)
    print_table(heads, rows, left=0)


def _shell_line(words: Sequence[str]) -> str:
    if os.name == "nt":
        return subprocess.list2cmdline(words)
    return shlex.join(words)
