"""One entry of the engine cache: what an engine was built from and for, its files, and `engine.json`, their record.

`engine.json` holds the SHA-256 of each file, to detect truncated, changed and misplaced engines.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from latentsync_trt.bundle.manifest import sha256_file
from latentsync_trt.errors import EngineBuildError
from latentsync_trt.remembered import checked
from latentsync_trt.validation import from_json

RECORD_NAME = "engine.json"

HASHES_FACT = "engine-hashes"
"""Kind of the remembered fact that the files of an engine have their contents."""

KEY_FORMAT = 1
"""Part of every digest: increase it when the meaning of a field changes, to ignore older engines."""

DIGEST_LENGTH = 24
"""Hex digits of a digest: 96 bits, and short enough for paths on Windows."""

# Nothing outside the entry's folder.
_FileName = Annotated[str, Meta(pattern=r"^\w[\w.-]*(/\w[\w.-]*)*$")]


@dataclass(frozen=True, slots=True)
class EngineKey:
    """Everything that decides whether an engine can be reused.

    Args:
        bundle: name of the bundle, for display only: equal graphs of two bundles share an engine.
        graph_sha256: hash over the graph and its weights (`Bundle.graph_hash`).
        options: provider options that change the engine; no paths.
        profile: minimum, optimum and maximum of each variable dimension; empty for fixed shapes.
        versions: of the libraries that built it, by package name.
        gpu: name of the device. compute_capability: e.g. "8.9".
    """

    bundle: str
    graph: str
    graph_sha256: str
    provider: str
    options: Mapping[str, str]
    precision: str
    profile: Mapping[str, tuple[int, int, int]]
    versions: Mapping[str, str]
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
        """Short description for messages."""
        return f"{self.graph} of {self.bundle} for {self.provider}"


@dataclass(frozen=True, slots=True)
class EngineFile:
    """SHA-256 and size of a file of an engine."""

    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    bytes: int


@dataclass(frozen=True, slots=True)
class Record:
    """The content of `engine.json`; `files` by their path in the entry. See `Entry`."""

    key: EngineKey
    files: Annotated[dict[_FileName, EngineFile], Meta(min_length=1)]
    build_s: float
    built_at: datetime
    device_memory_bytes: int | None = None


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
    """Writes `engine.json` for the files in `folder`; raises `EngineBuildError` if there are none."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    if not paths:
        raise EngineBuildError(f"{key.label}: the build wrote no file")
    files = {path.relative_to(folder).as_posix(): EngineFile(sha256_file(path), path.stat().st_size) for path in paths}
    record = Record(key, files, build_s, datetime.now(UTC), device_memory_bytes)
    text = json.dumps(asdict(record), indent=2, default=datetime.isoformat)
    (folder / RECORD_NAME).write_text(text, encoding="utf-8")


def read_record(folder: Path) -> Record:
    """The record in `folder`; raises ValueError if it is damaged."""
    return from_json(Record, (folder / RECORD_NAME).read_bytes(), RECORD_NAME)


def read_entry(folder: Path, *, hashes: bool, digest: str | None = None) -> Entry:
    """Checks the entry in `folder`: record and file sizes, with `hashes` the contents, too, unless they were checked
    since the files changed. `digest`: of its key; by default the folder's name."""
    record, problem = None, ""
    try:
        record = read_record(folder)
        problem = _problem_of_files(folder, record.files, hashes=hashes)
        if record.key.digest != (digest or folder.name):
            problem = f"{RECORD_NAME} belongs to another engine"
    except ValueError as error:
        problem = f"damaged record: {error}"
    except FileNotFoundError as error:
        problem = f"{Path(error.filename).name} is missing"
    except OSError as error:
        problem = f"{error.strerror or error}"
    size_bytes, used_at = folder_bytes(folder), _last_used_at(folder)
    if record is None:
        return Entry(folder, None, None, None, size_bytes, used_at, problem)
    return Entry(
        folder,
        record.key,
        record.build_s,
        record.built_at,
        size_bytes,
        used_at,
        problem,
        device_memory_bytes=record.device_memory_bytes,
    )


def folder_bytes(folder: Path) -> int:
    """Total size of the files below a folder; files may disappear meanwhile."""
    size_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size_bytes += Path(parent, name).lstat().st_size
    return size_bytes


def _last_used_at(folder: Path) -> datetime:
    with suppress(OSError):
        return datetime.fromtimestamp((folder / RECORD_NAME).stat().st_mtime, UTC)
    return datetime.fromtimestamp(0, UTC)


def _problem_of_files(folder: Path, files: Mapping[str, EngineFile], *, hashes: bool) -> str:
    for name, file in files.items():
        size_bytes = (folder / name).stat().st_size
        if size_bytes != file.bytes:
            return f"{name} has {size_bytes} bytes instead of {file.bytes}"

    def changed(*, hashes: bool) -> str:
        names = (name for name, file in files.items() if hashes and sha256_file(folder / name) != file.sha256)
        return next((f"{name} was changed (its SHA-256 differs)" for name in names), "")

    return checked(HASHES_FACT, {folder / name: file.sha256 for name, file in files.items()}, changed) if hashes else ""


@dataclass(frozen=True, slots=True)
class Choice:
    """An engine to remove and why. `refusal`: why removing failed; empty if it succeeded, or in a dry run."""

    entry: Entry
    reason: str
    refusal: str = ""


def total_bytes(entries: Iterable[Entry]) -> int:
    """Total size of `entries`."""
    return sum(entry.size_bytes for entry in entries)


def select(entries: Sequence[Entry], *, max_bytes: int | None = None, damaged: bool = False) -> list[Choice]:
    """Which of `entries` to remove, and why: the `damaged` ones, then damaged and least recently
    used ones until `max_bytes` are left. Pure."""
    chosen = [Choice(entry, entry.problem) for entry in entries if damaged and entry.problem]
    if max_bytes is not None:
        gone = {choice.entry.folder for choice in chosen}
        left = [entry for entry in entries if entry.folder not in gone]
        excess_bytes = total_bytes(left) - max_bytes
        for entry in sorted(left, key=lambda entry: (not entry.problem, entry.last_used_at)):
            if excess_bytes > 0:
                chosen.append(Choice(entry, f"more than {max_bytes / 1e9:g} GB in all"))
                excess_bytes -= entry.size_bytes
    return chosen
