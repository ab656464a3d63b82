"""Temporary folders that are removed at the end: of their block, of the process, or by the next process.

    <parent>/.latentsync-<random>/           what becomes an output, made beside it so that a rename publishes it
    <parent>/.latentsync-<random>/.in-use    locked by the process that uses the folder, as long as it lives

The system frees the lock of a killed process, so a folder whose lock is free is a leftover. Process numbers are
no sign: containers that share a disk each have their own. A folder without the file is not one of these and is left
alone. So is one with `KEPT_NAME`: it holds finished parts of a long run, which the same command can go on with.
"""

import errno
import logging
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from filelock import FileLock, Timeout

PREFIX = ".latentsync-"
LOCK_NAME = ".in-use"
KEPT_NAME = "parts.json"

_TRIES = 10
_PAUSE_S = 0.03
_LONGEST_NAME_BYTES = 200
"""Of an output whose folder has its name; file systems allow 255."""

GO_ON = "what is done is kept: the same command with --resume goes on there"

# On Windows, files moved out of a private folder would stay private.
_MODE = 0o777 if os.name == "nt" else 0o700

Notice = Callable[[str], None]

_log = logging.getLogger(__name__)

_made: dict[Path, FileLock | None] = {}
"""What this process has to remove, and the lock of what is locked."""

_kept: set[Path] = set()
"""Work folders that an error has left."""


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
    _clean(parent, on_notice)
    folder = _new_folder(parent)
    try:
        yield folder
    finally:
        _delete(folder, _made[folder])
        _made.pop(folder)


def work_folder_of(output: Path) -> Path:
    """The `work_folder` beside `output`, always the same."""
    name = output.name
    if len(os.fsencode(name)) > _LONGEST_NAME_BYTES:
        name = sha256(name.encode(errors="surrogateescape")).hexdigest()[:16] + output.suffix
    return output.absolute().with_name(PREFIX + name)


@contextmanager
def work_folder(output: Path, on_notice: Notice = _log.warning) -> Iterator[Path]:
    """As `temporary_folder`, but `work_folder_of(output)`, which may exist; it stays while it has `KEPT_NAME`.

    An error in the block then gets the note `GO_ON`.

    Raises:
        OSError: the folder cannot be made, or another process uses it.
    """
    folder = work_folder_of(output)
    _clean(folder.parent, on_notice)
    lock = _take(folder)
    try:
        yield folder
    except BaseException as error:
        if (folder / KEPT_NAME).exists():
            _kept.add(folder)
            error.add_note(GO_ON)
        raise
    finally:
        _made.pop(folder)
        if (folder / KEPT_NAME).exists():
            lock.release(force=True)
        else:
            _delete(folder, lock)


def keeps_work() -> bool:
    """Whether something stays in the folders of this process if it ends now."""
    return any((folder / KEPT_NAME).exists() for folder in [*_made, *_kept])


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


def remove_all() -> None:
    """Removes everything that is registered, for a process that ends without leaving its blocks. Thread-safe."""
    for _ in range(_TRIES):  # other threads may still write
        left = [item for item in list(_made.items()) if item[0].exists() and not (item[0] / KEPT_NAME).exists()]
        if not left:
            return
        for folder, lock in left:
            # Under another name, no thread finds it to write on. Windows renames no folder with open files.
            with suppress(OSError):
                folder = folder if lock is None else folder.rename(folder.with_name(PREFIX + secrets.token_hex(4)))
            _delete(folder, lock if os.name == "nt" else None)  # elsewhere, the end of the process frees the lock


def leftovers(parent: Path, *, kept: bool = False) -> list[Leftover]:
    """Temporary folders in `parent` whose process has ended, without or (`kept`) with `KEPT_NAME`.

    Empty if `parent` cannot be read.
    """
    found = []
    for leftover, lock in _abandoned(parent, kept=kept):
        lock.release()
        found.append(leftover)
    return found


def remove_leftovers(parent: Path) -> list[Leftover]:
    """Removes temporary folders in `parent` whose process has ended; returns those that are gone."""
    removed = []
    for leftover, lock in _abandoned(parent, kept=False):
        _delete(leftover.path, lock)
        if not leftover.path.exists():
            removed.append(leftover)
    return removed


