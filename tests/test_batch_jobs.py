"""Job files: rows become tasks, and all that cannot work are found before the first one starts."""

import json
import shutil
from contextlib import chdir
from pathlib import Path

import pytest

from latentsync_trt.batch.job_file import BatchRow, check_rows, read_rows
from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import InputError
from tests.clips import write_face, write_sound


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """a.mp4, 0.2 s, with a.wav, 0.4 s; b.mp4 likewise with b.wav, 1 s."""
    folder = tmp_path_factory.mktemp("clips")
    for name, sound_s in (("a", 0.4), ("b", 1.0)):
        write_face(folder / f"{name}.mp4", 5)
        write_sound(folder / f"{name}.wav", sound_s)
    return folder


@pytest.fixture
def folder(clips: Path, tmp_path: Path) -> Path:
    """A copy of `clips`."""
    return shutil.copytree(clips, tmp_path / "job ü")


def jobs_in(folder: Path, text: str, name: str = "jobs.csv", **defaults: object) -> list[BatchRow]:
    (folder / name).write_text(text, encoding="utf-8")
    jobs = read_rows(folder / name, SyncOptions(**defaults))  # type: ignore[arg-type]
    assert not any(job.problem for job in jobs)
    return jobs


def problems_in(folder: Path, text: str, name: str = "jobs.csv") -> list[str]:
    (folder / name).write_text(text, encoding="utf-8")
    jobs = check_rows(read_rows(folder / name, SyncOptions()))
    return [f"{job.where}: {job.problem}" for job in jobs if job.problem]


ROWS = "video,audio,output,crf\na.mp4,a.wav,x.mp4,20\n\nb.mp4, b.wav ,sub/../y.mp4,\n"


WIDE = ROWS.replace("crf\n", "crf,,\n").replace("20\n", "20,,\n").replace(",\n", ",,,\n")
"""As Excel writes a table whose columns on the right were emptied."""


@pytest.mark.parametrize(
    "written",
    [
        ROWS,
        ROWS.replace(",", ";"),
        "\ufeffsep=;\r\n" + WIDE.replace(",", ";").replace("\n", "\r\n"),
    ],
)
def test_rows_of_a_table(folder: Path, written: str) -> None:
    first, second = jobs_in(folder, written, steps=3)
    assert (first.where, second.where) == ("row 2", "row 4")
    assert first.task.video == str(folder / "a.mp4")
    assert first.task.options == SyncOptions(steps=3, crf=20)
    assert second.task.options == SyncOptions(steps=3)
    assert Path(second.task.output).name == "y.mp4"


def test_rows_of_json_lines_take_lists_and_numbers(folder: Path) -> None:
    rows = [
        {
            "video": "a.mp4",
            "output": "x.mp4",
            "speaker": ["0=a.wav", "1=b.wav"],
            "start": 0.1,
            "mark": False,
        },
        {"video": "s3://clips/a.mp4", "audio": "a.wav", "output": "s3://out/y.mp4", "codec": None},
    ]
    first, second = jobs_in(folder, "\n".join(map(json.dumps, rows)), "jobs.jsonl")
    assert first.task.audio is None
    assert [speaker.voice for speaker in first.task.options.speaker] == [
        str(folder / "a.wav"),
        str(folder / "b.wav"),
    ]
    assert not first.task.options.mark
    assert (second.task.video, second.task.output) == ("s3://clips/a.mp4", "s3://out/y.mp4")


def test_outputs_that_rows_do_not_name(folder: Path) -> None:
    text = "video,audio\na.mp4,a.wav\nb.mp4,b.wav\n"
    outputs = [Path(job.task.output) for job in jobs_in(folder, text)]
    assert outputs == [folder / "a-synced.mp4", folder / "b-synced.mp4"]
    with chdir(folder.parent):  # whose files defaults name
        jobs = read_rows(
            folder / "jobs.csv", SyncOptions(codec="prores", mix="music.wav"), "s3://out/"
        )
    assert [job.task.output for job in jobs] == ["s3://out/a-synced.mov", "s3://out/b-synced.mov"]
    assert jobs[0].task.options.mix == str(folder.parent / "music.wav")


def test_a_folder_is_a_job_file_of_its_pairs(folder: Path) -> None:
    """Without what an earlier batch wrote, and what is hidden; what is alone cannot work."""
    for name in ("a-synced.mp4", ".c.mp4", "notes.txt"):
        (folder / name).touch()
    jobs = read_rows(folder, SyncOptions(crf=20))
    assert [(job.where, Path(job.task.output)) for job in jobs] == [
        ("a.mp4 with a.wav", folder / "a-synced.mp4"),
        ("b.mp4 with b.wav", folder / "b-synced.mp4"),
    ]
    assert jobs[0].task.options.crf == 20
    assert not any(
        job.problem for job in check_rows(read_rows(folder, SyncOptions(overwrite=True)))
    )
    shutil.copy(folder / "a.wav", folder / "d.wav")
    shutil.copy(folder / "a.mp4", folder / "e.mp4")
    problems = {
        job.where: job.problem for job in check_rows(read_rows(folder, SyncOptions(overwrite=True)))
    }
    assert {where for where, problem in problems.items() if problem} == {"d.wav", "e.mp4"}
    with pytest.raises(InputError, match="has no rows"):
        read_rows(folder.parent, SyncOptions())


