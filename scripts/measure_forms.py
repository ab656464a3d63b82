"""Times the CUDA form of a bundle's graphs against the portable one, and provider options one by one, on a GPU.

    python scripts/measure_forms.py BUNDLE [BUNDLE ...] --json FILE [--limit-s 420] [--runs 20]

Opens every graph of every bundle in both forms as a run would, then the first bundle's full step with one option of the
provider changed, each in a process of its own, and compares outputs on random inputs with the portable graph's.
`docs/performance.md` explains the rows.
"""

import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from latentsync_trt.bundle.manifest import CACHED_STEP, FULL_STEP, VAE_DECODER, VAE_ENCODER, Bundle, step_graph
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.runtime.engines.builders import CUDNN_ATTENTION_FROM, cuda_options
from latentsync_trt.runtime.engines.cache import EngineCache
from latentsync_trt.runtime.engines.session import Session, SessionSettings
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.runtime.providers.select import select_provider

GRAPHS = (FULL_STEP, CACHED_STEP, VAE_ENCODER, VAE_DECODER, step_graph(guided=False, cached=False))

CHANGES: dict[str, dict[str, str | None]] = {
    "flash-attention": {"sdpa_kernel": None},
    "separate-bias": {"fuse_conv_bias": "0"},
    "heuristic-convolutions": {"cudnn_conv_algo_search": "HEURISTIC"},
    "strict-layer-norm": {"enable_skip_layer_norm_strict_mode": "1"},
}
"""Changed options of the provider; None removes one."""

_WARM_UP_RUNS = 4
_QUEUED_RUNS = 10
_ROW_LIMIT_S = 120
_UNWRITTEN = 777


def main() -> None:
    if sys.argv[1:2] == ["row"]:
        print("ROW " + json.dumps(measure(json.loads(sys.argv[2]))), flush=True)
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--limit-s", type=float, default=420)
    parser.add_argument("--runs", type=int, default=20)
    arguments = parser.parse_args()
    time_all(arguments.bundles, arguments.json, arguments.limit_s, arguments.runs)


def rows_of(bundles: list[Path]) -> Iterator[dict[str, Any]]:
    """What is timed, most important first."""
    for graph in GRAPHS:
        for bundle in map(str, bundles):
            for form in ("portable", "cuda"):
                yield {"bundle": bundle, "graph": graph, "form": form}
    first = {"bundle": str(bundles[0]), "graph": FULL_STEP}
    for form in ("cuda", "portable"):
        yield first | {"form": form, "kernels": True}
    for name in CHANGES:
        yield first | {"form": "cuda", "change": name}


def time_all(bundles: list[Path], target: Path, limit_s: float, runs: int) -> None:
    """Every row in a process of its own; the file is complete after each."""
    rows, start_s = [], time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        for spec in rows_of(bundles):
            if time.monotonic() - start_s > limit_s:
                print("out of time before", label(spec))
                break
            row = spec | run_row(spec | {"scratch": scratch, "runs": runs})
            rows.append(row)
            shown = row.get("error") or " ".join(f"{key} {row.get(key)}" for key in ("sync_ms", "stream_ms", "host_ms"))
            print(f"{label(spec):70s} {shown}  {row.get('relative', '')}", flush=True)
            target.write_text(json.dumps(rows, indent=1) + "\n")


def label(spec: dict[str, Any]) -> str:
    words = (
        Path(spec["bundle"]).name,
        spec["graph"],
        spec["form"],
        spec.get("change", ""),
        "kernels" * ("kernels" in spec),
    )
    return " ".join(words).strip()


def run_row(spec: dict[str, Any]) -> dict[str, Any]:
    # Makes ONNX Runtime print which kernel each attention runs.
    env = os.environ | ({"ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO": "1"} if "kernels" in spec else {})
    command = [sys.executable, __file__, "row", json.dumps(spec)]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_ROW_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {_ROW_LIMIT_S} s"}
    lines = done.stdout.splitlines()
    found = [line.removeprefix("ROW ") for line in lines if line.startswith("ROW ")]
    if not found:
        return {"error": (done.stderr or done.stdout).strip()[-1500:]}
    kernels = {line.split("SdpaKernel=")[1].split("\x1b")[0].strip() for line in lines if "SdpaKernel=" in line}
    return json.loads(found[0]) | ({"attention_kernels": sorted(kernels)} if kernels else {})


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """One row: a session opened, timed and compared."""
    notices: list[str] = []
    bundle = Bundle.load(Path(spec["bundle"]), verify=False)
    selection = select_provider("cuda")
    start_s = time.perf_counter()
    row: dict[str, Any] = {"onnxruntime": ort.__version__, "gpu": str(selection.gpu)}
    if "change" in spec:
        attention = selection.gpu.capability >= CUDNN_ATTENTION_FROM
        options = cuda_options(fused_bias=True, cudnn_attention=attention) | CHANGES[spec["change"]]
        given = {name: value for name, value in options.items() if value is not None}
        providers = (("CUDAExecutionProvider", given), ("CPUExecutionProvider", {}))
        session = Session(bundle.graph_path(FULL_STEP, "cuda"), SessionSettings(providers=providers, as_it_is=True))
    else:
        cache = EngineCache(Path(spec["scratch"]) / "engines", notices.append)
        asked = RuntimeOptions(graph_variant="portable" if spec["form"] == "portable" else "auto")
        opened = SessionFactory(bundle, selection, asked, cache, notices.append).open(spec["graph"])
        session = opened.session
        row |= {"node_share": opened.node_share, "build_s": round(opened.build_s, 2), "engine_bytes": opened.size_bytes}
    row |= {"open_s": round(time.perf_counter() - start_s, 2), "notices": notices}
    return row | time_session(session, spec)


