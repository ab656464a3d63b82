"""Step graphs that also return magnitudes of their layers' inputs, and how they are run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd, prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir import convenience

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.errors import InferenceError
from latentsync_trt.quantize.layers import (
    Layer,
    Sizes,
    layers_by_activation,
    layers_of,
    sizes_of,
    usual_dimensions,
)
from latentsync_trt.quantize.ranges import ActivationRange
from latentsync_trt.runtime.denoiser import GraphDenoiser
from latentsync_trt.runtime.engines.builders import cuda_options
from latentsync_trt.runtime.engines.session import CPU_ONLY, Session, SessionSettings
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.types import Float32Array

SAMPLE = 1 << 16
"""The most values of a tensor that a step returns: their 99.99th percentile is within 4 % of that
of all values.
"""

ATTENTION_BYTES = 1 << 29
"""The size of attention scores above which a batch is split: those of one picture of 64 × 64 tokens
with eight heads.
"""

_SCORE_BYTES = 4
"""A score in float32; in float16 it takes half."""


@dataclass(frozen=True, slots=True)
class ObservedGraph:
    """A step graph, perhaps with more outputs.

    Of the input "x" of layers the graph returns "x_amax", its largest magnitude, and "x_sample",
    some of its magnitudes `(n,)`.
    """

    path: Path
    weights_folder: Path
    layers: Mapping[str, list[str]] = field(default_factory=dict)
    """The names of the layers that read each observed input."""
    dimensions: Mapping[str, int] = field(default_factory=dict)
    """Values of the graph's variable dimensions."""


class ObservingDenoiser(GraphDenoiser):
    """A denoiser over temporary step graphs, on CPU or CUDA without the engine cache; opens them on
    demand, guided or unguided ones at a time.

    `ranges` are those of the inputs of their layers, over all steps so far.
    """

    def __init__(self, graphs: Mapping[str, ObservedGraph], selection: Selection) -> None:
        super().__init__(self._session, selection)
        self._graphs = graphs
        self.ranges: dict[str, ActivationRange] = {}
        self._providers = CPU_ONLY
        if selection.gpu is not None:
            cuda = (selection.provider.ort_name, cuda_options(selection.device_id))
            self._providers = (cuda, *CPU_ONLY)
        self._sessions: dict[str, Session] = {}
        self._is_guided = False

    def begin(
        self,
        latents: Float32Array,
        conditioning: Float32Array,
        audio: Float32Array,
        guidance: float,
    ) -> None:
        """Starts a window, with all steps guided or none."""
        is_guided = guidance > 1.0
        if is_guided != self._is_guided:
            self.close()
        self._is_guided = is_guided
        super().begin(latents, conditioning, audio, guidance)

    def observe(self, graph: str, timestep: int, outputs: Mapping[str, Any]) -> None:
        """Adds the statistics of a step to `ranges`; raises `InferenceError` if one is not
        finite.
        """
        for name, layers in self._graphs[graph].layers.items():
            amax = float(outputs[f"{name}_amax"].numpy())
            sample = outputs[f"{name}_sample"].numpy().astype(np.float32)
            if not np.isfinite(amax):
                raise InferenceError(
                    f"{graph}: the input of {layers[0]} is not finite at timestep {timestep}; "
                    "calibrate the bundle in fp32, and check its weights"
                )
            of_step = ActivationRange.of_step(amax, sample)
            for layer in layers:
                if layer in self.ranges:
                    self.ranges[layer] = self.ranges[layer].merged(of_step)
                else:
                    self.ranges[layer] = of_step

    def close(self) -> None:
        self.release()
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def _session(self, name: str) -> Session:
        if name not in self._sessions:
            graph = self._graphs[name]
            # By default ONNX Runtime computes the added outputs last, and keeps every observed
            # tensor until then.
            settings = SessionSettings(
                providers=self._providers,
                weights_folder=graph.weights_folder,
                dimensions=graph.dimensions,
                reduce_early=True,
                name=name,
            )
            self._sessions[name] = Session(graph.path, settings)
        return self._sessions[name]


