"""The engine cache: engines that take minutes to build, built once and verified before each use.

    <cache>/<digest>/               an entry: the engine's files and `engine.json`
    <cache>/.latentsync-<id>/       being built or deleted, or left by a killed process
    <cache>/.locks/<digest>.lock    held while an engine of that digest is built or deleted

`engine.json` has the SHA-256 of each file. An entry appears by one rename when it is complete and
is never changed, so readers need no lock.
"""

import errno
import json
import logging
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout

from latentsync_trt.bundle.manifest import files_of
from latentsync_trt.errors import EngineBuildError, LatentSyncError, OutputError
from latentsync_trt.files import publish, temporary_folder
from latentsync_trt.paths import CACHE_VARIABLE, below_home, user_folder
from latentsync_trt.runtime.engines.entries import (
    DIGEST_LENGTH,
    RECORD_NAME,
    EngineKey,
    Entry,
    Record,
    is_foreign,
    protect,
    read_entry,
)
from latentsync_trt.types import NoticeCallback

LOCAL_FOLDER = "engine_cache"
_LOCKS = ".locks"

# A provider may not notice a full disk. With less free space than this, its engine may be
# incomplete.
_LEAST_FREE_BYTES = 16 * 1024**2

_ELSEWHERE = f"choose another place with --engine-cache or {CACHE_VARIABLE}"

_log = logging.getLogger(__name__)

T = TypeVar("T")
Build = Callable[[Path], int | None]
"""Writes an engine's files into an empty folder; returns its `Entry.device_memory_bytes`."""

_ENTRY_NAME = re.compile(rf"[0-9a-f]{{{DIGEST_LENGTH}}}")


def cache_folder(named: str | Path | None = None, *, used: bool = True) -> Path:
    """Returns the folder of engines: `named`, else $LATENTSYNC_TRT_CACHE_DIR, else `engine_cache/`
    in the working directory if it exists and this user or root owns it, else the user's cache
    folder.

    One in the working directory, or where others can write, is logged once per process if it is
    `used`: by a provider that needs engines. Raises `InputError` for a home folder that does not
    exist.
    """
    named = named or os.environ.get(CACHE_VARIABLE)
    if named:
        folder = below_home(named, _ELSEWHERE)
        if used and _anyone_writes(folder):
            cure = (
                "set its sticky bit (chmod +t), or take the right to write from others (chmod o-w)"
            )
            _log_once(f"engine cache: {folder}: anyone can exchange engines there; {cure}")
        return folder
    local = Path(LOCAL_FOLDER)
    if not local.is_dir():
        return user_folder("cache") / "engines"
    if is_foreign(local) or _anyone_writes(local):
        folder = user_folder("cache") / "engines"
        note = " is not used, as others can write there"
    else:
        folder = local
        note = ", in the working directory"
    if used:
        _log_once(f"engine cache: {local.absolute()}{note}")
    return folder


def _anyone_writes(folder: Path) -> bool:
    """Returns whether any user can rename and delete what others have in `folder`; never on Windows
    (`distrust`).
    """
    if sys.platform == "win32":
        return False
    with suppress(OSError):
        mode = folder.stat().st_mode
        return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX
    return False


@cache
def _log_once(text: str) -> None:
    _log.warning(text)


