"""`latentsync-trt faces`: numbers the people of a clip, and saves where they are."""

import json
from dataclasses import asdict
from pathlib import Path

import rich_click as click

from latentsync_trt.cli.options import LocalPath, json_option
from latentsync_trt.cli.show import print_table, progress_bar


@click.command("faces")
@click.argument("video", type=LocalPath())
@click.option(
    "-o",
    "--output",
    type=LocalPath(),
    help="Where to write OUTPUT.png and OUTPUT.json.  [default: the video's name with -faces]",
)
@json_option
def command(video: Path, output: Path | None, as_json: bool) -> None:
    """Find and number all people of VIDEO: a contact sheet, and their tracks for `sync --faces`.

    The numbers are those of --face index:N and --speaker N=FILE. The tracks are JSON that can be
    edited: delete or renumber people and spans. Of a crowd, the twelve largest faces at a time are
    followed.
    """
    from latentsync_trt.face.detector import MediaPipeDetector
    from latentsync_trt.face.track_file import save_tracks
    from latentsync_trt.measure.page import describe, summaries, time_text, write_contact_sheet
    from latentsync_trt.media.files import check_file
    from latentsync_trt.paths import check_folder_to_write
    from latentsync_trt.sync.analysis import analyze

    check_file(video)
    base = video.with_name(f"{video.stem}-faces") if output is None else output
    check_folder_to_write(base.parent, "--output")
    with MediaPipeDetector() as detector, progress_bar(hidden=as_json) as show:
        tracks, portraits = analyze(video, detector, show)
    sheet = base.with_name(f"{base.name}.png")
    write_contact_sheet(sheet, tracks, portraits)
    saved = save_tracks(tracks, base.with_name(f"{base.name}.json"))
    people = summaries(tracks)
    if as_json:
        found = {"people": [asdict(person) for person in people], "sheet": str(sheet), "tracks": str(saved)}
        click.echo(json.dumps(found, indent=2))
        return
    heads = "face", "seen", "times", "first", "last", "height", "frontal"
    rows = [
        (
            *(str(person.number), f"{person.seen_s:.1f} s", str(len(person.times_s))),
            *(time_text(person.times_s[0][0]), time_text(person.times_s[-1][1]), *describe(person)),
        )
        for person in people
    ]
    print_table(heads, rows, left=0)
    click.echo(f"{sheet}: contact sheet")
    click.echo(f"{saved}: tracks, for sync --faces {saved.name}")
