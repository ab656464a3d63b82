"""How each provider makes something of a graph that a later start need not make again, and opens it.

cpu          the graph after ONNX Runtime's optimizers; its weights stay in the bundle
cuda         the same; of the form that is made for it, the graph as it is
tensorrt     an engine that TensorRT's builder made, and an EP-context model by which ONNX Runtime loads it
rtx          an EP-context model from ONNX Runtime's compile interface
"""

import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np

from latentsync_trt.bundle.manifest import GraphForm, TensorEntry
from latentsync_trt.errors import EngineBuildError, InferenceError, OutOfMemory
from latentsync_trt.runtime.compiler.process import Answer, CompileOrder, ContextModel, run_compiler
from latentsync_trt.runtime.providers.gpu import Gpu, visible_only
from latentsync_trt.runtime.providers.libraries import onnxruntime_version
from latentsync_trt.runtime.sessions.options import (
    BuildOptions,
    CpuOptions,
    CudaOptions,
    ProviderOptions,
    RtxOptions,
    TensorRTOptions,
)
from latentsync_trt.runtime.sessions.session import (
    RECORD_ASSIGNMENT,
    Providers,
    Session,
    SessionSettings,
    compile_graph,
)

_log = logging.getLogger(__name__)

OPTIMIZED_GRAPH = "graph.onnx"
CONTEXT_MODEL = "context.onnx"

ENGINE = "model.engine"
"""Beside the context model: ONNX Runtime takes no other place."""

TIMINGS = "kernels.timing"

_OF_THE_RUN = ("device_id", "enable_cuda_graph")

# What the parser and the builder call ONNX's operator.
_ATTENTION = re.compile(r"\bAttention (?:\(node|operation)")

# Compute capability from which cuDNN's attention is faster than the kernel that ONNX Runtime brings.
_CUDNN_ATTENTION_FROM = 9.0

_CPU_PROVIDER = ("CPUExecutionProvider", CpuOptions().to_ort())


@dataclass(frozen=True, slots=True)
class Place:
    """Where a graph and what becomes of it lie.

    `graph`: the bundle's `.onnx` file. `shared`: a folder that outlives engines and may change at any time, for kernel
    timings. `dimensions`: values that make variable dimensions fixed.
    `profile_prefix`: where to write a trace, None for none.
    """

    graph: Path
    shared: Path
    dimensions: Mapping[str, int] = field(default_factory=dict)
    profile_prefix: Path | None = None

    def settings(self, **fields: Any) -> SessionSettings:
        """Session settings for this graph."""
        return SessionSettings(
            name=self.graph.stem,
            dimensions=self.dimensions,
            config=RECORD_ASSIGNMENT,
            profile_prefix=self.profile_prefix,
            **fields,
        )


class Recipe(Protocol):
    """One provider's way."""

    def options(self) -> dict[str, str]:
        """What shapes the engine, for its key; places, and how the engine is run, are left out."""

    def versions(self) -> dict[str, str]:
        """Versions of the libraries that make the engine."""

    def make(self, place: Place, folder: Path) -> None:
        """Builds into `folder`, whose name will change.

        Raises:
            EngineBuildError: the provider cannot compile the graph. OutOfMemory: too little memory to.
        """

    def open(self, place: Place, folder: Path | None) -> Session:
        """Opens what `make` left in `folder`; None opens the graph itself, building in memory. Errors as `make`."""


@dataclass(frozen=True, slots=True)
class OptimizedGraph:
    """CUDA and CPU.

    `fold_constants`: as in `SessionSettings`, for the copy.
    """

    provider: str
    provider_options: ProviderOptions = field(default_factory=CpuOptions)
    fold_constants: bool = True

    def options(self) -> dict[str, str]:
        """What shapes the engine."""
        return _shaping(self.provider_options)

    def versions(self) -> dict[str, str]:
        """ONNX Runtime's."""
        return {"onnxruntime": onnxruntime_version()}

    def make(self, place: Place, folder: Path) -> None:
        """Writes the optimized graph; weights stay where they are."""
        settings = replace(place, profile_prefix=None).settings(
            providers=self._providers(), optimized_copy=folder / OPTIMIZED_GRAPH, fold_constants=self.fold_constants
        )
        Session(place.graph, settings).close()

    def open(self, place: Place, folder: Path | None) -> Session:
        """Opens the optimized graph with the bundle's weights."""
        if folder is None:
            return Session(place.graph, place.settings(providers=self._providers()))
        settings = place.settings(providers=self._providers(), weights_folder=place.graph.parent)
        return Session(folder / OPTIMIZED_GRAPH, settings)

    def _providers(self) -> Providers:
        first = (self.provider, self.provider_options.to_ort())
        return (first,) if self.provider == _CPU_PROVIDER[0] else (first, _CPU_PROVIDER)


