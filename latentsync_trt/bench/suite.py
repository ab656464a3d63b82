"""All that a bench measures, in order: every scenario on every provider."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from latentsync_trt.bench.graphs import measure_graphs
from latentsync_trt.bench.loops import measure_loops
from latentsync_trt.bench.machine import bundle_facts, environment
from latentsync_trt.bench.material import FULL_HD_PX, choose_clip
from latentsync_trt.bench.options import BenchOptions
from latentsync_trt.bench.rows import Results, Row
from latentsync_trt.bench.setting import Setting, settings_for, with_preset
from latentsync_trt.bench.stages import measure_network_stages, measure_stages
from latentsync_trt.bench.whole import measure_clips
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.errors import InputError, MissingDependency

_TORCH_NEEDED = ("torch", "diffusers")


@dataclass(frozen=True, slots=True)
class Record:
    """Who is told of a bench.

    `say`: what is being measured, in a line. `keep`: all rows so far, after each: what comes later may fail. `command`:
    the command line, for the record.
    """

    say: Callable[[str], None]
    keep: Callable[[Results], None]
    command: Sequence[str] = ()


def run_bench(
    bundle: Bundle,
    reference: Bundle | None,
    options: BenchOptions,
    runtime: RuntimeOptions,
    sync: SyncOptions | None = None,
    *,
    record: Record,
) -> Results:
    """Measures what `options` say.

    Args:
        reference: whose pictures are compared with; None for those of `bundle` itself.
        sync: what counts before every preset, as `--cache-interval` does; its own preset does not count.
        record: who is told.

    Raises:
        InputError: a clip or an option cannot be used, or the reference's pictures have another size.
        ProviderUnavailable: a named provider does not load. MissingDependency: no PyTorch for scenario pytorch.
        Else as `LipSync.sync`.
    """
    sync = sync or SyncOptions()
    _check(bundle, reference, options, sync)
    settings = settings_for(bundle, reference, runtime, sync, options, record.say)
    results = Results(environment(record.command, [s.selection for s in settings]), bundle_facts(bundle.manifest), ())
    with tempfile.TemporaryDirectory(prefix="latentsync-bench-") as folder:
        for row in _rows(settings, options, Path(folder)):
            results = replace(results, rows=(*results.rows, row))
            record.keep(results)
    return results


def _check(bundle: Bundle, reference: Bundle | None, options: BenchOptions, sync: SyncOptions) -> None:
    """Raises what can be known before anything is measured."""
    for preset in options.preset:
        with_preset(sync, preset)  # a list of full steps may be too long for it
    if "pytorch" in options.scenario:
        missing = [name for name in _TORCH_NEEDED if find_spec(name) is None]
        if missing:
            raise MissingDependency(
                f"scenario pytorch needs {', '.join(missing)}: pip install 'latentsync-trt[export]'"
            )
    ours = bundle.manifest
    theirs = ours if reference is None else reference.manifest
    if (theirs.resolution_px, theirs.frames) != (ours.resolution_px, ours.frames):
        raise InputError(
            f"--reference-bundle {theirs.name}: windows of {theirs.frames} faces of {theirs.resolution_px} px, and "
            f"{ours.name} makes {ours.frames} of {ours.resolution_px} px; pictures of one size are compared"
        )


def _rows(settings: Sequence[Setting], options: BenchOptions, folder: Path) -> Iterator[Row]:
    video = None if options.video is None else Path(options.video)
    audio = None if options.audio is None else Path(options.audio)
    wanted = options.scenario
    clip = choose_clip(video, audio, folder) if {"loop", "end-to-end"} & set(wanted) else None
    wide = choose_clip(video, audio, folder, FULL_HD_PX) if "stage" in wanted else None
    for setting in settings:
        if "graph" in wanted:
            yield from measure_graphs(setting)
        if clip is not None and "loop" in wanted:
            yield from measure_loops(setting, clip)
        if wide is not None:
            yield from measure_network_stages(setting, wide)
        if clip is not None and "end-to-end" in wanted:
            yield from measure_clips(setting, clip, folder)
    # The rest leaves memory behind that would count as that of whatever comes after it.
    if wide is not None:
        yield from measure_stages(settings[0], wide, folder)
    if "pytorch" in wanted:
        devices = {setting.selection.device: setting for setting in settings}
        for setting in devices.values():
            yield from _measure_torch(setting)


def _measure_torch(setting: Setting) -> Iterator[Row]:
    from latentsync_trt.bench.torch_baseline import measure_torch

    return measure_torch(setting)
