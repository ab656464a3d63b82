"""How much two bundles' layers differ, layer by layer: samples of their outputs in single steps from equal inputs."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from latentsync_trt.bench.onnx_file import Node, OnnxGraph, read_graph, size_of
from latentsync_trt.bench.quality.results import LayerNoise, median_db, worst_db
from latentsync_trt.bench.quality.sampled_graph import SAMPLED_SUFFIX, stride_for, with_samples
from latentsync_trt.bench.quality.steps import ratio_db
from latentsync_trt.bench.quality.taps import RecordedStep, StepRecord
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.errors import InputError
from latentsync_trt.runtime.networks.denoiser import step_graph
from latentsync_trt.runtime.providers.select import Selection, why_unavailable
from latentsync_trt.runtime.sessions.options import CudaOptions
from latentsync_trt.runtime.sessions.session import CPU, Array, Providers, Session, SessionSettings
from latentsync_trt.types import Float32Array, WindowBatch

STEPS = 3
"""The first full step, the last, and the one in the middle: noise differs more between layers than between steps."""

_SAMPLE = 1 << 14
"""Values of a layer's output: its ratio in dB is then within 0.1 of that of all values."""

_KINDS = ("Conv", "MatMul", "Gemm")


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution or linear layer: the name of its weights, and of its output, of which every `stride`th is taken."""

    name: str
    kind: str
    output: str
    stride: int


def layer_noise(a: Bundle, b: Bundle, record: StepRecord, selection: Selection) -> tuple[LayerNoise, ...]:
    """A line for each layer of the full step that both have, in the order in which they run.

    Runs on CUDA where `selection` is on a GPU and CUDA loads, else on the CPU: an engine of a compiler hands out no
    inner values. Holds one bundle's step at a time.

    Args:
        record: A's, of full steps; the inputs of both.

    Raises:
        InputError: no step was recorded, or the graphs have no layer in common. BundleError: a graph cannot be read.
        EngineBuildError, InferenceError, OutOfMemory: as `Session`.
    """
    batch, steps = record.batch, _chosen(record.steps)
    if batch is None or not steps:
        raise InputError("no full step was recorded")
    graph = step_graph(guided=batch.guidance > 1.0 and steps[0].guided, cached=False)
    layers = common_layers(
        read_graph(a.graph_path(graph)), read_graph(b.graph_path(graph)), _usual_sizes(a, batch.latents)
    )
    if not layers:
        raise InputError(f"{graph}: no layer has the same name in both bundles")
    providers = _providers(selection)
    ours, theirs = (_samples(bundle, graph, layers, batch, steps, providers) for bundle in (a, b))
    return tuple(_line(layer, ours, theirs) for layer in layers)


def common_layers(a: OnnxGraph, b: OnnxGraph, sizes: dict[str, int]) -> list[Layer]:
    """The convolutions and linear layers of A whose output B has, too, in the same shape; named by their weights.

    Args:
        sizes: of variable dimensions, by name.
    """
    others = {output: node for node in b.nodes for output in node.outputs}
    found = []
    for node in a.nodes:
        (output, *_) = node.outputs
        other, shape = others.get(output), a.values.get(output)
        if other is None or other.kind != node.kind or shape is None or b.values.get(output, shape) != shape:
            continue
        # A quantized layer reads its weights through another node.
        weights = _weights_of(node, a) or _weights_of(other, b)
        if weights:
            stride = stride_for(size_of(shape, sizes), _SAMPLE)
            found.append(Layer(weights.removesuffix(".weight"), node.kind, output, stride))
    return found


def _weights_of(node: Node, graph: OnnxGraph) -> str:
    """The name of a layer's weights; empty where the node is no layer, or reads none by itself."""
    if node.kind not in _KINDS:
        return ""
    return next((name for name in node.inputs if len(graph.weights.get(name, ())) > 1), "")


def _chosen(steps: Sequence[RecordedStep]) -> list[RecordedStep]:
    """Up to `STEPS` full steps, alike in guidance, spread over the loop."""
    full = [step for step in steps if not step.cached]
    alike = [step for step in full if step.guided == full[0].guided]
    places = np.linspace(0, len(alike) - 1, min(STEPS, len(alike))).round().astype(int)
    return [alike[place] for place in places.tolist()]


def _usual_sizes(bundle: Bundle, latents: Float32Array) -> dict[str, int]:
    sizes = {name: span.optimum for name, span in bundle.manifest.ranges.items()}
    return {**sizes, "windows": latents.shape[0], "frames": latents.shape[2]}


def _providers(selection: Selection) -> Providers:
    if selection.device != "cuda" or why_unavailable("cuda", selection.device_id) is not None:
        return CPU
    return (("CUDAExecutionProvider", CudaOptions(selection.device_id).to_ort()), *CPU)


def _samples(
    bundle: Bundle,
    graph: str,
    layers: Sequence[Layer],
    batch: WindowBatch,
    steps: Sequence[RecordedStep],
    providers: Providers,
) -> list[dict[str, Array]]:
    """For each step, the sampled output of each layer, `(n,)` of the network's own type, by the output's name."""
    path = bundle.graph_path(graph)
    content = with_samples(path.read_bytes(), {layer.output: layer.stride for layer in layers})
    with tempfile.TemporaryDirectory(prefix="latentsync-layers-") as folder:
        copy = Path(folder) / path.name
        copy.write_bytes(content)
        # In ONNX Runtime's own order samples are taken last, and every layer's whole output is held until then.
        settings = SessionSettings(
            providers=providers, weights_folder=bundle.folder, by_priority=True, name=f"{graph} with samples"
        )
        session = Session(copy, settings)
    names = [tensor.name for tensor in session.outputs]
    found = []
    for step in steps:
        values = dict(zip(names, session.run(_feed(session, batch, step)), strict=True))
        found.append({layer.output: values[f"{layer.output}{SAMPLED_SUFFIX}"] for layer in layers})
    session.close()
    return found


def _feed(session: Session, batch: WindowBatch, step: RecordedStep) -> dict[str, Array]:
    values: dict[str, Array] = {
        "latents": step.before,
        "conditioning": batch.conditioning,
        "audio": batch.audio,
        "timestep": np.array(step.timestep, np.int64),
        "guidance": np.array(batch.guidance, np.float32),
        "history": np.zeros_like(step.before),
        "coefficients": step.coefficients,
    }
    return {tensor.name: values[tensor.name] for tensor in session.inputs}


def _line(layer: Layer, ours: Sequence[dict[str, Array]], theirs: Sequence[dict[str, Array]]) -> LayerNoise:
    ratios = [
        ratio_db(one[layer.output].astype(np.float32), other[layer.output].astype(np.float32))
        for one, other in zip(ours, theirs, strict=True)
    ]
    return LayerNoise(layer.name, layer.kind, median_db(ratios), worst_db(ratios))
