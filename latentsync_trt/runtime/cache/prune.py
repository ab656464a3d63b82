"""Looking through the engine cache, and removing from it what is not wanted any more."""

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from latentsync_trt.errors import LatentSyncError
from latentsync_trt.runtime.cache.machine import Machine
from latentsync_trt.runtime.cache.record import RECORD_NAME, Record, examine
from latentsync_trt.runtime.cache.store import Store, digest_of

Kind = Literal["engine", "build", "timings"]
State = Literal["ready", "damaged", "unreadable", "replaced", "building", "abandoned"]


@dataclass(frozen=True, slots=True)
class Item:
    """Something that lies in the cache.

    `kind`: "engine"; "build", which is no engine yet or no longer one; "timings" of kernels. `state`: an engine is
    ready, damaged, unreadable or replaced (by a newer build), a build is building or abandoned, timings are ready.
    `problem`: why it is not ready. `record`: of an engine, None where it cannot be read. Times are UTC.
    """

    kind: Kind
    folder: Path
    state: State
    size_bytes: int
    last_used_at: datetime
    problem: str = ""
    record: Record | None = None

    @property
    def label(self) -> str:
        """The item in a few words."""
        return self.record.key.label if self.record else f"{self.kind} {self.folder.name}"


@dataclass(frozen=True, slots=True)
class Limits:
    """What `prune` removes. None and False remove nothing.

    Args:
        max_bytes: most that may be left; what was used least recently goes first.
        unused_for: what was not used for so long goes.
        stale: damaged and replaced engines go, what killed builds left, and what `machine` cannot use.
        machine: see `machine.this_machine`.
    """

    max_bytes: int | None = None
    unused_for: timedelta | None = None
    stale: bool = False
    machine: Machine = field(default_factory=Machine)


