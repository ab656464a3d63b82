"""Saved tracks: aligned as they were when found, at any rate and backwards; edited by people; and
what is refused.
"""

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from latentsync_trt.cli import main
from latentsync_trt.errors import InputError
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.track_file import (
    ClipMark,
    FaceSpan,
    Tracks,
    mark_of,
    read_tracks,
    save_tracks,
)
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.sync.faces import FaceFinder, FrameJob, analyze
from tests.clips import numbered, write_video
from tests.people import first_person, together

FPS = 50
CLIP = ClipMark("talk.mp4", 1000, 640, 360, 10, 0.4)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half a second of one person, 50 frames per second."""
    return write_video(tmp_path_factory.mktemp("clip") / "one.mp4", first_person(25), FPS)


@pytest.fixture(scope="module")
def saved(clip: Path, detector: MediaPipeDetector) -> Path:
    return save_tracks(analyze(clip, detector)[0], clip.with_suffix(".json"))


def jobs_of(clip: Path, playback: Playback, saved: Path) -> list[FrameJob]:
    frames = (frame for frame in read_frames(clip, playback))
    return list(FaceFinder(read_tracks(saved), 256).find(frames))


@pytest.mark.integration
@pytest.mark.parametrize(
    "playback",
    [
        Playback(25),
        Playback(duration_s=Fraction(5, 4), extend="pingpong"),
        Playback(25, Fraction(2), "loop"),
    ],
    ids=["25", "ping-pong", "loop"],
)
def test_tracks_follow_the_time_of_the_source(clip: Path, saved: Path, playback: Playback) -> None:
    wanted = {
        job.frame.source_s: job.targets[0].tracked for job in jobs_of(clip, Playback(), saved)
    }
    jobs = jobs_of(clip, playback, saved)
    assert all(
        np.array_equal(job.targets[0].tracked.points, wanted[job.frame.source_s].points)
        for job in jobs
    )
    runs = [job.targets[0].track_id for job in jobs]
    assert len(set(runs)) == (4 if playback.extend == "loop" else 1), (
        "each pass of a loop is a run of its own"
    )


def span(person: int, start_s: float, count: int = 5) -> FaceSpan:
    times_s = start_s + np.arange(count) / 25
    face = [100.5, 100, 200, 230, 120, 120, 180, 121, 150, 170]
    return FaceSpan(person, np.column_stack([times_s, np.tile(face, (count, 1))]))


def edited(folder: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    """Saves two people, one of them with two spans, and applies an edit to the file."""
    path = save_tracks(
        Tracks(CLIP, (0.0, 0.2), (span(0, 0), span(1, 0), span(0, 0.2))), folder / "t.json"
    )
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content), encoding="utf-8-sig")  # as editors of Windows do
    return path


def test_people_and_spans_can_be_edited(tmp_path: Path) -> None:
    def edit(file: dict[str, Any]) -> None:
        file["people"][1]["person"] = 7
        file["people"][0]["spans"].pop(0)
        file["people"][0]["spans"][0]["from_s"] = 0.28

    tracks = read_tracks(edited(tmp_path, edit))
    assert tracks.people == (0, 7)
    assert [(one.person, len(one.rows)) for one in tracks.spans] == [(7, 5), (0, 3)]
    assert [one.person for one in tracks.at(Fraction(0)).faces] == [7]
    assert [one.person for one in tracks.at(Fraction(8, 25)).faces] == [0]
    assert (tracks.at(Fraction(0)).shot, tracks.at(Fraction(8, 25)).shot) == (0, 1)


def row(file: dict[str, Any], number: int) -> Any:
    return file["people"][0]["spans"][0]["frames"][number]


WRONG: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "other file": (lambda f: f.clear(), "missing required field `format`"),
    "short row": (lambda f: row(f, 2).pop(), "at `$.people[0].spans[0].frames[2]`"),
    "order": (lambda f: row(f, 3).__setitem__(0, 0.04), "frames[3], 0.04 s"),
    "points": (
        lambda f: row(f, 1).__setitem__(slice(5, None), [9] * 6),
        "people[0].spans[0].frames[1], 0.04 s",
    ),
    "two places": (
        lambda f: f["people"][1].update(person=0),
        ": person 0 ",
    ),
    "shots": (
        lambda f: f["shots_s"].reverse(),
        "shots_s[1]",
    ),
    "speech": (
        lambda f: f["people"][1].update(speaks=[[0, 1], [3, 2]]),
        "people[1].speaks[1]: 3 to 2 s",
    ),
    "NaN": (lambda f: row(f, 2).__setitem__(5, float("nan")), "(line 1, column "),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_in_a_file_is_named_with_its_place(tmp_path: Path, case: str) -> None:
    edit, message = WRONG[case]
    path = edited(tmp_path, edit)
    with pytest.raises(InputError) as error:
        read_tracks(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)


@pytest.mark.parametrize(("line", "edit"), [(4, lambda text: text + ","), (7, lambda text: "")])
def test_what_is_no_json_is_named_with_its_line(
    saved: Path, tmp_path: Path, line: int, edit: Callable[[str], str]
) -> None:
    """A comma too many; a file that ends early."""
    lines = saved.read_text(encoding="utf-8").splitlines()
    lines[line - 1] = edit(lines[line - 1])
    path = tmp_path / "edited.json"
    path.write_text("\n".join(lines[:line] if line == 7 else lines), encoding="utf-8")
    with pytest.raises(InputError, match=rf"edited\.json: .*line {line}\b"):
        read_tracks(path)


def test_tracks_of_another_clip_are_refused(clip: Path, saved: Path, tmp_path: Path) -> None:
    tracks = read_tracks(saved)
    renamed = tmp_path / "renamed.mp4"
    renamed.write_bytes(clip.read_bytes())
    tracks.check_clip(mark_of(renamed, probe(renamed)), saved)
    other = write_video(tmp_path / "other.mp4", numbered(25), FPS)
    with pytest.raises(InputError, match=r"one\..*480×480.* other\."):
        tracks.check_clip(mark_of(other, probe(other)), saved)


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.integration
def test_the_command_writes_a_sheet_and_tracks(tmp_path: Path) -> None:
    video = write_video(tmp_path / "two.mp4", together([250.0] * 10, [790.0] * 10))
    code, out, _ = run("faces", video)
    assert code == 0
    tracks = read_tracks(tmp_path / "two-faces.json")
    assert tracks.people == (0, 1)
    assert tracks.clip.frames == 10
    with Image.open(tmp_path / "two-faces.png") as sheet:
        pixels = np.asarray(sheet.convert("RGB"))
    assert pixels.shape[1] > 2 * 256
    assert pixels[8:264, 180:436].std() > 30, "a portrait is shown"
    assert " --face index:0" in out.splitlines()[-1].partition("next: ")[2]
    code, out, _ = run("faces", video, "-o", tmp_path / "new folder" / "seen", "--json")
    found = json.loads(out)
    assert code == 0
    assert [person["number"] for person in found["people"]] == [0, 1]
    assert Path(found["tracks"]) == tmp_path / "new folder" / "seen.json"


def test_a_clip_without_faces_is_an_error(tmp_path: Path) -> None:
    video = write_video(tmp_path / "in.mp4", numbered(3))
    code, _, err = run("faces", video)
    assert code == 1
    assert "no face" in err and "in.mp4" in err
    assert [path.name for path in tmp_path.iterdir()] == ["in.mp4"]
