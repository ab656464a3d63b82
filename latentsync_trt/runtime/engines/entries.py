"""Entries of the engine cache: keys, records, and what keeps an engine from being used.

Engines run as code: an entry is used if its files have the recorded contents and no other user can
have written it.
"""

import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from latentsync_trt.bundle.manifest import FileEntry, file_problem
from latentsync_trt.option_fields import from_json

RECORD_NAME = "engine.json"

KEY_FORMAT = 1
"""Part of every digest: increase it when the meaning of a field changes, to ignore older
engines.
"""

DIGEST_LENGTH = 24
"""Hex digits of a digest: 96 bits, and short enough for paths on Windows."""

# Nothing outside the entry's folder, and not the record itself.
_FileName = Annotated[
    str, Meta(pattern=rf"^(?!{re.escape(RECORD_NAME)}\Z)\w[\w.-]*(/\w[\w.-]*)*\Z")
]


@dataclass(frozen=True, slots=True)
class EngineKey:
    """Everything that decides whether an engine can be reused."""

    bundle: str
    """For display only: equal graphs of two bundles share an engine."""
    graph: str
    graph_sha256: str
    """Of the graph and its weights."""
    provider: str
    options: Mapping[str, str]
    """Those that change the engine."""
    precision: str
    profile: Mapping[str, tuple[int, ...]]
    """Minimum, optimum and maximum of each variable dimension."""
    versions: Mapping[str, str]
    """Versions of the libraries that built it."""
    gpu: str
    compute_capability: str

    @property
    def digest(self) -> str:
        """Lower-case hex of `DIGEST_LENGTH` digits, equal for keys that differ only in `bundle`."""
        content = {**asdict(self), "format": KEY_FORMAT}
        del content["bundle"]
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:DIGEST_LENGTH]

    @property
    def label(self) -> str:
        return f"{self.graph} of {self.bundle} for {self.provider}"


@dataclass(frozen=True, slots=True)
class Record:
    """The content of `engine.json`."""

    key: EngineKey
    files: Annotated[dict[_FileName, FileEntry], Meta(min_length=1)]
    """By their path in the entry."""
    build_s: float
    built_at: datetime
    """In UTC."""
    device_memory_bytes: int | None = None
    """GPU memory of a run, without weights, if known."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An engine in the cache."""

    folder: Path
    """Must not be changed."""
    key: EngineKey | None
    """From its `Record`, as are `build_s`, `built_at` and `device_memory_bytes`: None if
    `engine.json` cannot be read.
    """
    build_s: float | None
    built_at: datetime | None
    size_bytes: int
    last_used_at: datetime
    """In UTC."""
    problem: str = ""
    """Why the engine cannot be used, empty if it can."""
    built: bool = False
    """Whether the call that returned this built it."""
    device_memory_bytes: int | None = None

    @property
    def state(self) -> Literal["ready", "damaged"]:
        if self.problem:
            return "damaged"
        return "ready"

    @property
    def label(self) -> str:
        if self.key:
            return self.key.label
        return f"engine {self.folder.name}"


def read_entry(folder: Path, *, hashes: bool) -> Entry:
    """Checks the entry in `folder`: that no other user can have written it, record and file sizes,
    with `hashes` the contents, too.
    """
    record: Record | None = None
    problem = ""
    used_s = 0.0
    try:
        problem = distrust(folder)
        used_s = (folder / RECORD_NAME).stat().st_mtime
        if not problem:
            record = from_json(Record, (folder / RECORD_NAME).read_bytes(), RECORD_NAME)
            problem = _contradiction(folder, record, hashes=hashes)
    except ValueError as error:
        problem = f"damaged record: {error}"
    except FileNotFoundError as error:
        problem = problem or f"{Path(error.filename).name} is missing"
    except OSError as error:
        problem = f"{error.strerror or error}"
    entry = Entry(
        folder=folder,
        key=None,
        build_s=None,
        built_at=None,
        size_bytes=folder_bytes(folder),
        last_used_at=datetime.fromtimestamp(used_s, UTC),
        problem=problem,
    )
    if record is None:
        return entry
    return replace(
        entry,
        key=record.key,
        build_s=record.build_s,
        built_at=record.built_at,
        device_memory_bytes=record.device_memory_bytes,
    )


def _contradiction(folder: Path, record: Record, *, hashes: bool) -> str:
    """Returns in what an entry is not as it was recorded; empty if it is."""
    if record.key.digest != folder.name:
        return f"{RECORD_NAME} belongs to another engine"
    for name, file in record.files.items():
        problem = file_problem(folder / name, file, hashes=hashes)
        if problem:
            return problem
    return ""


def is_foreign(path: Path) -> bool:
    """Returns whether another user than this one and root owns `path`, of a link the link; never on
    Windows (`distrust`).
    """
    with suppress(OSError):
        return sys.platform != "win32" and path.lstat().st_uid not in (0, os.geteuid())
    return False


def distrust(folder: Path) -> str:
    """Returns why someone else may have written what is in `folder`; empty if only this user and
    root can have. On Windows only links are found, as folders of a user's profile are closed to
    others. Raises `OSError`.
    """
    for path in (folder, *folder.rglob("*")):
        state = path.lstat()
        if stat.S_ISLNK(state.st_mode):
            return f"{path.name} is a link"
        if is_foreign(path):
            return f"{path.name} belongs to another user (id {state.st_uid})"
        if sys.platform != "win32" and state.st_mode & stat.S_IWOTH:
            return f"{path.name} can be written by anyone"
    return ""


def protect(folder: Path) -> None:
    """Takes the right to write in `folder` from all but its owner."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))


def folder_bytes(folder: Path) -> int:
    """Returns the total size of the files below a folder; files may disappear meanwhile."""
    size_bytes = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            if not path.is_dir():
                size_bytes += path.lstat().st_size
    return size_bytes


def entries_to_remove(entries: Sequence[Entry], max_bytes: int) -> list[Entry]:
    """Returns which of `entries` to remove: damaged and then least recently used ones until
    `max_bytes` are left.
    """
    chosen: list[Entry] = []
    excess_bytes = sum(entry.size_bytes for entry in entries) - max_bytes
    for entry in sorted(entries, key=lambda entry: (not entry.problem, entry.last_used_at)):
        if excess_bytes > 0:
            chosen.append(entry)
            excess_bytes -= entry.size_bytes
    return chosen
