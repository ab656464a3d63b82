"""Temporary folders that are removed at the end: of their block, of the process, or by the next process.

    <parent>/.latentsync-<random>/           what becomes an output, made beside it so that a rename publishes it
    <parent>/.latentsync-<random>/.in-use    locked by the process that uses the folder, as long as it lives

The system frees the lock of a killed process, so a folder whose lock is free is a leftover. Process numbers would not
tell: containers that share a disk each have their own. A folder without the file was not made here and is left alone.
"""

import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

PREFIX = ".latentsync-"
LOCK_NAME = ".in-use"

_TRIES = 10

# Windows would give files that are moved out of a private folder no other readers.
_MODE = 0o777 if os.name == "nt" else 0o700

Notice = Callable[[str], None]

_log = logging.getLogger(__name__)

_made: dict[Path, FileLock | None] = {}
"""What this process has to remove, and the lock of what is locked."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A temporary folder of a process that has ended, and the size of its files."""

    path: Path
    size_bytes: int


@contextmanager
def temporary_folder(parent: Path | None = None, on_notice: Notice = _log.warning) -> Iterator[Path]:
    """Makes an empty folder (but for the lock) in `parent`, by default the system's; removes it when the block ends.

    Before that, removes leftovers of ended processes in `parent`; `on_notice` receives a sentence about them.

    Raises:
        OSError: the folder cannot be made.
    """
    parent = Path(tempfile.gettempdir() if parent is None else parent).absolute()
    removed = [leftover for leftover in remove_leftovers(parent) if leftover.size_bytes]  # an empty one is no news
    if removed:
        size_mb = sum(leftover.size_bytes for leftover in removed) / 1e6
        count = "a temporary folder" if len(removed) == 1 else f"{len(removed)} temporary folders"
        on_notice(f"{parent}: removed {count} of runs that were killed ({size_mb:.1f} MB)")
    folder = _new_folder(parent)
    try:
        yield folder
    finally:
        _delete(folder, _made[folder])
        _made.pop(folder)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields where to write a file that replaces `path` when the block ends without an error: all of it or nothing.

    Raises:
        OSError: the file cannot be written.
    """
    with temporary_folder(path.parent) as folder:
        part = folder / path.name
        yield part
        part.replace(path)


@contextmanager
def removed_with_the_process(path: Path) -> Iterator[None]:
    """During the block, `remove_all` removes `path`, too: a file or folder that need not exist yet."""
    path = path.absolute()
    _made[path] = None
    try:
        yield
    finally:
        _made.pop(path, None)


def remove_all() -> None:
    """Removes everything that is registered, for a process that ends without leaving its blocks. Thread-safe."""
    for _ in range(_TRIES):  # other threads may still write
        left = [(path, lock) for path, lock in list(_made.items()) if path.exists()]
        if not left:
            return
        for path, lock in left:
            _delete(path, lock if os.name == "nt" else None)  # elsewhere, the end of the process frees the lock


def leftovers(parent: Path) -> list[Leftover]:
    """Temporary folders in `parent` whose process has ended; empty if `parent` cannot be read."""
    found = []
    for folder in _candidates(parent):
        lock = _take(folder)
        if lock is not None:
            lock.release()
            found.append(Leftover(folder, _size_bytes(folder)))
    return found


def remove_leftovers(parent: Path) -> list[Leftover]:
    """Removes temporary folders in `parent` whose process has ended; returns those that are gone."""
    removed = []
    for folder in _candidates(parent):
        lock = _take(folder)
        if lock is not None:
            leftover = Leftover(folder, _size_bytes(folder))
            _delete(folder, lock)
            if not folder.exists():
                removed.append(leftover)
    return removed


def _new_folder(parent: Path) -> Path:
    for _ in range(_TRIES):
        folder = parent / f"{PREFIX}{secrets.token_hex(4)}"
        lock = FileLock(folder / LOCK_NAME, timeout=0, thread_local=False)
        _made[folder] = lock  # before it exists: whatever interrupts, `remove_all` finds it
        try:
            folder.mkdir(_MODE)
            if _mark(folder / LOCK_NAME, lock):
                return folder
        except BaseException:
            _forget(folder, lock)
            raise
        _forget(folder, lock)
    raise OSError(f"{parent}: no temporary folder can be made and locked")


def _mark(path: Path, lock: FileLock) -> bool:
    """Makes and locks the lock's file; False if another process took the folder for a leftover between the two."""
    try:
        lock.acquire()
    except NotImplementedError:  # a disk without locks; unmarked, the folder is no leftover for anyone
        path.unlink(missing_ok=True)
        return True
    except (Timeout, FileNotFoundError):
        return False
    return path.exists()


def _forget(folder: Path, lock: FileLock) -> None:
    _delete(folder, lock)
    _made.pop(folder)


def _candidates(parent: Path) -> list[Path]:
    """Folders in `parent` made here, by this or another process."""
    with suppress(OSError), os.scandir(parent) as entries:
        named = [Path(entry.path) for entry in entries if entry.name.startswith(PREFIX) and not entry.is_symlink()]
        return sorted(folder for folder in named if folder.absolute() not in _made and (folder / LOCK_NAME).is_file())
    return []


def _take(folder: Path) -> FileLock | None:
    """The lock of a leftover, held; None if a living process holds it, or if it belongs to another user."""
    lock = FileLock(folder / LOCK_NAME, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except (Timeout, OSError, NotImplementedError):
        return None
    return lock


def _delete(path: Path, lock: FileLock | None) -> None:
    """Deletes a file, or a folder and its lock; what cannot be deleted keeps the lock's file, and is found later."""
    if path.is_file():
        with suppress(OSError):
            path.unlink()
        return
    mark = path / LOCK_NAME
    empty = _delete_inside(path)
    with suppress(OSError):  # Windows deletes no open file
        if empty:
            mark.unlink(missing_ok=True)  # still locked, so that no other process can take the folder meanwhile
    if lock is not None:
        lock.release(force=True)
    with suppress(OSError):
        if empty:
            mark.unlink(missing_ok=True)
            path.rmdir()


def _delete_inside(folder: Path) -> bool:
    """Deletes everything in `folder` but the lock; returns whether nothing else is left."""
    try:
        inside = [path for path in folder.iterdir() if path.name != LOCK_NAME]
    except OSError:
        return False
    for path in inside:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()
    return not any(os.path.lexists(path) for path in inside)


def _size_bytes(folder: Path) -> int:
    size_bytes = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            size_bytes += path.lstat().st_size if path.is_file() else 0
    return size_bytes
