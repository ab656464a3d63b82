"""The form of a denoising step for ONNX Runtime's CPU provider, made from its portable graph.

The CPU computes in float32, so the portable graph of a half-precision bundle converts back and forth; and it transposes
and cuts up what the CPU's own attention kernel takes as it is. Weights are those of the portable graph: what is
converted, cut and transposed here is computed once, when ONNX Runtime opens the graph.
"""

from typing import Any, TypeVar

import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir import convenience
from onnx_ir.passes import common as passes

from latentsync_trt.errors import ExportMismatch

T = TypeVar("T")

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
_TEMPORAL_IN, _TEMPORAL_OUT = "temporal_transformer.proj_in.", "temporal_transformer.proj_out."


def cpu_graph(portable: ir.Model) -> ir.Model:
    """The CPU form of a step's portable graph with fixed shapes; `portable` is unchanged.

    Raises:
        ExportMismatch: the graph is not made of this package's layers.
    """
    model = portable.clone()
    graph = model.graph
    _widen(graph)
    for node in tuple(graph):
        weight = _stored(node.inputs[1]).name or "" if node.op_type == "MatMul" else ""
        if node.op_type == "Gelu":
            _halve_projection(graph, node)
        elif node.op_type in ("Softmax", "Attention"):
            _fuse_attention(graph, node)
        elif _TEMPORAL_IN in weight:
            _gather_frames(graph, node, graph.inputs[0])
        elif _TEMPORAL_OUT in weight:
            _scatter_frames(graph, _user(_user(node)))
    passes.CommonSubexpressionEliminationPass()(model)
    passes.RemoveUnusedNodesPass()(model)
    passes.TopologicalSortPass()(model)
    for value in (value for node in graph for value in node.outputs if not value.is_graph_output()):
        value.type = value.shape = None  # not those of this form
    for value in graph.initializers.values():
        value.metadata_props.clear()  # the tracer's, a third of the file
    return model


def _widen(graph: ir.Graph) -> None:
    """Computes in float32; inputs, outputs and weights keep their type."""
    first, outputs = graph[0], frozenset(graph.outputs)
    for node in tuple(graph):
        source = node.inputs[0] if node.op_type == "Cast" and node.outputs[0] not in outputs else None
        if source is not None and source.dtype in _FLOATS and node.attributes["to"].as_int() in _FLOATS:
            convenience.replace_all_uses_with(node.outputs[0], source)
            graph.remove(node, safe=True)
    for value in (*graph.inputs, *graph.initializers.values()):
        if value.dtype == ir.DataType.FLOAT16:
            users = value.uses()
            wide = _insert(graph, first, "Cast", value, to=ir.DataType.FLOAT.value)
            for user, index in users:
                user.replace_input_with(index, wide)
    for position, output in enumerate(graph.outputs):
        if output.dtype == ir.DataType.FLOAT16 and (maker := _the(output.producer())).op_type != "Cast":
            cast = ir.node("Cast", (output,), {"to": ir.DataType.FLOAT16.value})
            narrow = cast.outputs[0]
            narrow.name, narrow.type, narrow.shape = output.name, output.type, output.shape
            output.name = f"{output.name}_wide"
            graph.outputs[position] = narrow
            graph.insert_after(maker, cast)


def _halve_projection(graph: ir.Graph, gelu: ir.Node) -> None:
    """GEGLU: a product for each half, instead of cutting one result that is larger than the processor's cache."""
    biased = _maker(_user(gelu), 0), _maker(gelu, 0)
    product = _maker(_maker(biased[0], 0), 0)
    for add, weight in zip(biased, _cut(graph, product, 2), strict=True):
        add.replace_input_with(0, _insert(graph, add, "MatMul", product.inputs[0], weight))