@dataclass(frozen=True, slots=True)
class FinishedGraph(OptimizedGraph):
    """CUDA, for the form of a graph that is made for it.

    Optimizers find nothing in it but what is made of the weights when it is loaded: a GB and more, which a copy would
    hold. Nor can a copy leave that to its reader: `NhwcConv` goes to the provider only if its weights are constants.
    """

    def make(self, place: Place, folder: Path) -> None:
        """Keeps the graph as it is, after a run on zeros: that a provider opens it does not mean that it runs it.

        Whether memory is too short for a run that is only a trial shows again in the first that is not.
        """
        quiet = replace(place, profile_prefix=None)
        session = Session(place.graph, quiet.settings(providers=self._providers()))
        try:
            session.run(
                {tensor.name: np.zeros([int(size) for size in tensor.shape], tensor.dtype) for tensor in session.inputs}
            )
        except OutOfMemory:
            _log.debug("%s: not tried, for want of memory", place.graph)
        except InferenceError as error:
            raise EngineBuildError(f"{error}") from error
        finally:
            session.close()
        shutil.copyfile(place.graph, folder / OPTIMIZED_GRAPH)


def cuda_recipe(options: CudaOptions, form: GraphForm, gpu: Gpu | None) -> OptimizedGraph:
    """CUDA's recipe for a graph in `form`; `options` are those that do not depend on it."""
    if form == "portable":
        return OptimizedGraph("CUDAExecutionProvider", options)
    cudnn = gpu is not None and float(gpu.compute_capability) >= _CUDNN_ATTENTION_FROM
    made = replace(options, fused_bias=True, cudnn_attention=cudnn)
    return FinishedGraph("CUDAExecutionProvider", made)


@dataclass(frozen=True, slots=True)
class TensorRTEngine:
    """TensorRT. The engine is built by TensorRT's own Python interface, and holds the whole graph or is not made.

    `inputs`, `outputs`: of the graph, with the sizes that the engine is for.
    """

    build_options: BuildOptions
    provider_options: TensorRTOptions
    version: str
    gpu: Gpu
    inputs: tuple[TensorEntry, ...]
    outputs: tuple[TensorEntry, ...]
    on_notice: Callable[[str], None] = _log.warning

    def options(self) -> dict[str, str]:
        """What shapes the engine."""
        return self.build_options.to_key()

    def versions(self) -> dict[str, str]:
        """ONNX Runtime's and TensorRT's: an engine serves the version that built it and no other."""
        return {"onnxruntime": onnxruntime_version(), "tensorrt": self.version}

    def make(self, place: Place, folder: Path) -> None:
        """Builds the engine; kernel timings of earlier builds shorten it."""
        # Copied, as another build may write there at the same time.
        timings = folder / TIMINGS
        _copy_files(place.shared, folder, TIMINGS)
        answer = run_compiler(self._order(place, folder, timings), visible_only(self.gpu))
        if answer.rejected_timings:
            with suppress(OSError):  # where the cache cannot be written, the next build is told the same
                (place.shared / TIMINGS).unlink(missing_ok=True)
            self.on_notice(
                f"{place.graph.stem}: TensorRT rejects the kernel timings of earlier builds, removed "
                f"{place.shared / TIMINGS}: {answer.rejected_timings}"
            )
        if answer.version and not answer.version.startswith(self.version):
            raise EngineBuildError(
                f"{place.graph}: Python's tensorrt is {answer.version}, but ONNX Runtime loads TensorRT "
                f"{self.version}, which takes engines of its own version only; install one TensorRT, or put its folder "
                "first on the loader's path"
            )
        if not answer.accepted:
            raise _refusal(place.graph, answer)
        _copy_files(folder, place.shared, TIMINGS)
        timings.unlink(missing_ok=True)

    def open(self, place: Place, folder: Path | None) -> Session:
        """Opens the EP-context model, whose engine has fixed its shapes."""
        if folder is None:
            with TemporaryDirectory(prefix="latentsync-trt-") as made:
                self.make(place, Path(made))
                return self._open(place, Path(made))
        return self._open(place, folder)

    def _open(self, place: Place, folder: Path) -> Session:
        settings = replace(place, dimensions={}).settings(providers=self._providers(), optimize=False)
        return Session(folder / CONTEXT_MODEL, settings)

    def _order(self, place: Place, folder: Path, timings: Path) -> CompileOrder:
        shapes = self.build_options.shapes
        return CompileOrder(
            "tensorrt",
            str(place.graph.resolve()),
            {name: (ends.minimum, ends.optimum, ends.maximum) for name, ends in shapes.items()},
            optimization_level=self.build_options.optimization_level,
            workspace_bytes=self.build_options.workspace_bytes,
            timings=str(timings),
            version=self.version,
            engine=str(folder / ENGINE),
            context=ContextModel(
                str(folder / CONTEXT_MODEL),
                ENGINE,
                self.gpu.compute_capability,
                *(
                    tuple((entry.name, entry.dtype, entry.shape) for entry in entries)
                    for entries in (self.inputs, self.outputs)
                ),
            ),
        )

    def _providers(self) -> Providers:
        cuda = CudaOptions(device=self.provider_options.device).to_ort()
        return (
            ("TensorrtExecutionProvider", self.provider_options.to_ort()),
            ("CUDAExecutionProvider", cuda),
            _CPU_PROVIDER,
        )


