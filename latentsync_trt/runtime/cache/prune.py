"""Listing the engine cache and removing engines from it."""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from latentsync_trt.errors import LatentSyncError
from latentsync_trt.runtime.cache.entry import RECORD_NAME, Record, examine
from latentsync_trt.runtime.cache.key import EngineKey
from latentsync_trt.runtime.cache.store import EngineCache, digest_of

Kind = Literal["engine", "build", "timings"]
State = Literal["ready", "damaged", "unreadable", "building", "abandoned"]

_RANK: dict[Kind, int] = {"build": 0, "engine": 1, "timings": 2}


@dataclass(frozen=True, slots=True)
class Item:
    """One folder in the cache.

    `kind`: "build" is not an engine yet, or not any more; "timings" are those of kernels. `problem`: why it is not
    ready. `record`: of an engine, None where it cannot be read. Times are UTC.
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
        """Short description."""
        return self.record.key.label if self.record else f"{self.kind} {self.folder.name}"


@dataclass(frozen=True, slots=True)
class Machine:
    """What engines run with here. What is unknown makes no engine foreign.

    `versions`: of the libraries that keys name; empty for one that is not installed. `gpus`: names of the devices,
    None where the driver cannot be asked or hides some.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    gpus: frozenset[str] | None = None

    def foreign(self, key: EngineKey) -> str:
        """Why no run on this machine uses an engine of `key`; empty if one may."""
        for name, version in key.versions.items():
            here = self.versions.get(name, version)
            if here != version:
                return f"built with {name} {version}, and here is {here or 'none'}"
        if self.gpus is not None and key.gpu not in self.gpus:
            return f"built for {key.gpu}, which is not in this machine"
        return ""


def this_machine() -> Machine:
    """The libraries of this environment and the GPUs of this machine. Loads onnxruntime and the driver."""
    from latentsync_trt.runtime.providers.gpu import driver_problem, gpus
    from latentsync_trt.runtime.providers.libraries import UNKNOWN, onnxruntime_version, rtx_version, tensorrt_version

    versions = {
        "onnxruntime": onnxruntime_version(),
        "tensorrt": tensorrt_version(),
        "onnxruntime-ep-nv-tensorrt-rtx": rtx_version(),
    }
    all_visible = driver_problem() is None and "CUDA_VISIBLE_DEVICES" not in os.environ
    return Machine(
        {name: "" if version in (None, UNKNOWN) else str(version) for name, version in versions.items()},
        frozenset(gpu.name for gpu in gpus()) if all_visible else None,
    )


@dataclass(frozen=True, slots=True)
class Limits:
    """What `prune` removes; None removes nothing.

    Args:
        max_bytes: how much may be left; the least recently used goes first.
        unused_for: removes what was not used for longer than this.
        stale: removes damaged engines, leftovers of killed builds, and engines that this machine cannot use.
    """

    max_bytes: int | None = None
    unused_for: timedelta | None = None
    stale: Machine | None = None


Choice = tuple[Item, str]
"""An item and why it is removed, or why it stays although it was to be removed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was removed, or would be in a dry run, and what could not be."""

    removed: tuple[Choice, ...]
    kept: tuple[Choice, ...]


def total_bytes(items: Iterable[Item]) -> int:
    """Size of all `items` together."""
    return sum(item.size_bytes for item in items)


def survey(folder: Path, *, hashes: bool = False) -> tuple[Item, ...]:
    """Everything in the cache at `folder`: engines, last used first, then builds and kernel timings.

    Engines are checked by their records and file sizes; with `hashes` every byte is read. Changes nothing.

    Raises:
        OutputError: the cache is not a folder, or cannot be listed.
    """
    cache = EngineCache(folder)
    engines = list[Item]()
    for path in cache.entries():
        found = examine(path, path.name, hashes=hashes)
        engines.append(Item("engine", path, found.state, *_measure(path), found.problem, found.record))
    engines.sort(key=lambda item: item.last_used_at, reverse=True)
    builds = [
        Item("build", path, "building", *_measure(path), "is being built")
        if _is_locked(cache, digest_of(path))
        else Item("build", path, "abandoned", *_measure(path), "left behind by a process that was ended")
        for path in cache.leftovers()
    ]
    return (*engines, *builds, *(Item("timings", path, "ready", *_measure(path)) for path in cache.timings()))


