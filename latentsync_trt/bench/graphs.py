"""Scenario "graph": each graph of a bundle by itself, on random inputs in device memory."""

from collections.abc import Generator
from dataclasses import replace

from latentsync_trt.bench.rows import Row
from latentsync_trt.bench.setting import Setting
from latentsync_trt.privacy import without_paths
from latentsync_trt.runtime.compiler.profiles import at_resolution, dimension_ranges
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.sessions.device_run import BoundRun
from latentsync_trt.runtime.sessions.trial import random_inputs


def measure_graphs(setting: Setting) -> Generator[Row, None, None]:
    """A row per graph. Errors as `Networks.prepare` and `BoundRun`."""
    with setting.networks() as networks:
        for graph in setting.bundle.manifest.graphs:
            setting.say(f"{setting.provider}: {graph}")
            yield _measure(setting, networks, graph)
            # The memory of one graph must not be counted for the next.
            networks.close()


def _measure(setting: Setting, networks: Networks, graph: str) -> Row:
    ranges = at_resolution(dimension_ranges(setting.bundle.manifest, setting.runtime), setting.resolution_px)
    with setting.watch() as watch:
        session = networks.session(graph)
        inputs = random_inputs(session.inputs, ranges)
        run = BoundRun(session, inputs, setting.selection.device, setting.selection.device_id)
        row = setting.row("graph", graph, run, watch)
    del run
    engine = next(entry for entry in networks.times() if entry.graph == graph)
    return replace(
        row,
        start_up_s={"build": engine.build_s, "open": engine.open_s},
        layers=networks.layers(graph),
        notes=tuple(map(without_paths, networks.take_notices())),
    )
