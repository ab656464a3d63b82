"""Reads a job file or a folder into rows, and finds all that cannot work before the first one
starts.
"""

import csv
import io
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import zip_longest
from math import inf
from pathlib import Path
from typing import Any

from latentsync_trt.batch import remote_files
from latentsync_trt.batch.remote_files import is_url, parts_of, shown
from latentsync_trt.batch.tasks import Task
from latentsync_trt.config import SyncOptions
from latentsync_trt.diffusion import plan_for
from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.option_fields import field_name, from_json, from_texts, to_texts
from latentsync_trt.paths import (
    AUDIO_SUFFIXES,
    VIDEO_SUFFIXES,
    files_in,
    local_path,
    path_exists,
    read_text,
    why_missing,
)

_FILES = ("video", "audio", "output")
# a line above the header, for Excel; it counts no row
_HINT = re.compile(r'"?sep=(.)"?\r?\n', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A row of a job file: where it is ("row 3", or names in a folder), its task, or why it cannot
    work.
    """

    where: str
    task: Task
    cost: float = inf  # seconds of video times full denoising steps
    problem: str = ""


def read_rows(source: Path, defaults: SyncOptions, folder: str | None = None) -> list[BatchRow]:
    """Reads a .csv or .jsonl file, or makes rows of the videos and recordings in a folder; raises
    `InputError` if there are none, or it cannot be read.

    `defaults`: options of rows that don't set them. Their files are relative to the current folder,
    those of a job file to its own. `folder`: or URL of one, for outputs that a row doesn't name; by
    default the video's.
    """
    rows: list[BatchRow] = []
    base = source if source.is_dir() else source.parent
    nothing = Task("", "", None, "", defaults)
    given = to_texts(
        nothing.with_files(lambda file, _: _joined(Path.cwd(), file) if file else file).options
    )
    for where, cells in _rows_of(source):
        try:
            rows.append(BatchRow(where, _task(cells, base, given, folder)))
        except InputError as error:
            rows.append(BatchRow(where, nothing, problem=str(error)))
    if source.is_dir():  # what an earlier batch wrote is no clip to sync
        outputs = {row.task.output for row in rows}
        rows = [
            row for row in rows if row.problem or row.task.audio or row.task.video not in outputs
        ]
    if not rows:
        raise InputError(
            f"{source}: has no rows; add a row for each "
            "clip, or give a folder with videos and recordings"
        )
    return _without_conflicts(rows)


def ledger_of(source: Path) -> Path:
    """Where the ledger of a job file lies, or of a folder."""
    if source.is_dir():
        return source / "batch.ledger.sqlite"
    return source.with_name(f"{source.name}.ledger.sqlite")


def check_rows(rows: Sequence[BatchRow]) -> Iterator[BatchRow]:
    """Opens the files of all rows without a problem; yields the rows with lengths, or with what was
    found.
    """
    with ThreadPoolExecutor() as pool:
        yield from pool.map(_checked, rows)


def _rows_of(source: Path) -> Iterator[tuple[str, Mapping[str, Any] | str]]:
    """Yields where each row is, and its cells by field, or a line of JSON."""
    if source.is_dir():
        yield from _pairs_in(source)
        return
    suffix = source.suffix.lower()
    if suffix not in (".csv", ".jsonl", ".ndjson"):
        raise InputError(
            f"{source}: is no job file; give a .csv or .jsonl "
            "file with a row for each clip, or a folder"
        )
    if not path_exists(source):
        raise InputError(why_missing(source))
    text = read_text(source, "save it as “CSV UTF-8”")
    if suffix == ".csv":
        yield from _csv_rows(source, text)
    else:
        lines = enumerate(text.split("\n"), 1)  # `splitlines` would split at U+2028 in a string
        yield from ((f"line {number}", line) for number, line in lines if line.strip())


def _pairs_in(folder: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yields each video in a folder with each recording of its name; also those that are alone."""
    videos = _seen_in(folder, VIDEO_SUFFIXES)
    recordings = _seen_in(folder, AUDIO_SUFFIXES)
    stems = {video.stem for video in videos}
    for video in videos:
        paired = [audio for audio in recordings if audio.stem == video.stem]
        for audio in paired:
            names = {"video": video.name, "audio": audio.name}
            yield f"{video.name} with {audio.name}", names
        if not paired:
            yield video.name, {"video": video.name}
    for audio in recordings:
        if audio.stem not in stems:
            yield audio.name, {"audio": audio.name}


def _seen_in(folder: Path, suffixes: Collection[str]) -> list[Path]:
    """The files that have one of the suffixes and are not hidden."""
    return [path for path in files_in(folder, suffixes) if not path.name.startswith(".")]


def _csv_rows(source: Path, text: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    if hint := _HINT.match(text):
        delimiter = hint[1]
        text = text[hint.end() :]
    else:  # Excel writes ";" where "," is the decimal point
        delimiter = max(",;\t", key=text.lstrip().partition("\n")[0].count)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        rows = [
            (number, cells) for number, cells in enumerate(lines, 1) if any(map(str.strip, cells))
        ]
    except csv.Error as error:
        raise InputError(f"{source}: line {lines.line_num} is not CSV: {error}") from error
    names = [field_name(cell) for cell in rows[0][1]] if rows else ["video"]
    named = [*filter(None, names)]  # Excel adds columns on the right
    if len(set(named)) < len(named) or "video" not in named:
        cure = "its first line must name each column once, as in video,audio,output"
        raise InputError(f"{source}: has the columns {', '.join(names)!r}; {cure}")
    for number, cells in rows[1:]:
        yield f"row {number}", dict(zip_longest(names, map(str.strip, cells), fillvalue=""))


def _task(
    row: Mapping[str, Any] | str, base: Path, defaults: Mapping[str, Any], folder: str | None
) -> Task:
    """Returns the task of a row, with absolute paths; raises `InputError`."""
    if isinstance(row, str):
        row = from_json(
            dict[str, Any], row, 'no object as {"video": "a.mp4", "audio": "a.wav"}', InputError
        )
    given = {field_name(name): value for name, value in row.items() if value not in (None, "")}
    if "" in given:
        raise InputError(
            "has a cell below no name of a column; put text that has the delimiter in quotes"
        )
    video, audio, output = map(given.get, _FILES)
    if not (
        isinstance(video, str) and isinstance(audio, str | None) and isinstance(output, str | None)
    ):
        raise InputError("video, audio and output are paths or URLs, and video is needed")
    own = {name: value for name, value in given.items() if name not in _FILES}
    options = from_texts(SyncOptions, {**defaults, **own}, _FILES)
    named = Task("", video, audio, output or _default_output(video, options, folder), options)
    task = named.with_files(lambda file, _: _joined(base, file))
    # The same command with --overwrite goes on with what it had begun without.
    same = replace(task, options=replace(task.options, overwrite=False)).to_json()
    return replace(task, id=sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:16])


def _default_output(video: str, options: SyncOptions, folder: str | None) -> str:
    from latentsync_trt.media.encoder_choice import default_suffix

    source = Path(remote_files.name_of(video) if is_url(video) else video)
    name = f"{source.stem}-synced{default_suffix(options)}"
    if folder is None:
        if is_url(video):
            folder = video.rpartition("/")[0]
        else:
            folder = str(Path(video).parent)
    elif not is_url(folder):
        folder = str(Path(folder).absolute())
    return f"{folder.rstrip('/')}/{name}"


def _joined(base: Path, file: str) -> str:
    if is_url(file):
        parts_of(file)
        return file
    return str((base / local_path(file)).absolute())


def _without_conflicts(rows: Sequence[BatchRow]) -> list[BatchRow]:
    """The rows; those that would write a file of another row have that as their problem."""
    problems = {row.where: row.problem for row in rows}
    firsts = dict[str, BatchRow]()
    files = [(row, *file) for row in rows if not row.problem for file in row.task.files()]
    for row, file, written in sorted(files, key=lambda each: each[2]):  # those that are read first
        key = file if is_url(file) else os.path.normcase(os.path.realpath(file))
        first = firsts.setdefault(key, row)
        if written and first is not row:  # `check_inputs` compares with the row's own
            problems[row.where] = (
                f"{shown(file)}: is a file of {first.where}, too; choose another name"
            )
    return [replace(row, problem=problems[row.where]) for row in rows]


def _checked(row: BatchRow) -> BatchRow:
    """Returns the row with its length, or why it cannot work."""
    from latentsync_trt.media.files import check_file
    from latentsync_trt.sync.inputs import check_inputs

    task = row.task
    files = row.task.files()
    try:
        if row.problem:
            return row
        if not any(is_url(file) for file, _ in files):
            length_s = check_inputs(
                task.video, task.audio, task.output, task.options
            ).info.duration_s
            return replace(
                row, cost=inf if length_s is None else float(length_s) * sum(plan_for(task.options))
            )
        for file, written in files:
            if written:
                remote_files.check_target(file)
                if not task.options.overwrite and remote_files.exists(file):
                    raise InputError(
                        f"{shown(file)}: exists already; choose another name, or set overwrite"
                    )
            elif not is_url(file):
                check_file(Path(file))
            elif not remote_files.exists(file):
                raise InputError(f"{shown(file)}: no such file; correct the address")
    except LatentSyncError as error:
        return replace(row, problem=str(error))
    return row
