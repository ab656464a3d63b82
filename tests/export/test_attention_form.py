"""The operators of attention in portable graphs."""

import numpy as np
import pytest
import torch
from torch import nn

from latentsync_trt.export.graphs import GraphPlan, build_graph
from latentsync_trt.export.layers import attend

pytestmark = pytest.mark.integration

IN_PARTS = ["Mul", "Transpose", "MatMul", "Softmax", "MatMul"]
"""The query is scaled before the product, and the softmax is float32."""


class _Product(nn.Module):
    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return attend(query, key, value)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "fused"), [(torch.float16, 40, True), (torch.float16, 20, False), (torch.float32, 40, False)]
)
def test_attention_is_one_operator_where_tensorrt_takes_it(dtype: torch.dtype, head_dim: int, fused: bool) -> None:
    inputs = {name: torch.randn(2, 4, 6, head_dim).to(dtype) for name in ("query", "key", "value")}
    model = build_graph(GraphPlan("product", "unet", _Product(), inputs, ("out",)))
    operators = [node.op_type for node in model.graph]
    if fused:
        assert operators == ["Attention"]
    else:
        assert [name for name in operators if name != "Cast"] == IN_PARTS
        (softmax,) = (node for node in model.graph if node.op_type == "Softmax")
        assert softmax.inputs[0].dtype.numpy() == np.float32
