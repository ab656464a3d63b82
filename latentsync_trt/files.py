"""Files and folders that appear complete or not at all, and temporary folders that go with their
block.

    <parent>/.latentsync-<machine>-<process>-<random>/   an output in the making, beside its place
    <parent>/.latentsync-<output>/                       finished parts of a run, for --resume

Beside its place, a rename publishes an output.

The next process removes temporary folders of processes of this machine that were killed.

An output that is a symbolic link is written where the link leads, and what is replaced passes its
permissions on, as for a program that writes into a file. On Windows, new files have the permissions
of their folder.
"""

import errno
import hashlib
import os
import platform
import re
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from stat import S_IFMT, S_IMODE, S_IRWXG

from filelock import FileLock, Timeout

from latentsync_trt.errors import LatentSyncError, OutputError

PREFIX = ".latentsync-"
"""Names of temporary and work folders begin with it."""
KEPT_NAME = "parts.json"
"""A work folder with this file stays."""
GO_ON = "what is done is kept: the same command with --resume goes on there"

_RENAME_TRIES = 20
_RENAME_PAUSE_S = 0.1
"""Windows refuses to rename a folder while a virus scanner reads a file in it."""

_MAX_NAME_BYTES = 200
"""Of an output whose work folder has its name; file systems allow 255."""

_MODE = 0o777 if os.name == "nt" else 0o700
"""Of temporary folders. On Windows, files moved out of a private folder would stay private."""

_MACHINE = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
_TEMPORARY = re.compile(rf"{re.escape(PREFIX)}{_MACHINE}-(\d+)-[0-9a-f]{{8}}")

_open_folders: set[Path] = set()
"""Temporary and work folders of this process."""
making_folders = threading.RLock()
"""Held while one of them is made. Who removes them all and then ends the process holds it until the
end, so that no thread makes another.
"""
_REMOVALS = 10
"""How often a folder is removed into which a thread may be writing."""


@contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """Makes an empty folder in `parent`, by default the system's, where it removes those of killed
    processes; removes it when the block ends. Raises `OSError` if it cannot be made.
    """
    if parent is None:
        parent = Path(tempfile.gettempdir())
    parent = parent.absolute()
    remove_leftovers(parent)
    folder = parent / f"{PREFIX}{_MACHINE}-{os.getpid()}-{secrets.token_hex(4)}"
    with making_folders:
        folder.mkdir(_MODE)
        _open_folders.add(folder)
    try:
        yield folder
    except BaseException as error:
        notes = getattr(error, "__notes__", [])
        if GO_ON in notes:
            notes.remove(GO_ON)  # of a work folder in this one
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _open_folders.discard(folder)


def remove_leftovers(parent: Path) -> None:
    """Removes temporary folders in `parent` whose process has ended."""
    import psutil

    with suppress(OSError):
        for folder in parent.iterdir():
            name = _TEMPORARY.fullmatch(folder.name)
            if name is None or folder.is_symlink() or psutil.pid_exists(int(name[1])):
                continue
            shutil.rmtree(folder, ignore_errors=True)


def remove_all() -> None:
    """Removes the folders of this process, which ends without leaving their blocks. Thread-safe."""
    for folder in list(_open_folders):
        removals = 0
        while removals < _REMOVALS and folder.exists() and not (folder / KEPT_NAME).exists():
            shutil.rmtree(folder, ignore_errors=True)
            removals += 1


def end_of_links(path: Path) -> Path:
    """Returns where a file or folder that is written as `path` lies: `path`, or where that leads as
    a symbolic link, which need not exist. Raises `OutputError` for a link that leads back to
    itself.
    """
    if not path.is_symlink():
        return path
    end = Path(os.path.realpath(path))
    if end.is_symlink():
        raise OutputError(
            f"{path}: is a link that leads back to itself; remove it, or choose another name",
            usage=True,
        )
    return end


def work_folder_of(output: Path) -> Path:
    """Returns the `work_folder` beside `output`, always the same."""
    output = end_of_links(output)
    name = output.name
    if len(os.fsencode(name)) > _MAX_NAME_BYTES:
        digest = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()
        name = digest[:16] + output.suffix
    return output.absolute().with_name(PREFIX + name)


@contextmanager
def work_folder(output: Path) -> Iterator[Path]:
    """Makes the folder `work_folder_of(output)`, which may exist; removes it when the block ends,
    unless it has a file `KEPT_NAME`. An error in the block then gets the note `GO_ON`.

    Raises `OSError` if the folder cannot be made, or another process uses it.
    """
    folder = work_folder_of(output)
    remove_leftovers(folder.parent)
    # Freed by the system where a process is killed.
    lock = FileLock(folder / ".in-use", timeout=0, thread_local=False, fallback_to_soft=False)
    with making_folders:
        folder.mkdir(_MODE, exist_ok=True)
        try:
            lock.acquire()
        except Timeout:
            raise OSError(
                errno.EBUSY, "another run is writing it; wait for it, or choose another name"
            ) from None
        except (OSError, NotImplementedError):
            pass  # a disk without locks
        _open_folders.add(folder)
    try:
        yield folder
    except BaseException as error:
        if (folder / KEPT_NAME).exists():
            error.add_note(GO_ON)
        raise
    finally:
        lock.release(force=True)
        if not (folder / KEPT_NAME).exists():
            shutil.rmtree(folder, ignore_errors=True)
        _open_folders.discard(folder)


