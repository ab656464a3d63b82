"""Files and folders that appear complete or not at all, and temporary folders that go with their block or process.

    <parent>/.latentsync-<random>/           what becomes an output, made beside it so that a rename publishes it
    <parent>/.latentsync-<random>/.in-use    locked by the process that uses the folder, as long as it lives

The system frees the lock of a killed process, so a folder whose lock is free is a leftover, which
the next process removes. A folder without the file is left alone. So is one with `KEPT_NAME`: it
holds finished parts of a long run, which the same command can go on with.
"""

import errno
import hashlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from filelock import FileLock, Timeout

from latentsync_trt.errors import LatentSyncError, OutputError

PREFIX = ".latentsync-"
LOCK_NAME = ".in-use"
KEPT_NAME = "parts.json"
GO_ON = "what is done is kept: the same command with --resume goes on there"

_TRIES, _PAUSE_S = 20, 0.1
"""Windows refuses to rename a folder while a virus scanner reads a file in it; leftovers are locked for a moment."""

_LONGEST_NAME_BYTES = 200
"""Of an output whose folder has its name; file systems allow 255."""


# On Windows, files moved out of a private folder would stay private.
_MODE = 0o777 if os.name == "nt" else 0o700

_made: dict[Path, FileLock] = {}
"""What this process has to remove, with its locks."""

_kept: set[Path] = set()
"""Work folders that an error has left."""


@contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """Makes an empty folder (but for the lock) in `parent`, by default the system's; removes it when the block ends.

    Before that, removes leftovers of ended processes in `parent`.

    Raises:
        OSError: the folder cannot be made.
    """
    parent = Path(tempfile.gettempdir() if parent is None else parent).absolute()
    with _held(parent, lambda: parent / f"{PREFIX}{secrets.token_hex(4)}") as folder:
        yield folder


def work_folder_of(output: Path) -> Path:
    """The `work_folder` beside `output`, always the same."""
    name = output.name
    if len(os.fsencode(name)) > _LONGEST_NAME_BYTES:
        name = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:16] + output.suffix
    return output.absolute().with_name(PREFIX + name)


@contextmanager
def work_folder(output: Path) -> Iterator[Path]:
    """As `temporary_folder`, but `work_folder_of(output)`, which may exist; it stays while it has `KEPT_NAME`.

    An error in the block then gets the note `GO_ON`.

    Raises:
        OSError: the folder cannot be made, or another process uses it.
    """
    folder = work_folder_of(output)
    _kept.discard(folder)
    with _held(folder.parent, lambda: folder):
        yield folder


@contextmanager
def _held(parent: Path, name: Callable[[], Path]) -> Iterator[Path]:
    remove_leftovers(parent)
    folder, lock = _claim(name)
    try:
        yield folder
    except BaseException as error:
        if (folder / KEPT_NAME).exists():
            _kept.add(folder)
            error.add_note(GO_ON)
        raise
    finally:
        if (folder / KEPT_NAME).exists():
            lock.release(force=True)
        else:
            _delete(folder, lock)
        _made.pop(folder)


def keeps_work() -> bool:
    """Whether something stays in the folders of this process if it ends now."""
    return any((folder / KEPT_NAME).exists() for folder in [*_made, *_kept])


@contextmanager
def whole_file(path: Path, *, keep: bool = False) -> Iterator[Path]:
    """Yields where to write a file that replaces `path` when the block ends without an error: all of it or nothing.

    `keep`: as `put_in_place`, for what took long to make. Raises `OSError` if the file cannot be written.
    """
    with temporary_folder(path.parent) as folder:
        part = folder / path.name
        yield part
        (put_in_place if keep else Path.replace)(part, path)


def put_in_place(finished: Path, target: Path) -> None:
    """Renames a file to `target`, in place of what is there; else to a free name beside it, which the `OSError` says.

    Mount points, others' files in a folder as /tmp and, on Windows, what a player has open cannot be replaced.
    """
    try:
        finished.replace(target)
    except OSError as error:
        raise _kept_beside(finished, target, error) from error


def _kept_beside(finished: Path, target: Path, error: OSError) -> OSError:
    suffix = target.suffix if finished.is_file() else ""
    names = (f"{target.name.removesuffix(suffix)}-{number}{suffix}" for number in count(1))
    kept = next(path for path in map(target.with_name, names) if not os.path.lexists(path))
    try:
        finished.rename(kept)
    except OSError:
        return error
    return OSError(error.errno, f"{error.strerror}; what is finished is kept as {kept}")


