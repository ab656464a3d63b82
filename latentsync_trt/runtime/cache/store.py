"""The engine cache: engines that take minutes to build, built once and verified before each use.

    <cache>/<digest>/               an entry: the engine's files and `engine.json`
    <cache>/.<digest>-<id>/         an entry being built or deleted, or the leftover of a process that was killed
    <cache>/.shared/<machine>/      kernel timings: they outlive engines and serve all of one GPU
    <cache>/.locks/<digest>.lock    held while an engine of that digest is built or deleted

An entry appears by one rename when it is complete and is never changed, so readers need no lock. Lock files stay:
removing one that another process waits for would let two processes in.
"""

import errno
import logging
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import platformdirs
from filelock import FileLock, Timeout

from latentsync_trt.errors import EngineBuildError, LatentSyncError, OutputError
from latentsync_trt.runtime.cache.entry import RECORD_NAME, examine, write_record
from latentsync_trt.runtime.cache.key import DIGEST_LENGTH, EngineKey

CACHE_VARIABLE = "LATENTSYNC_TRT_CACHE_DIR"
LOCAL_FOLDER = "engine_cache"
SHARED_FOLDER = ".shared"

_LOCKS = ".locks"
_ENTRY_NAME = re.compile(rf"[0-9a-f]{{{DIGEST_LENGTH}}}")
_ASIDE_NAME = re.compile(rf"\.([0-9a-f]{{{DIGEST_LENGTH}}})-[0-9a-f]{{8}}")

_POLL_S = 0.1

# A provider may write its engine without checking that it fitted. With less free than this, it may not have.
_LEAST_FREE_BYTES = 16 * 1024**2

# Windows refuses to rename a folder while a virus scanner reads a file in it.
_RENAME_TRIES = 20 if sys.platform == "win32" else 1

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_A_FOLDER = (errno.ENOTDIR, errno.EEXIST)
_ELSEWHERE = "choose another place with --engine-cache or LATENTSYNC_TRT_CACHE_DIR"

_log = logging.getLogger(__name__)

T = TypeVar("T")
Notice = Callable[[str], None]
Build = Callable[[Path], None]


def cache_folder(given: str | Path | None = None) -> Path:
    """The folder of engines: `given`, else $LATENTSYNC_TRT_CACHE_DIR, else `engine_cache/` in the working directory if
    it exists, else the user's cache folder."""
    named = given or os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser()
    local = Path(LOCAL_FOLDER)
    return local if local.is_dir() else platformdirs.user_cache_path("latentsync-trt", appauthor=False) / "engines"


@dataclass(frozen=True, slots=True)
class Engine:
    """A verified engine: its folder, which must not be changed, whether this call built it, seconds that the build
    took, now or earlier, and when it was built (UTC)."""

    folder: Path
    built: bool
    build_s: float
    built_at: datetime


