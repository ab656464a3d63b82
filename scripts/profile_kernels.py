"""GPU time of each kernel of a bundle's graphs, by CUPTI through PyTorch's profiler: JSON rows.

    python scripts/profile_kernels.py BUNDLE --json FILE [--graph denoise_step]

Without CUDA graphs, in which CUPTI sees one launch; a step is also timed with them. The gap between
the sum of its kernels and its time is what launches cost.
"""

import argparse
import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from latentsync_trt.bench.rows import environment
from latentsync_trt.bundle.manifest import FULL_STEP, VAE_DECODER, VAE_ENCODER, Bundle
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.runtime.engines.cache import EngineCache, cache_folder
from latentsync_trt.runtime.engines.output_comparison import BoundRun
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.runtime.providers.choice import select_provider

KINDS = {
    "matrix products (cuBLAS)": "^nvjet|cublas",
    "attention (cuDNN)": "sdpa",
    "attention among frames (memory-efficient)": "attention_kernel_batched",
    "convolutions (cuDNN)": "implicit_gemm|convFwd",
    "BiasSplitGelu": "biasSplitGelu",
    "GroupNorm, SkipGroupNorm": "GroupNorm",
    "SkipLayerNormalization": "LayerNorm",
    "BiasAdd": "BiasAddKernel",
    "additions": "BinaryElementWise",
    "concatenations": "Concat",
    "transpositions": "Transpose",
}
"""What a kernel does, by its name."""

WARM_UP_RUNS = 8
PROFILED_RUNS = 3
TIMED_RUNS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--graph", nargs="+", default=[FULL_STEP, VAE_ENCODER, VAE_DECODER])
    arguments = parser.parse_args()
    bundle = Bundle.load(arguments.bundle)
    selection = select_provider("cuda")
    rows = []
    for graph in arguments.graph:
        row: dict[str, Any] = {"graph": graph}
        for cuda_graph in (False, True) if graph == FULL_STEP else (False,):
            options = RuntimeOptions(cuda_graph=cuda_graph)
            factory = SessionFactory(bundle, selection, options, EngineCache(cache_folder(), print))
            session = factory.open(graph, cuda_graph=cuda_graph).session
            run = BoundRun(session, bundle.manifest.ranges, selection)
            for _ in range(WARM_UP_RUNS):
                run()
            row["with CUDA graphs, ms" if cuda_graph else "ms"] = timed_ms(run)
            if not cuda_graph:
                row |= kernels(run)
            del run
            session.close()
        rows.append(row)
        print(
            json.dumps({name: value for name, value in row.items() if name != "kernels"}),
            flush=True,
        )
    facts = environment(sys.argv, [selection.name], selection.device_id)
    facts |= {"torch": torch.__version__, "bundle": bundle.manifest.name}
    arguments.json.write_text(
        json.dumps({"environment": facts, "rows": rows}, indent=1) + "\n", encoding="utf-8"
    )


def timed_ms(run: BoundRun) -> float:
    times_ms = []
    for _ in range(TIMED_RUNS):
        start_s = perf_counter()
        run()
        times_ms.append(1000 * (perf_counter() - start_s))
    return round(median(times_ms), 2)


def kernels(run: BoundRun) -> dict[str, Any]:
    """Milliseconds and launches of a run: the sum, by kind, and of each kernel."""
    torch.cuda.init()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(PROFILED_RUNS):
            run()
    durations_ms: dict[str, list[float]] = defaultdict(list)
    for event in profiled.events():
        if event.device_type == DeviceType.CUDA:
            durations_ms[event.name].append(event.time_range.elapsed_us() / 1000)
    return summary(
        [
            (name, len(ms) / PROFILED_RUNS, sum(ms) / PROFILED_RUNS)
            for name, ms in durations_ms.items()
        ]
    )


def summary(measured: list[tuple[str, float, float]]) -> dict[str, Any]:
    """By kind, of kernels with their names, launches and milliseconds."""
    kinds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for name, launches, ms in measured:
        kind = next((kind for kind, pattern in KINDS.items() if re.search(pattern, name)), "other")
        kinds[kind][0] += ms
        kinds[kind][1] += launches
    return {
        "kernels_ms": round(sum(ms for _, _, ms in measured), 2),
        "launches": round(sum(launches for _, launches, _ in measured)),
        "by_kind": {
            kind: [round(ms, 2), round(count)]
            for kind, (ms, count) in sorted(kinds.items(), key=by_ms)
        },
        "kernels": [
            [name, round(count, 1), round(ms, 3)]
            for name, count, ms in sorted(measured, key=lambda one: -one[2])
        ],
    }


def by_ms(kind: tuple[str, list[float]]) -> float:
    return -kind[1][0]


if __name__ == "__main__":
    main()
