"""Attention over a part of its batch at a time.

On a CPU its scores exist in memory, those of the whole batch at once: 9 GB in one layer of a 512 px step in float16, 17
in float32.
"""

from collections.abc import Mapping
from typing import Any

import onnx

from latentsync_trt.quantize.shapes import Shape

SCORES_BYTES = 1 << 29
"""Most that the scores of a slice may take: those of one picture of 64×64 tokens, in eight heads."""

_SCORE_BYTES = 4  # of float32; those of float16 take half of it


def slice_attention(model: Any, shapes: Mapping[str, Shape], most_bytes: int = SCORES_BYTES) -> None:
    """Lets the Attention nodes of an `onnx.ModelProto` whose scores take more than `most_bytes` run in slices.

    Args:
        shapes: by name, of what they read; where they are not known, or without an axis of heads, nothing is changed.
    """
    nodes = []
    for node in model.graph.node:
        sizes = _slices(node, shapes, most_bytes)
        nodes.extend(_sliced(model, node, sizes) if len(sizes) > 1 else [node])
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _slices(node: Any, shapes: Mapping[str, Shape], most_bytes: int) -> list[int]:
    """How much of the batch each slice takes; empty where that cannot be known."""
    if node.op_type != "Attention" or node.domain or len(node.input) != 3 or len(node.output) != 1:
        return []
    queries, keys = (shapes.get(name, ()) for name in node.input[:2])
    if len(queries) != 4 or len(keys) != 4:
        return []
    batch, heads, tokens, _ = queries
    most = max(1, most_bytes // (heads * tokens * keys[2] * _SCORE_BYTES))
    return [min(most, batch - begin) for begin in range(0, batch, most)]


def _sliced(model: Any, node: Any, sizes: list[int]) -> list[Any]:
    """The nodes that stand for `node`: every input split, an Attention for each slice, and what joins them."""
    own = node.output[0]
    counts = f"{own}.slices"
    model.graph.initializer.append(onnx.helper.make_tensor(counts, onnx.TensorProto.INT64, [len(sizes)], sizes))
    pieces = [[f"{own}.{letter}.{index}" for index in range(len(sizes))] for letter in "qkv"]
    splits = [
        onnx.helper.make_node("Split", [name, counts], outputs, axis=0)
        for name, outputs in zip(node.input, pieces, strict=True)
    ]
    parts = [f"{own}.{index}" for index in range(len(sizes))]
    each = [_on(node, list(inputs), part) for *inputs, part in zip(*pieces, parts, strict=True)]
    return [*splits, *each, onnx.helper.make_node("Concat", parts, [own], axis=0)]


def _on(node: Any, inputs: list[str], output: str) -> Any:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = output
    copy.input[:], copy.output[:] = inputs, [output]
    return copy