def _clean(parent: Path, on_notice: Notice) -> None:
    removed = [leftover for leftover in remove_leftovers(parent) if leftover.size_bytes]  # empty ones need no notice
    if removed:
        size_mb = sum(leftover.size_bytes for leftover in removed) / 1e6
        count = "a temporary folder" if len(removed) == 1 else f"{len(removed)} temporary folders"
        on_notice(f"{parent}: removed {count} of runs that were killed ({size_mb:.1f} MB)")


def _new_folder(parent: Path) -> Path:
    for _ in range(_TRIES):
        folder = parent / f"{PREFIX}{secrets.token_hex(4)}"
        lock = _lock_in(folder)
        _made[folder] = lock  # before it exists, so that `remove_all` finds it after any interruption
        try:
            folder.mkdir(_MODE)
            if _mark(folder, lock):
                return folder
        except BaseException:
            _delete(folder, lock)
            _made.pop(folder)
            raise
        _made.pop(folder)
    raise OSError(f"{parent}: no temporary folder can be made and locked")


def _take(folder: Path) -> FileLock:
    """The lock of `folder`, which may exist, held and registered."""
    for _ in range(0 if folder in _made else _TRIES):  # who looks for leftovers locks it for a moment, or removes it
        lock = _lock_in(folder)
        folder.mkdir(_MODE, exist_ok=True)
        if _mark(folder, lock):
            _made[folder] = lock
            _kept.discard(folder)
            return lock
        lock.release(force=True)
        time.sleep(_PAUSE_S)
    raise OSError(errno.EBUSY, "another run is writing it; wait for it, or choose another name")


def _lock_in(folder: Path) -> FileLock:
    # Not a lock that is only a file: a killed process would hold it forever.
    return FileLock(folder / LOCK_NAME, timeout=0, thread_local=False, fallback_to_soft=False)


def _mark(folder: Path, lock: FileLock) -> bool:
    """Makes and locks the lock's file; False if another process took the folder for a leftover between the two."""
    try:
        lock.acquire()
    except (Timeout, FileNotFoundError):
        return False
    except OSError:  # a disk without locks: unmarked, the folder is no leftover for anyone
        (folder / LOCK_NAME).unlink(missing_ok=True)
        return True
    return (folder / LOCK_NAME).exists()


def _abandoned(parent: Path, *, kept: bool) -> Iterator[tuple[Leftover, FileLock]]:
    """Folders in `parent` that were made here and that no process uses, each with its lock, which is held.

    `kept`: those with `KEPT_NAME`, or those without.
    """
    folders: list[Path] = []
    with suppress(OSError), os.scandir(parent) as entries:
        folders = sorted(
            Path(entry.path) for entry in entries if entry.name.startswith(PREFIX) and not entry.is_symlink()
        )
    for folder in folders:
        if folder.absolute() in _made or not (folder / LOCK_NAME).is_file() or (folder / KEPT_NAME).exists() != kept:
            continue
        lock = _lock_in(folder)
        try:
            lock.acquire()
        except OSError:  # a living process holds it, or it belongs to another user
            continue
        yield Leftover(folder, _size_bytes(folder)), lock


def _delete(folder: Path, lock: FileLock | None) -> None:
    """Deletes a folder and frees its lock; where something in it cannot be deleted, the lock's file stays, too."""
    with suppress(OSError):
        for path in list(folder.iterdir()):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != LOCK_NAME:
                path.unlink(missing_ok=True)
    if lock is not None and os.name == "nt":  # which deletes no open file
        lock.release(force=True)
    with suppress(OSError):
        if all(path.name == LOCK_NAME for path in folder.iterdir()):
            (folder / LOCK_NAME).unlink(missing_ok=True)  # elsewhere while locked, so that no other process takes it
            folder.rmdir()
    if lock is not None:
        lock.release(force=True)


def _size_bytes(folder: Path) -> int:
    size_bytes = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            size_bytes += path.lstat().st_size if path.is_file() else 0
    return size_bytes
