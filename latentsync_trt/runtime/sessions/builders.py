"""Opens graphs on each provider, and builds engines for the providers that compile graphs.

cpu, cuda    open the bundle's graph directly
tensorrt     an engine built by TensorRT's Python module, and an EP-context model through which ONNX Runtime loads it
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
from typing import Any, Protocol

from latentsync_trt.bundle.manifest import EIGHT_BIT_PRECISIONS, DimensionRange, GraphEntry, Precision
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import EngineBuildError, GraphRefused, InputError, OutOfMemory
from latentsync_trt.files import temporary_folder, whole_file
from latentsync_trt.runtime.compiler.process import Answer, CompileOrder, ContextModel, run_compiler
from latentsync_trt.runtime.compiler.profiles import input_shapes, with_sizes
from latentsync_trt.runtime.compiler.progress import progress_notices
from latentsync_trt.runtime.providers.gpu import Gpu, visible_only
from latentsync_trt.runtime.providers.libraries import onnxruntime_version
from latentsync_trt.runtime.providers.table import CUDA, TENSORRT
from latentsync_trt.runtime.sessions.options import (
    OPTIMIZATION_LEVEL,
    RTX_KERNEL_CACHE,
    WORKSPACE_BYTES,
    cuda_options,
    own_options,
    tensorrt_options,
)
from latentsync_trt.runtime.sessions.session import (
    CPU,
    RECORD_ASSIGNMENT,
    Providers,
    Session,
    SessionSettings,
    compile_graph,
)

_log = logging.getLogger(__name__)

CONTEXT_MODEL = "context.onnx"

ENGINE = "model.engine"
"""In the folder of the context model, where ONNX Runtime requires it."""

LAYERS = "layers.json"
"""What the engine consists of: see `compiler.layers`."""

TIMINGS = "kernels.timing"

# The provider narrows the path of a context model by `std::filesystem::path::string`, which throws on Windows for what
# the code page lacks.
_PATH_CODEC = "mbcs" if os.name == "nt" else None

# The operator's name in messages of the parser and the builder.
_ATTENTION = re.compile(r"\bAttention (?:\(node|operation)")


@dataclass(frozen=True, slots=True)
class GraphSource:
    """A graph's `.onnx` file, and values that fix variable dimensions."""

    path: Path
    dimensions: Mapping[str, int] = field(default_factory=dict)

    def settings(self, **fields: Any) -> SessionSettings:
        """Session settings for this graph."""
        own = SessionSettings(**fields, name=self.path.stem, config=RECORD_ASSIGNMENT)
        return replace(own, dimensions=self.dimensions)


class Opener(Protocol):
    """Opens a graph on one provider without the engine cache."""

    def open(self, source: GraphSource) -> Session:
        """Opens a graph; a provider that compiles builds it for this session only.

        Raises:
            EngineBuildError: the provider cannot compile the graph. OutOfMemory: there is too little memory.
        """


class Builder(Opener, Protocol):
    """Builds engines for the cache."""

    def options(self) -> dict[str, str]:
        """The options for the engine's key: without paths and options that do not change the engine."""

    def versions(self) -> dict[str, str]:
        """Versions of the libraries that build the engine."""

    def build(self, source: GraphSource, folder: Path) -> int | None:
        """Builds into `folder`, which will be renamed. Returns `Entry.device_memory_bytes`. Errors as `open`."""

    def open_built(self, source: GraphSource, folder: Path) -> Session:
        """Opens what `build` wrote to `folder`. Errors as `open`."""


@dataclass(frozen=True, slots=True)
class DirectOpen:
    """CPU and CUDA: ONNX Runtime optimizes the graph each time; a cached copy would save less than a second."""

    providers: Providers

    def open(self, source: GraphSource) -> Session:
        """As `Opener.open`."""
        return Session(source.path, source.settings(providers=self.providers))


