"""Networks of the built-in model on the CPU, and a device with room for so many of them, which does and says what
ONNX Runtime does and says where memory is short."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self
from weakref import WeakKeyDictionary

import numpy as np
import onnxruntime as ort
import pytest

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.runtime.model import Model, open_model
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.sync.inpaint import graphs_for
from latentsync_trt.types import WindowBatch
from tests.small import small_bundle

GRAPHS = graphs_for(SyncOptions())
CPU = Selection("cpu")

COEFFICIENTS = np.array([0.9, 0.1, 0, 0, 0], np.float32)
"""Of a made-up step."""

_LATENTS = (1, 4, 16, 16, 16)

RealSession = ort.InferenceSession


class Device:
    """Counts the networks whose sessions are alive.

    Set `room` to how many may be open, `room_to_run` to how many while one runs; `opened` lists graphs in their order.
    """

    def __init__(self) -> None:
        self.room = self.room_to_run = 99
        self.opened: list[str] = []
        self.most_networks = 0
        self._alive: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._here = threading.local()
        self._lock = threading.Lock()

    def networks(self) -> set[str]:
        """Weights of the networks on the device."""
        with self._lock:
            return set(self._alive.values())

    def watched(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method of `Engines` that takes a graph, which tells the device which."""

        def call(engines: SessionFactory, graph: str, **options: Any) -> Any:
            self._here.network = engines.bundle.manifest.graphs[graph].weights
            if method.__name__ == "open":
                self.opened.append(graph)
            try:
                return method(engines, graph, **options)
            finally:
                self._here.network = None

        return call

    def admit(self, session: Any) -> None:
        """Counts a session of an engine; raises as ONNX Runtime does where there is no room for its network."""
        network = getattr(self._here, "network", None)
        if network is None:
            return
        with self._lock:
            self._alive[session] = network
            count = len(set(self._alive.values()))
            if count > self.room:
                del self._alive[session]
        if count > self.room:
            raise out_of_memory()
        self.most_networks = max(self.most_networks, count)

    def check_run(self, session: Any) -> None:
        """Raises where there is no room for what a run of an engine needs."""
        if session in self._alive and len(self.networks()) > self.room_to_run:
            raise out_of_memory()


def out_of_memory() -> RuntimeError:
    """What ONNX Runtime raises."""
    return RuntimeError(
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization: bfc_arena.cc:359 "
        "void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool) "
        "Failed to allocate memory for requested buffer of size 1073741824"
    )


def watched_device(patch: pytest.MonkeyPatch) -> Device:
    """Puts a device of much room in the place of memory, until `patch` is undone."""
    device = Device()

    class Watched(RealSession):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            device.admit(self)
            super().__init__(*arguments, **options)

        def run(self, *arguments: Any, **options: Any) -> Any:
            device.check_run(self)
            return super().run(*arguments, **options)

        def run_with_iobinding(self, *arguments: Any, **options: Any) -> None:
            device.check_run(self)
            super().run_with_iobinding(*arguments, **options)

    patch.setattr(ort, "InferenceSession", Watched)
    patch.setattr(Engines, "open", device.watched(SessionFactory.open))
    patch.setattr(Engines, "build", device.watched(SessionFactory.build))
    return device


class DemoModels:
    """Opens models whose engines lie in `cache`; closes them at the end of its block. `notices`: what they told."""

    def __init__(self, cache: Path) -> None:
        self.notices: list[str] = []
        self._cache = cache
        self._bundle = Bundle.load(small_bundle(), verify=False)
        self._opened: list[Model] = []

    def __call__(self, selection: Selection = CPU, graphs: Sequence[str] = GRAPHS, **options: Any) -> Model:
        settings = RuntimeOptions(**{"engine_cache": self._cache} | options)
        model = open_model(self._bundle, selection, settings, graphs, self.notices.append)
        self._opened.append(model)
        return model

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for model in self._opened:
            model.close()


def inputs() -> list[np.ndarray]:
    """Latents, conditioning and audio, made up."""
    random = np.random.default_rng(3)
    return [random.standard_normal(shape, np.float32) for shape in (_LATENTS, (1, 9, *_LATENTS[2:]), (1, 16, 50, 32))]


def denoised(model: Model) -> np.ndarray:
    """A full step and a cached one on made-up inputs."""

    def denoise() -> np.ndarray:
        model.denoiser.begin(WindowBatch(*inputs(), 1.5))
        for cached in (False, True):
            model.denoiser.step(500, COEFFICIENTS, cached=cached)
        return model.denoiser.latents()

    return model.run("denoise", denoise)
