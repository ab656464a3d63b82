"""The engine cache's folder: its names, its locks, and the few moves by which anything appears or disappears in it.

    <cache>/<digest>-<generation>/              an entry: artefacts and `engine.json`
    <cache>/.building-<digest>-<generation>/    a build going on, or what a killed one left
    <cache>/.old-<random>/                      something taken out of use, being deleted
    <cache>/.shared/<machine>/                  kernel timings: they outlive engines and serve all of one GPU
    <cache>/.locks/<digest>.lock                held while an engine of that digest is built or removed

An entry appears by one rename when it is complete, under a name never used before, and is never changed again. So a
reader needs no lock, and a rebuild leaves an entry alone that another process has open, which Windows could not even
rename. Lock files stay: removing one that somebody waits for would let two processes in.
"""

import errno
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from latentsync_trt.errors import LatentSyncError, OutputError
from latentsync_trt.runtime.cache.key import DIGEST_LENGTH

SHARED_FOLDER = ".shared"
"""Below the cache: a folder of kernel timings for each provider, GPU and version."""

_LOCKS = ".locks"
_DIGEST = rf"(?P<digest>[0-9a-f]{{{DIGEST_LENGTH}}})"
_ENTRY_NAME = re.compile(rf"{_DIGEST}-[0-9a-f]{{8}}")
_BUILD_NAME = re.compile(rf"\.building-{_DIGEST}-[0-9a-f]{{8}}")
_OLD_NAME = re.compile(r"\.old-[0-9a-f]{8}")

# Waiting is done in short sleeps: Windows delivers Ctrl-C between them, never inside a wait for a lock.
_POLL_S = 0.1

# A provider may write its engine without looking whether it fitted. With less free than this, it may not have.
_LEAST_FREE_BYTES = 16 * 1024**2

# Windows refuses to rename a folder while a virus scanner reads a file in it.
_RENAME_TRIES = 20

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_FOLDER = (errno.ENOTDIR, errno.EEXIST)
_ELSEWHERE = "choose another place with --engine-cache or LATENTSYNC_TRT_CACHE_DIR"


