"""The engine cache: a folder of what execution providers made of graphs, built once and found again.

    <cache>/<digest>-<generation>/    an entry: artefacts and `engine.json`
    <cache>/.building-<digest>-…/     a build going on, or what a killed one left
    <cache>/.old-<digest>-…/          an entry taken out of use, being deleted
    <cache>/.locks/<digest>.lock      held while an engine of that digest is built or removed

An entry appears by one rename when it is complete, under a name never used before, and is never changed again. So a
reader needs no lock, and a rebuild leaves an entry alone that another process has open, which Windows could not even
rename. Lock files stay: removing one that somebody waits for would let two processes in.
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
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import platformdirs
from filelock import FileLock, Timeout

from latentsync_trt.errors import EngineBuildError, LatentSyncError, OutputError
from latentsync_trt.runtime.keys import DIGEST_LENGTH, EngineKey
from latentsync_trt.runtime.record import RECORD_NAME, Finding, Record, State, examine, seal_files, write_record

CACHE_VARIABLE = "LATENTSYNC_TRT_CACHE_DIR"
LOCAL_FOLDER = "engine_cache"

T = TypeVar("T")
Notice = Callable[[str], None]
Build = Callable[[Path], None]

_LOCKS = ".locks"
_ENTRY_NAME = re.compile(rf"([0-9a-f]{{{DIGEST_LENGTH}}})-[0-9a-f]{{8}}")
_LEFTOVER_NAME = re.compile(rf"\.(?:building|old)-([0-9a-f]{{{DIGEST_LENGTH}}})-[0-9a-f]{{8}}")

# Waiting is done in short sleeps: Windows delivers Ctrl-C between them, never inside a wait for a lock.
_POLL_S = 0.1

# A provider may write its engine without looking whether it fitted. With less free than this, it may not have.
_LEAST_FREE_BYTES = 16 * 1024**2

# Windows refuses to rename a folder while a virus scanner reads a file in it.
_RENAME_TRIES = 20


def cache_folder(given: str | Path | None = None) -> Path:
    """Where engines are kept: `given`, else $LATENTSYNC_TRT_CACHE_DIR, else `engine_cache/` here if it exists, else
    the user's cache folder."""
    named = given or os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser()
    local = Path(LOCAL_FOLDER)
    return local if local.is_dir() else platformdirs.user_cache_path("latentsync-trt", appauthor=False) / "engines"


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that may be used: its folder, whether this call built it, and seconds spent building and waiting.

    `build_s` is what the build took, whoever did it. The files must not be changed, nor files added.
    """

    folder: Path
    built: bool
    build_s: float
    waited_s: float


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as a listing shows it. `record` is None where it cannot be read; `problem` says why not "ready"."""

    folder: Path
    record: Record | None
    size_bytes: int
    last_used_at: datetime
    state: State
    problem: str

    @property
    def digest(self) -> str:
        """The digest of its key, from the folder's name."""
        return self.folder.name[:DIGEST_LENGTH]


