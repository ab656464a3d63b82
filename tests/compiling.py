"""A provider that compiles graphs, in place of TensorRT: its engine is a copy of the graph, which the CPU runs."""

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from latentsync_trt.bundle.manifest import FULL_STEP
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.runtime import memory_estimate
from latentsync_trt.runtime.engines import session_factory
from latentsync_trt.runtime.engines.session import CPU, Session, SessionSettings
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.runtime.providers import gpu, select
from latentsync_trt.runtime.providers.gpu import Gpu
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.runtime.providers.table import CUDA, Obstacle, Provider

RTX = Gpu(0, "RTX", "8.9", 2**34, "0000:01:00.0")
COMPILING = Selection("tensorrt", gpu=RTX)


@dataclass
class CopyBuilder:
    """A `TensorRTBuilder`. `built`: the graphs it built, in order; `errors`: what "build" or "open" of the full step
    raises; `free_bytes`: of the GPU, None = unknown."""

    version, level = "1", 3
    built: list[str] = field(default_factory=list)
    errors: dict[str, LatentSyncError] = field(default_factory=dict)
    free_bytes: int | None = None

    def build(self, graph: Path, folder: Path) -> None:
        self._fail("build", graph)
        self.built.append(graph.stem)
        shutil.copy(graph, folder / "engine.onnx")
        time.sleep(0.01)  # so that its time shows

    def open(self, graph: Path, folder: Path, **_: bool) -> Session:
        self._fail("open", graph)
        return Session(
            folder / "engine.onnx", SessionSettings(name=graph.stem, providers=CPU, weights_folder=graph.parent)
        )

    def _fail(self, method: str, graph: Path) -> None:
        if graph.stem == FULL_STEP and method in self.errors:
            raise self.errors[method]


def compiling_provider(patch: pytest.MonkeyPatch) -> CopyBuilder:
    """A machine where "tensorrt" is such a provider, "cuda" does not load and "cpu" does, until `patch` is undone."""
    builder, obstacle = CopyBuilder(), Obstacle("its libraries do not load", "install them")

    def diagnose(provider: Provider, device: int) -> Obstacle | None:
        return obstacle if provider is CUDA else None

    patch.setattr(SessionFactory, "_builder", lambda self, graph: builder)
    patch.setattr(SessionFactory, "_node_share", lambda self, session: 1.0)
    patch.setattr(session_factory, "_wants_cuda_graph", lambda factory: False)
    patch.setattr(Selection, "device", "cpu")
    patch.setattr(gpu, "gpus", lambda: (RTX,))
    patch.setattr(select, "diagnose_provider", diagnose)
    patch.setattr(memory_estimate, "free_memory_bytes", lambda index: builder.free_bytes)
    return builder
