"""Times the networks of a bundle by themselves: the instrument behind the rows of `benchmarks/bench-….json`.

    python scripts/measure_networks.py --bundle NAME --scenario graph --scenario loop --preset fast --out FILE.json

graph  each graph of a bundle, on random inputs in device memory
loop   one window of faces, or a batch, through the VAE and all denoising steps, for each preset
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import rich_click as click

from latentsync_trt.bench.rows import Results, Row, bundle_facts, environment
from latentsync_trt.bench.run import Setting, first_window, settings_for
from latentsync_trt.bundle.find import find_bundle
from latentsync_trt.bundle.manifest import SIZE_STEPS, STEP_GRAPHS, Bundle, DimensionRange
from latentsync_trt.cli.options import build, bundle_option, options_from
from latentsync_trt.cli.show import say
from latentsync_trt.config import PRESETS, PresetName, RuntimeOptions, SyncOptions
from latentsync_trt.files import temporary_folder
from latentsync_trt.measure.pictures import generated_part, likeness
from latentsync_trt.media.demo_clip import Clip, choose_clip
from latentsync_trt.option_fields import QUALITY
from latentsync_trt.runtime.engines.cache import EngineCache, cache_folder
from latentsync_trt.runtime.engines.output_comparison import BoundRun
from latentsync_trt.runtime.engines.profiles import dimension_ranges
from latentsync_trt.runtime.engines.session import give_back_gpu_memory
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.runtime.model import open_model
from latentsync_trt.runtime.providers.table import PROVIDER_CHOICES
from latentsync_trt.sync.inpaint import graphs_for, make_inpainter
from latentsync_trt.types import UInt8Array, UInt16Array
from latentsync_trt.values import RESOLUTION_STEP_PX

REFERENCE: PresetName = "quality"
"""The preset whose pictures the others are compared with."""

REPETITIONS = {"graph": (20, 3), "loop": (5, 1)}
"""Timed runs and warm-up runs."""


@click.command()
@bundle_option
@click.option("--provider", multiple=True, type=click.Choice(PROVIDER_CHOICES), default=("auto",))
@click.option("--preset", multiple=True, type=click.Choice(list(PRESETS)), default=tuple(PRESETS))
@click.option("--scenario", multiple=True, type=click.Choice(list(REPETITIONS)), default=tuple(REPETITIONS))
@click.option("--runs", type=int, help="Timed runs.  [default: 20 of a graph, 5 of a loop]")
@click.option("--warm-up", type=int, help="Runs before those.  [default: 3 of a graph, 1 of a loop]")
@click.option("--video", type=Path)
@click.option("--audio", type=Path)
@click.option("--out", type=Path, required=True)
@options_from(SyncOptions, groups=(QUALITY,), leave_out=("preset",))
@options_from(RuntimeOptions, leave_out=("build", "verify"))
def main(bundle: str | None, out: Path, **given: Any) -> None:
    presets = given.pop("preset")
    loaded, runtime, sync = Bundle.load(find_bundle(bundle)[0]), build(RuntimeOptions, given), build(SyncOptions, given)
    settings = settings_for(loaded, runtime, sync, given["provider"], presets, say)
    measure(loaded, settings, given["scenario"], given["runs"], given["warm_up"], given["video"], given["audio"], out)


def measure(
    bundle: Bundle,
    settings: Sequence[Setting],
    scenarios: Sequence[str],
    runs: int | None,
    warm_up: int | None,
    video: Path | None,
    audio: Path | None,
    out: Path,
) -> Results:
    """Writes all rows so far after each one."""
    facts = replace(bundle_facts(bundle.manifest), resolution_px=settings[0].resolution_px)
    results = Results(environment(sys.argv, [setting.selection for setting in settings]), facts, ())
    with temporary_folder() as folder:
        clip = choose_clip(video, audio, folder)
        for setting in settings:
            for scenario in scenarios:
                usual = REPETITIONS[scenario]
                repeats = usual[0] if runs is None else runs, usual[1] if warm_up is None else warm_up
                made = replace(setting, runs=repeats[0], warm_up=repeats[1])
                for row in _graphs(made) if scenario == "graph" else _loops(made, clip):
                    results = replace(results, rows=(*results.rows, row))
                    results.write(out)
                    print(f"{row.scenario} {row.case} {row.preset or ''}: {row.time.median_ms:.2f} ms", flush=True)
    return results


def at_resolution(ranges: Mapping[str, DimensionRange], resolution_px: int) -> dict[str, DimensionRange]:
    """`ranges` in which variable heights and widths have their optimum at a resolution."""
    sizes = {name: resolution_px // RESOLUTION_STEP_PX * step for name, step in SIZE_STEPS.items()}
    return {name: replace(span, optimum=sizes.get(name, span.optimum)) for name, span in ranges.items()}


def _graphs(setting: Setting) -> Iterator[Row]:
    manifest, selection, notices = setting.bundle.manifest, setting.selection, list[str]()
    ranges = at_resolution(dimension_ranges(manifest, setting.runtime), setting.resolution_px)
    cache = EngineCache(cache_folder(setting.runtime.engine_cache), notices.append)
    factory = SessionFactory(setting.bundle, selection, setting.runtime, cache, notices.append)
    for graph in manifest.graphs:
        setting.say(f"{selection.name}: {graph}")
        with setting.memory() as memory:
            opened = factory.open(graph, cuda_graph=factory.cuda_graph and graph in STEP_GRAPHS)
            with closing(opened.session) as session:
                times_ms, _ = setting.timed(BoundRun(session, ranges, selection))
        # The memory of one graph must not be counted for the next.
        give_back_gpu_memory(selection)
        start_up_s = {"build": opened.build_s, "open": opened.open_s}
        yield setting.row("graph", graph, times_ms, notices, memory=memory, start_up_s=start_up_s)
        notices.clear()


def _loops(setting: Setting, clip: Clip) -> Iterator[Row]:
    """A row for each preset; the reference preset, if it is among them, comes first."""
    manifest, presets, name = setting.bundle.manifest, setting.presets, setting.selection.name
    reference = SyncOptions(preset=REFERENCE, resolution=next(iter(presets.values())).resolution)
    graphs = dict.fromkeys(graph for options in (reference, *presets.values()) for graph in graphs_for(options))
    selection = replace(setting.selection, is_named=True)  # no other is measured
    with closing(open_model(setting.bundle, selection, setting.runtime, tuple(graphs), setting.say)) as model:
        before_s = dict[str, float]()

        def seconds() -> dict[str, float]:
            times = model.times()
            return {time.graph: (time.first_ms + (time.runs - 1) * time.mean_ms) / 1000 for time in times if time.runs}

        window = first_window(clip, manifest.frames, model, setting.resolution_px)
        windows, expected = [window], None
        if reference not in presets.values():
            setting.say(f"{name}: the window to compare with")
            expected = _generated(make_inpainter(model, reference).paint([window])[0])
        for preset in sorted(presets, key=lambda preset: presets[preset] != reference):
            setting.say(f"{name}: a window of {clip.name} with preset {preset}")
            inpainter = make_inpainter(model, presets[preset])
            with setting.memory() as memory:
                paint: Callable[[], Any] = partial(inpainter.paint, windows)
                times_ms, painted = setting.timed(paint, lambda: before_s.update(seconds()))
            spent_s = {graph: total_s - before_s.get(graph, 0.0) for graph, total_s in seconds().items()}
            parts_s = {graph: total_s / len(times_ms) for graph, total_s in spent_s.items() if total_s > 0}
            parts_s["rest"] = fmean(times_ms) / 1000 - sum(parts_s.values())
            found, notes = _generated(painted[0]), [*model.notices]
            if expected is None:
                expected = found
            else:
                notes.append(f"beside preset {REFERENCE}: {likeness(found, expected)}")
            case = "one window" if len(windows) == 1 else f"{len(windows)} windows"
            measured = {"frames": len(windows) * manifest.frames, "memory": memory, "parts_s": parts_s}
            yield setting.row("loop", case, times_ms, notes, preset=preset, **measured)


def _generated(painted: Sequence[UInt16Array]) -> UInt8Array:
    """The generated part of faces, uint16 `(H, W, 3)`, as 8-bit pictures."""
    rows, columns = generated_part(len(painted[0]))
    return np.rint(np.stack([face[rows, columns] for face in painted]) / 257).astype(np.uint8)


if __name__ == "__main__":
    main()