@dataclass(frozen=True, slots=True)
class Choice:
    """An item and why it goes, or why it stays although it should go."""

    item: Item
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was removed, or would be in a dry run, and what could not be."""

    removed: tuple[Choice, ...]
    kept: tuple[Choice, ...]

    @property
    def freed_bytes(self) -> int:
        """Size of all that was removed."""
        return total_bytes(choice.item for choice in self.removed)


def total_bytes(items: Iterable[Item]) -> int:
    """Size of all `items` together."""
    return sum(item.size_bytes for item in items)


def survey(folder: Path, *, hashes: bool = False) -> tuple[Item, ...]:
    """Everything in the cache at `folder`: engines, last used first, then builds and kernel timings.

    Engines are judged by their records and file sizes; with `hashes` every byte is read. Nothing is changed.

    Raises:
        OutputError: the place is not a folder, or cannot be listed.
    """
    store = Store(folder)
    found = [item for path in store.entries() if (item := _engine(path, hashes=hashes))]
    engines = sorted(_mark_replaced(found), key=lambda item: item.last_used_at, reverse=True)
    return (*engines, *_builds(store), *_timings(store))


def prune(folder: Path, limits: Limits, *, dry_run: bool = False) -> Outcome:
    """Removes what `limits` say from the cache at `folder`; see `select`. Builds that go on are left alone.

    Raises:
        OutputError: the cache cannot be listed or written.
    """
    items = survey(folder)
    return _remove(Store(folder), select(items, limits, datetime.now(UTC)), dry_run=dry_run)


def clear(folder: Path, *, dry_run: bool = False) -> Outcome:
    """Removes everything from the cache at `folder` but what is being built, and files that are not the cache's.

    Raises:
        OutputError: the cache cannot be listed or written.
    """
    return _remove(Store(folder), [Choice(item, "cleared") for item in survey(folder)], dry_run=dry_run)


def select(items: Iterable[Item], limits: Limits, now: datetime) -> list[Choice]:
    """Which of `items` go at time `now`, and why. Pure.

    Against `max_bytes` everything counts; leftovers go first, then engines, then kernel timings, which are small and
    save minutes.
    """
    stay, chosen = list[Item](), list[Choice]()
    for item in items:
        reason = _why_removed(item, limits, now)
        if reason:
            chosen.append(Choice(item, reason))
        else:
            stay.append(item)
    if limits.max_bytes is not None:
        excess_bytes = total_bytes(stay) - limits.max_bytes
        for item in sorted(stay, key=_worth):
            if excess_bytes > 0 and item.state != "building":
                chosen.append(Choice(item, f"more than {limits.max_bytes / 1e9:g} GB in all"))
                excess_bytes -= item.size_bytes
    return chosen


def _why_removed(item: Item, limits: Limits, now: datetime) -> str:
    if item.state == "building":
        return ""
    if limits.stale and item.state in ("damaged", "replaced", "abandoned"):
        return item.problem
    foreign = limits.machine.foreign(item.record.key) if limits.stale and item.record else ""
    if foreign:
        return foreign
    if limits.unused_for is not None and now - item.last_used_at > limits.unused_for:
        return f"not used for {(now - item.last_used_at).days} days"
    return ""


def _worth(item: Item) -> tuple[int, datetime]:
    rank = 2 if item.kind == "timings" else int(item.state == "ready")
    return rank, item.last_used_at


def _engine(path: Path, *, hashes: bool) -> Item | None:
    """An engine; None if somebody removed it meanwhile."""
    finding = examine(path, digest_of(path), hashes=hashes)
    size_bytes, changed_at = _measure(path)
    used_at = _modified_at(path / RECORD_NAME) or changed_at
    if used_at is None or not path.exists():
        return None
    return Item("engine", path, finding.state, size_bytes, used_at, finding.problem, finding.record)


def _mark_replaced(engines: list[Item]) -> Iterator[Item]:
    newest: dict[str, datetime] = {}
    for item in engines:
        if item.record and item.state == "ready":
            digest = item.record.key.digest
            newest[digest] = max(item.record.built_at, newest.get(digest, item.record.built_at))
    for item in engines:
        if item.record and item.state == "ready" and item.record.built_at < newest[item.record.key.digest]:
            yield replace(item, state="replaced", problem="there is a newer build of it")
        else:
            yield item


def _builds(store: Store) -> Iterator[Item]:
    for path in (*store.builds(), *store.old()):
        size_bytes, changed_at = _measure(path)
        if changed_at is None:
            continue
        if _is_locked(store, path):
            yield Item("build", path, "building", size_bytes, changed_at, "is being built")
        else:
            yield Item("build", path, "abandoned", size_bytes, changed_at, "left behind by a process that was ended")


def _is_locked(store: Store, path: Path) -> bool:
    if not digest_of(path):
        return False
    try:
        with store.try_locked(digest_of(path)) as free:
            return not free
    except LatentSyncError:  # no right to look: it may well be going on
        return True


def _timings(store: Store) -> Iterator[Item]:
    for path in store.timings():
        size_bytes, changed_at = _measure(path)
        if changed_at is not None:
            yield Item("timings", path, "ready", size_bytes, changed_at)


def _measure(path: Path) -> tuple[int, datetime | None]:
    """Size of a folder's files or of a file, and when something in it changed last; None if it is gone."""
    size_bytes, latest = 0, _modified_at(path)
    # os.walk passes over folders that are deleted meanwhile, where Path.rglob raises.
    inner = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    for file in inner or [path]:
        try:
            status = file.lstat()
        except OSError:
            continue
        if not stat.S_ISDIR(status.st_mode):
            size_bytes += status.st_size
            changed_at = datetime.fromtimestamp(status.st_mtime, UTC)
            latest = max(latest or changed_at, changed_at)
    return size_bytes, latest


def _modified_at(path: Path) -> datetime | None:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError:
        return None


def _remove(store: Store, chosen: list[Choice], *, dry_run: bool) -> Outcome:
    removed, kept = list[Choice](), list[Choice]()
    for choice in chosen:
        building = choice.item.state == "building"
        refusal = choice.item.problem if building else "" if dry_run else _try_remove(store, choice.item)
        if refusal:
            kept.append(replace(choice, reason=refusal))
        else:
            removed.append(choice)
    return Outcome(tuple(removed), tuple(kept))


def _try_remove(store: Store, item: Item) -> str:
    """Removes an item; returns why it stays, empty if it is gone."""
    digest = digest_of(item.folder)
    if item.kind == "timings" and store.any_locked():
        return "an engine is being built, which may be reading them"
    try:
        if not digest:
            store.remove(item.folder)
            return ""
        with store.try_locked(digest) as free:
            if not free:
                return "an engine of its kind is being built"
            store.remove(item.folder)
    except LatentSyncError:
        raise
    except OSError as error:
        return f"in use, or write-protected ({error.strerror})"
    return ""
