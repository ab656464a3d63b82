"""The course of a self-test. Each part runs in a child process, which may crash.

1. first start: every graph is built into an empty engine cache and opened; two windows are painted, plain and cached
2. second start: every graph is opened from that cache and timed; a window is painted again
3. reference: the same windows on another provider, the CPU by default, to compare with
4. CUDA, if there is a GPU and another provider is tested: every graph is timed, to compare with
"""

import platform
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from latentsync_trt.bench.machine import bundle_facts, environment
from latentsync_trt.bench.pictures import decibels
from latentsync_trt.bench.rows import Memory
from latentsync_trt.bench.selftest.privacy import Privacy
from latentsync_trt.bench.selftest.report import (
    LEAST_DB,
    Outcome,
    PictureResult,
    Report,
    failures,
    graph_result,
    picture_failures,
)
from latentsync_trt.bench.selftest.worker import Order
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions, command_line
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.media.writer import TEMPORARY_PREFIX
from latentsync_trt.runtime.compiler.child import Event, run_child
from latentsync_trt.types import UInt16Array

Reference = Literal["cpu", "cuda", "none"]
Say = Callable[[str], None]

_WORKER = "latentsync_trt.bench.selftest.worker"

_PLAIN, _CACHED = "quality", "balanced"
_CASES = {_PLAIN: "plain", _CACHED: "cached"}
"""The report's names of the two presets."""

STEPS = 6
"""Denoising steps of a window: with preset `balanced`, two of them are full."""

WINDOWS = 2
"""The second starts with what the first left in buffers."""

_PEAK = 65535.0
"""Of faces of 16 bits."""

_FIRST, _AGAIN, _REFERENCE, _CUDA = "first start", "second start", "reference", "cuda"
"""Names of the parts."""


def self_test(bundle: Bundle, provider: str, options: RuntimeOptions, reference: Reference, say: Say) -> Report:
    """Runs all parts; everything that the provider does wrong is in the report.

    Args:
        reference: the provider whose pictures are taken as correct. say: called with a line about progress.

    Raises:
        LatentSyncError: no process can be started.
    """
    with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, ignore_cleanup_errors=True) as name:
        test = _SelfTest(bundle, options, Path(name), say)
        test.carry_out(provider, reference)
        return test.report(provider, reference)