def test_a_row_keeps_its_id_until_it_changes(folder: Path) -> None:
    text = "video,audio,output,crf,seed\na.mp4,a.wav,x.mp4,,\n"
    text += "a.mp4,a.wav,y.mp4,,\na.mp4,a.wav,z.mp4,20,\n"
    ids = [job.task.id for job in jobs_in(folder, text)]
    assert [job.task.id for job in jobs_in(folder, text.replace(",a.wav", ",./a.wav"))] == ids
    assert len({*ids, *(job.task.id for job in jobs_in(folder, text, seed=1))}) == 6


BAD_ROWS = {
    "a.mp4,a.wav,sub/../x.mp4,,": "is a file of row 2, too",
    "damaged.mp4,a.wav,x6.mp4,,": "damaged.mp4: is not a readable media file",
    "a.mp4,c.wav,sub/../b.mp4,,": "is a file of row 6, too",
    "b.mp4,b.wav,x8.mp4,,8": "start 8:",
    "a.mp4,a.wav,damaged.mp4/x12.mp4,,": "damaged.mp4: is a file; name a folder",
    "a.mp4,a.wav,x13.mp4,,,more": "has a cell below no name of a column",
    "a.mp4,a.wav,a.mp4,,": "choose another name",
    "http://[::1,a.wav,x15.mp4,,": "http://[::1: is no address",
    "a.mp4,a.wav,s3://[,,": "s3://[: is no address",
    "a.mp4,a.wav,there.mp4,,": "there.mp4: exists already; choose another "
    "name, or replace it with --overwrite",
}


def test_all_rows_that_cannot_work_are_found_at_once(folder: Path) -> None:
    (folder / "damaged.mp4").write_bytes(bytes(5000))
    shutil.copy(folder / "a.wav", folder / "c.wav")
    (folder / "sub").mkdir()
    (folder / "there.mp4").touch()
    lines = problems_in(
        folder, "\n".join(["video,audio,output,crf,start", "a.mp4,a.wav,x.mp4,,", *BAD_ROWS, ""])
    )
    for number, words in enumerate(BAD_ROWS.values(), 3):
        assert any(line.startswith(f"row {number}: ") and words in line for line in lines), (
            number,
            words,
            lines,
        )
    assert not [line for line in lines if line.startswith("row 2:")]


def test_json_lines_that_cannot_work(folder: Path) -> None:
    wanted = {
        '{"video": "a.mp4"': "line 1: no object",
        '{"video": "a.mp4", "audio": "a.wav", "crff": 1}': "no such option; did you mean crf",
        '{"video": "a\\u0000.mp4"}': "has a NUL character",
        '{"video": "a.mp4", "audio": "a.wav", "output": "other\u2028line.txt"}': "cannot "
        "write .txt",
    }
    lines = problems_in(folder, "\n".join(wanted), "jobs.jsonl")
    assert all(words in line for words, line in zip(wanted.values(), lines, strict=True)), lines


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("jobs.csv", b"video,audio,output\n", "has no rows"),
        (
            "jobs.csv",
            b"a.mp4,a.wav,out.mp4\n",
            "has the columns 'a.mp4, a.wav, out.mp4'; its first line must name",
        ),
        (
            "jobs.csv",
            "video\nä.mp4\n".encode("cp1252"),
            "cannot be read as text .*save it as “CSV UTF-8”",
        ),
        ("jobs.xlsx", b"PK", r"is no job file; give a \.csv or \.jsonl file"),
    ],
)
def test_files_that_are_no_job_files(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_rows(tmp_path / name, SyncOptions())


def test_addresses_are_asked_for(folder: Path) -> None:
    """fsspec's own file system in memory stands for any store."""
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://clips/there.mp4", "wb") as file:
        file.write(b"1")
    address = "memory://clips/there.mp4"
    rows = f"{address},a.wav,memory://out/1.mp4\nmemory://clips/none.mp4,a.wav,memory://out/2.mp4\n"
    first, second = problems_in(
        folder, f"video,audio,output\n{rows}{address},z.wav,https://u:pw@host/3.mp4\n"
    )
    assert first.startswith("row 3: memory://clips/none.mp4: ")
    assert second.startswith("row 4: ") and "pw" not in second
