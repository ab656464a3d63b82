"""How large the tensors of a graph are, where it states that."""

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

Shape = tuple[int, ...]


def shapes_of(model: Any, dimensions: Mapping[str, int]) -> dict[str, Shape]:
    """Shapes by name of the values of an `onnx.ModelProto`; those it states no shape for, or only a part, are left out.

    Args:
        dimensions: values of the variable dimensions, which sizes may be expressions of: "2*windows*frames".
    """
    found: dict[str, Shape] = {}
    for value in [*model.graph.value_info, *model.graph.input, *model.graph.output]:
        sizes = [_size(size, dimensions) for size in value.type.tensor_type.shape.dim]
        if all(sizes) and value.type.tensor_type.HasField("shape"):
            found[value.name] = tuple(sizes)
    return found


def _size(dimension: Any, dimensions: Mapping[str, int]) -> int:
    """0 where nothing is known."""
    if not dimension.dim_param:
        return int(dimension.dim_value)
    size = ir.SymbolicDim(dimension.dim_param).evaluate(dimensions)
    return size if isinstance(size, int) else 0