def write_observed(bundle: Bundle, graph: str, folder: Path) -> ObservedGraph:
    """Writes an observed step graph to `folder`; it reads the bundle's own weights.

    Variable dimensions are fixed: one window, all others at their usual values. The graph
    reduces the inputs of its layers itself, because at full size those of one step take 19 GB.

    Raises:
        BundleError: the graph does not state the shape of a layer's input.
    """
    dimensions = usual_dimensions(bundle)
    if "windows" in dimensions:
        dimensions["windows"] = 1
    model = ir.load(bundle.graph_path(graph))
    split_attention(model, dimensions)
    names = {}
    for value, layers in layers_by_activation(layers_of(model)).items():
        _observe(model.graph, value, sizes_of(value, dimensions, graph), layers[0])
        names[str(value.name)] = [layer.name for layer in layers]
    path = folder / f"{graph}.onnx"
    ir.save(model, path)
    return ObservedGraph(path, bundle.folder, names, dimensions)


def sample_stride(sizes: Sizes, channel_axis: int) -> int:
    """Returns the n for which every n-th value of a tensor forms a sample of about `SAMPLE` values,
    even over the channels.
    """
    stride = max(1, prod(sizes) // SAMPLE)
    # With a common factor the sample would repeat the same channels or the same columns.
    while gcd(stride, prod(sizes[channel_axis:])) != 1:
        stride += 1
    return stride


def _observe(graph: ir.Graph, value: ir.Value, sizes: Sizes, layer: Layer) -> None:
    """Adds the outputs for `value`, which `layer` reads."""
    channel_axis = 1 if layer.node.op_type == "Conv" else len(sizes) - 1
    stride = sample_stride(sizes, channel_axis)
    tape = ir.tape.Tape(graph)

    def integers(name: str, content: int) -> ir.Value:
        tensor = ir.tensor([content], ir.DataType.INT64)
        return tape.initializer(tensor, f"{value.name}_{name}")

    def add_output(output: ir.Value, name: str, shape: list[int]) -> None:
        output.name = f"{value.name}_{name}"
        output.shape = ir.Shape(shape)
        output.type = ir.TensorType(layer.weights.dtype)
        graph.outputs.append(output)

    first = integers("first", 0)
    end = integers("end", prod(sizes))
    axis = integers("axis", 0)
    step = integers("stride", stride)
    magnitudes = tape.op("Abs", [value])
    amax = tape.op("ReduceMax", [magnitudes], {"keepdims": 0})
    flat = tape.op("Reshape", [magnitudes, integers("flat", -1)])
    sample = tape.op("Slice", [flat, first, end, axis, step])
    add_output(amax, "amax", [])
    add_output(sample, "sample", [-(-prod(sizes) // stride)])


def split_attention(
    model: ir.Model, dimensions: Mapping[str, int], most_bytes: int = ATTENTION_BYTES
) -> None:
    """Splits the batch of Attention nodes whose scores take more than `most_bytes`.

    A provider without a fused kernel stores the scores of a whole batch at once: up to 9 GB in a
    512 px float16 step.
    """
    for node in tuple(model.graph):
        if node.op_type != "Attention":
            continue
        graph = str(model.graph.name)
        batch, heads, queries, _ = sizes_of(node.inputs[0], dimensions, graph)
        keys = sizes_of(node.inputs[1], dimensions, graph)[2]
        most = max(1, most_bytes // (heads * queries * keys * _SCORE_BYTES))
        if most < batch:
            lengths = [min(most, batch - begin) for begin in range(0, batch, most)]
            _split(model.graph, node, lengths)


def _split(graph: ir.Graph, node: ir.Node, lengths: list[int]) -> None:
    tape = ir.tape.Tape()
    output = node.outputs[0]
    tensor = ir.tensor(lengths, ir.DataType.INT64)
    sizes = ir.Value(name=f"{output.name}_lengths", const_value=tensor)
    graph.register_initializer(sizes)
    count = len(lengths)
    parts = [
        tape.op_multi_out("Split", [value, sizes], {"axis": 0}, num_outputs=count)
        for value in node.inputs
    ]
    batches = zip(*parts, strict=True)
    attended = [tape.op("Attention", list(inputs), node.attributes) for inputs in batches]
    joined = tape.op("Concat", attended, {"axis": 0})
    convenience.replace_nodes_and_values(graph, node, [node], list(tape.nodes), [output], [joined])
