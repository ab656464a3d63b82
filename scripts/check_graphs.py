"""Compiles the graphs of a bundle with NVIDIA's compiler for TensorRT-RTX, without a GPU; prints
the verdicts as JSON.

    python scripts/check_graphs.py demo --compute-capability 8.9 --compute-capability 12.0 >
    check.json

It is not the compiler of provider tensorrt, but has the same parser interface and the same rules
for types. Ends with 1 if a graph is refused. Needs the extra `check`.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import tensorrt_rtx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from latentsync_trt import __version__  # noqa: E402
from latentsync_trt.bundle.find import find_bundle  # noqa: E402
from latentsync_trt.bundle.manifest import Bundle, Manifest, Shapes  # noqa: E402
from latentsync_trt.config import RuntimeOptions  # noqa: E402
from latentsync_trt.errors import InputError  # noqa: E402
from latentsync_trt.runtime.compiler import CompileOrder, CompileResult, run_compiler  # noqa: E402
from latentsync_trt.runtime.engines.shapes import ProfileShapes, dimension_ranges, input_shapes  # noqa: E402

RTX_40 = "8.9"
SHOWN = ("accepted", "reason", "engine_bytes")
"""Fields of `CompileResult` in the report."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One graph to compile, with static or dynamic shapes, and the resulting shapes of its
    inputs.
    """

    graph: str
    shapes: Shapes
    profile: Mapping[str, ProfileShapes]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", help="path, name below checkpoints/, or demo")
    parser.add_argument(
        "--graph", dest="graphs", action="append", default=[], help="only this one; may be repeated"
    )
    parser.add_argument(
        "--compute-capability",
        dest="capabilities",
        action="append",
        metavar="X.Y",
        help="of the GPU; may be repeated",
    )
    parser.add_argument(
        "--dynamic", action=argparse.BooleanOptionalAction, help="shapes; by default, all kinds"
    )
    options = parser.parse_args(arguments)
    report = check_bundle(
        Bundle.load(find_bundle(options.bundle)[0]),
        options.graphs,
        options.dynamic,
        options.capabilities or [RTX_40],
    )
    print(json.dumps(report, indent=2))
    if report["accepted"]:
        return 0
    return 1


def check_bundle(
    bundle: Bundle, graphs: Sequence[str], dynamic: bool | None, capabilities: Sequence[str]
) -> dict[str, object]:
    """Compiles and reports."""
    manifest = bundle.manifest
    verdicts = []
    for capability in capabilities:
        for trial in plan_trials(manifest, graphs, dynamic):
            print(f"{capability}: {trial.graph}, {trial.shapes}", file=sys.stderr)
            start_s = time.perf_counter()
            answer = compile_graph(bundle.graph_path(trial.graph), trial.profile, capability)
            reported = {name: getattr(answer, name) for name in SHOWN}
            reported["seconds"] = round(time.perf_counter() - start_s, 3)
            verdicts.append({"compute_capability": capability, **asdict(trial), **reported})
    return {
        "bundle": manifest.name,
        **{
            name: getattr(manifest, name)
            for name in ("resolution_px", "frames", "precision", "opset")
        },
        "form": "portable",
        "tensorrt_rtx": tensorrt_rtx.__version__,
        "latentsync_trt": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "accepted": all(verdict["accepted"] for verdict in verdicts),
        "graphs": verdicts,
    }


def plan_trials(
    manifest: Manifest, graphs: Sequence[str] = (), dynamic: bool | None = None
) -> Iterator[Trial]:
    """The graphs to compile: `graphs` or all, with dynamic or static shapes or (None) all kinds of
    the bundle.

    Raises:
        InputError: the bundle lacks a graph, or dynamic shapes.
    """
    if unknown := [name for name in graphs if name not in manifest.graphs]:
        raise InputError(
            f"--graph {', '.join(unknown)}: bundle "
            f"{manifest.name} has only {', '.join(manifest.graphs)}"
        )
    kinds: tuple[Shapes, ...] = (
        ("static",) if manifest.shapes == "static" else ("static", "dynamic")
    )
    if dynamic is not None:
        kinds = ("dynamic" if dynamic else "static",)
    for kind in kinds:
        ranges = dimension_ranges(manifest, RuntimeOptions(dynamic=kind == "dynamic"))
        for name in graphs or manifest.graphs:
            yield Trial(name, kind, input_shapes(manifest.graphs[name], ranges))


def compile_graph(
    path: Path, profile: Mapping[str, ProfileShapes], compute_capability: str = RTX_40
) -> CompileResult:
    """Compiles a graph as a strongly typed network, as for TensorRT.

    `profile`: shapes of every input with a variable dimension; if all are equal, the engine is
    static.
    """
    target = "SM" + compute_capability.replace(".", "")
    return run_compiler(CompileOrder("tensorrt_rtx", str(path.resolve()), profile, target=target))


if __name__ == "__main__":
    sys.exit(main())
