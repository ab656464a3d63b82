"""Scenario "graph": each graph of a bundle by itself, on random inputs that lie on the device."""

from collections.abc import Iterator

from latentsync_trt.bench.ceiling import measure_ceiling
from latentsync_trt.bench.flops import operations
from latentsync_trt.bench.machine import without_paths
from latentsync_trt.bench.material import random_inputs
from latentsync_trt.bench.onnx_file import read_graph
from latentsync_trt.bench.rows import Arithmetic, Row
from latentsync_trt.bench.setting import Setting
from latentsync_trt.bench.spread import Spread, measure
from latentsync_trt.bundle.manifest import DimensionRange
from latentsync_trt.errors import BundleError
from latentsync_trt.runtime.compiler.profiles import dimension_ranges
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.sessions.device_run import BoundRun


def measure_graphs(setting: Setting) -> Iterator[Row]:
    """A row for the ceiling, then one for every graph. Errors as `Networks.prepare` and `BoundRun`."""
    ceiling = measure_ceiling(setting)
    yield ceiling
    with setting.networks() as networks:
        for graph in setting.bundle.manifest.graphs:
            setting.say(f"{setting.provider}: {graph}")
            yield _measure(setting, networks, graph, ceiling)
            # Each graph by itself: what one leaves behind must not count as memory of the next.
            setting.close(networks)


def _measure(setting: Setting, networks: Networks, graph: str, ceiling: Row) -> Row:
    runs, warm_up = setting.options.runs_of("graph"), setting.options.warm_up_of("graph")
    ranges = dimension_ranges(setting.bundle.manifest, setting.runtime)
    with setting.watch() as watch:
        session = networks.session(graph)
        inputs = random_inputs(session.inputs, ranges)
        run = BoundRun(session, inputs, setting.selection.device, setting.selection.device_id)
        time = Spread.of(measure(run, runs=runs, warm_up=warm_up))
    del run
    engine = next(entry for entry in networks.times() if entry.graph == graph)
    arithmetic, notes = _arithmetic(setting, graph, ranges, time, ceiling)
    return Row(
        "graph",
        graph,
        setting.provider,
        None,
        time,
        warm_up,
        arithmetic=arithmetic,
        memory=watch.peak,
        start_up_s={"build": engine.build_s, "open": engine.open_s},
        facts={"node_share": engine.node_share, "built_now": float(engine.built)},
        notes=(*notes, *map(without_paths, networks.take_notices())),
    )


def _arithmetic(
    setting: Setting, graph: str, ranges: dict[str, DimensionRange], time: Spread, ceiling: Row
) -> tuple[Arithmetic | None, tuple[str, ...]]:
    """What the bundle's own graph has to compute, whatever the provider makes of it."""
    sizes = {name: span.optimum for name, span in ranges.items()}
    try:
        counts = operations(read_graph(setting.bundle.graph_path(graph)), sizes)
    except BundleError as error:
        return None, (f"TFLOP not counted: {error}",)
    tflop = sum(counts.values()) / 1e12
    most = ceiling.arithmetic.tflop_per_s if ceiling.arithmetic else None
    return Arithmetic(tflop, 1000 * tflop / time.median_ms, most), ()
