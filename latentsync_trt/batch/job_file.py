"""Reads a job file into rows, and finds all that cannot work before the first one starts."""

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from itertools import zip_longest
from math import inf
from pathlib import Path
from typing import Any

from latentsync_trt.batch import remote_files
from latentsync_trt.batch.remote_files import is_url, shown
from latentsync_trt.batch.tasks import Task
from latentsync_trt.config import SyncOptions
from latentsync_trt.diffusion import plan_for
from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.option_fields import field_name, from_texts, to_texts
from latentsync_trt.paths import exists, local_path, read_text, why_missing
from latentsync_trt.validation import from_json, from_values

_Row = tuple[str, Mapping[str, Any] | str]
"""Where a row is, and its cells by field, or why it cannot be read."""

_HEADER = "its first line must name each column once, as in video,audio,output"
_DELIMITERS = (",", ";", "\t")
_HINT = re.compile(r'"?sep=(.)"?\r?\n', re.IGNORECASE)
"""A line above the header that tells Excel the delimiter; it counts no row."""
_THREADS = min(16, 4 * (os.cpu_count() or 1))


@dataclass(frozen=True, slots=True)
class _Files:
    """The files that a row names."""

    video: str
    audio: str | None = None
    output: str | None = None


_FILE_FIELDS = {spec.name for spec in fields(_Files)}


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A row of a job file: where it is ("row 3"), its task, or why it cannot work.

    `length_s`: of its video, where that is known.
    """

    where: str
    task: Task
    length_s: float | None = None
    problem: str = ""

    @property
    def cost(self) -> float:
        """Expected work: seconds of video times full denoising steps; infinite where the length is unknown."""
        return inf if self.length_s is None else self.length_s * sum(plan_for(self.task.options))


def read_rows(source: Path, defaults: SyncOptions, folder: str | None = None) -> list[BatchRow]:
    """Reads a .csv or .jsonl file.

    Args:
        defaults: options of rows that don't set them. Their files are relative to the current folder, those of a job
            file to its own. folder: or URL of one, for outputs that a row doesn't name; by default the video's.

    Raises:
        InputError: the file cannot be read, or it has no rows.
    """
    rows: list[BatchRow] = []
    nothing = Task("", "", None, "", defaults)
    given = to_texts(nothing.with_files(lambda file, _: _joined(Path.cwd(), file) if file else file).options)
    for where, cells in _cells_of(source):
        try:
            rows.append(BatchRow(where, _task(cells, source.parent, given, folder)))
        except InputError as error:
            rows.append(BatchRow(where, nothing, problem=str(error)))
    if not rows:
        raise InputError(f"{source}: has no rows; add a row for each clip")
    conflicts = _conflicts(rows)
    return [replace(row, problem=row.problem or conflicts.get(row.where, "")) for row in rows]


def check_rows(rows: Sequence[BatchRow], on_checked: Callable[[int], None]) -> list[BatchRow]:
    """Opens the files of all rows without a problem; returns the rows with lengths, or with what was found.

    `on_checked` is called with the number of checked rows after each.
    """
    checked: list[BatchRow] = []
    with ThreadPoolExecutor(_THREADS) as pool:
        for row in pool.map(_checked, rows):
            checked.append(row)
            on_checked(len(checked))
    return checked


def _cells_of(source: Path) -> Iterator[_Row]:
    readers = {".csv": _csv_rows, ".jsonl": _json_rows, ".ndjson": _json_rows}
    if source.is_dir() or source.suffix.lower() not in readers:
        raise InputError(f"{source}: is no job file; give a .csv or .jsonl file with a row for each clip")
    if not exists(source):
        raise InputError(why_missing(source))
    return readers[source.suffix.lower()](source, read_text(source, "save it as “CSV UTF-8”"))


def _csv_rows(source: Path, text: str) -> Iterator[_Row]:
    if hint := _HINT.match(text):
        delimiter, text = hint[1], text[hint.end() :]
    else:  # Excel writes ";" where "," is the decimal point
        delimiter = max(_DELIMITERS, key=text.lstrip().partition("\n")[0].count)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        rows = [(number, cells) for number, cells in enumerate(lines, 1) if any(map(str.strip, cells))]
    except csv.Error as error:
        raise InputError(f"{source}: line {lines.line_num} is not CSV: {error}") from error
    names = _column_names(source, rows[0][1]) if rows else []
    for number, cells in rows[1:]:
        named = [*zip_longest(names, map(str.strip, cells), fillvalue="")]
        if any(value and not name for name, value in named):
            yield f"row {number}", f"has a cell below no name of a column; put text with {delimiter!r} in quotes"
        else:
            yield f"row {number}", {name: value for name, value in named if name}


def _column_names(source: Path, cells: Sequence[str]) -> list[str]:
    """Empty for columns that Excel adds on the right."""
    names = [field_name(cell) for cell in cells]
    if "video" not in names and any(Path(cell.strip()).suffix for cell in cells):
        raise InputError(f"{source}: has no header but {', '.join(cells)!r}; {_HEADER}")
    try:
        options = {cell: None for cell in cells if field_name(cell) not in {*_FILE_FIELDS, ""}}
        from_texts(SyncOptions, options, _FILE_FIELDS)
    except InputError as error:
        raise InputError(f"{source}: column {error}") from error
    named = [*filter(None, names)]
    if "video" not in named or len(set(named)) < len(named):
        raise InputError(f"{source}: has no column video, or one twice; {_HEADER}")
    return names


def _json_rows(_: Path, text: str) -> Iterator[_Row]:
    for number, line in enumerate(text.split("\n"), 1):  # `splitlines` would split at U+2028 in a string
        if not line.strip():
            continue
        where = f"line {number}"
        try:
            cells = from_json(dict[str, Any], line, 'no object as {"video": "a.mp4", "audio": "a.wav"}', InputError)
            yield where, {field_name(name): value for name, value in cells.items()}
        except InputError as error:
            yield where, str(error)


def _task(row: Mapping[str, Any] | str, base: Path, defaults: Mapping[str, Any], folder: str | None) -> Task:
    """Returns the task of a row, with absolute paths; raises `InputError`."""
    if isinstance(row, str):
        raise InputError(row)
    given = {name: value for name, value in row.items() if value not in (None, "")}
    own = {name: value for name, value in given.items() if name not in _FILE_FIELDS}
    options = from_texts(SyncOptions, {**defaults, **own}, _FILE_FIELDS)
    files = from_values(_Files, given, "files", InputError)
    output = files.output or _default_output(files.video, options, folder)
    named = Task("", files.video, files.audio, output, options)
    task = named.with_files(lambda file, _: _joined(base, file))
    # The same command with --overwrite goes on with what it had begun without.
    text = json.dumps(task.replacing(overwrite=False).to_json(), sort_keys=True)
    return replace(task, id=sha256(text.encode()).hexdigest()[:16])


def _default_output(video: str, options: SyncOptions, folder: str | None) -> str:
    from latentsync_trt.media.codecs import default_suffix

    name = f"{Path(remote_files.name_of(video) if is_url(video) else video).stem}-synced{default_suffix(options)}"
    if folder is not None:
        return f"{folder.rstrip('/')}/{name}" if is_url(folder) else str(Path(folder).absolute() / name)
    if is_url(video):
        raise InputError(f"{video}: no output; name one in the row, or a folder for all with --output")
    return str(Path(video).with_name(name))


def _joined(base: Path, file: str) -> str:
    return file if is_url(file) else str((base / local_path(file)).absolute())


def _conflicts(rows: Sequence[BatchRow]) -> dict[str, str]:
    """Finds rows that would write the same file, or one that another row reads."""
    problems: dict[str, str] = {}
    files = [(row, *file, _identity(file[0])) for row in rows if not row.problem for file in row.task.files()]
    readers = {key: row for row, _, written, key in reversed(files) if not written}
    writers: dict[str, BatchRow] = {}
    for row, file, _, key in (each for each in files if each[2]):
        writer, reader = writers.setdefault(key, row), readers.get(key, row)
        if writer is not row:
            problems[row.where] = f"{shown(file)}: {writer.where} writes it, too; choose another name"
        elif reader is not row:  # `check_inputs` compares with the row's own
            problems[row.where] = f"{shown(file)}: is an input of {reader.where}; choose another name"
    return problems


def _identity(file: str) -> str:
    return file if is_url(file) else os.path.normcase(os.path.realpath(file))


def _checked(row: BatchRow) -> BatchRow:
    """Returns the row with its length, or why it cannot work."""
    from latentsync_trt.media.files import check_file
    from latentsync_trt.sync.inputs import check_inputs

    task, files = row.task, row.task.files()
    try:
        if row.problem:
            return row
        if not any(is_url(file) for file, _ in files):
            inputs = check_inputs(task.video, task.audio, task.output, task.options)
            length_s = inputs.info.duration_s
            return row if length_s is None else replace(row, length_s=float(length_s))
        for file, written in files:
            if written:
                remote_files.check_target(file)
                if not task.options.overwrite and remote_files.exists(file):
                    raise InputError(f"{shown(file)}: exists already; choose another name, or set overwrite")
            elif not is_url(file):
                check_file(Path(file))
            elif not remote_files.exists(file):
                raise InputError(f"{shown(file)}: no such file; correct the address")
    except LatentSyncError as error:
        return replace(row, problem=str(error))
    return row
