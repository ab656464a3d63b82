"""Options of each provider, the shapes that engines are built for, and engines for TensorRT.

cpu, cuda    open the bundle's graph: a copy optimized by ONNX Runtime would save less than a second
tensorrt     an engine built by TensorRT's Python module, and an EP-context model that loads it

Options are ONNX Runtime's dictionaries of strings. Precision needs none: graphs carry their own
types, and engines are built strongly typed. Names and meanings:
https://onnxruntime.ai/docs/execution-providers/ (TensorRT, CUDA).

A bundle exported with `--dynamic` names its variable dimensions (windows, images, segments, and
with `--min-resolution` heights and widths) and their ranges. A *dynamic* engine covers them; a
*static* one has each dimension at its optimum.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from latentsync_trt.bundle.external import external_files
from latentsync_trt.bundle.manifest import (
    EIGHT_BIT_PRECISIONS,
    Bundle,
    DimensionRange,
    GraphEntry,
    Manifest,
)
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import EngineBuildError, GraphRefused, InputError, OutOfMemory
from latentsync_trt.runtime.compiler import CONTEXT_MODEL, ENGINE, CompileOrder, run_compiler
from latentsync_trt.runtime.engines.session import CPU, Session, SessionSettings
from latentsync_trt.runtime.providers.devices import Gpu, visible_only
from latentsync_trt.runtime.providers.libraries import tensorrt_version
from latentsync_trt.runtime.providers.table import CUDA, TENSORRT, Provider

_LEVEL = "trt_builder_optimization_level"
"""Option of the TensorRT provider that our own build of its engines follows, too."""

# Bits of the CUDA provider's `sdpa_kernel`: which attention kernels it may choose from.
_MEMORY_EFFICIENT = 2
_CUDNN = 8

CUDNN_ATTENTION_FROM = (9, 0)
"""Compute capability from which cuDNN's attention is faster than ONNX Runtime's own kernel."""

Shape = tuple[int, ...]
InputShapes = tuple[Shape, ...]
"""Minimum, optimum and maximum shape of one input, as in TensorRT's optimization profiles."""


def own_options(provider: Provider, given: Mapping[str, str]) -> dict[str, str]:
    """Those of `given` that are the provider's: TensorRT's begin with "trt_", others are CUDA's."""
    return {
        key: value
        for key, value in given.items()
        if key.startswith("trt_") == (provider is TENSORRT)
    }


def cuda_options(
    device: int = 0,
    *,
    cuda_graph: bool = False,
    fused_bias: bool = False,
    cudnn_attention: bool = False,
) -> dict[str, str]:
    """CUDAExecutionProvider.

    `cuda_graph`: capture and replay; needs fixed shapes and every node on the GPU. `fused_bias`:
    cuDNN adds the bias within the convolution where it can. `cudnn_attention`: of
    MultiHeadAttention, instead of the memory-efficient one.
    """
    return {
        "device_id": str(device),
        # Doubling would hold several GB more than the networks need.
        "arena_extend_strategy": "kSameAsRequested",
        # cuDNN's own choice: trying all kernels took a second more at start-up for steps that are
        # no faster.
        "cudnn_conv_algo_search": "HEURISTIC",
        "cudnn_conv_use_max_workspace": "1",
        "enable_cuda_graph": "1" if cuda_graph else "0",
        **({"fuse_conv_bias": "1"} if fused_bias else {}),
        **({"sdpa_kernel": str(_CUDNN | _MEMORY_EFFICIENT)} if cudnn_attention else {}),
    }


def tensorrt_options(device: int = 0, *, cuda_graph: bool = False) -> dict[str, str]:
    """TensorrtExecutionProvider, to load and run an engine. Without
    `trt_context_memory_sharing_enable`: with it, a loaded engine runs without device memory
    (https://github.com/LeelaChessZero/lc0/pull/2428).
    """
    return {"device_id": str(device), "trt_cuda_graph_enable": str(cuda_graph)}


