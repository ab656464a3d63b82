"""The engine cache: what execution providers made of graphs, built once and found again. `store` says how it lies."""

import logging
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import platformdirs

from latentsync_trt.errors import EngineBuildError, LatentSyncError
from latentsync_trt.runtime.cache.key import EngineKey
from latentsync_trt.runtime.cache.record import RECORD_NAME, Finding, Record, examine, seal_files, write_record
from latentsync_trt.runtime.cache.store import Store

CACHE_VARIABLE = "LATENTSYNC_TRT_CACHE_DIR"
LOCAL_FOLDER = "engine_cache"

_log = logging.getLogger(__name__)

T = TypeVar("T")
Notice = Callable[[str], None]
Build = Callable[[Path], None]


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


class EngineCache:
    """Finds and keeps engines below one folder, which need not exist yet. Safe for any number of processes and threads.

    Args:
        folder: see `cache_folder`.
        on_notice: told, in a sentence, about waiting, discarding and the like.
    """

    def __init__(self, folder: Path, on_notice: Notice = _log.warning) -> None:
        self._store = Store(folder)
        self._notice = on_notice
        self._verified: set[str] = set()
        self._built: set[str] = set()

    @property
    def folder(self) -> Path:
        """The absolute path of the cache."""
        return self._store.folder

    def find(self, key: EngineKey) -> Path | None:
        """The folder of a whole entry for `key`, or None. Takes no lock and works on a read-only cache.

        Every byte is compared with its hash, once in the life of this object. A damaged entry is discarded with a
        notice; where it cannot be deleted it is only left unused.

        Raises:
            OutputError: the cache's place is not a folder, or cannot be listed.
        """
        found = self._find(key, frozenset())
        return found[0] if found else None

    def obtain(self, key: EngineKey, build: Build, *, force: bool = False) -> Engine:
        """Finds the engine for `key`, else has `build` write its files into the empty folder it is given.

        While another process builds it, this one waits for that. `force` takes no entry that was there before.

        Raises:
            OutputError: the cache cannot be written: read-only, full, a file in its place, deleted during the build.
            EngineBuildError: `build` wrote nothing.
            Whatever `build` raises; nothing is left behind then.
        """
        before = frozenset(path.name for path in self._store.entries(key.digest)) if force else frozenset[str]()
        return self._obtain(key, build, before)

    def load(self, key: EngineKey, build: Build, load: Callable[[Path], T]) -> tuple[Engine, T]:
        """`obtain`, then `load` on the engine's folder.

        Builds once more if somebody deleted the engine in between, or if `load` refuses one that this object did not
        build with `EngineBuildError`: a key cannot hold everything on which a provider insists.

        Raises:
            As `obtain`, and whatever `load` raises.
        """
        engine = self.obtain(key, build)
        try:
            return engine, load(engine.folder)
        except (LatentSyncError, OSError) as error:
            gone = not (engine.folder / RECORD_NAME).exists()
            earlier = engine.folder.name not in self._built
            if not gone and not (earlier and isinstance(error, EngineBuildError)):
                raise
            why = "was deleted while it was opened" if gone else f"does not open ({error})"
            self._notice(f"engine cache: {key.label} in {self.folder} {why}; making it again")
        engine = self._obtain(key, build, frozenset([engine.folder.name]))
        return engine, load(engine.folder)

    def _obtain(self, key: EngineKey, build: Build, ignored: frozenset[str]) -> Engine:
        found = self._find(key, ignored)
        if found:
            return Engine(found[0], built=False, build_s=found[1].build_s, waited_s=0.0)
        with self._store.locked(key.digest, lambda: self._say_waiting(key)) as waited_s:
            found = self._find(key, ignored)
            if found:
                return Engine(found[0], built=False, build_s=found[1].build_s, waited_s=waited_s)
            folder, build_s = self._build(key, build)
            self._remove_replaced(folder, key.digest)
            return Engine(folder, built=True, build_s=build_s, waited_s=waited_s)

    def _say_waiting(self, key: EngineKey) -> None:
        self._notice(f"engine cache: {key.label} is being built by another process; waiting for it")

    def _find(self, key: EngineKey, ignored: frozenset[str]) -> tuple[Path, Record] | None:
        whole: list[tuple[Path, Record]] = []
        for folder in self._store.entries(key.digest):
            if folder.name in ignored:
                continue
            finding = examine(folder, key.digest, hashes=folder.name not in self._verified)
            if finding.record is not None and finding.state == "ready":
                self._verified.add(folder.name)
                whole.append((folder, finding.record))
            elif folder.exists():  # else it was whole, and somebody removed it meanwhile
                self._discard(folder, key, finding)
        newest_first = sorted(whole, key=lambda found: found[1].built_at, reverse=True)
        return next((found for found in newest_first if _mark_used(found[0])), None)

    def _discard(self, folder: Path, key: EngineKey, finding: Finding) -> None:
        what = f"engine cache: {key.label} in {folder}: {finding.problem}"
        if finding.state == "unreadable":
            self._notice(f"{what}; not used")
            return
        try:
            self._store.remove(folder)
        except OSError as error:
            self._notice(f"{what}; not used, and it cannot be deleted ({error.strerror})")
        else:
            self._notice(f"{what}; discarded")

    def _build(self, key: EngineKey, build: Build) -> tuple[Path, float]:
        """Runs `build` aside and publishes the result. The lock of the digest is held."""
        aside = self._store.begin(key.digest)
        try:
            start_s = time.monotonic()
            self._run(build, aside)
            build_s = round(time.monotonic() - start_s, 3)
            with self._store.explained():
                _seal(aside, key, build_s)
            folder = self._store.publish(aside)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        self._verified.add(folder.name)
        self._built.add(folder.name)
        return folder, build_s

    def _run(self, build: Build, aside: Path) -> None:
        try:
            build(aside)
        except Exception as error:
            trouble = self._store.trouble(aside, error)
            if trouble is None:
                raise
            raise trouble from error
        trouble = self._store.trouble(aside)
        if trouble is not None:
            raise trouble

    def _remove_replaced(self, kept: Path, digest: str) -> None:
        for folder in self._store.entries(digest):
            if folder != kept:
                try:
                    self._store.remove(folder)
                except OSError as error:
                    self._notice(
                        f"{folder}: replaced, but still in use ({error.strerror}); `latentsync-trt cache prune "
                        "--stale` removes it later"
                    )


def _seal(aside: Path, key: EngineKey, build_s: float) -> None:
    files = seal_files(aside)
    if not files:
        raise EngineBuildError(f"{key.label}: the build wrote no file")
    write_record(aside, Record(key, files, build_s, datetime.now(UTC)))


def _mark_used(folder: Path) -> bool:
    """Sets when the entry was last used; False if it is gone."""
    try:
        os.utime(folder / RECORD_NAME)
    except FileNotFoundError:
        return False
    except OSError:  # a read-only cache is still good to read
        return True
    return True
