"""The page of a run: it needs no other file, names no folder, and shows what matters."""

import re
from dataclasses import replace
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path

import pytest

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.measure.page import page_path
from latentsync_trt.measure.quality import Quality, write_report
from latentsync_trt.measures import Interval
from latentsync_trt.option_fields import parse_speakers
from latentsync_trt.types import Progress
from tests.clips import decoded, write_clip
from tests.test_quality import add, lips_of, openings, speech
from tests.test_show import REPORT


class Page(HTMLParser):
    """The parts of a page that a browser would load, its pictures, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href")
        ]

    def handle_data(self, data: str) -> None:
        self.text += data


def written(path: Path, found: Quality, options: SyncOptions, **changes: object) -> Page:
    report = replace(REPORT, output="/home/me/out.mp4", **{"quality": found.result(), **changes})  # type: ignore[arg-type]
    write_report(path, Path("/home/me/clip.mov"), report, found, options)
    return Page(path)


def test_the_page_shows_an_alarm_first_then_measures_pictures_and_what_was_left(
    tmp_path: Path,
) -> None:
    found = Quality([Fraction(0)], pictures=True)
    list(found.listen(0, speech(openings(250))))
    for index in range(250):
        add(found, index, lips_of(Fraction(index, 25)))
    misfits = (Interval(3.2, 4.14, "jumps"),)
    quality = replace(found.result(), alarm="the mouth is a smear", misfits=misfits)
    changes = {"quality": quality}
    untouched = (Interval(1.0, 1.5, "no face"),)
    page = written(
        tmp_path / "r.html", found, SyncOptions(preset="fast"), untouched=untouched, **changes
    )
    assert page.tags.count("img") >= 2 * 3
    assert page.tags.count("svg") == 1 + 2
    assert "Look here3.2–4.1 s: jumps" in re.sub(r"\s*\n\s*", "", page.text)
    assert "500 frames (20.00 s), a face in 480" in page.text
    lips = re.search(r"lips follow .* agreement 0\.[789]\d, .*100%", page.text)
    assert lips is not None
    assert page.text.index("the mouth is a smear") < lips.start()
    assert "1.001.50no face" in page.text
    assert "3.204.14jumps" in page.text
    assert "--preset fast" in page.text
    assert {value[:15] for value in page.loaded if not value.startswith("#")} == {"data:image/jpeg"}
    assert not set(page.tags) & {"script", "link", "iframe"}


def test_names_of_files_are_text_and_folders_are_left_out(tmp_path: Path) -> None:
    hostile = "/home/me/<script>alert(1)</script>"
    path = tmp_path / "r.html"
    options = SyncOptions(
        mix="/home/me/mix.wav", report=path, speaker=parse_speakers("0=/home/me/a.wav")
    )
    page = written(
        path, Quality([]), options, bundle=hostile, notices=("/home/me/deep/a.wav: is loud",)
    )
    assert "script" not in page.tags
    assert "a.wav: is loud" in page.text
    assert "/home/me" not in page.text.replace(hostile, "")


@pytest.mark.parametrize("name", ["out.mp4", "", "https://example.org/r.html"])
def test_what_is_no_page(name: str) -> None:
    with pytest.raises(InputError, match="report"):
        page_path(name, "--report", overwrite=False)


@pytest.mark.integration
def test_a_run_writes_its_page_or_keeps_its_video(lip_sync: LipSync, tmp_path: Path) -> None:
    """Random weights paint noise, which raises the alarm."""
    clip = write_clip(tmp_path, 8)
    path = tmp_path / "r.html"
    output = tmp_path / "out.mp4"
    options = SyncOptions(steps=1, cache_interval=1, report=path)

    def in_the_way(progress: Progress) -> None:
        if progress.stage == "finishing":
            path.mkdir()

    report = lip_sync.sync(*clip, output, options)
    page = Page(path)
    assert report.quality is not None
    assert report.quality.lips[0].frames == 8
    assert str(report.quality.lips[0]) in page.text
    assert report.quality.alarm in report.notices
    assert report.quality.alarm in page.text
    assert page.tags.count("img") >= 2 * 2
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "face.mp4",
        "out.mp4",
        "r.html",
        "speech.wav",
    ]
    path.unlink()
    output.unlink()
    with pytest.raises(OutputError, match=r"r\.html: .*complete: .*out\.mp4"):
        lip_sync.sync(*clip, output, options, on_progress=in_the_way)
    assert len(decoded(output)) == 8
