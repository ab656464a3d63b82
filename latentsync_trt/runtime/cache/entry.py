"""One entry of the engine cache: the files of an engine and `engine.json`.

`engine.json` holds the SHA-256 of each file and of itself, to detect truncated, edited and misplaced entries.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from latentsync_trt.bundle.manifest import sha256_file
from latentsync_trt.errors import EngineBuildError
from latentsync_trt.files import opened, sealed_text
from latentsync_trt.remembered import checked, forget
from latentsync_trt.runtime.cache.key import EngineKey

RECORD_NAME = "engine.json"

_CHECKED = "engine-hashes"


@dataclass(frozen=True, slots=True)
class Entry:
    """An engine in the cache. Its folder must not be changed.

    `key`, `build_s` and `built_at` (UTC) are None if `engine.json` cannot be read. `problem`: why the engine cannot be
    used, empty if it can. `last_used_at`: UTC. `built`: whether the call that returned this built it.
    `device_memory_bytes`: GPU memory of a run, without weights; None if the provider does not say.
    """

    folder: Path
    key: EngineKey | None
    build_s: float | None
    built_at: datetime | None
    size_bytes: int
    last_used_at: datetime
    problem: str = ""
    built: bool = False
    device_memory_bytes: int | None = None

    @property
    def state(self) -> Literal["ready", "damaged"]:
        """Whether it can be used."""
        return "damaged" if self.problem else "ready"

    @property
    def label(self) -> str:
        """Short description."""
        return self.key.label if self.key else f"engine {self.folder.name}"


def write_record(folder: Path, key: EngineKey, build_s: float, device_memory_bytes: int | None = None) -> None:
    """Writes `engine.json` for the files in `folder`; see `Entry`.

    Raises:
        EngineBuildError: there are no files.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    if not paths:
        raise EngineBuildError(f"{key.label}: the build wrote no file")
    files = {
        path.relative_to(folder).as_posix(): {"sha256": sha256_file(path), "bytes": path.stat().st_size}
        for path in paths
    }
    facts = {"build_s": build_s, "device_memory_bytes": device_memory_bytes}
    content = {"key": asdict(key), "files": files, **facts, "built_at": datetime.now(UTC).isoformat()}
    (folder / RECORD_NAME).write_text(sealed_text(content), encoding="utf-8")


def examine(folder: Path, *, hashes: bool | Literal["once"], digest: str | None = None) -> Entry:
    """Checks the entry in `folder`: record and file sizes, with `hashes` the contents, too; once: unless they were
    checked since the files changed.

    `digest`: of its key; by default the folder's name.
    """
    key, build_s, built_at, memory_bytes = None, None, None, None
    try:
        content = opened(json.loads((folder / RECORD_NAME).read_text(encoding="utf-8")))
        if content is None:
            problem = f"{RECORD_NAME} was edited or damaged"
        else:
            key, build_s = EngineKey.from_json(content["key"]), float(content["build_s"])
            built_at = datetime.fromisoformat(content["built_at"])
            memory_bytes = content.get("device_memory_bytes")  # not in records of earlier versions
            files = content["files"]
            expected = {folder / name: wanted["sha256"] for name, wanted in files.items()}
            check = partial(_problem_of_files, folder, files)
            problem = checked(_CHECKED, expected, check, again=hashes is True) if hashes else check(hashes=False)
            if key.digest != (digest or folder.name):
                problem = f"{RECORD_NAME} belongs to another engine"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        problem = f"{RECORD_NAME} is cut short or not a record"
    except FileNotFoundError as error:
        problem = f"{Path(error.filename).name} is missing"
    except OSError as error:
        problem = f"{error.strerror or error}"
    size_bytes, used_at = folder_bytes(folder), _last_used_at(folder)
    return Entry(folder, key, build_s, built_at, size_bytes, used_at, problem, device_memory_bytes=memory_bytes)


def folder_bytes(folder: Path) -> int:
    """Total size of the files below a folder; files may disappear meanwhile."""
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
    try:
        return datetime.fromtimestamp(used_s, UTC)
    except (ValueError, OverflowError, OSError):  # some file systems keep times that no calendar has
        return datetime.fromtimestamp(0, UTC)


def _problem_of_files(folder: Path, files: Mapping[str, Mapping[str, Any]], *, hashes: bool) -> str:
    for name, wanted in files.items():
        size_bytes = (folder / name).stat().st_size
        if size_bytes != wanted["bytes"]:
            return f"{name} has {size_bytes} bytes instead of {wanted['bytes']}"
        if hashes and sha256_file(folder / name) != wanted["sha256"]:
            forget(_CHECKED)
            return f"{name} was changed (its SHA-256 differs)"
    return ""