class EngineCache:
    """Finds, builds and keeps engines below one folder, which need not exist yet. Safe for any number of processes and
    threads.

    Every method but `remove` raises `OutputError` where the folder is a file, cannot be read or written, or is full.

    Args:
        folder: see `cache_folder`.
        on_notice: receives a sentence about waiting, damaged engines and the like.
    """

    def __init__(self, folder: Path, on_notice: Notice = _log.warning) -> None:
        self.folder = folder.absolute()
        self._notice = on_notice
        self._verified: dict[str, datetime] = {}
        self._built: set[str] = set()

    def find(self, key: EngineKey) -> Path | None:
        """The folder of an undamaged entry for `key`, or None. Takes no lock and works on a read-only cache.

        Every byte is compared with its hash, once in the life of this object.
        """
        found = self._find(key)
        return found.folder if found else None

    def obtain(self, key: EngineKey, build: Build, *, force: bool = False) -> Engine:
        """Finds the engine for `key`, or builds it: `build` writes its files into the empty folder it is given.

        While another process builds it, this one waits. `force` accepts no engine that was built before this call.

        Raises:
            EngineBuildError: `build` wrote nothing.
            Whatever `build` raises; nothing is left behind then.
        """
        return self._obtain(key, build, datetime.now(UTC) if force else None)

    def load(self, key: EngineKey, build: Build, load: Callable[[Path], T]) -> tuple[Engine, T]:
        """`obtain`, then `load` on the engine's folder.

        Builds the engine again if it was deleted meanwhile, or if `load` raises `EngineBuildError` for one that this
        object did not build: the key cannot cover everything that a provider checks.

        Raises:
            As `obtain`, and whatever `load` raises.
        """
        engine = self.obtain(key, build)
        try:
            return engine, load(engine.folder)
        except (LatentSyncError, OSError) as error:
            now = self._find(key)
            gone = now is None or now.built_at != engine.built_at
            if not gone and (key.digest in self._built or not isinstance(error, EngineBuildError)):
                raise
            why = "was deleted while it was opened" if gone else f"does not open ({error})"
            self._notice(f"engine cache: {key.label} in {self.folder} {why}; building it again")
        engine = self._obtain(key, build, engine.built_at)
        return engine, load(engine.folder)

    def _obtain(self, key: EngineKey, build: Build, newer_than: datetime | None) -> Engine:
        found = self._find(key, newer_than)
        if found:
            return found
        with self._locked(key):
            return self._find(key, newer_than) or self._build(key, build)

    def _find(self, key: EngineKey, newer_than: datetime | None = None) -> Engine | None:
        folder = self.folder / key.digest
        if not self._exists(folder):
            return None
        finding = examine(folder, key.digest, hashes=False)
        if finding.record and finding.record.built_at != self._verified.get(key.digest):
            finding = examine(folder, key.digest, hashes=True)
        record = finding.record
        if record is None or finding.problem or (newer_than and record.built_at <= newer_than):
            return None
        self._verified[key.digest] = record.built_at
        with suppress(OSError):  # a read-only cache does not record when an engine was last used
            os.utime(folder / RECORD_NAME)
        return Engine(folder, built=False, build_s=record.build_s, built_at=record.built_at)

    def _build(self, key: EngineKey, build: Build) -> Engine:
        """Builds beside the entries and publishes the result. The lock of the digest is held."""
        target = self.folder / key.digest
        if self._exists(target):
            problem = examine(target, key.digest, hashes=key.digest not in self._verified).problem
            if problem:
                self._notice(f"engine cache: {key.label} in {target}: {problem}; building it again")
        self.sweep(key.digest)
        aside = _aside(target)
        with self._explained():
            aside.mkdir()
        try:
            start_s = time.monotonic()
            self._run(build, aside)
            build_s, built_at = round(time.monotonic() - start_s, 3), datetime.now(UTC)
            with self._explained():
                write_record(aside, key, build_s, built_at)
                self.remove(target)
                _rename(aside, target)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        self._verified[key.digest] = built_at
        self._built.add(key.digest)
        return Engine(target, built=True, build_s=build_s, built_at=built_at)

    def _run(self, build: Build, aside: Path) -> None:
        """Calls `build`. A provider that meets a full disk reports anything, or nothing at all."""
        try:
            with self._explained():
                build(aside)
        except Exception:
            self._check_folder(aside)
            raise
        self._check_folder(aside)

    def _check_folder(self, aside: Path) -> None:
        if not aside.is_dir():
            raise OutputError(f"{self.folder}: was deleted while an engine was built in it; run again")
        if shutil.disk_usage(self.folder).free < _LEAST_FREE_BYTES:
            raise self._full()

    def entries(self) -> list[Path]:
        """Folders with names of entries; their content is not checked."""
        return [path for path in self._listing() if _ENTRY_NAME.fullmatch(path.name)]

    def sweep(self, held: str = "") -> None:
        """Deletes what killed processes left: all of a digest whose lock is free, or `held` by the caller."""
        for path in self._listing():
            match = _ASIDE_NAME.fullmatch(path.name)
            if match:
                with self.try_locked(match[1]) as free:
                    if free or match[1] == held:
                        shutil.rmtree(path, ignore_errors=True)

    def remove(self, entry: Path) -> None:
        """Takes an entry out of use by one rename, then deletes it; no error if it does not exist. Its lock is held.

        Raises:
            OSError: it is in use (on Windows) or write-protected, or not all of it could be deleted.
        """
        aside = _aside(entry)
        try:
            entry.rename(aside)
        except FileNotFoundError:
            return
        shutil.rmtree(aside, ignore_errors=True)
        if aside.exists():
            raise OSError(errno.EACCES, "some of its files cannot be deleted", str(aside))

    @contextmanager
    def try_locked(self, digest: str) -> Iterator[bool]:
        """Holds the lock of a digest if it is free; yields whether it was."""
        lock = self._lock(digest)
        try:
            yield self._acquire(lock)
        finally:
            lock.release()

    @contextmanager
    def _locked(self, key: EngineKey) -> Iterator[None]:
        """Holds the lock of `key`'s digest, after waiting for it with a notice."""
        lock = self._lock(key.digest)
        if not self._acquire(lock):
            self._notice(f"engine cache: {key.label} is being built by another process; waiting for it")
            while not self._acquire(lock):  # in short waits: Windows delivers Ctrl-C only between them
                time.sleep(_POLL_S)
        try:
            yield
        finally:
            lock.release()

    def _lock(self, digest: str) -> FileLock:
        return FileLock(self.folder / _LOCKS / f"{digest}.lock")

    def _acquire(self, lock: FileLock) -> bool:
        with self._explained():
            Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(blocking=False)
            except (Timeout, FileNotFoundError):  # the latter if the folder was deleted just now
                return False
        return True

    def _exists(self, path: Path) -> bool:
        with self._explained():
            try:
                path.stat()
            except FileNotFoundError:
                return False
        return True

    def _listing(self) -> list[Path]:
        with self._explained():
            return sorted(self.folder.iterdir()) if self._exists(self.folder) else []

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns an OSError into an `OutputError` that says what to do."""
        try:
            yield
        except LatentSyncError:
            raise
        except OSError as error:
            raise self._translated(error) from error

    def _translated(self, error: OSError) -> OutputError:
        if error.errno in _FULL:
            return self._full()
        if error.errno in _NOT_A_FOLDER:
            return OutputError(f"{self.folder}: a file is in the place of the engine cache; {_ELSEWHERE}")
        where = f": {error.filename}" if error.filename else ""
        return OutputError(
            f"{self.folder}: the engine cache cannot be used ({error.strerror or error}{where}); {_ELSEWHERE}"
        )

    def _full(self) -> OutputError:
        return OutputError(
            f"{self.folder}: the disk is full; make room, for example with `latentsync-trt cache prune --unused-days "
            f"30`, or {_ELSEWHERE}"
        )


def _aside(entry: Path) -> Path:
    return entry.with_name(f".{entry.name}-{secrets.token_hex(4)}")


def _rename(source: Path, target: Path) -> None:
    for tries_left in reversed(range(_RENAME_TRIES)):
        try:
            source.rename(target)
        except PermissionError:
            if not tries_left:
                raise
            time.sleep(_POLL_S)
        else:
            return