@contextmanager
def published_folder(target: Path) -> Iterator[Path]:
    """Yields an empty folder that becomes `target`, in place of what is there, when the block ends without an error.

    Raises:
        OutputError: a file cannot be written, in the block or at its end.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(target.parent) as temporary:
            staged = temporary / "staged"
            staged.mkdir()
            yield staged
            try:
                publish(staged, target, temporary / "replaced")
            except OSError as error:
                raise _kept_beside(staged, target, error) from error
    except LatentSyncError:
        raise
    except OSError as error:
        raise OutputError(f"{target}: cannot be written ({error.strerror or error})") from error


def publish(staged: Path, target: Path, replaced: Path) -> None:
    """Renames `staged` to `target`, and what is there to `replaced`; if that fails or is interrupted, back again."""
    try:
        if target.exists():
            target.rename(replaced)
        for _ in range(_TRIES - 1):
            with suppress(PermissionError):
                staged.rename(target)
                return
            time.sleep(_PAUSE_S)
        staged.rename(target)
    finally:
        if replaced.exists() and not target.exists():
            replaced.rename(target)


def remove_all() -> None:
    """Removes everything that is registered, for a process that ends without leaving its blocks. Thread-safe."""
    for _ in range(_TRIES):  # other threads may still write
        left = [item for item in list(_made.items()) if item[0].exists() and not (item[0] / KEPT_NAME).exists()]
        if not left:
            return
        for folder, lock in left:
            # Under another name, no thread finds it to write on. Windows renames no folder with open files.
            with suppress(OSError):
                folder = folder.rename(folder.with_name(PREFIX + secrets.token_hex(4)))
            _delete(folder, lock if os.name == "nt" else None)  # elsewhere, the end of the process frees the lock


def leftovers(parent: Path, *, kept: bool = False) -> list[Path]:
    """Temporary folders in `parent` whose process has ended, without or (`kept`) with `KEPT_NAME`.

    Empty if `parent` cannot be read.
    """
    found = []
    for folder, lock in _abandoned(parent, kept=kept):
        lock.release()
        found.append(folder)
    return found


def remove_leftovers(parent: Path) -> None:
    """Removes temporary folders in `parent` whose process has ended."""
    for folder, lock in _abandoned(parent, kept=False):
        _delete(folder, lock)


def _claim(name: Callable[[], Path]) -> tuple[Path, FileLock]:
    """The folder `name()`, made, locked and registered, and its lock."""
    for _ in range(_TRIES):  # who looks for leftovers locks it for a moment, or removes it
        folder = name()
        if folder in _made:
            break
        lock = _made[folder] = _lock_in(folder)
        try:
            folder.mkdir(_MODE, exist_ok=True)
            if _locked(lock, folder):
                return folder, lock
        except BaseException:
            if not (folder / KEPT_NAME).exists():
                _delete(folder, lock)
            _made.pop(folder)
            raise
        lock.release(force=True)
        _made.pop(folder)
        time.sleep(_PAUSE_S)
    raise OSError(errno.EBUSY, "another run is writing it; wait for it, or choose another name")


def _lock_in(folder: Path) -> FileLock:
    # Not a lock that is only a file: a killed process would hold it forever.
    return FileLock(folder / LOCK_NAME, timeout=0, thread_local=False, fallback_to_soft=False)


def _locked(lock: FileLock, folder: Path) -> bool:
    """Takes the lock of a new folder; False if another process took it for a leftover or removed it."""
    try:
        lock.acquire()
    except (Timeout, FileNotFoundError):
        return False
    except OSError:  # a disk without locks: unmarked, the folder is no leftover for anyone
        (folder / LOCK_NAME).unlink(missing_ok=True)
        return True
    return (folder / LOCK_NAME).exists()


def _abandoned(parent: Path, *, kept: bool) -> Iterator[tuple[Path, FileLock]]:
    """Folders in `parent` that were made here and that no process uses, each with its lock, which is held."""
    folders: list[Path] = []
    with suppress(OSError):
        folders = sorted(path for path in parent.iterdir() if path.name.startswith(PREFIX) and not path.is_symlink())
    for folder in folders:
        if folder.absolute() in _made or not (folder / LOCK_NAME).is_file() or (folder / KEPT_NAME).exists() != kept:
            continue
        lock = _lock_in(folder)
        with suppress(OSError):  # a living process holds it, or it belongs to another user
            lock.acquire()
            yield folder, lock


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