def time_session(session: Session, spec: dict[str, Any]) -> dict[str, Any]:
    binding, outputs = bound(session)
    first_ms = timed(lambda: session.ort.run_with_iobinding(binding))
    once = {name: value.numpy() for name, value in outputs.items()}
    if "kernels" in spec:
        return {"kernel_ms": kernel_times(lambda: session.ort.run_with_iobinding(binding))}
    for _ in range(_WARM_UP_RUNS):
        session.ort.run_with_iobinding(binding)
    times = [timed(lambda: session.ort.run_with_iobinding(binding)) for _ in range(spec["runs"])]
    again = {name: value.numpy() for name, value in outputs.items()}
    row: dict[str, Any] = {
        "first_ms": round(first_ms, 1),
        "sync_ms": round(statistics.median(times), 2),
        "p5_ms": round(float(np.percentile(times, 5)), 2),
        "p95_ms": round(float(np.percentile(times, 95)), 2),
        **queued(session, binding),
        "run_to_run": {name: relative(again[name], once[name]) for name in again},
    }
    reference = Path(spec["scratch"]) / f"{Path(spec['bundle']).name}-{spec['graph']}.npz"
    if spec["form"] == "portable":
        np.savez(reference, **again)
    elif reference.is_file():
        truths = np.load(reference)
        row["relative"] = {name: relative(value, truths[name]) for name, value in again.items()}
    return row


def bound(session: Session) -> tuple[Any, dict[str, Any]]:
    """Random inputs and outputs on the device. Outputs start with a value that no network gives, so that gaps show."""
    binding, outputs = session.ort.io_binding(), {}
    for tensor in session.inputs:
        value = ort.OrtValue.ortvalue_from_numpy(example(tensor.name, tensor.shape, tensor.dtype), "cuda", 0)
        binding.bind_ortvalue_input(tensor.name, value)
    for tensor in session.outputs:
        outputs[tensor.name] = ort.OrtValue.ortvalue_from_numpy(
            np.full(tensor.shape, _UNWRITTEN, tensor.dtype), "cuda", 0
        )
        binding.bind_ortvalue_output(tensor.name, outputs[tensor.name])
    return binding, outputs


def example(name: str, shape: tuple[Any, ...], dtype: Any) -> np.ndarray:
    known: dict[str, Any] = {"timestep": 501, "guidance": 1.5, "coefficients": [1.02, -0.31, 0.12, 1.4, -0.9]}
    if name in known:
        return np.array(known[name], dtype)
    return np.random.default_rng(sum(map(ord, name))).standard_normal(shape, np.float32).astype(dtype)


def timed(run: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - start_s)


def queued(session: Session, binding: Any) -> dict[str, float]:
    """A run's time where the host is ahead of the device, and the host's time to launch one."""
    options = ort.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    start_s = time.perf_counter()
    host = [timed(lambda: session.ort.run_with_iobinding(binding, options)) for _ in range(_QUEUED_RUNS)]
    session.ort.run_with_iobinding(binding)  # waits for all
    total_ms = 1000 * (time.perf_counter() - start_s)
    return {"stream_ms": round(total_ms / (_QUEUED_RUNS + 1), 2), "host_ms": round(min(host), 2)}


def kernel_times(run: Callable[[], object], runs: int = 3) -> dict[str, Any]:
    """Milliseconds and launches a run, by kernel; PyTorch's profiler records those of the whole process."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(runs):
            run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    sums: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            sums[event["name"][:140]][0] += event["dur"] / 1000 / runs
            sums[event["name"][:140]][1] += 1 / runs
    ordered = sorted(sums.items(), key=lambda item: -item[1][0])
    return {
        "total": round(sum(ms for _, (ms, _) in ordered), 2),
        "by_name": [[name, *map(float, v)] for name, v in ordered[:50]],
    }


def relative(value: np.ndarray, truth: np.ndarray) -> float:
    """Relative difference, as norms."""
    wide, exact = value.astype(np.float64), truth.astype(np.float64)
    return float(f"{np.linalg.norm(wide - exact) / np.linalg.norm(exact):.3e}")


if __name__ == "__main__":
    main()
