"""Models of the small bundle, and what they hold open."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self
from weakref import WeakKeyDictionary

import numpy as np
import pytest

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.runtime.engines.session_factory import OpenedEngine, SessionFactory
from latentsync_trt.runtime.model import Model, open_model
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.sync.model_slot import graphs_for
from tests.small import LATENT_SIDE, small_bundle

GRAPHS = graphs_for(SyncOptions())
CPU = Selection("cpu")

COEFFICIENTS = np.array([0.9, 0.1, 0, 0, 0], np.float32)
"""Of a made-up step."""

_LATENTS = (4, 16, LATENT_SIDE, LATENT_SIDE)


class Device:
    """Counts the networks whose sessions are alive; `opened` lists graphs in their order."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.most_networks = 0
        self._alive: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

    def networks(self) -> set[str]:
        """Weights of the networks on the device."""
        return set(self._alive.values())

    def add(self, graph: str, weights: str, session: Any) -> None:
        self.opened.append(graph)
        self._alive[session] = weights
        self.most_networks = max(self.most_networks, len(self.networks()))


def watched_device(patch: pytest.MonkeyPatch) -> Device:
    """Counts what is opened until `patch` is undone."""
    device = Device()
    usual = SessionFactory.open

    def opened(factory: SessionFactory, graph: str, **options: Any) -> OpenedEngine:
        engine = usual(factory, graph, **options)
        device.add(graph, factory.bundle.manifest.graphs[graph].weights, engine.session.ort)
        return engine

    patch.setattr(SessionFactory, "open", opened)
    return device


def out_of_memory() -> RuntimeError:
    """What ONNX Runtime raises."""
    return RuntimeError(
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : "
        "Exception during initialization: bfc_arena.cc:359 "
        "void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool) "
        "Failed to allocate memory for requested buffer of size 1073741824"
    )


class DemoModels:
    """Opens models whose engines lie in `cache`; closes them at the end of its block. `notices`:
    what they told.
    """

    def __init__(self, cache: Path) -> None:
        self.notices: list[str] = []
        self._cache = cache
        self._bundle = Bundle.load(small_bundle(), verify=False)
        self._opened: list[Model] = []

    def __call__(
        self, selection: Selection = CPU, graphs: Sequence[str] = GRAPHS, **options: Any
    ) -> Model:
        settings = RuntimeOptions(**{"engine_cache": self._cache} | options)
        model = open_model(self._bundle, selection, settings, graphs, self.notices.append)
        self._opened.append(model)
        return model

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for model in self._opened:
            model.close()


def denoised(model: Model) -> np.ndarray:
    """A full step and a cached one on made-up inputs."""
    random = np.random.default_rng(3)
    shapes = _LATENTS, (9, *_LATENTS[1:]), (16, 50, 32)
    window = [random.standard_normal(shape, np.float32) for shape in shapes]

    def denoise() -> np.ndarray:
        model.denoiser.begin(*window, 1.5)
        for cached in (False, True):
            model.denoiser.step(500, COEFFICIENTS, cached=cached)
        return model.denoiser.latents()

    return model.run("denoise", denoise)
