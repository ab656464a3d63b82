"""Listing the engine cache and removing engines from it."""

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from latentsync_trt.errors import LatentSyncError
from latentsync_trt.runtime.cache.entry import Entry, examine
from latentsync_trt.runtime.cache.key import EngineKey
from latentsync_trt.runtime.cache.store import SHARED_FOLDER, EngineCache


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


Choice = tuple[Entry, str]
"""An engine and why it is removed, or why it stays although it was to be removed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was removed, or would be in a dry run, and what could not be."""

    removed: tuple[Choice, ...]
    kept: tuple[Choice, ...]


def total_bytes(entries: Iterable[Entry]) -> int:
    """Size of all `entries` together."""
    return sum(entry.size_bytes for entry in entries)


def survey(folder: Path, *, hashes: bool = False) -> tuple[Entry, ...]:
    """All engines in the cache at `folder`, last used first. Changes nothing.

    They are checked by their records and file sizes; with `hashes` every byte is read.

    Raises:
        OutputError: the cache is not a folder, or cannot be listed.
    """
    found = (examine(path, path.name, hashes=hashes) for path in EngineCache(folder).entries())
    return tuple(sorted(found, key=lambda entry: entry.last_used_at, reverse=True))


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
    return _remove(folder, [(entry, "cleared") for entry in survey(folder)], dry_run=dry_run)


def select(entries: Iterable[Entry], limits: Limits, now: datetime) -> list[Choice]:
    """Which of `entries` to remove at time `now`, and why. Pure."""
    reasons = [(entry, _why_removed(entry, limits, now)) for entry in entries]
    chosen = [(entry, reason) for entry, reason in reasons if reason]
    if limits.max_bytes is not None:
        stay = [entry for entry, reason in reasons if not reason]
        excess_bytes = total_bytes(stay) - limits.max_bytes
        for entry in sorted(stay, key=lambda entry: (entry.state == "ready", entry.last_used_at)):
            if excess_bytes > 0:
                chosen.append((entry, f"more than {limits.max_bytes / 1e9:g} GB in all"))
                excess_bytes -= entry.size_bytes
    return chosen


def _why_removed(entry: Entry, limits: Limits, now: datetime) -> str:
    if limits.stale is not None:
        if entry.state == "damaged":
            return entry.problem
        foreign = limits.stale.foreign(entry.record.key) if entry.record else ""
        if foreign:
            return foreign
    if limits.unused_for is not None and now - entry.last_used_at > limits.unused_for:
        return f"not used for {(now - entry.last_used_at).days} days"
    return ""


def _remove(folder: Path, chosen: list[Choice], *, dry_run: bool) -> Outcome:
    cache = EngineCache(folder)
    removed, kept = list[Choice](), list[Choice]()
    for entry, reason in chosen:
        refusal = "" if dry_run else _try_remove(cache, entry)
        if refusal:
            kept.append((entry, refusal))
        else:
            removed.append((entry, reason))
    if not dry_run:
        cache.sweep()
    return Outcome(tuple(removed), tuple(kept))


def _try_remove(cache: EngineCache, entry: Entry) -> str:
    """Removes an engine; returns why it stays, empty if it is gone."""
    try:
        with cache.try_locked(entry.folder.name) as free:
            if not free:
                return "it is being built again"
            cache.remove(entry.folder)
    except LatentSyncError:
        raise
    except OSError as error:
        return f"in use, or write-protected ({error.strerror})"
    return ""
