"""`engine.json`: what lies in a cache entry. It carries its own SHA-256 and that of every file, so that an entry that
was cut short, edited or taken from elsewhere is told from a whole one."""

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from latentsync_trt.bundle.manifest import FileEntry, sha256_file
from latentsync_trt.runtime.cache.key import EngineKey

RECORD_NAME = "engine.json"

State = Literal["ready", "damaged", "unreadable", "replaced"]

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
class Finding:
    """What a look at an entry showed: its record where that can be read, and what is wrong, empty if nothing is."""

    record: Record | None
    state: State = "ready"
    problem: str = ""


def seal_files(folder: Path) -> dict[str, FileEntry]:
    """Size and hash of every file below `folder`, all of them written through to the disk."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    with ThreadPoolExecutor(_READERS) as pool:
        entries = list(pool.map(_seal_file, paths))
    return {path.relative_to(folder).as_posix(): entry for path, entry in zip(paths, entries, strict=True)}


def _seal_file(path: Path) -> FileEntry:
    _write_through(path)
    return FileEntry(sha256_file(path), path.stat().st_size)


def write_record(folder: Path, record: Record) -> None:
    """Writes `engine.json` into `folder` and through to the disk."""
    content: dict[str, Any] = {
        "key": record.key.to_json(),
        "files": {name: asdict(entry) for name, entry in record.files.items()},
        "build_s": record.build_s,
        "built_at": record.built_at.isoformat(),
    }
    path = folder / RECORD_NAME
    text = json.dumps({**content, "sha256": _seal(content)}, indent=2) + "\n"
    path.write_text(text, encoding="utf-8")
    _write_through(path)
    if sys.platform != "win32":  # Windows opens no folders, and writes names through by itself
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_through(path: Path) -> None:
    # Windows flushes only what is open for writing.
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def examine(folder: Path, digest: str, *, hashes: bool) -> Finding:
    """Looks at the entry in `folder` that should belong to `digest`: record and sizes, with `hashes` every byte."""
    try:
        record = _read_record(folder / RECORD_NAME)
        if isinstance(record, str):
            return Finding(None, "damaged", record)
        if record.key.digest != digest:
            return Finding(record, "damaged", f"{RECORD_NAME} belongs to another engine")
        problem = _problem_of_files(folder, record, hashes=hashes)
    except FileNotFoundError as error:
        return Finding(None, "damaged", f"{Path(error.filename).name} is missing")
    except OSError as error:
        return Finding(None, "unreadable", f"{error.strerror or error}")
    return Finding(record, "damaged", problem) if problem else Finding(record)


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
        return f"{RECORD_NAME} is cut short or no record"


def _problem_of_files(folder: Path, record: Record, *, hashes: bool) -> str:
    root = folder.resolve()
    for name, entry in record.files.items():
        path = folder / name
        if not path.resolve().is_relative_to(root):
            return f"{name} lies outside the entry"
        size_bytes = path.stat().st_size
        if size_bytes != entry.bytes:
            return f"{name} has {size_bytes} bytes instead of {entry.bytes}"
    if hashes:
        with ThreadPoolExecutor(_READERS) as pool:
            found = list(pool.map(lambda name: sha256_file(folder / name), record.files))
        for (name, entry), sha256 in zip(record.files.items(), found, strict=True):
            if sha256 != entry.sha256:
                return f"{name} was changed (its SHA-256 differs)"
    return ""
