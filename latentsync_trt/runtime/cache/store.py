"""The engine cache: engines that take minutes to build, built once and verified before each use.

    <cache>/<digest>/               an entry: the engine's files and `engine.json`
    <cache>/.<digest>-<id>/         an entry being built or deleted, or the leftover of a killed process
    <cache>/.shared/<machine>/      kernel timings, kept for all engines of one GPU
    <cache>/.locks/<digest>.lock    held while an engine of that digest is built or deleted

An entry appears by one rename when it is complete and is never changed, so readers need no lock.
"""

import errno
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import platformdirs
from filelock import FileLock, Timeout

from latentsync_trt.errors import EngineBuildError, LatentSyncError, OutputError
from latentsync_trt.files import publish
from latentsync_trt.paths import below_home
from latentsync_trt.remembered import CACHE_VARIABLE as CACHE_VARIABLE
from latentsync_trt.runtime.cache.entry import RECORD_NAME, Entry, examine, write_record
from latentsync_trt.runtime.cache.key import DIGEST_LENGTH, EngineKey
from latentsync_trt.runtime.cache.remote import EngineStore
from latentsync_trt.temporary import removed_with_the_process

LOCAL_FOLDER = "engine_cache"
SHARED_FOLDER = ".shared"

_LOCKS = ".locks"
_ENTRY_NAME = re.compile(rf"[0-9a-f]{{{DIGEST_LENGTH}}}")
_ASIDE_NAME = re.compile(rf"\.([0-9a-f]{{{DIGEST_LENGTH}}})-[0-9a-f]{{8}}")

_POLL_S = 0.1

# A provider may not notice a full disk. With less free space than this, its engine may be incomplete.
_LEAST_FREE_BYTES = 16 * 1024**2

_ELSEWHERE = f"choose another place with --engine-cache or {CACHE_VARIABLE}"

_log = logging.getLogger(__name__)

T = TypeVar("T")
Notice = Callable[[str], None]
Build = Callable[[Path], int | None]
"""Writes an engine's files into an empty folder; returns its `Entry.device_memory_bytes`."""


def cache_folder(given: str | Path | None = None) -> Path:
    """The folder of engines: `given`, else $LATENTSYNC_TRT_CACHE_DIR, else `engine_cache/` in the working directory if
    it exists, else the user's cache folder; raises `InputError` for a home folder that does not exist."""
    named = given or os.environ.get(CACHE_VARIABLE)
    if named:
        return below_home(named, _ELSEWHERE)
    local = Path(LOCAL_FOLDER)
    return local if local.is_dir() else platformdirs.user_cache_path("latentsync-trt", appauthor=False) / "engines"