@contextmanager
def whole_file(path: Path, *, keep: bool = False) -> Iterator[Path]:
    """Yields where to write a file that replaces `path` when the block ends without an error: all
    of it or nothing. `keep`: as `put_in_place`, for what took long to make. Raises `OSError` if the
    file cannot be written.
    """
    with temporary_folder(end_of_links(path).parent) as folder:
        part = folder / path.name
        yield part
        if keep:
            put_in_place(part, path)
        else:
            _replace(part, path)


def put_in_place(finished: Path, target: Path) -> None:
    """Renames a file to `target`, in place of what is there; else to a free name beside it, which
    the `OSError` says. Mount points, others' files in a folder as /tmp and, on Windows, what a
    player has open cannot be replaced.
    """
    try:
        _replace(finished, target)
    except OSError as error:
        raise _kept_beside(finished, end_of_links(target), error) from error


def keep_beside(path: Path) -> Path:
    """Makes a file that is about to be replaced stay beside that, as "out-before.mp4", or with a
    number where that is taken; returns its path.
    """
    end = end_of_links(path)
    for number in count(1):
        suffix = "-before" if number == 1 else f"-before-{number}"
        kept = end.with_name(f"{end.stem}{suffix}{end.suffix}")
        if os.path.lexists(kept):
            continue
        try:
            link_or_copy(end, kept)
        except FileExistsError:  # made meanwhile
            continue
        return kept
    raise AssertionError


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Links a file that is replaced, never changed; copies it with its time where the disk has no
    such links. Raises `FileExistsError` if there is a target.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:
        shutil.copy2(source, target)


def _replace(finished: Path, target: Path) -> None:
    end = end_of_links(target)
    _keep_permissions(end, finished)
    finished.replace(end)


def _keep_permissions(replaced: Path, new: Path) -> None:
    """Gives `new` the permissions of what it will replace, if there is such a file or folder, and
    its group and owner where the system allows that.
    """
    if sys.platform == "win32" or not replaced.exists():
        return
    status = replaced.stat()
    if S_IFMT(status.st_mode) != S_IFMT(new.stat().st_mode):
        return
    mode = S_IMODE(status.st_mode)
    try:
        os.chown(new, -1, status.st_gid)
    except PermissionError:
        mode &= ~S_IRWXG  # which another group would have
    with suppress(PermissionError):
        os.chown(new, status.st_uid, -1)
    new.chmod(mode)


def _kept_beside(finished: Path, target: Path, error: OSError) -> OSError:
    """Renames what could not be put in place of `target` to a free name beside it; returns the
    error, which then says so.
    """
    suffix = target.suffix if finished.is_file() else ""
    stem = target.name.removesuffix(suffix)
    for number in count(1):
        kept = target.with_name(f"{stem}-{number}{suffix}")
        if not os.path.lexists(kept):
            break
    try:
        finished.rename(kept)
    except OSError:
        return error
    return OSError(error.errno, f"{error.strerror}; what is finished is kept as {kept}")


@contextmanager
def published_folder(target: Path) -> Iterator[Path]:
    """Yields an empty folder that becomes `target`, in place of what is there, when the block ends
    without an error. Raises `OutputError` where a file cannot be written, in the block or at its
    end.
    """
    try:
        end = end_of_links(target)
        end.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(end.parent) as temporary:
            staged = temporary / "staged"
            staged.mkdir()
            yield staged
            try:
                _keep_permissions(end, staged)
                publish(staged, end, temporary / "replaced")
            except OSError as error:
                raise _kept_beside(staged, end, error) from error
    except LatentSyncError:
        raise
    except OSError as error:
        raise OutputError(f"{target}: cannot be written ({error.strerror or error})") from error


def publish(staged: Path, target: Path, replaced: Path) -> None:
    """Renames `staged` to `target`, and what is there to `replaced`; if that fails or is
    interrupted, back again.
    """
    try:
        if target.exists():
            target.rename(replaced)
        for _ in range(_RENAME_TRIES - 1):
            with suppress(PermissionError):
                staged.rename(target)
                return
            time.sleep(_RENAME_PAUSE_S)
        staged.rename(target)
    finally:
        if replaced.exists() and not target.exists():
            replaced.rename(target)