def _fuse_attention(graph: ir.Graph, core: ir.Node) -> None:
    """Attention as one node, which takes tokens as the projections give them; `core`: it, or its softmax."""
    scale: dict[str, Any] = {name: each.value for name, each in core.attributes.items() if name == "scale"}
    if core.op_type == "Attention":
        mixed, (query, key, value) = core, (_maker(core, index) for index in range(3))
    else:
        mixed, scores = _user(core), _maker(core, 0)
        scaled = _maker(scores, 0)
        query, key, value = _maker(scaled, 0), _maker(_maker(scores, 1), 0), _maker(mixed, 1)
        scale = {"scale": float(_constant(scaled, 1))}
    temporal = _maker(query, 0).op_type == "Reshape"
    end = _user(_user(_user(mixed))) if temporal else _user(_user(mixed))
    tokens = [_projected(graph, end, chosen, temporal=temporal) for chosen in (query, key, value)]
    windows, frames, pixels, *_, heads, width = _constant(_layout(query), 1).tolist()
    if temporal:
        tokens = [_reshaped(graph, end, each, (windows * pixels, frames, heads * width)) for each in tokens]
    made = _insert(graph, end, "Attention", *tokens, q_num_heads=heads, kv_num_heads=heads, **scale)
    if temporal:
        made = _reshaped(graph, end, made, (windows, pixels, frames, heads * width))
    convenience.replace_all_uses_with(end.outputs[0], made)


def _projected(graph: ir.Graph, before: ir.Node, gather: ir.Node, *, temporal: bool) -> ir.Value:
    """The part of a packed projection that `gather` chooses, projected by itself: `(N, T, C)`, or `(B, P, F, C)`."""
    layout = _layout(gather)
    product = _maker(layout, 0)
    weight = _cut(graph, product, int(_constant(layout, 1)[-3]))[int(_constant(gather, 1))]
    tokens = product.inputs[0]
    if temporal:
        add = _maker(product, 0)
        positions = _insert(graph, before, "Transpose", add.inputs[1], perm=(0, 2, 1, 3))
        tokens = _insert(graph, before, "Add", _maker(add, 0).inputs[0], positions)
    return _insert(graph, before, "MatMul", tokens, weight)


def _gather_frames(graph: ir.Graph, projection: ir.Node, latents: ir.Value) -> None:
    """`(B·F, C, P)` → `(B, P, F, C)` where a temporal transformer begins, not in each of its attentions."""
    frames = _the(latents.shape).numpy()[2]
    flat = _maker(_maker(projection, 0), 0)
    count, *rest = _constant(flat, 1).tolist()
    apart = _reshaped(graph, projection, flat.inputs[0], (count // frames, frames, *rest))
    projection.replace_input_with(0, _insert(graph, projection, "Transpose", apart, perm=(0, 3, 1, 2)))


def _scatter_frames(graph: ir.Graph, back: ir.Node) -> None:
    """`(B, P, F, C)` → `(B, F, C, P)` where it ends, with `back`, which transposes `(B·F, P, C)`."""
    made = _insert(graph, back, "Transpose", back.inputs[0], perm=(0, 2, 3, 1))
    convenience.replace_all_uses_with(back.outputs[0], made)


def _layout(gather: ir.Node) -> ir.Node:
    """The Reshape of a packed projection to `(…, parts, heads, d)`, behind a Transpose and perhaps another Reshape."""
    packed = _maker(gather, 0)
    return _maker(_maker(packed, 0) if packed.op_type == "Reshape" else packed, 0)


def _cut(graph: ir.Graph, node: ir.Node, parts: int) -> tuple[ir.Value, ...]:
    """The second input of `node`, its weights, in `parts` along the last axis; cut before `node`."""
    weight = _the(node.inputs[1])
    if parts == 1:
        return (weight,)
    split = ir.node("Split", (weight,), {"axis": -1, "num_outputs": parts}, num_outputs=parts)
    graph.insert_before(node, split)
    return tuple(split.outputs)


def _insert(graph: ir.Graph, before: ir.Node, kind: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
    node = ir.node(kind, inputs, attributes)
    graph.insert_before(before, node)
    return node.outputs[0]


def _reshaped(graph: ir.Graph, before: ir.Node, value: ir.Value | None, shape: tuple[int, ...]) -> ir.Value:
    return _insert(graph, before, "Reshape", value, _insert(graph, before, "Constant", value_ints=shape))


def _maker(node: ir.Node, index: int) -> ir.Node:
    return _the(_the(node.inputs[index]).producer())


def _user(node: ir.Node) -> ir.Node:
    return next(iter(node.outputs[0].uses())).node


def _stored(value: ir.Value | None) -> ir.Value:
    """The weight, constant or input that `value` is, or is computed from alone."""
    while value is not None and (maker := value.producer()) is not None:
        value = maker.inputs[0]
    return _the(value)


def _constant(node: ir.Node, index: int) -> NDArray[Any]:
    return _the(_stored(node.inputs[index]).const_value).numpy()


def _the(found: T | None) -> T:
    if found is None:
        raise ExportMismatch("the CPU form: the graph is not made of this package's layers")
    return found
