"""Scenario "pytorch": the same networks and inputs without ONNX, eager and compiled, for the ratio in one run."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from latentsync_trt.bench.machine import without_paths
from latentsync_trt.bench.material import random_inputs
from latentsync_trt.bench.rows import Row
from latentsync_trt.bench.setting import Setting
from latentsync_trt.bench.spread import Spread, measure
from latentsync_trt.bench.torch_networks import build_modules
from latentsync_trt.bundle.manifest import GraphEntry
from latentsync_trt.errors import ProviderUnavailable
from latentsync_trt.export.step import HIDDEN
from latentsync_trt.runtime.compiler.profiles import dimension_ranges
from latentsync_trt.runtime.sessions.session import TensorInfo, last_line


def measure_torch(setting: Setting) -> Iterator[Row]:
    """Rows for each network, eager and compiled: float16 on a GPU, float32 on the CPU, whatever the bundle's precision.

    Raises:
        ProviderUnavailable: the provider is on a GPU, and this PyTorch has no CUDA.
        BundleError: the bundle is of other networks than this version exports.
    """
    device = torch.device(setting.selection.device, setting.selection.device_id)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ProviderUnavailable(f"scenario pytorch: torch {torch.__version__} finds no CUDA; install a build with it")
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    modules = build_modules(setting.bundle, device, dtype)
    for graph, module in modules.items():
        inputs = _inputs(setting, setting.bundle.manifest.graphs[graph], device, dtype)
        rows = [_measure(setting, f"{graph} eager", device, module, inputs)]
        try:
            rows.append(_measure(setting, f"{graph} compiled", device, torch.compile(module), inputs))
        except RuntimeError as error:  # no compiler on this machine, or one that does not take the network
            reason = without_paths(last_line(error))
            setting.say(f"pytorch {device.type}: torch.compile failed on {graph}: {reason}")
            rows = [replace(rows[0], notes=(*rows[0].notes, f"torch.compile not measured: {reason}"))]
        yield from rows
        torch.compiler.reset()


def _measure(
    setting: Setting, case: str, device: torch.device, module: Callable[..., object], inputs: Mapping[str, Tensor]
) -> Row:
    setting.say(f"pytorch {device.type}: {case}")
    runs, warm_up = setting.options.runs_of("pytorch"), setting.options.warm_up_of("pytorch")

    def run() -> None:
        module(*inputs.values())
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    with torch.inference_mode(), setting.watch() as watch:
        start_s = perf_counter()
        run()
        first_s = perf_counter() - start_s
        time = Spread.of(measure(run, runs=runs, warm_up=warm_up))
    precision = "fp16" if device.type == "cuda" else "fp32"
    return Row(
        "pytorch",
        case,
        device.type,
        None,
        time,
        warm_up,
        memory=watch.peak,
        start_up_s={"first run, compiling included": first_s},
        notes=(f"torch {torch.__version__}, {precision}, random weights",),
    )


def _inputs(setting: Setting, entry: GraphEntry, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """The inputs that scenario "graph" gives to the same graph; `hidden` in the modules' precision."""
    tensors = [TensorInfo(tensor.name, tensor.shape, np.dtype(tensor.dtype)) for tensor in entry.inputs]
    arrays = random_inputs(tensors, dimension_ranges(setting.bundle.manifest, setting.runtime))
    inputs = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    return {name: tensor.to(dtype) if name == HIDDEN else tensor for name, tensor in inputs.items()}