class EngineCache:
    """Finds and keeps engines below one folder, which need not exist yet. Safe for any number of processes and threads.

    Args:
        folder: see `cache_folder`.
        on_notice: told, in a sentence, about waiting, discarding and the like.
    """

    def __init__(self, folder: Path, on_notice: Notice = logging.getLogger(__name__).warning) -> None:
        self.folder = folder.absolute()
        self._notice = on_notice

    def find(self, key: EngineKey) -> Path | None:
        """The folder of a whole, verified entry for `key`, or None. Takes no lock and works on a read-only cache.

        A damaged entry is discarded with a notice; where it cannot be deleted it is only left unused.

        Raises:
            OutputError: the cache's place is not a folder, or cannot be listed.
        """
        found = self._find(key, frozenset())
        return found[0] if found else None

    def obtain(self, key: EngineKey, build: Build, *, force: bool = False) -> Engine:
        """Finds the engine for `key`, else has `build` write its files into the empty folder it is given.

        While another process builds it, this one waits for that. `force` takes no entry that was there before.

        Raises:
            OutputError: the cache cannot be written: read-only, full, a file in its place.
            EngineBuildError: `build` wrote nothing.
            Whatever `build` raises; nothing is left behind then.
        """
        before = frozenset(path.name for path in self._generations(key.digest)) if force else frozenset[str]()
        found = None if force else self._find(key, before)
        if found:
            return Engine(found[0], built=False, build_s=found[1].build_s, waited_s=0.0)
        with self._locked(key) as waited_s:
            found = self._find(key, before)
            if found:
                return Engine(found[0], built=False, build_s=found[1].build_s, waited_s=waited_s)
            folder, build_s = self._build(key, build)
            self._remove_replaced(folder, key.digest)
            return Engine(folder, built=True, build_s=build_s, waited_s=waited_s)

    def load(
        self, key: EngineKey, build: Build, load: Callable[[Path], T], *, force: bool = False
    ) -> tuple[Engine, T]:
        """`obtain`, then `load` on the engine's folder; builds once more if somebody deleted it in between.

        Raises:
            As `obtain`, and whatever `load` raises.
        """
        engine = self.obtain(key, build, force=force)
        try:
            return engine, load(engine.folder)
        except (LatentSyncError, OSError):
            if (engine.folder / RECORD_NAME).exists():
                raise
            self._notice(f"{key.label} was deleted from {self.folder} while it was opened; making it again")
        engine = self.obtain(key, build)
        return engine, load(engine.folder)

    def entries(self) -> list[Entry]:
        """All entries by their records and file sizes, last used first; raises `OutputError` as `find` does."""
        return self._entries(hashes=False)

    def verify(self) -> list[Entry]:
        """As `entries`, but every byte is read and compared with its hash. Nothing is removed."""
        return self._entries(hashes=True)

    def _find(self, key: EngineKey, ignored: frozenset[str]) -> tuple[Path, Record] | None:
        whole: list[tuple[Path, Record]] = []
        for folder in self._generations(key.digest):
            if folder.name in ignored:
                continue
            finding = examine(folder, key.digest, hashes=True)
            if finding.record is not None and finding.state == "ready":
                whole.append((folder, finding.record))
            elif (folder / RECORD_NAME).exists():  # else somebody removed it meanwhile, or it never was an entry
                self._discard(folder, key, finding)
        for folder, record in sorted(whole, key=_newest_first):
            if _mark_used(folder):
                return folder, record
        return None

    def _discard(self, folder: Path, key: EngineKey, finding: Finding) -> None:
        what = f"engine cache: {key.label} in {folder}: {finding.problem}"
        if finding.state == "unreadable":
            self._notice(f"{what}; not used")
            return
        try:
            self._remove(folder)
        except OSError as error:
            self._notice(f"{what}; not used, and it cannot be deleted ({error.strerror})")
        else:
            self._notice(f"{what}; discarded")

    def _build(self, key: EngineKey, build: Build) -> tuple[Path, float]:
        """Runs `build` aside and publishes the result. The lock of the digest is held."""
        for leftover in self._leftovers(key.digest):
            shutil.rmtree(leftover, ignore_errors=True)
        generation = f"{key.digest}-{secrets.token_hex(4)}"
        aside = self.folder / f".building-{generation}"
        with self._explained():
            aside.mkdir()
        try:
            start_s = time.monotonic()
            self._run(build, aside)
            build_s = round(time.monotonic() - start_s, 3)
            with self._explained(aside):
                self._publish(aside, self.folder / generation, key, build_s)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        return self.folder / generation, build_s

    def _run(self, build: Build, aside: Path) -> None:
        try:
            build(aside)
        except Exception as error:
            if _is_full(error) or self._free_bytes() < _LEAST_FREE_BYTES:
                raise self._full(_size_bytes(aside)) from error
            raise
        if not aside.is_dir():
            raise OutputError(f"{self.folder}: was deleted while an engine was built in it; run again")
        if self._free_bytes() < _LEAST_FREE_BYTES:
            raise self._full(_size_bytes(aside))

    def _publish(self, aside: Path, target: Path, key: EngineKey, build_s: float) -> None:
        files = seal_files(aside)
        if not files:
            raise EngineBuildError(f"{key.label}: the build wrote no file")
        write_record(aside, Record(key, files, build_s, datetime.now(UTC)))
        _rename(aside, target)

    def _remove_replaced(self, kept: Path, digest: str) -> None:
        for folder in self._generations(digest):
            if folder != kept and (folder / RECORD_NAME).exists():
                try:
                    self._remove(folder)
                except OSError as error:
                    self._notice(
                        f"{folder}: replaced, but still in use ({error.strerror}); `latentsync-trt cache prune` "
                        "removes it later"
                    )

    def _remove(self, folder: Path) -> None:
        """Takes an entry out of sight by one rename, then deletes it; raises OSError if it cannot be renamed."""
        old = folder.with_name(f".old-{folder.name[:DIGEST_LENGTH]}-{secrets.token_hex(4)}")
        with suppress(FileNotFoundError):
            folder.rename(old)
        shutil.rmtree(old, ignore_errors=True)

    def _generations(self, digest: str) -> list[Path]:
        return [path for path in self._listing() if path.name.startswith(digest) and _ENTRY_NAME.fullmatch(path.name)]

    def _leftovers(self, digest: str) -> list[Path]:
        found = ((path, _LEFTOVER_NAME.fullmatch(path.name)) for path in self._listing())
        return [path for path, match in found if match and match[1] == digest]

    def _listing(self) -> list[Path]:
        try:
            return sorted(self.folder.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._explain(error) from error

    def _entries(self, *, hashes: bool) -> list[Entry]:
        found = [path for path in self._listing() if _ENTRY_NAME.fullmatch(path.name)]
        entries = [entry for path in found if (entry := _entry(path, hashes=hashes))]
        newest: dict[str, datetime] = {}
        for entry in entries:
            if entry.record is not None and entry.state == "ready":
                newest[entry.digest] = max(entry.record.built_at, newest.get(entry.digest, entry.record.built_at))
        marked = [_mark_replaced(entry, newest) for entry in entries]
        return sorted(marked, key=lambda entry: entry.last_used_at, reverse=True)
