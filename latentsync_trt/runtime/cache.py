"""The engine cache: engines that take minutes to build, built once and verified before each use.

    <cache>/<digest>/               an entry: the engine's files and `engine.json`, with the SHA-256 of each
    <cache>/.latentsync-<id>/       an entry being built or deleted, or the leftover of a killed process
    <cache>/.shared/<machine>/      kernel timings, kept for all engines of one GPU
    <cache>/.locks/<digest>.lock    held while an engine of that digest is built or deleted

An entry appears by one rename when it is complete and is never changed, so readers need no lock.
"""

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import platformdirs
from filelock import FileLock, Timeout
from msgspec import Meta

from latentsync_trt.bundle.manifest import sha256_file
from latentsync_trt.errors import EngineBuildError, LatentSyncError, OutputError
from latentsync_trt.files import publish, remove_leftovers, temporary_folder
from latentsync_trt.paths import below_home
from latentsync_trt.remembered import CACHE_VARIABLE as CACHE_VARIABLE
from latentsync_trt.remembered import checked, forget
from latentsync_trt.remote_files import check_target, deliver, exists, fetch, local_of, shown
from latentsync_trt.validation import from_json

LOCAL_FOLDER, SHARED_FOLDER, _LOCKS = "engine_cache", ".shared", ".locks"
RECORD_NAME = "engine.json"

HASHES_FACT = "engine-hashes"
"""Kind of the remembered fact that the files of an engine have their contents."""

KEY_FORMAT = 1
"""Part of every digest: increase it when the meaning of a field changes, to ignore older engines."""

DIGEST_LENGTH = 24
"""Hex digits of a digest: 96 bits, and short enough for paths on Windows."""

# A provider may not notice a full disk. With less free space than this, its engine may be incomplete.
_LEAST_FREE_BYTES = 16 * 1024**2

_ELSEWHERE = f"choose another place with --engine-cache or {CACHE_VARIABLE}"

_log = logging.getLogger(__name__)

T = TypeVar("T")
Notice = Callable[[str], None]
Build = Callable[[Path], int | None]
"""Writes an engine's files into an empty folder; returns its `Entry.device_memory_bytes`."""

_ENTRY_NAME = re.compile(rf"[0-9a-f]{{{DIGEST_LENGTH}}}")

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
        """Short description for messages."""
        return self.key.label if self.key else f"engine {self.folder.name}"


def read_entry(folder: Path, *, hashes: bool, digest: str | None = None) -> Entry:
    """Checks the entry in `folder`: record and file sizes, with `hashes` the contents, too, unless they were checked
    since the files changed. `digest`: of its key; by default the folder's name."""
    known: dict[str, Any] = {"key": None, "build_s": None, "built_at": None}
    problem, used_s = "", 0.0
    try:
        used_s = (folder / RECORD_NAME).stat().st_mtime
        record = _read_record(folder)
        known = {name: getattr(record, name) for name in (*known, "device_memory_bytes")}
        look = partial(_problem, folder, record.files)
        expected = {folder / name: file.sha256 for name, file in record.files.items()}
        problem = checked(HASHES_FACT, expected, look) if hashes else look(hashes=False)
        if record.key.digest != (digest or folder.name):
            problem = f"{RECORD_NAME} belongs to another engine"
    except ValueError as error:
        problem = f"damaged record: {error}"
    except FileNotFoundError as error:
        problem = f"{Path(error.filename).name} is missing"
    except OSError as error:
        problem = f"{error.strerror or error}"
    used_at = datetime.fromtimestamp(used_s, UTC)
    return Entry(folder=folder, size_bytes=folder_bytes(folder), last_used_at=used_at, problem=problem, **known)


def _read_record(folder: Path) -> Record:
    return from_json(Record, (folder / RECORD_NAME).read_bytes(), RECORD_NAME)


def _problem(folder: Path, files: Mapping[str, EngineFile], *, hashes: bool) -> str:
    for name, file in files.items():
        size_bytes = (folder / name).stat().st_size
        if size_bytes != file.bytes:
            return f"{name} has {size_bytes} bytes instead of {file.bytes}"
        if hashes and sha256_file(folder / name) != file.sha256:
            return f"{name} was changed (its SHA-256 differs)"
    return ""


def folder_bytes(folder: Path) -> int:
    """Total size of the files below a folder; files may disappear meanwhile."""
    size_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size_bytes += Path(parent, name).lstat().st_size
    return size_bytes


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
    chosen: list[Choice] = []
    excess_bytes = 0 if max_bytes is None else total_bytes(entries) - max_bytes
    for entry in sorted(entries, key=lambda entry: (not entry.problem, entry.last_used_at)):
        if (damaged and entry.problem) or excess_bytes > 0:
            over = f"more than {(max_bytes or 0) / 1e9:g} GB in all"
            chosen.append(Choice(entry, entry.problem if damaged and entry.problem else over))
            excess_bytes -= entry.size_bytes
    return chosen