def _refusal(graph: Path, answer: Answer) -> EngineBuildError | OutOfMemory:
    """The error for a graph that TensorRT did not compile, with TensorRT's reason and what to do."""
    if answer.out_of_memory:
        return OutOfMemory(
            f"{graph.stem}: out of memory while TensorRT builds its engine ({answer.reason}); close other programs on "
            "this GPU, or lower --workspace-gb, or use --static"
        )
    cure = "see `latentsync-trt check`"
    if _ATTENTION.search(answer.reason):
        cure = "export the model with --attention matmul, which writes attention in parts"
    return EngineBuildError(f"{graph}: TensorRT built no engine: {answer.reason}; {cure}")


@dataclass(frozen=True, slots=True)
class RtxEngine:
    """NVIDIA's plug-in for RTX cards."""

    provider_options: RtxOptions
    devices: tuple[Any, ...]
    version: str

    def options(self) -> dict[str, str]:
        """What shapes the engine."""
        return self.provider_options.to_ort()

    def versions(self) -> dict[str, str]:
        """ONNX Runtime's and the plug-in's."""
        return {"onnxruntime": onnxruntime_version(), "onnxruntime-ep-nv-tensorrt-rtx": self.version}

    def make(self, place: Place, folder: Path) -> None:
        """Compiles ahead of time, as far as the plug-in does without running."""
        quiet = replace(place, profile_prefix=None)
        compile_graph(place.graph, self._settings(quiet, self.provider_options), folder / CONTEXT_MODEL)

    def open(self, place: Place, folder: Path | None) -> Session:
        """Opens the EP-context model; kernels compiled on the card are kept in the shared folder."""
        if folder is None:
            return Session(place.graph, self._settings(place, self.provider_options))
        place.shared.mkdir(parents=True, exist_ok=True)
        options = replace(self.provider_options, runtime_cache_folder=str(place.shared))
        return Session(folder / CONTEXT_MODEL, self._settings(replace(place, dimensions={}), options))

    def _settings(self, place: Place, options: RtxOptions) -> SessionSettings:
        # Optimized, weights in eight bits would become floats, and no longer lie on disk.
        return place.settings(plugin_devices=self.devices, plugin_options=options.to_ort(), optimize=False)


def _shaping(options: ProviderOptions) -> dict[str, str]:
    """Options that decide what is built; not which of equal GPUs it runs on, nor whether it is replayed."""
    return {name: value for name, value in options.to_ort().items() if name not in _OF_THE_RUN}


def _copy_files(source: Path, target: Path, pattern: str) -> None:
    """Copies files of a folder that may not exist, or may be cleared meanwhile; each appears whole.

    A file that cannot be copied is left out: it only saves time.
    """
    for path in source.glob(pattern):
        with suppress(OSError):
            target.mkdir(parents=True, exist_ok=True)
            staged = target / f".{path.name}.{os.getpid()}"
            shutil.copyfile(path, staged)
            staged.replace(target / path.name)
