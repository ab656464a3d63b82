"""Post-processing of traced graphs in the CUDA form, called by `graphs`."""

import numpy as np
import onnx_ir as ir
from onnx_ir import convenience

from latentsync_trt.export.cuda_ops import DOMAIN, LAYOUT_DOMAIN, LAYOUT_DOMAIN_VERSION

_DOMAIN_VERSION = 1
_VIEWS = ("Reshape", "Unsqueeze", "Squeeze")

# Operator → index of its first optional output. The kernels compute these outputs whenever they are named.
_OPTIONAL_OUTPUTS = {"SkipLayerNormalization": 1, "SkipGroupNorm": 1}

# Operations on weights that are computed at loading, by rank: slices of matrices, sums of biases.
_FOLDED_AT_LOADING = {"Slice": 2, "Add": 1}

_ENLARGING = ("Tile", "Expand", "Equal")


def may_fold(node: ir.Node) -> bool | None:
    """Whether to compute the node at export, None if the optimizer may decide.

    Slices of a stacked projection, sums of biases and masks are computed when a graph is loaded: storing them would
    enlarge a bundle. Kernels must be constants: ONNX Runtime transposes no others, and pads none in half precision.
    """
    if node.op_type == "Pad":
        return True
    source = node.inputs[0] if node.inputs else None
    if node.op_type in _FOLDED_AT_LOADING and source is not None and source.shape is not None:
        return False if source.shape.rank() == _FOLDED_AT_LOADING[node.op_type] else None
    return False if node.domain in (DOMAIN, LAYOUT_DOMAIN) or node.op_type in _ENLARGING else None


def finish(model: ir.Model) -> None:
    """Drops unused outputs and merges views: every node costs the host microseconds."""
    graph = model.graph
    for domain, version in ((DOMAIN, _DOMAIN_VERSION), (LAYOUT_DOMAIN, LAYOUT_DOMAIN_VERSION)):
        model.opset_imports[domain] = graph.opset_imports[domain] = version
    for node in graph:
        _drop_unused(node, _OPTIONAL_OUTPUTS.get(node.op_type, len(node.outputs)))
    kept = set(graph.outputs)
    for node in tuple(graph):
        if node.op_type in _VIEWS and node.outputs[0] not in kept:
            _join(graph, node)


def _drop_unused(node: ir.Node, first: int) -> None:
    for output in node.outputs[first:]:
        if not output.uses():
            output.name = ""
    while node.outputs[-1].name == "":
        node.resize_outputs(len(node.outputs) - 1)


def _join(graph: ir.Graph, node: ir.Node) -> None:
    """Merges a view of a view into one Reshape, or removes it if it changes nothing."""
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