def cache_folder(given: str | Path | None = None) -> Path:
    """The folder of engines: `given`, else $LATENTSYNC_TRT_CACHE_DIR, else `engine_cache/` in the working directory if
    it exists, else the user's cache folder; raises `InputError` for a home folder that does not exist."""
    named = given or os.environ.get(CACHE_VARIABLE)
    if named:
        return below_home(named, _ELSEWHERE)
    local = Path(LOCAL_FOLDER)
    return local if local.is_dir() else platformdirs.user_cache_path("latentsync-trt", appauthor=False) / "engines"


class EngineStore:
    """Engines that machines share, at a URL for fsspec, or in a folder: one of each kind of GPU builds, others fetch.

        <url>/<digest>.json     the record of an engine, written last
        <url>/<sha256>          a file of an engine

    Whoever can write there decides what runs on the GPUs: hashes detect damage, not malice. Thread-safe.

    It never fails a run: a store that does not answer is left alone, with a notice.
    """

    def __init__(self, url: str, on_notice: Notice) -> None:
        self._url, self._notice, self._usable = url.rstrip("/"), on_notice, True
        check_target(f"{self._url}/{RECORD_NAME}")

    def fetch(self, key: EngineKey, folder: Path) -> bool:
        """Downloads the engine of `key` into `folder`, which it makes; False if the store has no undamaged one."""
        url, problem = f"{self._url}/{key.digest}.json", ""
        try:
            if not self._usable or not exists(url):
                return False
            folder.mkdir()
            fetch(url, folder).rename(folder / RECORD_NAME)
            for name, file in _read_record(folder).files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                fetch(f"{self._url}/{file.sha256}", folder).rename(folder / name)
            problem = read_entry(folder, hashes=True, digest=key.digest).problem
        except (LatentSyncError, OSError) as error:
            self._give_up(error)
            return False
        except ValueError as error:
            problem = f"{error}"
        said = f"{problem}; not used, building it again" if problem else "fetched"
        self._notice(f"engine store: {key.label}: {shown(url)}: {said}")
        return not problem

    def put(self, entry: Entry) -> None:
        """Uploads an engine."""
        try:
            if self._usable:
                if (place := local_of(self._url)) is not None:
                    place.mkdir(parents=True, exist_ok=True)
                for name, file in _read_record(entry.folder).files.items():
                    deliver(entry.folder / name, f"{self._url}/{file.sha256}")
                deliver(entry.folder / RECORD_NAME, f"{self._url}/{entry.folder.name}.json")
        except (LatentSyncError, OSError) as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Leaves the store alone from here on: each attempt can take a minute."""
        self._usable = False
        self._notice(f"engine store: {error}; continuing without it")


class EngineCache:
    """Finds, builds and keeps engines below `folder`, which need not exist yet. Process- and thread-safe.

    `on_notice` receives a sentence about waiting, damaged engines and the like.

    Args:
        store: URL where engines are looked for before they are built, and uploaded to.

    Raises:
        InputError: such URLs are unknown, or can only be read. MissingDependency: the extra `cluster` is missing.
    """

    def __init__(self, folder: Path, on_notice: Notice = _log.warning, store: str | None = None) -> None:
        self.folder = folder.absolute()
        self._notice = on_notice
        self._store = EngineStore(store, on_notice) if store else None
        self._verified: dict[str, datetime | None] = {}
        self._built: set[str] = set()

    def find(self, key: EngineKey, *, other_than: datetime | None = None) -> Entry | None:
        """The undamaged engine for `key`, or None. Takes no lock and works on a read-only cache.

        Hashes are checked once in the life of this object. `other_than`: ignores the build of that
        time; not "older than", as clocks can be wrong.
        """
        entry = self._checked(key)
        if entry.problem or entry.built_at == other_than:
            return None
        with suppress(OSError):  # a read-only cache does not record when an engine was last used
            os.utime(entry.folder / RECORD_NAME)
        return entry

    def obtain(self, key: EngineKey, build: Build, *, other_than: datetime | None = None) -> Entry:
        """Finds the engine for `key`, fetches it from the store, or builds it.

        While another process builds it, this one waits. `other_than`: does not accept the build of
        that time, nor what the store has.

        Raises:
            EngineBuildError: `build` wrote nothing.
            OutputError: the cache cannot be written, or its disk is full.
            Whatever `build` raises; nothing is left behind then.
        """
        found = self.find(key, other_than=other_than)
        if found:
            return found
        lock = self._lock(key.digest)
        with self._explained():
            try:
                held = lock.acquire(blocking=False)
            except Timeout:
                self._notice(f"engine cache: {key.label} is being built by another process; waiting for it")
                held = lock.acquire()
            with held:
                found = self.find(key, other_than=other_than)
                entry = found or self._make(key, build, from_store=other_than is None)
        if entry.built and self._store is not None:
            self._store.put(entry)
        return entry

    def load(self, key: EngineKey, build: Build, load: Callable[[Path], T]) -> tuple[Entry, T]:
        """`obtain`, then `load` on the engine's folder.

        Builds the engine again if it was deleted meanwhile, or if `load` raises `EngineBuildError` for an engine that
        this object did not build: the key cannot cover everything that a provider checks.

        Raises:
            As `obtain`, and whatever `load` raises.
        """
        entry = self.obtain(key, build)
        try:
            return entry, load(entry.folder)
        except (LatentSyncError, OSError) as error:
            now = self.find(key)
            if now is None or now.built_at != entry.built_at:
                why = "was deleted while it was opened"
            elif isinstance(error, EngineBuildError) and key.digest not in self._built:
                why = f"does not open ({error})"
            else:
                raise
            self._notice(f"engine cache: {key.label} in {self.folder} {why}; building it again")
        entry = self.obtain(key, build, other_than=entry.built_at)
        return entry, load(entry.folder)

    def has_built(self, entry: Entry) -> bool:
        """Whether this object built the engine."""
        return entry.folder.name in self._built

    def entries(self, *, hashes: bool = False) -> tuple[Entry, ...]:
        """All engines, last used first, checked by records and file sizes, and with `hashes` by content.

        Raises:
            OutputError: the cache cannot be listed.
        """
        if hashes:
            forget(HASHES_FACT)
        with self._explained():
            paths = sorted(self.folder.iterdir()) if self.folder.exists() else []
        entries = (read_entry(path, hashes=hashes) for path in paths if _ENTRY_NAME.fullmatch(path.name))
        return tuple(sorted(entries, key=lambda entry: entry.last_used_at, reverse=True))

    def remove(self, entry: Entry) -> str:
        """Deletes an engine unless it is being or was built again; returns why that failed, empty if it did not."""
        try:
            with self._lock(entry.folder.name).acquire(blocking=False):
                if read_entry(entry.folder, hashes=False).built_at not in (None, entry.built_at):
                    return "it was built again"
                with temporary_folder(self.folder, self._notice) as aside, suppress(FileNotFoundError):
                    entry.folder.rename(aside / "engine")
        except Timeout:
            return "it is being built again"
        except OSError as error:
            return f"in use, or write-protected ({error.strerror})"
        return ""

    def remove_all(self, chosen: Iterable[Choice]) -> list[Choice]:
        """Removes engines, and what killed processes left; returns `chosen` with refusals."""
        removed = [replace(choice, refusal=self.remove(choice.entry)) for choice in chosen]
        remove_leftovers(self.folder)
        return removed

    def _checked(self, key: EngineKey) -> Entry:
        """The entry of `key`; its hashes are checked unless this object has done so before."""
        folder = self.folder / key.digest
        entry = read_entry(folder, hashes=False)
        if entry.problem or self._verified.get(key.digest) == entry.built_at:
            return entry
        entry = read_entry(folder, hashes=True)
        if not entry.problem:
            self._verified[key.digest] = entry.built_at
        return entry

    def _make(self, key: EngineKey, build: Build, *, from_store: bool) -> Entry:
        """Fetches the engine from the store or builds it. The caller holds the digest's lock."""
        target = self.folder / key.digest
        with temporary_folder(self.folder, self._notice) as aside:
            folder = aside / "fetched"
            fetched = from_store and self._store is not None and self._store.fetch(key, folder)
            if not fetched:
                problem = self._checked(key).problem
                if problem and target.exists():
                    self._notice(f"engine cache: {key.label} in {target}: {problem}; building it again")
                folder = aside / "built"
                self._build(key, build, folder)
            publish(folder, target, aside / "replaced")
        if not fetched:
            self._built.add(key.digest)
        entry = read_entry(target, hashes=False)
        self._verified[key.digest] = entry.built_at  # its hashes need no check
        return replace(entry, built=not fetched)

    def _build(self, key: EngineKey, build: Build, folder: Path) -> None:
        """Makes `folder` and builds into it; raises `OSError` on a full disk, which providers may not notice."""
        folder.mkdir()
        start_s = time.monotonic()
        self._check_disk()
        try:
            memory_bytes = build(folder)
        except Exception:
            self._check_disk()
            raise
        self._check_disk()
        build_s = round(time.monotonic() - start_s, 3)
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        if not paths:
            raise EngineBuildError(f"{key.label}: the build wrote no file")
        files = {
            path.relative_to(folder).as_posix(): EngineFile(sha256_file(path), path.stat().st_size) for path in paths
        }
        record = Record(key, files, build_s, datetime.now(UTC), memory_bytes)
        text = json.dumps(asdict(record), indent=2, default=datetime.isoformat)
        (folder / RECORD_NAME).write_text(text, encoding="utf-8")

    def _check_disk(self) -> None:
        if shutil.disk_usage(self.folder).free < _LEAST_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _lock(self, digest: str) -> FileLock:
        return FileLock(self.folder / _LOCKS / f"{digest}.lock")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns an OSError into an `OutputError` that says what to do."""
        try:
            yield
        except LatentSyncError:
            raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                cure = "make room, for example with `latentsync-trt cache prune --max-gb 10`, or "
                raise OutputError(f"{self.folder}: the disk is full; {cure}{_ELSEWHERE}") from error
            reason = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
            raise OutputError(f"{self.folder}: the engine cache cannot be used ({reason}); {_ELSEWHERE}") from error
