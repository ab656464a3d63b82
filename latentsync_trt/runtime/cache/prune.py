"""Lists the engine cache and removes engines from it."""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from latentsync_trt.runtime.cache.entry import Entry
from latentsync_trt.runtime.cache.store import SHARED_FOLDER, EngineCache


@dataclass(frozen=True, slots=True)
class Machine:
    """Libraries and GPUs of a machine; unknown ones make no engine stale.

    `versions`: by the library names in keys, empty if not installed. `gpus`: names of the devices, None where the
    driver does not work or hides some.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    gpus: frozenset[str] | None = None

    def why_stale(self, entry: Entry) -> str:
        """Why no run on this machine can use an engine; empty if it can."""
        if entry.problem or entry.key is None:
            return entry.problem
        for name, version in entry.key.versions.items():
            here = self.versions.get(name, version)
            if here != version:
                return f"built with {name} {version}, and here is {here or 'none'}"
        if self.gpus is not None and entry.key.gpu not in self.gpus:
            return f"built for {entry.key.gpu}, which is not in this machine"
        return ""


def this_machine() -> Machine:
    """This environment's libraries and GPUs. Loads onnxruntime and the driver."""
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
class Choice:
    """An engine to remove and why. `refusal`: why removing failed; empty if it succeeded, or in a dry run."""

    entry: Entry
    reason: str
    refusal: str = ""


def total_bytes(entries: Iterable[Entry]) -> int:
    """Total size of `entries`."""
    return sum(entry.size_bytes for entry in entries)


def survey(folder: Path, *, hashes: bool = False) -> tuple[Entry, ...]:
    """All engines in the cache at `folder`, last used first; see `EngineCache.entries`. Changes nothing."""
    entries = EngineCache(folder).entries(hashes=hashes)
    return tuple(sorted(entries, key=lambda entry: entry.last_used_at, reverse=True))


def select(entries: Sequence[Entry], *, max_bytes: int | None = None, stale: Machine | None = None) -> list[Choice]:
    """Which of `entries` to remove, and why: with `stale` the damaged ones and those that this machine cannot use, then
    damaged and least recently used ones until `max_bytes` are left. Pure."""
    chosen = [Choice(entry, reason) for entry in entries if stale and (reason := stale.why_stale(entry))]
    if max_bytes is not None:
        gone = {choice.entry.folder for choice in chosen}
        left = [entry for entry in entries if entry.folder not in gone]
        excess_bytes = total_bytes(left) - max_bytes
        for entry in sorted(left, key=lambda entry: (not entry.problem, entry.last_used_at)):
            if excess_bytes > 0:
                chosen.append(Choice(entry, f"more than {max_bytes / 1e9:g} GB in all"))
                excess_bytes -= entry.size_bytes
    return chosen


def remove(folder: Path, chosen: Iterable[Choice]) -> list[Choice]:
    """Removes engines and leftovers of killed builds from the cache at `folder`; returns `chosen` with refusals.

    Raises:
        OutputError: the cache cannot be listed.
    """
    cache = EngineCache(folder)
    removed = [replace(choice, refusal=cache.remove(choice.entry)) for choice in chosen]
    cache.sweep()
    return removed


def remove_timings(folder: Path) -> None:
    """Removes the kernel timings from the cache at `folder`."""
    shutil.rmtree(folder / SHARED_FOLDER, ignore_errors=True)
