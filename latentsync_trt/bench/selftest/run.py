"""The order of a self-test. Each part runs in a process of its own, which may crash.

1. first start: every graph is built into an empty engine cache and opened; two windows are painted, plain and cached
2. second start: every graph is opened from that cache and timed; a window is painted again
3. reference: the same windows on another provider, the CPU unless told otherwise, to compare with
4. CUDA, where it is not what is tested and there is a GPU: every graph is timed, to compare with
"""

import platform
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from latentsync_trt.bench.machine import bundle_facts, environment
from latentsync_trt.bench.pictures import decibels
from latentsync_trt.bench.rows import Memory
from latentsync_trt.bench.selftest.privacy import Privacy
from latentsync_trt.bench.selftest.process import Outcome, run_part
from latentsync_trt.bench.selftest.report import (
    LEAST_DB,
    PictureResult,
    Report,
    failures,
    graph_results,
    picture_failures,
)
from latentsync_trt.bench.selftest.worker import Order
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions, command_line
from latentsync_trt.media.writer import TEMPORARY_PREFIX
from latentsync_trt.runtime.cache.engine_cache import Notice
from latentsync_trt.types import UInt16Array

Reference = Literal["cpu", "cuda", "none"]

_PLAIN, _CACHED = "quality", "balanced"
_CASES = {_PLAIN: "plain", _CACHED: "cached"}
"""What the report calls the two presets."""

STEPS = 6
"""Denoising steps of a window: with preset `balanced`, two of them are full."""

WINDOWS = 2
"""The second starts from what the first left in buffers."""

_PEAK = 65535.0
"""Of faces of 16 bits."""

_FIRST, _AGAIN, _REFERENCE, _CUDA = "first start", "second start", "reference", "cuda"
"""The parts, as progress names them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to test. `reference`: the provider whose pictures count as right."""

    bundle: Bundle
    provider: str = "auto"
    options: RuntimeOptions = RuntimeOptions()
    reference: Reference = "cpu"


def self_test(plan: Plan, say: Notice) -> Report:
    """Runs all parts; whatever the provider does wrong is in the report.

    Raises:
        LatentSyncError: no process can be started.
    """
    with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, ignore_cleanup_errors=True) as name:
        return _SelfTest(plan, Path(name), say).carry_out()


class _SelfTest:
    """One self-test on its way; `folder` takes engines, pictures and what processes write to stderr."""

    def __init__(self, plan: Plan, folder: Path, say: Notice) -> None:
        self._plan, self._folder, self._say = plan, folder, say
        cache = plan.options.engine_cache
        known = [plan.bundle.folder, *([] if cache is None else [Path(cache).expanduser()])]
        self._privacy = Privacy(known)
        self._first, self._again, self._reference, self._cuda = (Outcome() for _ in range(4))

    def carry_out(self) -> Report:
        graphs, cache = tuple(self._plan.bundle.manifest.graphs), self._plan.options.engine_cache
        tested = replace(self._plan.options, engine_cache=cache or self._folder / "engines")
        both = {"presets": tuple(_CASES), "windows": WINDOWS}
        self._first = self._part(_FIRST, self._plan.provider, tested, graphs=graphs, **both)
        provider = self._first.provider
        sound = tuple(name for name, run in self._first.graphs.items() if not run.error)
        if sound:
            once_more = {"presets": (_PLAIN,), "windows": 1} if _PLAIN in self._first.painted else {}
            self._again = self._part(_AGAIN, provider, tested, graphs=sound, timed=True, **once_more)
        if self._first.painted and self._plan.reference != "none":
            self._reference = self._part(_REFERENCE, self._plan.reference, self._plain_options(_REFERENCE), **both)
        if sound and provider != "cuda" and "gpu" in self._first.environment:
            self._cuda = self._part(_CUDA, "cuda", self._plain_options(_CUDA), graphs=sound, timed=True)
        return self._report(graphs)

    def _plain_options(self, part: str) -> RuntimeOptions:
        """Of a provider that is only compared with: as it runs by default, with engines of its own."""
        return RuntimeOptions(device=self._plan.options.device, engine_cache=self._folder / f"{part} engines")

    def _part(self, part: str, provider: str, options: RuntimeOptions, **fields: Any) -> Outcome:
        folder = self._folder / part
        folder.mkdir()
        given = {**asdict(options), "engine_cache": str(Path(str(options.engine_cache)).expanduser().absolute())}
        order = Order(
            provider, str(self._plan.bundle.folder.resolve()), given, pictures=str(folder), steps=STEPS, **fields
        )
        return run_part(order, folder, lambda text: self._say(f"{part}: {self._privacy.clean(text)}"))

    def _report(self, graphs: tuple[str, ...]) -> Report:
        first, again, clean = self._first, self._again, self._privacy.clean
        results = graph_results(graphs, first, again, self._cuda) if first.provider else ()
        pictures = tuple(self._compared())
        reasons = [
            *failures(first, again, results),
            *(f"no pictures of {self._plan.reference} to compare with: {text}" for text in self._reference.problems),
            *picture_failures(pictures, self._plan.reference),
        ]
        return Report(
            requested=self._plan.provider,
            provider=first.provider,
            reasons=tuple(dict.fromkeys(map(clean, reasons))),
            bundle=bundle_facts(self._plan.bundle.manifest),
            options=tuple(command_line(self._plan.options, leave_out=("engine_cache",))),
            steps=STEPS,
            reference=self._plan.reference,
            graphs=tuple(replace(result, error=clean(result.error)) for result in results),
            pictures=pictures,
            memory=_peak(first.memory, again.memory),
            notices=tuple(dict.fromkeys(map(clean, self._notices()))),
            environment={**environment((), ()), "os": platform.platform(), **first.environment},
        )

    def _compared(self) -> Iterator[PictureResult]:
        """What was painted, beside the reference's; without one, nothing."""
        for part, outcome in ((_FIRST, self._first), (_AGAIN, self._again)):
            for preset in (preset for preset in outcome.painted if preset in self._reference.painted):
                ours, theirs = (np.load(self._folder / name / f"{preset}.npy") for name in (part, _REFERENCE))
                yield PictureResult(
                    case=_CASES[preset] + (f", {part}" if part == _AGAIN else ""),
                    windows=WINDOWS if part == _FIRST else 1,
                    paint_s=outcome.painted[preset].paint_s,
                    psnr_db=psnr_db(ours, theirs[: len(ours)]),
                    least_db=LEAST_DB[self._plan.bundle.manifest.precision],
                )

    def _notices(self) -> Iterator[str]:
        yield from self._first.passed_over
        yield from self._first.notices
        yield from self._again.notices
        found = [name for name, run in self._first.graphs.items() if not run.error and not run.built]
        if found:
            yield f"the cache had engines of {', '.join(found)}: their build s is what building took then"
        yield from (f"no times of cuda: {text}" for text in self._cuda.problems)


def psnr_db(ours: UInt16Array, theirs: UInt16Array) -> float | None:
    """PSNR of two sets of faces of 16 bits and of one shape, in dB; None where they are equal."""
    difference = ours.astype(np.float64) - theirs
    return decibels(_PEAK**2, float(np.mean(difference**2)))


def _peak(*parts: Memory | None) -> Memory | None:
    """The highest of several parts."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    on_device = [part.device_bytes for part in known if part.device_bytes is not None]
    return Memory(max(part.host_bytes for part in known), max(on_device, default=None))