@dataclass(frozen=True, slots=True)
class TensorRTBuilder:
    """TensorRT; an engine contains the whole graph.

    `ranges`: sizes that the engine supports. `version`: of the TensorRT that ONNX Runtime loads. `shared`: a folder of
    kernel timings that other processes may change at any time. `cuda_graph` does not change the engine. `precision`: of
    the bundle.
    """

    entry: GraphEntry
    ranges: Mapping[str, DimensionRange]
    runtime: RuntimeOptions
    gpu: Gpu
    version: str
    shared: Path
    cuda_graph: bool = False
    on_notice: Callable[[str], None] = _log.warning
    precision: Precision = "fp16"

    def options(self) -> dict[str, str]:
        """As `Builder.options`; shapes are in the key's profile."""
        limit = self._number(WORKSPACE_BYTES)
        workspace = {} if limit is None else {"workspace_bytes": str(limit)}
        return {"optimization_level": str(self._level), **workspace}

    def versions(self) -> dict[str, str]:
        """ONNX Runtime's and TensorRT's: an engine runs only with the version that built it."""
        return {"onnxruntime": onnxruntime_version(), "tensorrt": self.version}

    def build(self, source: GraphSource, folder: Path) -> int | None:
        """As `Builder.build`; kernel timings of earlier builds shorten it."""
        _check_encodable(folder)
        # A copy, as another build may write the shared file at the same time.
        shared, timings = self.shared / TIMINGS, folder / TIMINGS
        _copy(shared, timings)
        on_progress = progress_notices(f"{source.path.stem}: building for {TENSORRT.name}", self.on_notice)
        answer = run_compiler(self._order(source, folder, timings), visible_only(self.gpu), on_progress)
        if answer.rejected_timings:
            with suppress(OSError):  # if the cache cannot be written, the next build reports the same
                shared.unlink(missing_ok=True)
            self.on_notice(
                f"{source.path.stem}: TensorRT rejects the kernel timings of earlier builds, removed {shared}: "
                f"{answer.rejected_timings}"
            )
        if answer.version and not answer.version.startswith(self.version):
            raise EngineBuildError(
                f"{source.path}: Python's tensorrt is {answer.version}, but ONNX Runtime loads TensorRT "
                f"{self.version}, which takes engines of its own version only; install one TensorRT, or put its folder "
                "first on the loader's path"
            )
        if not answer.accepted:
            raise _refusal(source.path, answer)
        _copy(timings, shared)
        timings.unlink(missing_ok=True)
        return answer.device_memory_bytes

    def open(self, source: GraphSource) -> Session:
        """Builds in a temporary folder and opens the result."""
        with temporary_folder() as folder:
            self.build(source, folder)
            return self.open_built(source, folder)

    def open_built(self, source: GraphSource, folder: Path) -> Session:
        """Opens the EP-context model; its shapes are those of the engine."""
        providers = (
            (
                TENSORRT.ort_name,
                {
                    **tensorrt_options(self.gpu.index, cuda_graph=self.cuda_graph),
                    **own_options("tensorrt", self.runtime.provider_options),
                },
            ),
            (CUDA.ort_name, cuda_options(self.gpu.index)),
            *CPU,
        )
        settings = replace(source, dimensions={}).settings(providers=providers, optimize=False)
        return Session(folder / CONTEXT_MODEL, settings)

    @property
    def _level(self) -> int:
        """The level asked for, else TensorRT's default, and in 8 bits that of NVIDIA's own demos."""
        asked = self._number(OPTIMIZATION_LEVEL)
        return asked if asked is not None else 4 if self.precision in EIGHT_BIT_PRECISIONS else 3

    def _number(self, key: str) -> int | None:
        """A whole number among the provider options; raises `InputError` for another value."""
        text = self.runtime.provider_options.get(key)
        if text is not None and not text.isdecimal():
            raise InputError(f"--provider-option {key}={text}: not a whole number")
        return None if text is None else int(text)

    def _order(self, source: GraphSource, folder: Path, timings: Path) -> CompileOrder:
        fixed = {name: span.optimum for name, span in self.ranges.items() if span.fixed}
        inputs, outputs = (
            tuple((tensor.name, tensor.dtype, with_sizes(tensor, fixed).shape) for tensor in tensors)
            for tensors in (self.entry.inputs, self.entry.outputs)
        )
        shapes = input_shapes(self.entry, self.ranges)
        return CompileOrder(
            "tensorrt",
            str(source.path.resolve()),
            {name: (ends.minimum, ends.optimum, ends.maximum) for name, ends in shapes.items()},
            optimization_level=self._level,
            workspace_bytes=self._number(WORKSPACE_BYTES),
            timings=str(timings),
            version=self.version,
            engine=str(folder / ENGINE),
            layers=str(folder / LAYERS),
            context=ContextModel(str(folder / CONTEXT_MODEL), ENGINE, self.gpu.compute_capability, inputs, outputs),
        )


