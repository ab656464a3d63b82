"""Runs a whole bench: every scenario on every provider."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from latentsync_trt.bench.graphs import measure_graphs
from latentsync_trt.bench.loops import measure_loops
from latentsync_trt.bench.machine import bundle_facts, environment
from latentsync_trt.bench.material import choose_clip
from latentsync_trt.bench.options import BenchOptions
from latentsync_trt.bench.rows import Results, Row
from latentsync_trt.bench.setting import Setting, settings_for
from latentsync_trt.bench.whole_clips import measure_clips
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.temporary import temporary_folder


def run_bench(
    bundle: Bundle,
    options: BenchOptions,
    runtime: RuntimeOptions,
    sync: SyncOptions,
    *,
    say: Callable[[str], None] = lambda _: None,
    command: Sequence[str] = (),
) -> Generator[Results, None, None]:
    """Measures what `options` ask for; yields all rows so far after each one, so that a later failure loses none.

    Args:
        sync: options that override every preset, as `--cache-interval` does; its own preset is ignored.
        say: called with a line about what is being measured. command: the command line, for the environment.

    Raises:
        InputError: a clip or an option cannot be used. ProviderUnavailable: a named provider does not load. Else as
        `LipSync.sync`.
    """
    settings = settings_for(bundle, runtime, sync, options, say)
    for preset in options.preset:
        settings[0].sync_options(preset)  # invalid options must fail before the first measurement
    facts = replace(bundle_facts(bundle.manifest), resolution_px=settings[0].resolution_px)
    results = Results(environment(command, [s.selection for s in settings]), facts, ())
    with temporary_folder(on_notice=say) as folder:
        for row in _rows(settings, options, folder):
            results = replace(results, rows=(*results.rows, row))
            yield results


def _rows(settings: Sequence[Setting], options: BenchOptions, folder: Path) -> Iterator[Row]:
    video, audio = (None if path is None else Path(path) for path in (options.video, options.audio))
    scenarios = options.scenario
    clip = choose_clip(video, audio, folder) if {"loop", "end-to-end"} & set(scenarios) else None
    for setting in settings:
        if "graph" in scenarios:
            yield from measure_graphs(setting)
        if clip is not None and "loop" in scenarios:
            yield from measure_loops(setting, clip)
        if clip is not None and "end-to-end" in scenarios:
            yield from measure_clips(setting, clip, folder)