def prune(folder: Path, limits: Limits, *, dry_run: bool = False) -> Outcome:
    """Removes what `limits` say from the cache at `folder`; see `select`. Builds in progress stay.

    Raises:
        OutputError: the cache cannot be listed or written.
    """
    return _remove(folder, select(survey(folder), limits, datetime.now(UTC)), dry_run=dry_run)


def clear(folder: Path, *, dry_run: bool = False) -> Outcome:
    """Removes everything from the cache at `folder` except builds in progress and files that do not belong to it.

    Raises:
        OutputError: the cache cannot be listed or written.
    """
    return _remove(folder, [(item, "cleared") for item in survey(folder)], dry_run=dry_run)


def select(items: Iterable[Item], limits: Limits, now: datetime) -> list[Choice]:
    """Which of `items` to remove at time `now`, and why. Pure.

    `max_bytes` is compared with the size of everything; leftovers go first, then engines, then kernel timings, which
    are small and save minutes.
    """
    reasons = [(item, "" if item.state == "building" else _why_removed(item, limits, now)) for item in items]
    chosen = [(item, reason) for item, reason in reasons if reason]
    if limits.max_bytes is not None:
        stay = [item for item, reason in reasons if not reason]
        excess_bytes = total_bytes(stay) - limits.max_bytes
        for item in sorted(stay, key=lambda item: (_RANK[item.kind], item.last_used_at)):
            if excess_bytes > 0 and item.state != "building":
                chosen.append((item, f"more than {limits.max_bytes / 1e9:g} GB in all"))
                excess_bytes -= item.size_bytes
    return chosen


def _why_removed(item: Item, limits: Limits, now: datetime) -> str:
    if limits.stale is not None:
        if item.state in ("damaged", "abandoned"):
            return item.problem
        foreign = limits.stale.foreign(item.record.key) if item.record else ""
        if foreign:
            return foreign
    if limits.unused_for is not None and now - item.last_used_at > limits.unused_for:
        return f"not used for {(now - item.last_used_at).days} days"
    return ""


def _measure(folder: Path) -> tuple[int, datetime]:
    """Size of a folder's files, and when it was last used; of one that is removed meanwhile 0 and 1970."""
    size_bytes, used_s = 0, 0.0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size_bytes += Path(parent, name).lstat().st_size
    for path in (folder, folder / RECORD_NAME):
        with suppress(OSError):
            used_s = path.stat().st_mtime
    return size_bytes, datetime.fromtimestamp(used_s, UTC)


def _is_locked(cache: EngineCache, digest: str) -> bool:
    try:
        with cache.try_locked(digest) as free:
            return not free
    except LatentSyncError:  # no permission to lock: it may be in progress
        return True


def _remove(folder: Path, chosen: list[Choice], *, dry_run: bool) -> Outcome:
    cache = EngineCache(folder)
    removed, kept = list[Choice](), list[Choice]()
    for item, reason in chosen:
        refusal = item.problem if item.state == "building" else "" if dry_run else _try_remove(cache, item)
        if refusal:
            kept.append((item, refusal))
        else:
            removed.append((item, reason))
    return Outcome(tuple(removed), tuple(kept))


def _try_remove(cache: EngineCache, item: Item) -> str:
    """Removes an item; returns why it stays, empty if it is gone."""
    try:
        with cache.try_locked(digest_of(item.folder)) as free:
            if not free:
                return "an engine of its kind is being built"
            cache.remove(item.folder)
    except LatentSyncError:
        raise
    except OSError as error:
        return f"in use, or write-protected ({error.strerror})"
    return ""