class EngineCache:
    """Finds, builds and keeps engines below `folder`, which need not exist yet. Process- and thread-safe.

    `on_notice` receives a sentence about waiting, damaged engines and the like. `store`: URL where engines are looked
    for before they are built, and uploaded to; raises as `EngineStore`.
    """

    def __init__(self, folder: Path, on_notice: Notice = _log.warning, store: str | None = None) -> None:
        self.folder = folder.absolute()
        self._notice = on_notice
        self._store = EngineStore(store, on_notice) if store else None
        self._verified: dict[str, datetime | None] = {}
        self._built: set[str] = set()

    def find(self, key: EngineKey, *, other_than: datetime | None = None) -> Entry | None:
        """The undamaged engine for `key`, or None. Takes no lock and works on a read-only cache.

        Hashes are checked once in the life of this object. `other_than`: ignores the build of that time; not "older
        than", as clocks can be wrong.
        """
        entry = self._examined(key)
        if entry.built_at is None or entry.problem or entry.built_at == other_than:
            return None
        self._verified[key.digest] = entry.built_at
        with suppress(OSError):  # a read-only cache does not record when an engine was last used
            os.utime(entry.folder / RECORD_NAME)
        return entry

    def obtain(self, key: EngineKey, build: Build, *, other_than: datetime | None = None) -> Entry:
        """Finds the engine for `key`, fetches it from the store, or builds it.

        While another process builds it, this one waits. `other_than`: does not accept the build of that time, nor what
        the store has.

        Raises:
            EngineBuildError: `build` wrote nothing.
            OutputError: the cache cannot be written, or its disk is full.
            Whatever `build` raises; nothing is left behind then.
        """
        found = self.find(key, other_than=other_than)
        if found:
            return found
        self.sweep()
        lock = self._lock(key.digest)
        with self._explained():
            try:
                lock.acquire(blocking=False)
            except Timeout:
                self._notice(f"engine cache: {key.label} is being built by another process; waiting for it")
                lock.acquire(poll_interval=_POLL_S)
        try:
            found = self.find(key, other_than=other_than) or (None if other_than else self._fetch(key))
            entry = found or self._build(key, build)
        finally:
            lock.release()
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

    def entries(self, *, hashes: bool = False) -> list[Entry]:
        """All engines, checked by records and file sizes, and with `hashes` by content.

        Raises:
            OutputError: the cache cannot be listed.
        """
        return [examine(path, hashes=hashes) for path in self._listing() if _ENTRY_NAME.fullmatch(path.name)]

    def remove(self, entry: Entry) -> str:
        """Deletes an engine unless it is being or was built again; returns why that failed, empty if it did not."""
        try:
            with self._lock(entry.folder.name).acquire(blocking=False):
                if examine(entry.folder, hashes=False).built_at not in (None, entry.built_at):
                    return "it was built again"
                _delete(entry.folder)
        except Timeout:
            return "it is being built again"
        except OSError as error:
            return f"in use, or write-protected ({error.strerror})"
        return ""

    def sweep(self) -> None:
        """Deletes `leftovers`; skips what cannot be deleted. Raises as it."""
        for path in self.leftovers():
            shutil.rmtree(path, ignore_errors=True)

    def leftovers(self) -> Iterator[Path]:
        """What killed processes left: folders whose lock is free, and is held here until the next one.

        Raises:
            OutputError: the cache cannot be listed.
        """
        for path in self._listing():
            match = _ASIDE_NAME.fullmatch(path.name)
            if match:
                with suppress(Timeout, OSError), self._lock(match[1]).acquire(blocking=False):
                    yield path

    def _examined(self, key: EngineKey) -> Entry:
        """The entry of `key`; its hashes are checked unless this object has done so before."""
        folder = self.folder / key.digest
        entry = examine(folder, hashes=False)
        known = entry.built_at is not None and self._verified.get(key.digest) == entry.built_at
        return entry if known or entry.problem else examine(folder, hashes="once")

    def _build(self, key: EngineKey, build: Build) -> Entry:
        """Builds in a temporary folder and renames it to the entry. The caller holds the digest's lock."""
        target = self.folder / key.digest
        problem = self._examined(key).problem
        if problem and target.exists():
            self._notice(f"engine cache: {key.label} in {target}: {problem}; building it again")
        with self._new_folder(target) as aside:
            start_s = time.monotonic()
            memory_bytes = self._run(build, aside)
            write_record(aside, key, round(time.monotonic() - start_s, 3), memory_bytes)
            _put(aside, target)
        self._built.add(key.digest)
        return replace(self._verify(target), built=True)

    def _fetch(self, key: EngineKey) -> Entry | None:
        """Fetches the engine from the store, if it has one. The caller holds the digest's lock."""
        if self._store is None:
            return None
        target = self.folder / key.digest
        with self._new_folder(target) as aside:
            if not self._store.fetch(key, aside):
                return None
            _put(aside, target)
        return self._verify(target)

    def _verify(self, target: Path) -> Entry:
        """The entry that was just made; its hashes need no check."""
        entry = examine(target, hashes=False)
        self._verified[target.name] = entry.built_at
        return entry

    @contextmanager
    def _new_folder(self, target: Path) -> Iterator[Path]:
        """An empty folder beside `target`, removed at the end of the block unless it was renamed."""
        aside = _aside(target)
        try:
            with self._explained(), removed_with_the_process(aside):
                aside.mkdir()
                yield aside
        finally:
            if aside.exists():
                shutil.rmtree(aside, ignore_errors=True)

    def _run(self, build: Build, aside: Path) -> int | None:
        """Calls `build`; checks the disk before and after: on a full one, providers raise unclear errors, or none."""
        self._check(aside)
        try:
            memory_bytes = build(aside)
        except Exception:
            self._check(aside)
            raise
        self._check(aside)
        return memory_bytes

    def _check(self, aside: Path) -> None:
        if not aside.is_dir():
            raise OutputError(f"{self.folder}: was deleted while an engine was built in it; run again")
        if shutil.disk_usage(self.folder).free < _LEAST_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _lock(self, digest: str) -> FileLock:
        return FileLock(self.folder / _LOCKS / f"{digest}.lock")

    def _listing(self) -> list[Path]:
        with self._explained():
            try:
                return sorted(self.folder.iterdir())
            except FileNotFoundError:
                return []

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns an OSError into an `OutputError` that says what to do."""
        try:
            yield
        except (LatentSyncError, Timeout):
            raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                cure = "make room, for example with `latentsync-trt cache prune --max-gb 10`, or "
                raise OutputError(f"{self.folder}: the disk is full; {cure}{_ELSEWHERE}") from error
            reason = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
            raise OutputError(f"{self.folder}: the engine cache cannot be used ({reason}); {_ELSEWHERE}") from error


def _aside(entry: Path) -> Path:
    return entry.with_name(f".{entry.name}-{secrets.token_hex(4)}")


def _set_aside(entry: Path) -> Path | None:
    """Renames an entry; returns its new path, None if there is none. The caller holds its lock."""
    aside = _aside(entry)
    try:
        entry.rename(aside)
    except FileNotFoundError:
        return None
    return aside


def _delete(entry: Path) -> None:
    """Deletes an entry, if it exists; raises OSError on failure. The caller holds its lock."""
    aside = _set_aside(entry)
    if aside is None:
        return
    shutil.rmtree(aside, ignore_errors=True)
    if aside.exists():
        raise OSError(errno.EACCES, "some of its files cannot be deleted", str(aside))


def _put(aside: Path, target: Path) -> None:
    """Makes `aside` the entry `target`; deletes an older one. The caller holds its lock."""
    old = _aside(target)
    publish(aside, target, old)
    shutil.rmtree(old, ignore_errors=True)  # what stays, the next sweep deletes