def _check_encodable(folder: Path) -> None:
    """Raises `EngineBuildError` if ONNX Runtime's TensorRT provider could not open an engine in `folder`."""
    if _PATH_CODEC is None:
        return
    try:
        str(folder).encode(_PATH_CODEC)
    except UnicodeEncodeError as error:
        raise EngineBuildError(
            f"{folder}: ONNX Runtime opens no TensorRT engine there, as Windows' code page lacks a character of it; "
            "choose another place with --engine-cache"
        ) from error


def _refusal(graph: Path, answer: Answer) -> GraphRefused | OutOfMemory:
    """The error for a graph that TensorRT did not compile."""
    if answer.out_of_memory:
        return OutOfMemory(
            f"{graph.stem}: out of memory while TensorRT builds its engine ({answer.reason}); close other programs on "
            "this GPU, lower --provider-option trt_max_workspace_size, or use --static"
        )
    cure = "run with --provider cuda, and please report it"
    if _ATTENTION.search(answer.reason):
        cure = "export the model with --attention matmul, which writes attention in parts"
    return GraphRefused(f"{graph}: TensorRT built no engine: {answer.reason}; {cure}")


@dataclass(frozen=True, slots=True)
class RtxBuilder:
    """NVIDIA's TensorRT-RTX plug-in. `shared`: a folder for kernels that it compiles at run time, or None."""

    provider_options: Mapping[str, str]
    devices: tuple[Any, ...]
    version: str
    shared: Path | None = None

    def options(self) -> dict[str, str]:
        """As `Builder.options`."""
        return dict(self.provider_options)

    def versions(self) -> dict[str, str]:
        """ONNX Runtime's and the plug-in's."""
        return {"onnxruntime": onnxruntime_version(), "onnxruntime-ep-nv-tensorrt-rtx": self.version}

    def build(self, source: GraphSource, folder: Path) -> int | None:
        """Compiles ahead of time; the plug-in compiles the kernels when they run."""
        compile_graph(
            source.path,
            self._settings(source, self.provider_options),
            folder / CONTEXT_MODEL,
        )
        return None

    def open(self, source: GraphSource) -> Session:
        """As `Opener.open`."""
        return Session(source.path, self._settings(source, self.provider_options))

    def open_built(self, source: GraphSource, folder: Path) -> Session:
        """Opens the EP-context model."""
        options = dict(self.provider_options)
        if self.shared is not None:
            with suppress(OSError):  # in a read-only cache, kernels are compiled in each run
                self.shared.mkdir(parents=True, exist_ok=True)
                options[RTX_KERNEL_CACHE] = str(self.shared)
        return Session(folder / CONTEXT_MODEL, self._settings(replace(source, dimensions={}), options))

    def _settings(self, source: GraphSource, options: Mapping[str, str]) -> SessionSettings:
        # Not optimized: that would turn 8-bit weights into floats, held in memory instead of read from disk.
        return source.settings(plugin_devices=self.devices, plugin_options=options, optimize=False)


def _copy(source: Path, target: Path) -> None:
    """Copies a file atomically, if it exists. Ignores errors, as timings only save time."""
    with suppress(OSError):
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(target) as part:
                shutil.copyfile(source, part)
