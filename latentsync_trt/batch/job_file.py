"""Reads a job file or a folder of clips into tasks, and finds all rows that cannot work before the first one starts."""

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latentsync_trt.batch.tasks import Task
from latentsync_trt.config import SyncOptions
from latentsync_trt.diffusion.plan import plan_for
from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.option_fields import field_name, from_texts, to_texts
from latentsync_trt.paths import exists, local_path, why_missing
from latentsync_trt.remote_files import check_target, is_url, name_of, shown

if TYPE_CHECKING:
    from latentsync_trt.media.soundtrack import SoundPiece
    from latentsync_trt.sync.inputs import Inputs

_Row = tuple[str, Mapping[str, Any] | str]
"""Where a row is, and its cells by field, or why it cannot be read."""

_FILES = ("video", "audio", "output")
_DELIMITERS = (",", ";", "\t")
_THREADS = min(16, 4 * (os.cpu_count() or 1))


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a row cannot work; `where`: "row 3", or the job file."""

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


@dataclass(frozen=True, slots=True)
class Job:
    """A row. `length_s`: of its output, where that is known."""

    where: str
    task: Task
    length_s: float | None = None

    @property
    def cost(self) -> float:
        """Expected work: seconds of video times full denoising steps; infinite where the length is unknown."""
        return inf if self.length_s is None else self.length_s * sum(step.full for step in plan_for(self.task.options))


def read_jobs(source: Path, defaults: SyncOptions, out: str | None = None) -> tuple[list[Job], list[Problem]]:
    """The rows of a .csv or .jsonl file, or the clips of a folder that have a recording of the same name.

    Args:
        defaults: options of rows that don't say otherwise; their files relative to the current folder, those of a job
            file relative to it. out: folder or URL of outputs that a row doesn't name; by default the video's.

    Raises:
        InputError: the file cannot be read, or it has no rows.
    """
    jobs: list[Job] = []
    problems: list[Problem] = []
    base = source if source.is_dir() else source.parent
    absolute = Task("", "", None, "", defaults).with_files(lambda file, _: _joined(Path.cwd(), file) if file else file)
    given = to_texts(absolute.options)
    for where, row in _rows_of(source):
        try:
            jobs.append(Job(where, _task(row, base, given, out)))
        except InputError as error:
            problems.append(Problem(where, str(error)))
    if not jobs and not problems:
        raise InputError(f"{source}: has no rows; add a row for each clip")
    return jobs, problems + _conflicts(jobs)


def check_jobs(jobs: Sequence[Job], on_checked: Callable[[int], None]) -> tuple[list[Job], list[Problem]]:
    """Opens what all rows need: those that can work, with their lengths, and why the others cannot.

    `on_checked` is called with the number of checked rows after each.
    """
    good: list[Job] = []
    problems: list[Problem] = []
    with ThreadPoolExecutor(_THREADS) as pool:
        for count, found in enumerate(pool.map(_checked, jobs), 1):
            (good if isinstance(found, Job) else problems).append(found)  # type: ignore[arg-type]
            on_checked(count)
    return good, problems


def _rows_of(source: Path) -> Iterator[_Row]:
    """Each row with its place; raises `InputError`, also while it reads."""
    if source.is_dir():
        yield from _folder_rows(source)
        return
    readers = {".csv": _csv_rows, ".jsonl": _json_rows, ".ndjson": _json_rows}
    if source.suffix.lower() not in readers:
        raise InputError(f"{source}: is no job file; give a .csv or .jsonl file, or a folder of clips")
    if not exists(source):
        raise InputError(why_missing(source))
    try:
        text = source.read_text("utf-8-sig")
    except UnicodeError as error:
        raise InputError(f"{source}: is not UTF-8; save it as “CSV UTF-8”") from error
    except OSError as error:
        raise InputError(f"{source}: cannot be read: {error.strerror}") from error
    yield from readers[source.suffix.lower()](source, text)


def _folder_rows(folder: Path) -> Iterator[_Row]:
    from latentsync_trt.quantize.clips import clips_in

    pairs = [clip for clip in clips_in(folder) if clip.audio != clip.video]
    if not pairs:
        raise InputError(f"{folder}: no video has a recording of the same name, as a.mp4 and a.wav; name them so")
    for clip in pairs:
        yield clip.video.name, {"video": clip.video.name, "audio": clip.audio.name}


def _csv_rows(source: Path, text: str) -> Iterator[_Row]:
    header = text.lstrip().partition("\n")[0]
    delimiter = max(_DELIMITERS, key=header.count)  # Excel writes ";" where "," is the decimal point
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    names: list[str] = []
    try:
        for number, cells in enumerate(lines, 1):
            if not any(cell.strip() for cell in cells):
                continue
            if not names:
                names = _checked_names(source, cells)
                continue
            if len(cells) <= len(names):
                yield f"row {number}", dict(zip(names, map(str.strip, cells), strict=False))
            else:
                cure = f"put text with {delimiter!r} in quotes"
                yield f"row {number}", f"has {len(cells)} cells, the header {len(names)}; {cure}"
    except csv.Error as error:
        raise InputError(f"{source}: line {lines.line_num} is not CSV: {error}") from error


def _checked_names(source: Path, cells: Sequence[str]) -> list[str]:
    """The columns; raises `InputError` for those that are unknown, missing or there twice."""
    names, problems = [field_name(cell) for cell in cells], list[str]()
    for cell, name in zip(cells, names, strict=True):
        if name not in _FILES:
            try:
                from_texts(SyncOptions, {cell: None})
            except InputError as error:
                problems.append(f"column {error}")
    problems += [f"column {name} is there twice; remove one" for name, count in Counter(names).items() if count > 1]
    if problems:
        raise InputError(f"{source}: {'; '.join(problems)}")
    if "video" not in names:
        raise InputError(f"{source}: has no column video; its first row names the columns, as in video,audio,output")
    return names


def _json_rows(_: Path, text: str) -> Iterator[_Row]:
    for number, line in enumerate(text.split("\n"), 1):  # JSON may contain other ends of lines
        if not line.strip():
            continue
        row: Mapping[str, Any] | str
        try:
            row = {field_name(name): value for name, value in json.loads(line).items()}
        except ValueError as error:
            row = f"is not JSON: {error}"
        except AttributeError:
            row = 'is not an object, as in {"video": "a.mp4", "audio": "a.wav", "output": "b.mp4"}'
        yield f"line {number}", row


def _task(row: Mapping[str, Any] | str, base: Path, defaults: Mapping[str, Any], out: str | None) -> Task:
    """The task of a row, with absolute paths; raises `InputError`."""
    if isinstance(row, str):
        raise InputError(row)
    texts = {name: _text(name, row.get(name)) for name in _FILES}
    own = {name: value for name, value in row.items() if name not in _FILES and value not in (None, "")}
    options = from_texts(SyncOptions, {**defaults, **own})
    if not texts["video"]:
        raise InputError("no video; name a file")
    output = texts["output"] or _default_output(texts["video"], options, out)
    named = Task("-", texts["video"], texts["audio"] or None, output, options)
    content = named.with_files(lambda file, _: _relative(base, file)).to_json()
    task_id = sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return replace(named.with_files(lambda file, _: _joined(base, file)), id=task_id)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str | None):
        raise InputError(f"{name} {value!r}: is not text; name a file")
    return (value or "").strip()


def _default_output(video: str, options: SyncOptions, out: str | None) -> str:
    from latentsync_trt.media.codecs import default_suffix

    name = f"{Path(name_of(video) if is_url(video) else video).stem}-synced{default_suffix(options)}"
    if out is not None:
        return f"{out.rstrip('/')}/{name}" if is_url(out) else str(Path(out).absolute() / name)
    if is_url(video):
        raise InputError(f"{video}: no output; name one in the row, or a folder for all with --out")
    return str(Path(video).with_name(name))


def _joined(base: Path, file: str) -> str:
    return file if is_url(file) else str((base / local_path(file)).absolute())


def _relative(base: Path, file: str) -> str:
    """As in the job file, so that a batch stays the same one where its folder is moved."""
    if is_url(file):
        return file
    path, folder = Path(_joined(base, file)), base.absolute()
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def _conflicts(jobs: Sequence[Job]) -> list[Problem]:
    """Rows that would write the same file, or one that another row reads."""
    problems: list[Problem] = []
    files = [(job, file, written, _identity(file)) for job in jobs for file, written in job.task.files()]
    readers = {key: job for job, _, written, key in reversed(files) if not written}
    writers: dict[object, Job] = {}
    for job, file, _, key in (each for each in files if each[2]):
        writer, reader = writers.setdefault(key, job), readers.get(key, job)
        if writer is not job:
            problems.append(Problem(job.where, f"{shown(file)}: {writer.where} writes it, too; choose another name"))
        elif reader is not job:  # its own inputs are checked with them
            problems.append(Problem(job.where, f"{shown(file)}: is an input of {reader.where}; choose another name"))
    return problems


def _identity(file: str) -> object:
    """The same for all names of one file."""
    if is_url(file):
        return file
    path = os.path.normcase(os.path.realpath(file))
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return path
    return (status.st_dev, status.st_ino) if status.st_ino else path


def _checked(job: Job) -> Job | Problem:
    """The row with its length, or why it cannot work."""
    from latentsync_trt.media.files import check_file
    from latentsync_trt.remote_files import exists as is_there
    from latentsync_trt.sync.inputs import check_inputs

    task, files = job.task, job.task.files()
    try:
        if not any(is_url(file) for file, _ in files):
            inputs = check_inputs(task.video, task.audio, task.output, task.options)
            return replace(job, length_s=_length_s(inputs, task.options))
        for file, written in files:
            if written:
                check_target(file)
            elif not is_url(file):
                check_file(Path(file))
            elif not is_there(file):
                return Problem(job.where, f"{shown(file)}: no such file; correct the address")
    except LatentSyncError as error:
        return Problem(job.where, str(error))
    return job


def _length_s(inputs: "Inputs", options: SyncOptions) -> float:
    """About the seconds of an output, from what its inputs state."""
    from latentsync_trt.media.files import open_input
    from latentsync_trt.media.timing import stated_end_s

    def end_s(piece: "SoundPiece") -> Fraction:
        with open_input(piece.path) as container:
            return piece.at_s + (stated_end_s(container) or Fraction(0))

    sound_s = max(map(end_s, inputs.voices.recordings))
    video_s = inputs.info.duration_s or sound_s
    longest_s, shortest_s = max(video_s, sound_s), min(video_s, sound_s)
    lengths_s = {"audio": sound_s, "video": video_s, "longest": longest_s, "shortest": shortest_s}
    return float(lengths_s[options.output_length])