@dataclass(frozen=True, slots=True)
class TensorRTBuilder:
    """How the engines of a bundle, each of which contains all of its graph, are built and opened.
    `ranges`: sizes that the engines support. `given`: of `--provider-option`.
    """

    bundle: Bundle
    ranges: Mapping[str, DimensionRange]
    given: Mapping[str, str]
    gpu: Gpu

    def build(self, name: str, folder: Path) -> int | None:
        """Builds the engine of a graph into `folder`; returns its `Entry.device_memory_bytes`."""
        graph = self.bundle.graph_path(name)
        version = tensorrt_version()
        order = CompileOrder(
            "tensorrt",
            str(graph.resolve()),
            input_shapes(self.bundle.manifest.graphs[name], self.ranges),
            optimization_level=self.level,
            version=version,
            folder=str(folder),
            compute_capability=self.gpu.compute_capability,
            fixed={size: span.optimum for size, span in self.ranges.items() if span.fixed},
        )
        answer = run_compiler(order, visible_only(self.gpu))
        if answer.version and not answer.version.startswith(version):
            what = (
                f"Python's tensorrt is {answer.version}, but ONNX Runtime loads TensorRT {version}"
            )
            cure = "install one TensorRT, or put its folder first on the loader's path"
            raise EngineBuildError(
                f"{graph}: {what}, which takes engines of its own version only; {cure}"
            )
        if answer.out_of_memory:
            what = f"out of memory while TensorRT builds its engine ({answer.reason})"
            raise OutOfMemory(f"{name}: {what}; close other programs on this GPU, or use --static")
        if not answer.accepted:
            cure = "run with --provider cuda, and please report it"
            raise GraphRefused(f"{graph}: TensorRT built no engine: {answer.reason}; {cure}")
        return answer.device_memory_bytes

    def open(self, name: str, folder: Path, *, cuda_graph: bool) -> Session:
        """`cuda_graph`: record and replay, which does not change the engine."""
        options = tensorrt_options(self.gpu.index, cuda_graph=cuda_graph)
        providers = (
            (TENSORRT.ort_name, {**options, **own_options(TENSORRT, self.given)}),
            (CUDA.ort_name, cuda_options(self.gpu.index)),
            *CPU,
        )
        _check_context_model(folder / CONTEXT_MODEL)
        return Session(folder / CONTEXT_MODEL, SessionSettings(name=name, providers=providers))

    @property
    def level(self) -> int:
        """The level asked for, else TensorRT's default, and in 8 bits that of NVIDIA's own
        demos.
        """
        asked = self.given.get(
            _LEVEL, "4" if self.bundle.manifest.precision in EIGHT_BIT_PRECISIONS else "3"
        )
        if not asked.isdecimal():
            raise InputError(f"--provider-option {_LEVEL}={asked}: not a whole number")
        return int(asked)


def _check_context_model(path: Path) -> None:
    """Raises `EngineBuildError` unless the model loads the engine beside it alone, as engines run
    as code.
    """
    try:
        names = {*external_files(path.read_bytes())}
    except (OSError, ValueError, RecursionError) as error:
        raise EngineBuildError(f"{path}: is no graph ({error})") from error
    if names != {ENGINE.encode()}:
        raise EngineBuildError(f"{path}: loads another engine than {ENGINE} beside it")


def dimension_ranges(manifest: Manifest, options: RuntimeOptions) -> dict[str, DimensionRange]:
    """Range of each variable dimension, a single value for static engines; raises `InputError` if
    `options` require dynamic engines of a static bundle.
    """
    if manifest.shapes == "static":
        if options.dynamic:
            cure = "export it with `--dynamic`, or leave --dynamic out"
            raise InputError(f"bundle {manifest.name} has fixed shapes; {cure}")
        return {
            name: DimensionRange(*[size] * 3)
            for name, size in (("windows", 1), ("frames", manifest.frames))
        }
    if options.dynamic is False:
        return {name: DimensionRange(*[span.optimum] * 3) for name, span in manifest.ranges.items()}
    return dict(manifest.ranges)


def engine_ranges(ranges: Mapping[str, DimensionRange]) -> dict[str, DimensionRange]:
    """`ranges` reduced to what a run asks of an engine, which holds memory for the largest shape of
    its profile. A run encodes one segment of speech and denoises one window at a time, and pads
    pictures to the usual number.
    """
    most = {"windows": 1, "segments": 1}
    reduced = dict(ranges)
    for name, span in ranges.items():
        if name in most:
            maximum = max(span.minimum, min(most[name], span.maximum))
            reduced[name] = DimensionRange(span.minimum, min(span.optimum, maximum), maximum)
        elif name in {"frames", "images"}:
            reduced[name] = DimensionRange(*[span.optimum] * 3)
    return reduced


def spans_of(entry: GraphEntry, ranges: Mapping[str, DimensionRange]) -> dict[str, DimensionRange]:
    """Those of `ranges` that inputs of a graph have, in the order of their names."""
    names = {size for tensor in entry.inputs for size in tensor.shape}
    return {name: ranges[name] for name in sorted(ranges) if name in names}


def input_shapes(entry: GraphEntry, ranges: Mapping[str, DimensionRange]) -> dict[str, InputShapes]:
    """Shapes of the inputs that have a variable dimension; empty for a graph of fixed shapes."""
    return {
        tensor.name: tuple(
            usual_shape(tensor.shape, ranges, end) for end in ("minimum", "optimum", "maximum")
        )
        for tensor in entry.inputs
        if any(isinstance(size, str) for size in tensor.shape)
    }


def usual_shape(
    shape: Sequence[int | str], ranges: Mapping[str, DimensionRange], end: str = "optimum"
) -> Shape:
    return tuple(
        size if isinstance(size, int) else int(getattr(ranges[size], end)) for size in shape
    )