class EngineCache:
    """Finds, builds and keeps engines below `folder`, which need not exist yet. Process- and
    thread-safe.
    """

    def __init__(self, folder: Path, on_notice: NoticeCallback = _log.warning) -> None:
        self.folder = folder.absolute()
        self.on_notice = on_notice
        """Called about builds, damaged engines and the like."""
        self.built: set[str] = set()
        """Digests of the engines that this object has built."""
        self._verified: dict[str, datetime | None] = {}

    def has(self, key: EngineKey) -> bool:
        """Returns whether there is an engine for `key`, by its record and file sizes."""
        return not read_entry(self.folder / key.digest, hashes=False).problem

    def find(self, key: EngineKey) -> Entry | None:
        """Returns the undamaged engine for `key`, or None; this object checks its hashes once."""
        entry = self._checked(key)
        if entry.problem:
            return None
        with suppress(OSError):  # a read-only cache does not record when an engine was last used
            os.utime(entry.folder / RECORD_NAME)
        return entry

    def obtain(self, key: EngineKey, build: Build) -> Entry:
        """Returns the engine for `key`, and builds it if there is none; while another process
        builds it, this one waits. Raises as `build`, which leaves nothing behind then,
        `EngineBuildError` if it wrote nothing, and `OutputError`.
        """
        entry = self.find(key)
        if entry is not None:
            return entry
        lock = self._lock(key.digest)
        with self._translated_errors():
            try:
                held = lock.acquire(blocking=False)
            except Timeout:
                self.on_notice(
                    f"engine cache: {key.label} is being built by another process; waiting for it"
                )
                held = lock.acquire()
            with held:
                return self.find(key) or self._make(key, build)

    def load(self, key: EngineKey, build: Build, load: Callable[[Path], T]) -> tuple[Entry, T]:
        """Returns the engine of `obtain`, and what `load` makes of its folder.

        Where that raises `EngineBuildError`, the engine is removed and built again, unless this
        object built it: it was deleted meanwhile, or the key does not cover everything that a
        provider checks. Raises as `obtain` and `load`.
        """
        entry = self.obtain(key, build)
        try:
            return entry, load(entry.folder)
        except EngineBuildError as error:
            now = self.find(key)
            same = now is not None and now.built_at == entry.built_at
            if same and (key.digest in self.built or self.remove(entry)):
                raise
            self.on_notice(
                f"engine cache: {key.label} in {self.folder} "
                f"does not open ({error}); building it again"
            )
        entry = self.obtain(key, build)
        return entry, load(entry.folder)

    def entries(self, *, hashes: bool = False) -> tuple[Entry, ...]:
        """Returns all engines, last used first, checked by records and sizes, with `hashes` by
        content.
        """
        with self._translated_errors():
            paths = []
            if self.folder.exists():
                paths = sorted(self.folder.iterdir())
        entries = [
            read_entry(path, hashes=hashes) for path in paths if _ENTRY_NAME.fullmatch(path.name)
        ]
        entries.sort(key=attrgetter("last_used_at"), reverse=True)
        return tuple(entries)

    def remove(self, entry: Entry) -> str:
        """Deletes an engine unless it is being or was built again; returns why that failed, empty
        if it did not.
        """
        if is_foreign(entry.folder):
            return "it belongs to another user"
        try:
            with self._lock(entry.folder.name).acquire(blocking=False):
                if read_entry(entry.folder, hashes=False).built_at not in (None, entry.built_at):
                    return "it was built again"
                with temporary_folder(self.folder) as aside, suppress(FileNotFoundError):
                    entry.folder.rename(aside / "engine")
        except Timeout:
            return "it is being built again"
        except OSError as error:
            return f"in use, or write-protected ({error.strerror})"
        return ""

    def _checked(self, key: EngineKey) -> Entry:
        """Returns the entry of `key`; its hashes are checked unless this object has done
        so before.
        """
        folder = self.folder / key.digest
        entry = read_entry(folder, hashes=False)
        if entry.problem or self._verified.get(key.digest) == entry.built_at:
            return entry
        entry = read_entry(folder, hashes=True)
        if not entry.problem:
            self._verified[key.digest] = entry.built_at
        return entry

    def _make(self, key: EngineKey, build: Build) -> Entry:
        """Builds the engine. The caller holds the digest's lock."""
        target = self.folder / key.digest
        if is_foreign(target):  # engines run as code
            raise OutputError(f"{target}: belongs to another user; {_ELSEWHERE}")
        problem = self._checked(key).problem
        if problem and target.exists():
            self.on_notice(f"engine cache: {key.label} in {target}: {problem}; building it again")
        else:
            self.on_notice(f"{key.graph}: no engine for {key.provider} yet; building it, once")
        with temporary_folder(self.folder) as aside:
            build_s = _build(key, build, aside / "built")
            publish(aside / "built", target, aside / "replaced")
        self.on_notice(f"{key.graph}: built in {build_s:.1f} s")
        self.built.add(key.digest)
        entry = read_entry(target, hashes=False)
        self._verified[key.digest] = entry.built_at  # its hashes need no check
        return replace(entry, built=True)

    def _lock(self, digest: str) -> FileLock:
        return FileLock(self.folder / _LOCKS / f"{digest}.lock")

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Turns an OSError into an `OutputError` that says what to do."""
        try:
            yield
        except LatentSyncError:
            raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                cure = "make room, for example with `latentsync-trt cache prune --max-gb 10`, or "
                raise OutputError(f"{self.folder}: the disk is full; {cure}{_ELSEWHERE}") from error
            reason = f"{error.strerror or error}"
            if error.filename:
                reason += f": {error.filename}"
            raise OutputError(
                f"{self.folder}: the engine cache cannot be used ({reason}); {_ELSEWHERE}"
            ) from error


def _build(key: EngineKey, build: Build, folder: Path) -> float:
    """Makes `folder` and builds into it; returns the seconds that took. Raises `OSError` on a full
    disk, which providers may not notice.
    """
    folder.mkdir()
    start_s = time.monotonic()
    _check_disk(folder)
    try:
        memory_bytes = build(folder)
    finally:
        _check_disk(folder)
    build_s = round(time.monotonic() - start_s, 3)
    files = files_of(folder)
    if not files:
        raise EngineBuildError(f"{key.label}: the build wrote no file")
    record = Record(key, files, build_s, datetime.now(UTC), memory_bytes)
    text = json.dumps(asdict(record), indent=2, default=datetime.isoformat)
    (folder / RECORD_NAME).write_text(text, encoding="utf-8")
    protect(folder)
    return build_s


def _check_disk(folder: Path) -> None:
    if shutil.disk_usage(folder).free < _LEAST_FREE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