class _SelfTest:
    """`folder` takes engines and pictures."""

    def __init__(self, bundle: Bundle, options: RuntimeOptions, folder: Path, say: Say) -> None:
        self._bundle, self._options, self._folder, self._say = bundle, options, folder, say
        self._privacy = Privacy([bundle.folder, *([Path(options.engine_cache)] if options.engine_cache else [])])
        self._parts: defaultdict[str, Outcome] = defaultdict(Outcome)

    def carry_out(self, provider: str, reference: Reference) -> None:
        tested = replace(self._options, engine_cache=self._options.engine_cache or self._folder / "engines")
        both = {"presets": tuple(_CASES), "windows": WINDOWS}
        first = self._run(_FIRST, provider, tested, graphs=tuple(self._bundle.manifest.graphs), **both)
        usable = tuple(name for name, result in first.graphs.items() if not result.error)
        if usable:
            once_more = {"presets": (_PLAIN,), "windows": 1} if _PLAIN in first.paint_s else {}
            self._run(_AGAIN, first.provider, tested, graphs=usable, timed=True, **once_more)
        if first.paint_s and reference != "none":
            self._run(_REFERENCE, reference, self._default_options(_REFERENCE), **both)
        if usable and first.provider != "cuda" and "gpu" in first.environment:
            self._run(_CUDA, "cuda", self._default_options(_CUDA), graphs=usable, timed=True)

    def _default_options(self, part: str) -> RuntimeOptions:
        """Those of a provider that is only compared with."""
        return RuntimeOptions(device=self._options.device, engine_cache=self._folder / f"{part} engines")

    def _run(self, part: str, provider: str, options: RuntimeOptions, **fields: Any) -> Outcome:
        folder = self._folder / part
        folder.mkdir()
        cache = str(Path(str(options.engine_cache)).expanduser().absolute())
        order = Order(
            provider,
            str(self._bundle.folder.resolve()),
            {**asdict(options), "engine_cache": cache},
            steps=STEPS,
            pictures=str(folder),
            **fields,
        )
        self._parts[part] = run_part(order, lambda text: self._say(f"{part}: {self._privacy.clean(text)}"))
        return self._parts[part]

    def report(self, requested: str, reference: Reference) -> Report:
        first, again, clean = self._parts[_FIRST], self._parts[_AGAIN], self._privacy.clean
        graphs = self._bundle.manifest.graphs if first.provider else ()
        results = [graph_result(graph, first, again, self._parts[_CUDA]) for graph in graphs]
        pictures = tuple(self._compared())
        reasons = [
            *failures(first, again, results),
            *(f"no pictures of {reference} to compare with: {text}" for text in self._parts[_REFERENCE].failures),
            *picture_failures(pictures, reference),
        ]
        peaks = [part.memory for part in (first, again) if part.memory]
        host = [peak.host_bytes for peak in peaks]
        on_device = [peak.device_bytes for peak in peaks if peak.device_bytes is not None]
        return Report(
            requested=requested,
            provider=first.provider,
            reasons=tuple(dict.fromkeys(map(clean, reasons))),
            bundle=bundle_facts(self._bundle.manifest),
            options=tuple(command_line(self._options, leave_out=("engine_cache",))),
            steps=STEPS,
            reference=reference,
            graphs=tuple(replace(result, error=clean(result.error)) for result in results),
            pictures=pictures,
            memory=Memory(max(host), max(on_device, default=None)) if host else None,
            notices=tuple(dict.fromkeys(map(clean, self._notices()))),
            environment={**environment((), ()), "os": platform.platform(), **first.environment},
        )

    def _compared(self) -> Iterator[PictureResult]:
        """Painted pictures compared with the reference's; nothing without a reference."""
        reference = self._parts[_REFERENCE].paint_s
        for part, windows in ((_FIRST, WINDOWS), (_AGAIN, 1)):
            for preset in (name for name in _CASES if name in reference and name in self._parts[part].paint_s):
                ours, theirs = (np.load(self._folder / name / f"{preset}.npy") for name in (part, _REFERENCE))
                yield PictureResult(
                    case=_CASES[preset] + (f", {part}" if part == _AGAIN else ""),
                    windows=windows,
                    paint_s=self._parts[part].paint_s[preset],
                    psnr_db=psnr_db(ours, theirs[: len(ours)]),
                    least_db=LEAST_DB[self._bundle.manifest.precision],
                )

    def _notices(self) -> Iterator[str]:
        first = self._parts[_FIRST]
        yield from (*first.passed_over, *first.notices, *self._parts[_AGAIN].notices)
        found = [name for name, result in first.graphs.items() if result.build_s is not None and not result.built]
        if found:
            yield f"the cache had engines of {', '.join(found)}: their build s is what building took then"
        yield from (f"no times of cuda: {text}" for text in self._parts[_CUDA].failures)


def run_part(order: Order, say: Say) -> Outcome:
    """Has a child process carry out `order`; `say` is called with what it is doing.

    Raises:
        LatentSyncError: the process cannot be started.
    """
    outcome = Outcome()

    def take(event: Event) -> None:
        outcome.add(event)
        for text in [event["doing"]] if "doing" in event else event.get("all_notices", ()):
            say(text)

    try:
        ended = run_child(_WORKER, asdict(order), take)
    except OSError as error:
        raise LatentSyncError(f"the self-test's process cannot be started ({error})") from error
    if not outcome.done:
        words = f": {ended.last_words}" if ended.last_words else ""
        outcome.failures.append(f"the process died with {ended} while {outcome.doing}{words}")
    return outcome


def psnr_db(ours: UInt16Array, theirs: UInt16Array) -> float | None:
    """PSNR of two arrays of 16-bit faces of one shape, in dB; None where they are equal."""
    difference = ours.astype(np.float64) - theirs
    return decibels(_PEAK**2, float(np.mean(difference**2)))
