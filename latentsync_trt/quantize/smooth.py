"""SmoothQuant: loud channels of a linear layer's input are made quieter, and their weights louder by as much.

Eight bits have one scale for all channels of an input, so one loud channel costs the others their precision; weights
have a scale of their own for each output channel and take the difference better. https://arxiv.org/abs/2211.10438
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from latentsync_trt.quantize.layers import Layer
from latentsync_trt.types import Float32Array

_LARGEST_FACTOR = 1e3
"""Beyond it the other side would leave float16's range."""

_SILENT = 1e-5
"""A channel below it says nothing about how loud it may get."""


def divisors(channel_amax: Float32Array, weight: NDArray[Any], alpha: float) -> Float32Array:
    """What to divide each input channel by, `(I,)`, one on geometric average.

    Args:
        channel_amax: `(I,)`, the largest |x| of each channel. weight: `(I, O)`.
        alpha: how much of the range goes over to the weights, 0 to 1.
    """
    loudness = np.maximum(channel_amax, _SILENT).astype(np.float64)
    strength = np.maximum(np.abs(weight.astype(np.float32)).max(axis=1), _SILENT).astype(np.float64)
    found = loudness**alpha / strength ** (1 - alpha)
    found /= np.exp(np.log(found).mean())
    return np.clip(found, 1 / _LARGEST_FACTOR, _LARGEST_FACTOR).astype(np.float32)


def with_factors(model: Any, layers: Sequence[Layer], factors: Mapping[str, NDArray[Any]]) -> tuple[Layer, ...]:
    """Multiplies the inputs of those layers that have factors; returns all layers, with the names they read now.

    Args:
        model: an `onnx.ModelProto`, changed in place. factors: `(I,)` by name of the weights, in the weights' dtype;
            the weights must be divided by them.
    """
    smoothed = tuple(_smoothed(layer) if layer.weight in factors else layer for layer in layers)
    stated = [*model.graph.value_info, *model.graph.input, *model.graph.output]
    types = {value.name: value.type for value in stated}
    for before, after in zip(layers, smoothed, strict=True):
        if before is after:
            continue
        factor = onnx.numpy_helper.from_array(factors[before.weight], f"{before.weight}_smoothing")
        model.graph.initializer.append(factor)
        model.graph.value_info.append(onnx.helper.make_value_info(after.activation, types[before.activation]))
    nodes = list(_with_products(model, {layer.node: layer for layer in smoothed}))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return smoothed


def _smoothed(layer: Layer) -> Layer:
    return replace(layer, activation=f"{layer.weight}_smoothed")


def _with_products(model: Any, layers: Mapping[str, Layer]) -> Iterator[Any]:
    for node in model.graph.node:
        layer = layers.get(node.name)
        if layer is not None and layer.activation != node.input[0]:
            inputs = [node.input[0], f"{layer.weight}_smoothing"]
            yield onnx.helper.make_node("Mul", inputs, [layer.activation], f"{node.name}_smoothing")
            node.input[0] = layer.activation
        yield node
