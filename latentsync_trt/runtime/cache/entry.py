"""One entry of the engine cache: the files of an engine and `engine.json`, which holds the SHA-256 of each of them and
of itself, so that an entry that was cut short, edited or copied from elsewhere is recognized."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from latentsync_trt.bundle.manifest import FileEntry, sha256_file
from latentsync_trt.errors import EngineBuildError
from latentsync_trt.runtime.cache.key import EngineKey

RECORD_NAME = "engine.json"

# hashlib releases the GIL; more readers than this gain nothing on one disk.
_READERS = 4


@dataclass(frozen=True, slots=True)
class Record:
    """Content of `engine.json`. `files` maps paths below the entry, with `/`, to size and hash; `built_at` is UTC."""

    key: EngineKey
    files: Mapping[str, FileEntry]
    build_s: float
    built_at: datetime


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry as `examine` found it.

    `problem`: why it is not ready. `record`: None where it cannot be read. `last_used_at`: UTC.
    """

    folder: Path
    record: Record | None
    state: Literal["ready", "damaged", "unreadable"]
    problem: str
    size_bytes: int
    last_used_at: datetime

    @property
    def label(self) -> str:
        """Short description."""
        return self.record.key.label if self.record else f"engine {self.folder.name}"


def write_record(folder: Path, key: EngineKey, build_s: float, built_at: datetime) -> None:
    """Writes `engine.json` for the files in `folder`.

    Raises:
        EngineBuildError: there are no files.
    """
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    if not names:
        raise EngineBuildError(f"{key.label}: the build wrote no file")
    files = {
        name: asdict(FileEntry(sha256, (folder / name).stat().st_size))
        for name, sha256 in _hashes(folder, names).items()
    }
    content = {"key": asdict(key), "files": files, "build_s": build_s, "built_at": built_at.isoformat()}
    text = json.dumps({**content, "sha256": _seal(content)}, indent=2) + "\n"
    (folder / RECORD_NAME).write_text(text, encoding="utf-8")


def examine(folder: Path, digest: str, *, hashes: bool) -> Entry:
    """Checks the entry in `folder` for `digest`: its record and file sizes, with `hashes` every byte."""
    record: Record | None = None
    state: Literal["damaged", "unreadable"] = "damaged"
    try:
        found = _read_record(folder / RECORD_NAME)
        if isinstance(found, str):
            problem = found
        elif found.key.digest != digest:
            record, problem = found, f"{RECORD_NAME} belongs to another engine"
        else:
            record, problem = found, _problem_of_files(folder, found.files, hashes=hashes)
    except FileNotFoundError as error:
        problem = f"{Path(error.filename).name} is missing"
    except OSError as error:
        problem, state = f"{error.strerror or error}", "unreadable"
    return Entry(folder, record, state if problem else "ready", problem, folder_bytes(folder), _last_used_at(folder))


def folder_bytes(folder: Path) -> int:
    """Size of all files below a folder, which may be deleted meanwhile."""
    size_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size_bytes += Path(parent, name).lstat().st_size
    return size_bytes


def _last_used_at(folder: Path) -> datetime:
    used_s = 0.0
    for path in (folder, folder / RECORD_NAME):
        with suppress(OSError):
            used_s = path.stat().st_mtime
    return datetime.fromtimestamp(used_s, UTC)


def _read_record(path: Path) -> Record | str:
    """The record, or what is wrong with it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("sha256") != _seal(content):
            return f"{RECORD_NAME} was edited or damaged"
        return Record(
            EngineKey.from_json(content["key"]),
            {name: FileEntry(**entry) for name, entry in content["files"].items()},
            float(content["build_s"]),
            datetime.fromisoformat(content["built_at"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{RECORD_NAME} is cut short or not a record"


def _problem_of_files(folder: Path, files: Mapping[str, FileEntry], *, hashes: bool) -> str:
    for name, entry in files.items():
        size_bytes = (folder / name).stat().st_size
        if size_bytes != entry.bytes:
            return f"{name} has {size_bytes} bytes instead of {entry.bytes}"
    for name, sha256 in _hashes(folder, files).items() if hashes else ():
        if sha256 != files[name].sha256:
            return f"{name} was changed (its SHA-256 differs)"
    return ""


def _hashes(folder: Path, names: Iterable[str]) -> dict[str, str]:
    with ThreadPoolExecutor(_READERS) as pool:
        return dict(zip(names, pool.map(lambda name: sha256_file(folder / name), names), strict=True))


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
