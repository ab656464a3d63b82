"""Denoisers for temporary graphs, on CPU or CUDA, without the engine cache.

They may have additional outputs: statistics of the inputs of their layers, for calibration.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from latentsync_trt.errors import InferenceError
from latentsync_trt.runtime.engines.builders import cuda_options
from latentsync_trt.runtime.engines.session import CPU, Session, SessionSettings
from latentsync_trt.runtime.networks import GraphDenoiser
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.runtime.providers.table import CUDA
from latentsync_trt.types import Float32Array, Float64Array


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


BINS = 2048
"""Of the histograms of magnitudes."""


@dataclass(frozen=True, slots=True, eq=False)
class ActivationRange:
    """Magnitudes of the input x of one layer.

    `largest`: exact maximum of |x|. `counts (BINS,)` float64: histogram of sampled |x| from 0 to `upper`.
    """

    largest: float
    counts: Float64Array

    @classmethod
    def of_step(cls, largest: float, sample: Float32Array) -> Self:
        """The range of one step: the maximum of |x|, and a sample of |x| `(n,)`, none larger."""
        empty = cls(largest, np.zeros(BINS))
        return cls(largest, np.histogram(sample, BINS, range=(0, empty.upper or 1))[0].astype(np.float64))

    @property
    def upper(self) -> float:
        """The power of two at or above the maximum, so that histograms merge bin by bin; 0 if x is always 0."""
        return 0.0 if self.largest <= 0 else 2.0 ** math.ceil(math.log2(self.largest))

    def merged(self, other: "ActivationRange") -> "ActivationRange":
        upper = max(self.upper, other.upper)
        counts = self._counts_up_to(upper) + other._counts_up_to(upper)
        return ActivationRange(max(self.largest, other.largest), counts)

    def amax(self, percentile: float) -> float:
        """The |x| that is mapped to the largest 8-bit number.

        Args:
            percentile: share of the sampled |x| that is not clipped, above 0, at most 100; 100 is the maximum.
        """
        if percentile == 100 or self.largest == 0:
            return self.largest
        wanted, running = self.counts.sum() * percentile / 100, np.cumsum(self.counts)
        index = min(int(np.searchsorted(running, wanted)), BINS - 1)
        below = running[index] - self.counts[index]
        part = (wanted - below) / self.counts[index] if self.counts[index] else 1.0
        return min(self.largest, float((index + part) * self.upper / BINS))

    def _counts_up_to(self, upper: float) -> Float64Array:
        """The histogram from 0 to `upper`, a power of two not below its own."""
        if self.largest == 0:
            return np.concatenate([[self.counts.sum()], np.zeros(BINS - 1)])
        counts = self.counts
        for _ in range(min(round(math.log2(upper / self.upper)), int(math.log2(BINS)))):
            counts = np.concatenate([counts.reshape(-1, 2).sum(axis=1), np.zeros(BINS // 2)])
        return counts


Ranges = Mapping[str, ActivationRange]
"""Calibration ranges by the name of a layer's weights: those of full, cached, guided and unguided steps are merged."""


class ObservingDenoiser(GraphDenoiser):
    """A denoiser over observed graphs, opened on demand, guided or unguided ones at a time.

    Args:
        graphs: observed step graphs by name. selection: CPU or CUDA.

    `ranges`: of the inputs of their layers, over all steps so far.
    """

    def __init__(self, graphs: Mapping[str, ObservedGraph], selection: Selection) -> None:
        super().__init__(self._session, selection)
        self._graphs = graphs
        self.ranges: dict[str, ActivationRange] = {}
        self._providers = CPU if selection.gpu is None else ((CUDA.ort_name, cuda_options(selection.device_id)), *CPU)
        self._sessions: dict[str, Session] = {}
        self._guided = False

    def begin(self, latents: Float32Array, conditioning: Float32Array, audio: Float32Array, guidance: float) -> None:
        """Starts a window, with all steps guided or none."""
        guided = guidance > 1.0
        if guided != self._guided:
            self.close()
        self._guided = guided
        super().begin(latents, conditioning, audio, guidance)

    def observe(self, graph: str, timestep: int, outputs: Mapping[str, Any]) -> None:
        """Adds the statistics of a step to `ranges`; raises `InferenceError` if one is not finite."""
        for tensor in self._graphs[graph].tensors:
            amax, sample = (outputs[name].numpy().astype(np.float32) for name in (tensor.amax, tensor.sample))
            if not np.isfinite(amax).all():
                raise InferenceError(
                    f"{graph}: the input of {tensor.layers[0]} is not finite at timestep {timestep}; "
                    "calibrate the bundle in fp32, and check its weights"
                )
            found = ActivationRange.of_step(float(amax), sample)
            for layer in tensor.layers:
                self.ranges[layer] = self.ranges[layer].merged(found) if layer in self.ranges else found

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
