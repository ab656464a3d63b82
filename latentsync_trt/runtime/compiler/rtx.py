"""Checks whether NVIDIA's TensorRT-RTX compiler accepts a graph; needs no GPU and keeps no engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latentsync_trt.bundle.manifest import Manifest, Shapes
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import InputError, MissingDependency, OutOfMemory
from latentsync_trt.runtime.compiler.failures import is_out_of_memory
from latentsync_trt.runtime.compiler.process import MEMORY_CURE, Answer, CompileOrder, run_compiler
from latentsync_trt.runtime.compiler.profiles import InputShapes, check_graphs, dimension_ranges, input_shapes

DEFAULT_COMPUTE_CAPABILITY = "8.9"
"""GeForce RTX 40xx and RTX Ada."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One graph to compile, with static or dynamic shapes, and the resulting shapes of its inputs."""

    graph: str
    shapes: Shapes
    profile: Mapping[str, InputShapes]


def plan_trials(manifest: Manifest, graphs: Sequence[str], dynamic: bool | None) -> tuple[Trial, ...]:
    """The graphs of a bundle to compile.

    Args:
        graphs: names of graphs; empty = all.
        dynamic: with dynamic or static shapes; None = all that the bundle supports.

    Raises:
        InputError: the bundle lacks a graph, or dynamic shapes.
    """
    check_graphs(manifest, graphs)
    if dynamic is None:
        kinds: tuple[Shapes, ...] = ("static", "dynamic") if manifest.shapes == "dynamic" else ("static",)
    else:
        kinds = ("dynamic" if dynamic else "static",)
    ranges = {kind: dimension_ranges(manifest, RuntimeOptions(dynamic=kind == "dynamic")) for kind in kinds}
    return tuple(
        Trial(name, kind, input_shapes(manifest.graphs[name], ranges[kind]))
        for kind in kinds
        for name in graphs or manifest.graphs
    )


def compile_graph(
    path: Path, profile: Mapping[str, InputShapes], compute_capability: str = DEFAULT_COMPUTE_CAPABILITY
) -> Answer:
    """Compiles a graph as a strongly typed network, as for TensorRT.

    Args:
        path: the `.onnx` file, with external weights in the same folder.
        profile: shapes of every input with a variable dimension; if all are equal, the engine is static.
        compute_capability: of the target GPU, e.g. "8.9".

    Raises:
        MissingDependency: the compiler is not installed, or does not load. InputError: no such file, or the compiler
        does not support such a GPU. OutOfMemory: it ran out of memory. EngineBuildError: it could not be started.
    """
    check_compute_capability(compute_capability)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    answer = run_compiler(
        CompileOrder(
            "tensorrt_rtx",
            str(path.resolve()),
            {name: (shapes.minimum, shapes.optimum, shapes.maximum) for name, shapes in profile.items()},
            target="SM" + compute_capability.replace(".", ""),
        )
    )
    if is_out_of_memory(answer.reason):
        raise OutOfMemory(f"{path}: the compiler ran out of memory ({answer.reason}); {MEMORY_CURE}")
    return answer


def check_compute_capability(compute_capability: str) -> None:
    """Raises `InputError`, naming the supported ones, if the compiler does not support such GPUs."""
    names = _compiler().ComputeCapability.__members__
    numbers = sorted(int(name.removeprefix("SM")) for name in names if name.startswith("SM"))
    supported = [f"{number // 10}.{number % 10}" for number in numbers]
    if compute_capability not in supported:
        compiler = f"TensorRT-RTX {compiler_version()}"
        raise InputError(f"--compute-capability {compute_capability}: {compiler} compiles for {', '.join(supported)}")


def compiler_version() -> str:
    """Version of the compiler, e.g. "1.7.1.116"; raises `MissingDependency`."""
    return str(_compiler().__version__)


def _compiler() -> Any:
    try:
        import tensorrt_rtx
    except (ImportError, OSError) as error:
        raise MissingDependency(
            f"`check` needs NVIDIA's compiler for TensorRT-RTX ({error}): "
            'pip install "latentsync-trt[check]"; it exists for Linux and Windows, not for macOS'
        ) from error
    return tensorrt_rtx
