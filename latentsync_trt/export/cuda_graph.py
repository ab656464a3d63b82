"""What is left to do on a traced graph of the CUDA form; `graphs` traces and tidies it as every other."""

import numpy as np
import onnx_ir as ir
from onnx_ir import convenience

from latentsync_trt.bundle.weights import WeightsFile
from latentsync_trt.export.cuda_form import DOMAIN

_DOMAIN_VERSION = 1
_VIEWS = ("Reshape", "Unsqueeze", "Squeeze")

# Outputs that a kernel writes only if they have a name, by what makes them.
_OPTIONAL_OUTPUTS = {"SkipLayerNormalization": 1, "SkipGroupNorm": 1}

# What is done to weights, by their rank: parts of matrices, kernels in another order, norms in float32.
_LEFT_TO_LOADING = {"Slice": 2, "Transpose": 4, "Cast": 1}

_MADE_LARGER = ("Tile", "Expand", "Equal")


def may_fold(node: ir.Node) -> bool | None:
    """False for what must not be computed while exporting, None for what the folder of constants may decide.

    Parts of a stacked projection, kernels in another order and masks are made when a graph is loaded: stored for
    themselves, they would make a bundle half as large again.
    """
    source = node.inputs[0] if node.inputs else None
    if node.op_type in _LEFT_TO_LOADING and source is not None and source.shape is not None:
        return False if source.shape.rank() == _LEFT_TO_LOADING[node.op_type] else None
    return False if node.domain == DOMAIN or node.op_type in _MADE_LARGER else None


def finish(model: ir.Model) -> None:
    """Drops outputs that nothing reads, and joins views: the host spends microseconds on every node."""
    graph = model.graph
    model.opset_imports[DOMAIN] = graph.opset_imports[DOMAIN] = _DOMAIN_VERSION
    for node in graph:
        _drop_unread(node, _OPTIONAL_OUTPUTS.get(node.op_type, len(node.outputs)))
    kept = set(graph.outputs)
    for node in tuple(graph):
        if node.op_type in _VIEWS and node.outputs[0] not in kept:
            _join(graph, node)


def take_stored(model: ir.Model, weights: WeightsFile) -> None:
    """Replaces norms' weights that would be cast to float32 at loading by such as `weights` already holds."""
    graph = model.graph
    for node in tuple(graph):
        source = node.inputs[0] if node.op_type == "Cast" else None
        if source is None or source.const_value is None or not source.is_initializer():
            continue
        output = node.outputs[0]
        cast = source.const_value.numpy().astype(np.float32)
        if output.dtype != ir.DataType.FLOAT or not weights.holds(cast):
            continue
        name = f"{source.name}_float32"
        stored = ir.Value(name=name, shape=output.shape, type=output.type, const_value=ir.tensor(cast, name=name))
        graph.register_initializer(stored)
        convenience.replace_all_uses_with(output, stored)
        graph.remove(node, safe=True)
        if not source.uses():
            del graph.initializers[source.name or ""]


def _drop_unread(node: ir.Node, first: int) -> None:
    for output in node.outputs[first:]:
        if not output.uses():
            output.name = ""
    while node.outputs[-1].name == "":
        node.resize_outputs(len(node.outputs) - 1)


def _join(graph: ir.Graph, node: ir.Node) -> None:
    """Makes a view one of what its own source views, or takes it out where it changes nothing."""
    output, source = node.outputs[0], node.inputs[0]
    while (maker := source.producer() if source else None) is not None and maker.op_type in _VIEWS:
        source = maker.inputs[0]
    if source is None or output.shape is None or not output.shape.is_static():
        return
    shape = output.shape.numpy()
    if source.shape is not None and source.shape == shape:
        convenience.replace_all_uses_with(output, source)
        return
    view = ir.Node("", "Reshape", (source, _constant(graph, shape)), num_outputs=1)
    joined = view.outputs[0]
    joined.name, joined.shape, joined.type = output.name, output.shape, output.type
    convenience.replace_all_uses_with(output, joined)
    graph.insert_after(node, view)
    graph.remove(node)


def _constant(graph: ir.Graph, numbers: tuple[int, ...]) -> ir.Value:
    name = f"shape_{'_'.join(map(str, numbers))}"
    if name not in graph.initializers:
        tensor = ir.tensor(np.array(numbers, np.int64), name=name)
        shape, kind = ir.Shape((len(numbers),)), ir.TensorType(tensor.dtype)
        graph.register_initializer(ir.Value(name=name, shape=shape, type=kind, const_value=tensor))
    return graph.initializers[name]
