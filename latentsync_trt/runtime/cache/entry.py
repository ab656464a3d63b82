"""One entry of the engine cache: the files of an engine and `engine.json`, which holds the SHA-256 of each of them and
of itself, so that an entry that was cut short, edited or copied from elsewhere is recognized."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime
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
class Finding:
    """Result of `examine`: the record, None if it cannot be read, and what is wrong; `problem` is empty if nothing."""

    record: Record | None
    state: Literal["ready", "damaged", "unreadable"] = "ready"
    problem: str = ""


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


def examine(folder: Path, digest: str, *, hashes: bool) -> Finding:
    """Checks the entry in `folder` for `digest`: its record and file sizes, with `hashes` every byte."""
    try:
        record = _read_record(folder / RECORD_NAME)
        if isinstance(record, str):
            return Finding(None, "damaged", record)
        if record.key.digest != digest:
            return Finding(record, "damaged", f"{RECORD_NAME} belongs to another engine")
        problem = _problem_of_files(folder, record.files, hashes=hashes)
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
