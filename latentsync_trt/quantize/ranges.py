"""What calibration learns of the inputs of each layer: how large they get, and how often.

Layers are keyed by the name of their weights, which is the same in all graphs of a step, so that what full and cached,
guided and unguided steps saw of a layer merges into one range.
"""

import contextlib
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from latentsync_trt.errors import InputError
from latentsync_trt.quantize.files import Arrays, load_arrays, save_arrays
from latentsync_trt.types import Float32Array, Float64Array

Method = Literal["max", "percentile", "entropy"]
METHODS: tuple[Method, ...] = ("max", "percentile", "entropy")
PERCENTILE = 99.99

BINS = 2048

# ONNX Runtime's search for an entropy threshold takes time with the square of the bins, and looks at none of the first
# 64: it cuts off no more than seven eighths of the range.
_ENTROPY_BINS = 512
_ENTROPY_LEVELS = 128


@dataclass(frozen=True, slots=True, eq=False)
class LayerInput:
    """How large the inputs x of one layer are.

    `channel_amax (C,)` float32: largest |x| of each input channel, exact. `counts (BINS,)` float64: how many sampled
    |x| fall into each of BINS equal parts of 0 to `upper`, which is a power of two, or 0 where x was 0 throughout.
    `step_amax`: largest |x| by timestep.
    """

    channel_amax: Float32Array
    counts: Float64Array
    upper: float
    step_amax: Mapping[int, float]

    def amax(self, method: Method = "max", percentile: float = PERCENTILE) -> float:
        """The |x| at which eight bits should end; never beyond the largest one seen.

        Args:
            method: "max" cuts nothing off; "percentile" keeps that share of the values; "entropy" keeps the
                distribution of the values, as ONNX Runtime measures it.
            percentile: in 0 to 100, for "percentile".

        Raises:
            InputError: `percentile` is outside its limits.
        """
        largest = float(self.channel_amax.max())
        if method == "max" or self.upper == 0:
            return largest
        if method == "percentile":
            return min(largest, self._percentile(percentile))
        return min(largest, self._entropy())

    def _percentile(self, percentile: float) -> float:
        if not 0 < percentile <= 100:
            raise InputError(f"percentile {percentile:g}: give one above 0, at most 100")
        wanted = self.counts.sum() * percentile / 100
        running = np.cumsum(self.counts)
        bin_ = min(int(np.searchsorted(running, wanted)), BINS - 1)
        below = running[bin_] - self.counts[bin_]
        part = (wanted - below) / self.counts[bin_] if self.counts[bin_] else 1.0
        return float((bin_ + part) * self.upper / BINS)

    def _entropy(self) -> float:
        from onnxruntime.quantization.calibrate import HistogramCollector

        half = self.counts.reshape(_ENTROPY_BINS, -1).sum(axis=1)
        counts = np.rint(np.concatenate([half[::-1], half])).astype(np.int64)
        edges = np.linspace(-self.upper, self.upper, len(counts) + 1, dtype=np.float32)
        collector = HistogramCollector("entropy", True, len(counts), _ENTROPY_LEVELS, PERCENTILE, "same")
        with contextlib.redirect_stdout(io.StringIO()):  # it prints
            ends = collector.get_entropy_threshold((counts, edges, edges[0], edges[-1]), _ENTROPY_LEVELS)
        return float(max(abs(end) for end in ends))


Ranges = Mapping[str, LayerInput]
"""What was seen of each layer, by the name of its weights."""


def observed(channel_amax: Float32Array, sample: Float32Array, timestep: int) -> LayerInput:
    """What one step at `timestep` showed of a layer's input.

    Args:
        channel_amax: `(C,)`, the largest |x| of each channel. sample: `(n,)`, some |x|, none larger.
    """
    largest = float(channel_amax.max())
    upper = _edge(largest)
    counts = np.histogram(sample, BINS, range=(0, upper or 1))[0].astype(np.float64)
    return LayerInput(channel_amax.astype(np.float32), counts, upper, {timestep: largest})


