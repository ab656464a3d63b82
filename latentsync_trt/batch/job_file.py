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
from latentsync_trt.batch.remote_files import is_url, parts_of, without_secrets
from latentsync_trt.batch.tasks import Task
from latentsync_trt.config import SyncOptions
from latentsync_trt.diffusion import full_steps
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

_FILE_COLUMNS = ("video", "audio", "output")
_DELIMITER_LINE = re.compile(r'"?sep=(.)"?\r?\n', re.IGNORECASE)
"""A line above the header, for Excel; it is no row."""


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A row of a job file."""

    where: str
    """For example "row 3", or names in a folder."""
    task: Task
    cost: float = inf
    """Seconds of video times full denoising steps; infinite where that is not known."""
    problem: str = ""
    """Why it cannot work; empty if it can."""


def read_rows(source: Path, defaults: SyncOptions, folder: str | None = None) -> list[BatchRow]:
    """Reads a .csv or .jsonl file, or makes rows of the videos and recordings in a folder.

    Args:
        defaults: options of rows that don't set them. Their files are relative to the current
            folder, those of a job file to its own.
        folder: place of outputs that a row doesn't name, a path or a URL; by default the video's.

    Raises:
        InputError: there are no rows, or the file cannot be read.
    """

    def in_current_folder(file: str, _: bool) -> str:
        return _absolute(Path.cwd(), file) if file else file

    rows: list[BatchRow] = []
    base = source if source.is_dir() else source.parent
    nothing = Task("", "", None, "", defaults)
    texts = to_texts(nothing.with_files(in_current_folder).options)
    for where, cells in _rows_of(source):
        try:
            rows.append(BatchRow(where, _task(cells, base, texts, folder)))
        except InputError as error:
            rows.append(BatchRow(where, nothing, problem=str(error)))
    if source.is_dir():  # what an earlier batch wrote there is no clip
        outputs = {row.task.output for row in rows}
        rows = [
            row for row in rows if row.problem or row.task.audio or row.task.video not in outputs
        ]
    if not rows:
        cure = "add a row for each clip, or give a folder with videos and recordings"
        raise InputError(f"{source}: has no rows; {cure}")
    return _without_conflicts(rows)


def ledger_of(source: Path) -> Path:
    """Returns the path of the ledger of a job file, or of a folder."""
    if source.is_dir():
        return source / "batch.ledger.sqlite"
    return source.with_name(f"{source.name}.ledger.sqlite")


def check_rows(rows: Sequence[BatchRow]) -> Iterator[BatchRow]:
    """Opens the files of all rows without a problem; yields the rows, with costs or problems."""
    with ThreadPoolExecutor() as pool:
        yield from pool.map(_checked_row, rows)


def _rows_of(source: Path) -> Iterator[tuple[str, Mapping[str, Any] | str]]:
    """Yields the place of each row, and its cells by field, or a line of JSON."""
    if source.is_dir():
        yield from _pairs_in(source)
        return
    suffix = source.suffix.lower()
    if suffix not in (".csv", ".jsonl", ".ndjson"):
        cure = "give a .csv or .jsonl file with a row for each clip, or a folder"
        raise InputError(f"{source}: is no job file; {cure}")
    if not path_exists(source):
        raise InputError(why_missing(source))
    text = read_text(source, "save it as “CSV UTF-8”")
    if suffix == ".csv":
        yield from _csv_rows(source, text)
    else:
        # `splitlines` would split at U+2028 in a string.
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield f"line {number}", line


def _pairs_in(folder: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yields each video in a folder with each recording of its name; also those that are alone."""
    videos = _visible_files(folder, VIDEO_SUFFIXES)
    recordings = _visible_files(folder, AUDIO_SUFFIXES)
    for video in videos:
        paired = [audio for audio in recordings if audio.stem == video.stem]
        for audio in paired:
            names = {"video": video.name, "audio": audio.name}
            yield f"{video.name} with {audio.name}", names
        if not paired:
            yield video.name, {"video": video.name}
    stems = {video.stem for video in videos}
    for audio in recordings:
        if audio.stem not in stems:
            yield audio.name, {"audio": audio.name}


def _visible_files(folder: Path, suffixes: Collection[str]) -> list[Path]:
    return [path for path in files_in(folder, suffixes) if not path.name.startswith(".")]