class Store:
    """What lies below one folder, which need not exist yet. Safe for any number of processes and threads.

    All methods but `remove` raise `OutputError` where the place is no folder, cannot be read or written, or is full.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    def entries(self, digest: str | None = None) -> list[Path]:
        """Folders named as entries are, of one digest or of all; what is in them is not looked at."""
        return self._named(_ENTRY_NAME, digest)

    def builds(self, digest: str | None = None) -> list[Path]:
        """Folders of builds, going on or left behind."""
        return self._named(_BUILD_NAME, digest)

    def old(self) -> list[Path]:
        """What is being deleted, or was when its process ended."""
        return [path for path in self._listing(self.folder) if _OLD_NAME.fullmatch(path.name)]

    def timings(self) -> list[Path]:
        """What lies in the shared folder."""
        return self._listing(self.folder / SHARED_FOLDER)

    @contextmanager
    def locked(self, digest: str, on_wait: Callable[[], None]) -> Iterator[float]:
        """Holds the lock of a digest; `on_wait` is called once if another holds it. Yields the seconds waited."""
        start_s, lock, told = time.monotonic(), self._lock(digest), False
        while not self._acquire(lock):
            if not told:
                on_wait()
                told = True
            time.sleep(_POLL_S)
        try:
            yield round(time.monotonic() - start_s, 3) if told else 0.0
        finally:
            lock.release()

    @contextmanager
    def try_locked(self, digest: str) -> Iterator[bool]:
        """Holds the lock of a digest if it is free; yields whether it was."""
        lock = self._lock(digest)
        held = self._acquire(lock)
        try:
            yield held
        finally:
            if held:
                lock.release()

    def any_locked(self) -> bool:
        """Whether something is being built or removed."""
        for path in self._listing(self.folder / _LOCKS):
            with self.try_locked(path.stem) as free:
                if not free:
                    return True
        return False

    def begin(self, digest: str) -> Path:
        """An empty folder to build in. Removes what killed builds of the digest left; its lock must be held."""
        for leftover in [*self.builds(digest), *self.old()]:
            with suppress(OSError):
                self.remove(leftover)
        aside = self.folder / f".building-{digest}-{secrets.token_hex(4)}"
        with self.explained():
            aside.mkdir()
        return aside

    def publish(self, aside: Path) -> Path:
        """Makes a finished build an entry; returns its folder."""
        target = self.folder / aside.name.removeprefix(".building-")
        with self.explained():
            _rename(aside, target)
        return target

    def remove(self, path: Path) -> None:
        """Takes an entry or the like out of sight by one rename, then deletes it. What is gone already is no error.

        Raises:
            OSError: it is in use (on Windows) or write-protected, or not all of it could be deleted.
        """
        old = self.folder / f".old-{secrets.token_hex(4)}"
        try:
            path.rename(old)
        except FileNotFoundError:
            return
        if old.is_dir():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.unlink(missing_ok=True)
        if old.exists():
            raise OSError(errno.EACCES, "some of its files cannot be deleted", str(old))

    def trouble(self, aside: Path, error: Exception | None = None) -> OutputError | None:
        """What is wrong with the place after a build in `aside`, which may have failed with `error`; None if nothing.

        A provider that meets a full disc says anything, or nothing at all.
        """
        if not aside.is_dir():
            return OutputError(f"{self.folder}: was deleted while an engine was built in it; run again")
        if (isinstance(error, OSError) and error.errno in _FULL) or self._free_bytes() < _LEAST_FREE_BYTES:
            return self._full()
        if isinstance(error, OSError) and not isinstance(error, LatentSyncError):
            return self._explain(error)
        return None

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turns an OSError into an `OutputError` that says what to do."""
        try:
            yield
        except LatentSyncError:
            raise
        except OSError as error:
            raise self._explain(error) from error

    def _named(self, pattern: re.Pattern[str], digest: str | None) -> list[Path]:
        found = ((path, pattern.fullmatch(path.name)) for path in self._listing(self.folder))
        return [path for path, match in found if match and digest in (None, match["digest"])]

    def _listing(self, folder: Path) -> list[Path]:
        with self.explained():
            try:
                return sorted(folder.iterdir())
            except FileNotFoundError:
                return []

    def _lock(self, digest: str) -> FileLock:
        return FileLock(self.folder / _LOCKS / f"{digest}.lock")

    def _acquire(self, lock: FileLock) -> bool:
        with self.explained():
            Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(blocking=False)
            except (Timeout, FileNotFoundError):  # the latter if somebody deleted the folder just now
                return False
        return True

    def _free_bytes(self) -> int:
        with self.explained():
            return shutil.disk_usage(self.folder).free

    def _full(self) -> OutputError:
        free_mb = self._free_bytes() / 1e6
        return OutputError(
            f"{self.folder}: the disc is full ({free_mb:.0f} MB free); make room, for example with `latentsync-trt "
            f"cache prune --unused-days 30`, or {_ELSEWHERE}"
        )

    def _explain(self, error: OSError) -> OutputError:
        if error.errno in _FULL:
            return self._full()
        if error.errno in _NO_FOLDER:
            return OutputError(f"{self.folder}: a file is in the place of the engine cache; {_ELSEWHERE}")
        where = f": {error.filename}" if error.filename else ""
        return OutputError(
            f"{self.folder}: the engine cache cannot be used ({error.strerror or error}{where}); {_ELSEWHERE}"
        )


def digest_of(path: Path) -> str:
    """The digest in the name of an entry or a build; empty for anything else."""
    match = _ENTRY_NAME.fullmatch(path.name) or _BUILD_NAME.fullmatch(path.name)
    return match["digest"] if match else ""


def _rename(source: Path, target: Path) -> None:
    for _ in range(_RENAME_TRIES - 1 if sys.platform == "win32" else 0):
        try:
            source.rename(target)
        except PermissionError:
            time.sleep(_POLL_S)
        else:
            return
    source.rename(target)
