"""Scenario "graph": each graph of a bundle by itself, on random inputs in device memory, and the ceiling that a large
matrix product reaches."""

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

from latentsync_trt.bench.material import random_inputs
from latentsync_trt.bench.rows import CEILING, Arithmetic, Row, Spread
from latentsync_trt.bench.setting import Setting
from latentsync_trt.bundle.manifest import DimensionRange
from latentsync_trt.errors import BundleError
from latentsync_trt.privacy import without_paths
from latentsync_trt.runtime.compiler.profiles import dimension_ranges
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.providers.diagnose import rtx_devices
from latentsync_trt.runtime.providers.libraries import rtx_version
from latentsync_trt.runtime.sessions.builders import DirectOpen, GraphSource, Opener, RtxBuilder
from latentsync_trt.runtime.sessions.device_run import BoundRun
from latentsync_trt.runtime.sessions.options import cuda_options, rtx_options
from latentsync_trt.runtime.sessions.session import CPU

_GRAPHS = Path(__file__).parents[1] / "assets" / "graphs"

_GPU_SIDE, _CPU_SIDE = 8192, 1024
"""Sides of the matrices: 1.1 TFLOP, too large for a GPU's caches; 2.1 GFLOP, a few hundredths of a second."""


def measure_graphs(setting: Setting) -> Generator[Row, None, None]:
    """A row for the ceiling, then one per graph. Errors as `Networks.prepare` and `BoundRun`."""
    ceiling = measure_ceiling(setting)
    yield ceiling
    with setting.networks() as networks:
        for graph in setting.bundle.manifest.graphs:
            setting.say(f"{setting.provider}: {graph}")
            yield _measure(setting, networks, graph, ceiling)
            # The memory of one graph must not be counted for the next.
            networks.close()


def measure_ceiling(setting: Setting) -> Row:
    """Times the product of two square matrices in the bundle's precision: with cuBLAS for TensorRT, too; on the CPU in
    float32, as its provider computes float16 graphs.

    Raises:
        EngineBuildError, InferenceError, OutOfMemory: the provider failed.
    """
    on_cpu = setting.selection.device == "cpu"
    side = _CPU_SIDE if on_cpu else _GPU_SIDE
    precision = "fp32" if on_cpu else setting.bundle.manifest.arithmetic
    name = f"{CEILING} {side} {precision}"
    setting.say(f"{setting.provider}: {name}")
    source = GraphSource(_GRAPHS / f"matmul_{precision}.onnx", {"side": side})
    with setting.watch() as watch:
        session = _ceiling_opener(setting).open(source)
        inputs = random_inputs(session.inputs, {"side": DimensionRange(side, side, side)})
        run = BoundRun(session, inputs, setting.selection.device, setting.selection.device_id)
        row = setting.row("graph", name, run, watch)
    del run
    session.close()
    tflop = 2 * side**3 / 1e12
    rate = 1000 * tflop / row.time.median_ms
    return replace(row, arithmetic=Arithmetic(tflop, rate, rate))


def _ceiling_opener(setting: Setting) -> Opener:
    if setting.provider == "cpu":
        return DirectOpen(CPU)
    device = setting.selection.device_id
    if setting.provider == "rtx":
        return RtxBuilder(rtx_options(), tuple(rtx_devices(device)), rtx_version())
    return DirectOpen((("CUDAExecutionProvider", cuda_options(device)), *CPU))


def _measure(setting: Setting, networks: Networks, graph: str, ceiling: Row) -> Row:
    ranges = dimension_ranges(setting.bundle.manifest, setting.runtime)
    with setting.watch() as watch:
        session = networks.session(graph)
        inputs = random_inputs(session.inputs, ranges)
        run = BoundRun(session, inputs, setting.selection.device, setting.selection.device_id)
        row = setting.row("graph", graph, run, watch)
    del run
    engine = next(entry for entry in networks.times() if entry.graph == graph)
    arithmetic, notes = _arithmetic(setting, graph, ranges, row.time, ceiling)
    return replace(
        row,
        arithmetic=arithmetic,
        start_up_s={"build": engine.build_s, "open": engine.open_s},
        notes=tuple(map(without_paths, (*notes, *networks.take_notices()))),
    )


def _arithmetic(
    setting: Setting, graph: str, ranges: dict[str, DimensionRange], time: Spread, ceiling: Row
) -> tuple[Arithmetic | None, list[str]]:
    """The arithmetic of the exported graph, before the provider optimizes it, or a note why it is not counted."""
    sizes = {name: span.optimum for name, span in ranges.items()}
    try:
        from latentsync_trt.bench.flops import operations

        tflop = sum(operations(setting.bundle.graph_path(graph), sizes).values()) / 1e12
    except ImportError as error:
        return None, [f"TFLOP not counted: needs {error.name}: pip install 'latentsync-trt[calibrate]'"]
    except BundleError as error:
        return None, [f"TFLOP not counted: {error}"]
    rate = ceiling.arithmetic.tflop_per_s if ceiling.arithmetic else None
    return Arithmetic(tflop, 1000 * tflop / time.median_ms, rate), []
