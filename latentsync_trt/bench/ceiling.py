"""What the hardware can do: the rate of one large matrix product, through the same provider as the graphs."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from latentsync_trt.bench.material import SEED
from latentsync_trt.bench.rows import CEILING, Arithmetic, Row
from latentsync_trt.bench.setting import Setting
from latentsync_trt.bench.spread import Spread, measure
from latentsync_trt.bundle.manifest import TensorEntry
from latentsync_trt.runtime.compiler.profiles import InputShapes
from latentsync_trt.runtime.providers.libraries import rtx_version, tensorrt_version
from latentsync_trt.runtime.providers.select import ORT_NAMES, rtx_devices
from latentsync_trt.runtime.sessions.device_run import BoundRun
from latentsync_trt.runtime.sessions.options import BuildOptions, CudaOptions, RtxOptions, TensorRTOptions
from latentsync_trt.runtime.sessions.recipes import OptimizedGraph, Place, Recipe, RtxEngine, TensorRTEngine

_GRAPHS = Path(__file__).parent.parent / "assets" / "graphs"

_DTYPES = {"fp32": "float32", "fp16": "float16"}

_GPU_SIDE, _CPU_SIDE = 8192, 1024
"""Sides of the matrices: 1.1 TFLOP, beyond every cache of a GPU, and 2.1 GFLOP, a few hundredths of a second."""


def measure_ceiling(setting: Setting) -> Row:
    """Times the product of two square matrices in the bundle's precision; on the CPU always in float32.

    Of a bundle in eight bits it is that of its other layers: what runs between its pairs is up to the provider.

    Raises:
        EngineBuildError, InferenceError, OutOfMemory: the provider failed.
    """
    on_cpu = setting.selection.device == "cpu"
    side = _CPU_SIDE if on_cpu else _GPU_SIDE
    # The CPU provider computes float16 graphs in float32, with casts between.
    precision = "fp32" if on_cpu else setting.bundle.manifest.arithmetic
    name = f"{CEILING} {side} {precision}"
    setting.say(f"{setting.provider}: {name}")
    rng = np.random.default_rng(SEED)
    with setting.watch() as watch:
        with TemporaryDirectory() as shared:
            session = _recipe(setting, precision, side).open(_place(precision, side, Path(shared)), None)
        inputs = {
            tensor.name: rng.standard_normal((side, side), np.float32).astype(tensor.dtype) for tensor in session.inputs
        }
        run = BoundRun(session, inputs, setting.selection.device, setting.selection.device_id)
        runs, warm_up = setting.options.runs_of("graph"), setting.options.warm_up_of("graph")
        time = Spread.of(measure(run, runs=runs, warm_up=warm_up))
    del run
    session.close()
    tflop = 2 * side**3 / 1e12
    arithmetic = Arithmetic(tflop, 1000 * tflop / time.median_ms, 1000 * tflop / time.median_ms)
    return Row("graph", name, setting.provider, None, time, warm_up, arithmetic=arithmetic, memory=watch.peak)


def _place(precision: str, side: int, shared: Path) -> Place:
    return Place(_GRAPHS / f"matmul_{precision}.onnx", shared=shared, dimensions={"side": side})


def _recipe(setting: Setting, precision: str, side: int) -> Recipe:
    """The provider's own way to open a graph, without the engine cache."""
    name, device, gpu = setting.selection.name, setting.selection.device_id, setting.selection.gpu
    if name == "tensorrt" and gpu is not None:
        shape = (side, side)
        left, right, product = (
            TensorEntry(tensor, _DTYPES[precision], shape) for tensor in ("left", "right", "product")
        )
        build = BuildOptions({tensor.name: InputShapes(shape, shape, shape) for tensor in (left, right)})
        return TensorRTEngine(build, TensorRTOptions(device), tensorrt_version(), gpu, (left, right), (product,))
    if name == "rtx":
        return RtxEngine(RtxOptions(), tuple(rtx_devices(device)), rtx_version())
    return OptimizedGraph(ORT_NAMES[name], CudaOptions(device)) if name == "cuda" else OptimizedGraph(ORT_NAMES[name])
