"""NVIDIA's TensorRT compiler for RTX: does it take a graph? It needs no GPU, and makes no engine that is kept.

The compiler runs in a process of its own. It writes to the console what no logger gets, swallows Ctrl-C, keeps much of
its memory, and one that crashes would take the caller along.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from latentsync_trt.bundle import Manifest, Shapes
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import EngineBuildError, InputError, MissingDependency, OutOfMemory
from latentsync_trt.runtime.profiles import InputShapes, check_graphs, dimension_ranges, input_shapes

DEFAULT_COMPUTE_CAPABILITY = "8.9"
"""GeForce RTX 40xx, RTX Ada."""

_WORKER = "latentsync_trt.runtime.compiler_worker"
_SM = "SM"
_KILLED = -9
"""Exit code of a process that POSIX systems end for memory."""
_OUT_OF_MEMORY = ("bad_alloc", "out of memory", "outofmemory", "memoryerror", "insufficient memory")
_MEMORY_CURE = "close other programs; the published U-Net at 512 px takes about 9 GB"


@dataclass(frozen=True, slots=True)
class Trial:
    """One graph to compile: with its dimensions fixed or variable, and the shapes that follow for its inputs."""

    graph: str
    shapes: Shapes
    profile: Mapping[str, InputShapes]


def plan_trials(manifest: Manifest, graphs: Sequence[str], options: RuntimeOptions) -> tuple[Trial, ...]:
    """What to compile of a bundle.

    Args:
        graphs: names of graphs; empty for all. options: `dynamic` and `max_windows` count. Where `dynamic` is None a
            dynamic bundle is tried both ways, as engines of both kinds can be made of it.

    Raises:
        InputError: the bundle has no such graph or no such shapes.
    """
    check_graphs(manifest, graphs)
    return tuple(
        Trial(name, shapes, input_shapes(manifest.graphs[name], dimension_ranges(manifest, chosen)))
        for shapes, chosen in _shape_choices(manifest, options)
        for name in graphs or manifest.graphs
    )


def _shape_choices(manifest: Manifest, options: RuntimeOptions) -> Iterator[tuple[Shapes, RuntimeOptions]]:
    if options.dynamic is None and manifest.shapes == "dynamic":
        yield "static", replace(options, dynamic=False, max_windows=None)
        yield "dynamic", replace(options, dynamic=True)
    else:
        yield "dynamic" if options.dynamic else "static", options


@dataclass(frozen=True, slots=True)
class GraphVerdict:
    """What the compiler says of one graph.

    `reason`: the operation and the parser's or builder's words; empty if accepted. `layers`: TensorRT layers that the
    parser made of the graph, before fusion; 0 if it could not. `engine_bytes`: size of the engine, weights included; 0
    if refused. `seconds`: parsing and building.
    """

    graph: str
    accepted: bool
    reason: str
    layers: int
    engine_bytes: int
    seconds: float


def compile_graph(
    path: Path, profile: Mapping[str, InputShapes], compute_capability: str = DEFAULT_COMPUTE_CAPABILITY
) -> GraphVerdict:
    """Compiles a graph, strongly typed, as TensorRT's ONNX Runtime provider does for graphs of mixed precision.

    Args:
        path: the `.onnx` file; external weights lie beside it.
        profile: shapes of every input with a variable dimension; equal ones make a static engine.
        compute_capability: of the GPU the engine would be for, e.g. "8.9".

    Raises:
        MissingDependency: the compiler is not installed, or does not load. InputError: no such file, or the compiler
        makes no engines for such a GPU. OutOfMemory: it ran out of memory. EngineBuildError: it could not be started.
    """
    check_compute_capability(compute_capability)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    order = {
        "path": str(path.resolve()),
        "target": _target_name(compute_capability),
        "profile": {name: list(asdict(shapes).values()) for name, shapes in profile.items()},
    }
    done = _run_worker(json.dumps(order))
    answer = _answer(done.stdout)
    if answer is None:
        return GraphVerdict(path.stem, False, _crash_reason(path, done), 0, 0, 0.0)
    verdict = GraphVerdict(path.stem, **answer)
    if any(sign in verdict.reason.lower() for sign in _OUT_OF_MEMORY):
        raise OutOfMemory(f"{path}: the compiler ran out of memory ({verdict.reason}); {_MEMORY_CURE}")
    return verdict


def check_compute_capability(compute_capability: str) -> None:
    """Raises `InputError`, naming the supported ones, if no engine can be made for such a GPU."""
    supported = compute_capabilities()
    if compute_capability not in supported:
        raise InputError(
            f"--compute-capability {compute_capability}: TensorRT for RTX {compiler_version()} compiles for "
            f"{', '.join(supported)}"
        )


def compute_capabilities() -> tuple[str, ...]:
    """GPU generations that the compiler makes engines for, oldest first; raises `MissingDependency`."""
    names = [name for name in _compiler().ComputeCapability.__members__ if name.startswith(_SM)]
    numbers = sorted(int(name.removeprefix(_SM)) for name in names)
    return tuple(f"{number // 10}.{number % 10}" for number in numbers)


def compiler_version() -> str:
    """Version of the compiler, e.g. "1.7.1.116"; raises `MissingDependency`."""
    return str(_compiler().__version__)


def _compiler() -> Any:
    try:
        import tensorrt_rtx
    except (ImportError, OSError) as error:
        raise MissingDependency(
            f'checking needs NVIDIA\'s compiler ({error}): pip install "latentsync-trt[check]"; '
            "it exists for Linux and Windows, not for macOS"
        ) from error
    return tensorrt_rtx


def _target_name(compute_capability: str) -> str:
    return _SM + compute_capability.replace(".", "")


def _run_worker(order: str) -> "subprocess.CompletedProcess[str]":
    # The child must load this very package, whatever folder it is started in, and nothing else from that folder.
    root = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        return subprocess.run(
            [sys.executable, "-P", "-m", _WORKER],
            input=order,
            capture_output=True,
            check=False,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "PYTHONPATH": paths, "PYTHONUTF8": "1"},
        )
    except OSError as error:
        raise EngineBuildError(f"the compiler's process cannot be started ({error})") from error


def _answer(output: str) -> dict[str, Any] | None:
    """The worker's last line; None if it did not live to write it."""
    lines = output.strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _crash_reason(path: Path, done: "subprocess.CompletedProcess[str]") -> str:
    """Why the worker ended early.

    Raises:
        OutOfMemory: the system killed it, which systems do for memory.
    """
    last_words = (done.stderr.strip().splitlines() or ["no message"])[-1]
    if done.returncode == _KILLED or any(sign in last_words.lower() for sign in _OUT_OF_MEMORY):
        raise OutOfMemory(f"{path}: the compiler was killed, most likely for memory; {_MEMORY_CURE}")
    return f"the compiler crashed (exit code {done.returncode}): {last_words}"
