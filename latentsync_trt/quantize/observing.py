"""Denoisers for temporary graphs, on CPU or CUDA, without the engine cache.

They may have additional outputs: statistics of the inputs of their layers, for calibration.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from latentsync_trt.errors import InferenceError
from latentsync_trt.runtime.networks.denoiser import GraphDenoiser
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.runtime.providers.table import CUDA
from latentsync_trt.runtime.sessions.builders import cuda_options
from latentsync_trt.runtime.sessions.session import CPU, Session, SessionSettings
from latentsync_trt.types import Float32Array, WindowBatch


@dataclass(frozen=True, slots=True)
class ObservedTensor:
    """An input of the layers whose weights are named `layers`.

    `amax`, `sample`: names of the graph's outputs with the largest of the tensor's magnitudes, and with some `(n,)`.
    """

    layers: tuple[str, ...]
    amax: str
    sample: str


@dataclass(frozen=True, slots=True)
class ObservedGraph:
    """A step graph with more outputs, for `tensors`; `dimensions` fix its variable dimensions."""

    path: Path
    weights_folder: Path
    tensors: tuple[ObservedTensor, ...] = ()
    dimensions: Mapping[str, int] = field(default_factory=dict)


Observe = Callable[[ObservedTensor, int, float, Float32Array], None]
"""Called after each step, for each tensor: the timestep, the maximum, and the sample float32 `(n,)`."""


class ObservingDenoiser(GraphDenoiser):
    """A denoiser over observed graphs, opened on demand, guided or unguided ones at a time.

    Args:
        graphs: observed step graphs by name. selection: CPU or CUDA. report: receives the statistics.
    """

    def __init__(
        self, graphs: Mapping[str, ObservedGraph], selection: Selection, report: Observe | None = None
    ) -> None:
        super().__init__(self._session, selection.device, selection.device_id)
        self._graphs, self._report = graphs, report
        self._providers = CPU if selection.gpu is None else ((CUDA.ort_name, cuda_options(selection.device_id)), *CPU)
        self._sessions: dict[str, Session] = {}
        self._guided = False

    def begin(self, batch: WindowBatch) -> None:
        """Starts a batch of windows, with all steps guided or none."""
        guided = batch.guidance > 1.0
        if guided != self._guided:
            self.close()
        self._guided = guided
        super().begin(batch)

    def observe(self, graph: str, timestep: int, outputs: Mapping[str, Any]) -> None:
        """Reports the statistics of a step; raises `InferenceError` if one is not finite."""
        for tensor in self._graphs[graph].tensors:
            amax, sample = (outputs[name].numpy().astype(np.float32) for name in (tensor.amax, tensor.sample))
            if not np.isfinite(amax).all():
                raise InferenceError(
                    f"{graph}: the input of {tensor.layers[0]} is not finite at timestep {timestep}; "
                    "calibrate the bundle in fp32, and check its weights"
                )
            if self._report is not None:
                self._report(tensor, timestep, float(amax), sample)

    def close(self) -> None:
        self.release()
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def _session(self, name: str) -> Session:
        if name not in self._sessions:
            graph = self._graphs[name]
            # By default ONNX Runtime computes the added outputs last, and keeps every observed tensor until then.
            settings = SessionSettings(
                providers=self._providers,
                weights_folder=graph.weights_folder,
                dimensions=graph.dimensions,
                by_priority=True,
                name=name,
            )
            self._sessions[name] = Session(graph.path, settings)
        return self._sessions[name]
