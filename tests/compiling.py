"""A provider that compiles graphs, in place of TensorRT: its engine is a copy of the graph, which
the CPU runs.
"""

import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from latentsync_trt.bundle.manifest import FULL_STEP, Bundle
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.runtime import memory_estimate
from latentsync_trt.runtime.engines import session_factory
from latentsync_trt.runtime.engines.session import CPU_ONLY, Session, SessionSettings
from latentsync_trt.runtime.providers import choice, devices
from latentsync_trt.runtime.providers.devices import Gpu
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.runtime.providers.table import CUDA, TENSORRT, Obstacle, Provider

RTX = Gpu(0, "RTX", "8.9", 2**34, "0000:01:00.0")
COMPILING = Selection("tensorrt", gpu=RTX)


class CopySession(Session):
    """Runs on the CPU, and says that it is an engine's."""

    provider = TENSORRT.ort_name

    def nodes_by_provider(self) -> dict[str, int]:
        return {self.provider: 1}


@dataclass
class CopyBuilder:
    """A `TensorRTBuilder`. `built`: the graphs it built, in order; `errors`: what "build" or "open"
    of the full step raises; `free_bytes`: of the GPU, None = unknown.
    """

    level = 3
    bundle: Bundle | None = None
    built: list[str] = field(default_factory=list)
    errors: dict[str, LatentSyncError] = field(default_factory=dict)
    free_bytes: int | None = None

    def build(self, graph: str, folder: Path) -> None:
        self._fail("build", graph)
        self.built.append(graph)
        shutil.copy(self.bundle.graph_path(graph), folder / "engine.onnx")
        time.sleep(0.01)  # so that its time shows

    def open(self, graph: str, folder: Path, **_: bool) -> Session:
        self._fail("open", graph)
        settings = SessionSettings(
            name=graph, providers=CPU_ONLY, weights_folder=self.bundle.folder
        )
        return CopySession(folder / "engine.onnx", settings)

    def _fail(self, method: str, graph: str) -> None:
        if graph == FULL_STEP and method in self.errors:
            raise self.errors[method]


def compiling_provider(patch: pytest.MonkeyPatch) -> CopyBuilder:
    """A machine where "tensorrt" is such a provider, "cuda" does not load and "cpu" does, until
    `patch` is undone.
    """
    builder = CopyBuilder()
    obstacle = Obstacle("its libraries do not load", "install them")

    def diagnose(provider: Provider, device: int) -> Obstacle | None:
        if provider is CUDA:
            return obstacle
        return None

    patch.setattr(
        session_factory, "TensorRTBuilder", lambda bundle, *_: replace(builder, bundle=bundle)
    )
    patch.setattr(Selection, "device", "cpu")
    patch.setattr(devices, "gpus", lambda: (RTX,))
    patch.setattr(choice, "diagnose_provider", diagnose)
    patch.setattr(memory_estimate, "free_memory_bytes", lambda index: builder.free_bytes)
    return builder
