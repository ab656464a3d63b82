"""Listing the engine cache and removing engines from it."""

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from latentsync_trt.errors import LatentSyncError
from latentsync_trt.runtime.cache.entry import RECORD_NAME, Record, examine
from latentsync_trt.runtime.cache.key import EngineKey
from latentsync_trt.runtime.cache.store import SHARED_FOLDER, EngineCache


@dataclass(frozen=True, slots=True)
class Item:
    """An engine in the cache.

    `problem`: why it is not ready. `record`: None where it cannot be read. Times are UTC.
    """

    folder: Path
    state: Literal["ready", "damaged", "unreadable"]
    problem: str
    record: Record | None
    size_bytes: int
    last_used_at: datetime

    @property
    def label(self) -> str:
        """Short description."""
        return self.record.key.label if self.record else f"engine {self.folder.name}"


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
        stale: removes damaged engines, and those that this machine cannot use.
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
    """All engines in the cache at `folder`, last used first. Changes nothing.

    They are checked by their records and file sizes; with `hashes` every byte is read.

    Raises:
        OutputError: the cache is not a folder, or cannot be listed.
    """
    items = list[Item]()
    for path in EngineCache(folder).entries():
        found = examine(path, path.name, hashes=hashes)
        items.append(Item(path, found.state, found.problem, found.record, folder_bytes(path), _last_used_at(path)))
    return tuple(sorted(items, key=lambda item: item.last_used_at, reverse=True))


def prune(folder: Path, limits: Limits, *, dry_run: bool = False) -> Outcome:
    """Removes what `limits` say from the cache at `folder`, see `select`, and what killed builds left.

    Raises:
        OutputError: the cache cannot be listed or written.
    """
    return _remove(folder, select(survey(folder), limits, datetime.now(UTC)), dry_run=dry_run)


def clear(folder: Path, *, dry_run: bool = False) -> Outcome:
    """Removes all engines and kernel timings from the cache at `folder`, and what killed builds left.

    Raises:
        OutputError: the cache cannot be listed or written.
    """
    if not dry_run:
        shutil.rmtree(folder / SHARED_FOLDER, ignore_errors=True)
    return _remove(folder, [(item, "cleared") for item in survey(folder)], dry_run=dry_run)


def select(items: Iterable[Item], limits: Limits, now: datetime) -> list[Choice]:
    """Which of `items` to remove at time `now`, and why. Pure."""
    reasons = [(item, _why_removed(item, limits, now)) for item in items]
    chosen = [(item, reason) for item, reason in reasons if reason]
    if limits.max_bytes is not None:
        stay = [item for item, reason in reasons if not reason]
        excess_bytes = total_bytes(stay) - limits.max_bytes
        for item in sorted(stay, key=lambda item: (item.state == "ready", item.last_used_at)):
            if excess_bytes > 0:
                chosen.append((item, f"more than {limits.max_bytes / 1e9:g} GB in all"))
                excess_bytes -= item.size_bytes
    return chosen


def _why_removed(item: Item, limits: Limits, now: datetime) -> str:
    if limits.stale is not None:
        if item.state == "damaged":
            return item.problem
        foreign = limits.stale.foreign(item.record.key) if item.record else ""
        if foreign:
            return foreign
    if limits.unused_for is not None and now - item.last_used_at > limits.unused_for:
        return f"not used for {(now - item.last_used_at).days} days"
    return ""


def folder_bytes(folder: Path) -> int:
    """Size of all files below a folder, which may be deleted meanwhile."""
    size_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size_bytes += Path(parent, name).lstat().st_size
    return size_bytes


def _last_used_at(entry: Path) -> datetime:
    used_s = 0.0
    for path in (entry, entry / RECORD_NAME):
        with suppress(OSError):
            used_s = path.stat().st_mtime
    return datetime.fromtimestamp(used_s, UTC)


def _remove(folder: Path, chosen: list[Choice], *, dry_run: bool) -> Outcome:
    cache = EngineCache(folder)
    removed, kept = list[Choice](), list[Choice]()
    for item, reason in chosen:
        refusal = "" if dry_run else _try_remove(cache, item)
        if refusal:
            kept.append((item, refusal))
        else:
            removed.append((item, reason))
    if not dry_run:
        cache.sweep()
    return Outcome(tuple(removed), tuple(kept))


def _try_remove(cache: EngineCache, item: Item) -> str:
    """Removes an engine; returns why it stays, empty if it is gone."""
    try:
        with cache.try_locked(item.folder.name) as free:
            if not free:
                return "it is being built again"
            cache.remove(item.folder)
    except LatentSyncError:
        raise
    except OSError as error:
        return f"in use, or write-protected ({error.strerror})"
    return ""