def merged(one: LayerInput, other: LayerInput) -> LayerInput:
    """What was seen of one layer in both; the order does not matter.

    Raises:
        InputError: the layers have different numbers of channels.
    """
    if one.channel_amax.shape != other.channel_amax.shape:
        raise InputError(
            f"ranges of {len(one.channel_amax)} and of {len(other.channel_amax)} channels are not of one layer"
        )
    upper = max(one.upper, other.upper)
    steps = {**one.step_amax}
    for timestep, largest in other.step_amax.items():
        steps[timestep] = max(largest, steps.get(timestep, 0.0))
    return LayerInput(
        np.maximum(one.channel_amax, other.channel_amax),
        _widened(one, upper) + _widened(other, upper),
        upper,
        dict(sorted(steps.items())),
    )


def merged_ranges(one: Ranges, other: Ranges) -> dict[str, LayerInput]:
    """What was seen in both, layer by layer; a layer may be in one of them only."""
    both = {name: merged(layer, other[name]) for name, layer in one.items() if name in other}
    return {**one, **other, **both}


def save(ranges: Ranges, path: Path) -> None:
    """Writes ranges to the file `path`, complete or not at all.

    Raises:
        OutputError: it cannot be written.
    """
    layers = list(ranges.values())
    arrays = {
        "names": np.array(list(ranges), dtype=np.str_),
        "upper": np.array([layer.upper for layer in layers], np.float64),
        "counts": np.array([layer.counts for layer in layers], np.float64).reshape(-1, BINS),
        "channels": np.array([len(layer.channel_amax) for layer in layers], np.int64),
        "channel_amax": _joined([layer.channel_amax for layer in layers], np.float32),
        "steps": np.array([len(layer.step_amax) for layer in layers], np.int64),
        "timesteps": _joined([list(layer.step_amax) for layer in layers], np.int64),
        "step_amax": _joined([list(layer.step_amax.values()) for layer in layers], np.float64),
    }
    save_arrays(path, arrays)


def load(path: Path) -> dict[str, LayerInput]:
    """Reads what `save` wrote.

    Raises:
        InputError: no such file, or not one of these.
    """
    return load_arrays(path, _layers)


def _layers(arrays: Arrays) -> dict[str, LayerInput]:
    if not len(arrays["names"]):
        return {}
    channels = np.split(arrays["channel_amax"], np.cumsum(arrays["channels"])[:-1])
    timesteps = np.split(arrays["timesteps"], np.cumsum(arrays["steps"])[:-1])
    step_amax = np.split(arrays["step_amax"], np.cumsum(arrays["steps"])[:-1])
    columns = zip(arrays["names"], channels, arrays["counts"], arrays["upper"], timesteps, step_amax, strict=True)
    return {
        str(name): LayerInput(amax, counts, float(upper), dict(zip(steps.tolist(), largest.tolist(), strict=True)))
        for name, amax, counts, upper, steps, largest in columns
    }


def _joined(parts: list[Float32Array] | list[list[int]] | list[list[float]], dtype: type[np.generic]) -> np.ndarray:
    return np.concatenate([np.asarray(part, dtype) for part in parts]) if parts else np.zeros(0, dtype)


def _edge(largest: float) -> float:
    """The power of two at or above `largest`: histograms that end at such values fold into one another exactly."""
    return 0.0 if largest <= 0 else 2.0 ** math.ceil(math.log2(largest))


def _widened(layer: LayerInput, upper: float) -> Float64Array:
    """The counts of `layer` in BINS parts of 0 to `upper`, which is not below its own."""
    counts = layer.counts
    if layer.upper == 0:
        return np.concatenate([[counts.sum()], np.zeros(BINS - 1)])
    folds = round(math.log2(upper / layer.upper))
    for _ in range(min(folds, int(math.log2(BINS)))):
        counts = np.concatenate([counts.reshape(-1, 2).sum(axis=1), np.zeros(BINS // 2)])
    return counts