def _csv_rows(source: Path, text: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    hint = _DELIMITER_LINE.match(text)
    if hint is not None:
        delimiter = hint[1]
        text = text[hint.end() :]
    else:  # Excel writes ";" where "," is the decimal point
        first_line = text.lstrip().partition("\n")[0]
        delimiter = max(",;\t", key=first_line.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    columns: list[str] | None = None
    try:
        for number, line in enumerate(reader, 1):
            cells = [cell.strip() for cell in line]
            if not any(cells):
                continue
            if columns is None:
                columns = _columns(source, cells)
            else:
                yield f"row {number}", dict(zip_longest(columns, cells, fillvalue=""))
    except csv.Error as error:
        raise InputError(f"{source}: line {reader.line_num} is not CSV: {error}") from error


def _columns(source: Path, header: Sequence[str]) -> list[str]:
    """Returns the fields that the first line of a CSV file names; raises `InputError`."""
    columns = [field_name(cell) for cell in header]
    names = [name for name in columns if name]  # Excel adds columns on the right
    if len(set(names)) < len(names) or "video" not in names:
        cure = "its first line must name each column once, as in video,audio,output"
        raise InputError(f"{source}: has the columns {', '.join(columns)!r}; {cure}")
    return columns


def _task(
    row: Mapping[str, Any] | str, base: Path, defaults: Mapping[str, Any], folder: str | None
) -> Task:
    """Returns the task of a row, with absolute paths; raises `InputError`."""
    if isinstance(row, str):
        example = 'no object as {"video": "a.mp4", "audio": "a.wav"}'
        row = from_json(dict[str, Any], row, example, InputError)
    cells = {field_name(name): value for name, value in row.items() if value not in (None, "")}
    if "" in cells:
        cure = "put text that has the delimiter in quotes"
        raise InputError(f"has a cell below no name of a column; {cure}")
    files = {name: cells.pop(name) for name in _FILE_COLUMNS if name in cells}
    if "video" not in files or not all(isinstance(file, str) for file in files.values()):
        raise InputError("video, audio and output are paths or URLs, and video is needed")
    options = from_texts(SyncOptions, {**defaults, **cells}, _FILE_COLUMNS)
    video = files["video"]
    output = files.get("output") or _default_output(video, options, folder)
    task = Task("", video, files.get("audio"), output, options)
    task = task.with_files(lambda file, _: _absolute(base, file))
    return replace(task, id=_id_of(task))


def _id_of(task: Task) -> str:
    """Returns the same for the same task, with --overwrite or without: the command with it goes on
    with what it had begun without.
    """
    content = replace(task, options=replace(task.options, overwrite=False)).to_json()
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _default_output(video: str, options: SyncOptions, folder: str | None) -> str:
    from latentsync_trt.media.encoder_choice import default_suffix

    name = remote_files.url_file_name(video) if is_url(video) else video
    output = f"{Path(name).stem}-synced{default_suffix(options)}"
    if folder is None:
        if is_url(video):
            folder = video.rpartition("/")[0]
        else:
            folder = str(Path(video).parent)
    elif not is_url(folder):
        folder = str(Path(folder).absolute())
    return f"{folder.rstrip('/')}/{output}"


def _absolute(base: Path, file: str) -> str:
    if is_url(file):
        parts_of(file)
        return file
    return str((base / local_path(file)).absolute())


def _without_conflicts(rows: Sequence[BatchRow]) -> list[BatchRow]:
    """Returns the rows; those that would write a file of another row have that as their problem."""
    usable = [row for row in rows if not row.problem]
    problems = {row.where: row.problem for row in rows}
    owners = dict[str, BatchRow]()
    for written in (False, True):
        for row in usable:
            for file, is_output in row.task.files():
                if is_output is not written:
                    continue
                key = file
                if not is_url(file):
                    key = os.path.normcase(os.path.realpath(file))
                owner = owners.setdefault(key, row)
                if written and owner is not row:  # `check_inputs` compares files of one row
                    problem = f"is a file of {owner.where}, too; choose another name"
                    problems[row.where] = f"{without_secrets(file)}: {problem}"
    return [replace(row, problem=problems[row.where]) for row in rows]


def _checked_row(row: BatchRow) -> BatchRow:
    """Returns the row with its cost, or why it cannot work."""
    if row.problem:
        return row
    try:
        if any(is_url(file) for file, _ in row.task.files()):
            _check_remote(row.task)
            return row
        return replace(row, cost=_cost_of(row.task))
    except LatentSyncError as error:
        return replace(row, problem=str(error))


def _cost_of(task: Task) -> float:
    """Returns the cost of a task whose files are on this machine; raises as `check_inputs`."""
    from latentsync_trt.sync.inputs import check_inputs

    files = check_inputs(task.video, task.audio, task.output, task.options)
    length_s = files.info.duration_s
    if length_s is None:
        return inf
    return float(length_s) * sum(full_steps(task.options))


def _check_remote(task: Task) -> None:
    """Raises `LatentSyncError` if a file of a task cannot be read or written."""
    from latentsync_trt.media.files import check_file

    for file, written in task.files():
        if written:
            remote_files.check_writable_url(file)
            if not task.options.overwrite and remote_files.exists(file):
                cure = "choose another name, or set overwrite"
                raise InputError(f"{without_secrets(file)}: exists already; {cure}")
        elif not is_url(file):
            check_file(Path(file))
        elif not remote_files.exists(file):
            raise InputError(f"{without_secrets(file)}: no such file; correct the address")
