"""Where eight bits begin and end in a graph: ONNX Runtime's quantizer puts the pairs, without seeing any weights.

It loads and copies all weights, holds them several times over, and hands every reader of a rounded tensor the rounded
one. So it is given single numbers to stand in for weights and ranges, and what it did beyond its order is undone.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnxruntime.quantization import QuantType
from onnxruntime.quantization.calibrate import CalibrationMethod, TensorData, TensorsData
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from onnxruntime.quantization.quant_utils import add_infer_metadata

from latentsync_trt.quantize.layers import Layer

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"

# Symmetric, since TensorRT takes no zero points; biases stay as they are, since it takes no 32-bit ones; outputs stay
# as they are, since whoever reads them may need them exact.
_OPTIONS = {
    "ActivationSymmetric": True,
    "WeightSymmetric": True,
    "MatMulConstBOnly": True,
    "QuantizeBias": False,
    "QDQDisableWeightAdjustForInt32Bias": True,
    "DedicatedQDQPair": False,
    "OpTypesToExcludeOutputQuantization": ["Conv", "MatMul"],
    "QDQOpTypePerChannelSupportToAxis": {"MatMul": 1, "Conv": 0},
}


def with_pairs(model: Any, layers: Sequence[Layer]) -> ir.Model:
    """The graph with a pair of QuantizeLinear and DequantizeLinear before the input of each of `layers`, and a
    DequantizeLinear behind its weights. All scales and eight-bit weights are single numbers, to be replaced.

    Args:
        model: an `onnx.ModelProto`, changed in place; external weights are not read.
        layers: of it, at least one.
    """
    outputs = [_copied(output) for output in model.graph.output]
    known = {value.name: _copied(value) for value in model.graph.value_info}
    _stand_in(model, layers)
    proto = _placed(model, layers, outputs)
    proto.graph.value_info.extend(known[name] for name in known.keys() - {output.name for output in outputs})
    placed = ir.from_proto(proto)
    asked = {layer.node for layer in layers}
    for pair in _activation_pairs(placed.graph):
        _give_back(pair, (node for node in pair.output.consumers() if node.name not in asked))
    placed.graph.sort()
    return placed


class Pair:
    """An activation's QuantizeLinear and DequantizeLinear.

    `source`: what is rounded. `output`: the rounded tensor. `scales`: the name that both read their scale by.
    """

    def __init__(self, dequantize: ir.Node) -> None:
        self.dequantize = dequantize
        rounded = _input(dequantize, 0).producer()
        if rounded is None:
            raise ValueError(f"{dequantize.name}: has no {QUANTIZE} before it")
        self.quantize: ir.Node = rounded
        self.source = _input(self.quantize, 0)
        self.output = dequantize.outputs[0]

    @property
    def readers(self) -> tuple[ir.Node, ...]:
        """The nodes that read the rounded tensor."""
        return tuple(self.output.consumers())


def pair_of(node: ir.Node) -> Pair | None:
    """The pair before a layer's input; None if the layer reads it exact."""
    producer = _input(node, 0).producer()
    return Pair(producer) if producer is not None and producer.op_type == DEQUANTIZE else None


def weight_source(node: ir.Node) -> ir.Node:
    """The DequantizeLinear of a layer's weights."""
    producer = _input(node, 1).producer()
    if producer is None or producer.op_type != DEQUANTIZE:
        raise ValueError(f"{node.name}: its weights are not in eight bits")
    return producer


def _copied(proto: Any) -> Any:
    copy = type(proto)()
    copy.CopyFrom(proto)
    return copy


def _stand_in(model: Any, layers: Iterable[Layer]) -> None:
    """Leaves one number of each layer's weights, and of shapes nothing, as those would contradict it."""
    wanted = {layer.weight for layer in layers}
    for initializer in model.graph.initializer:
        if initializer.name in wanted:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(initializer.data_type)
            one = np.ones((1,) * len(initializer.dims), dtype)
            initializer.CopyFrom(onnx.numpy_helper.from_array(one, initializer.name))
    # An output would be given the rounded tensor, and its reader inside the graph with it.
    model.graph.value_info.extend(model.graph.output)
    del model.graph.output[:]
    for value in model.graph.value_info:
        value.type.tensor_type.ClearField("shape")


def _placed(model: Any, layers: Sequence[Layer], outputs: Sequence[Any]) -> Any:
    dtypes = {initializer.name: initializer.data_type for initializer in model.graph.initializer}
    ones = {
        layer.activation: np.ones((), onnx.helper.tensor_dtype_to_np_dtype(dtypes[layer.weight])) for layer in layers
    }
    ranges = TensorsData(
        CalibrationMethod.MinMax, {name: TensorData(lowest=-one, highest=one) for name, one in ones.items()}
    )
    # "Shapes are known": else the quantizer writes the graph with all its weights, and reads it again.
    add_infer_metadata(model)
    order = [layer.node for layer in layers]
    eight = QuantType.QInt8
    quantizer = QDQQuantizer(model, True, False, eight, eight, ranges, order, [], ["Conv", "MatMul"], dict(_OPTIONS))
    quantizer.quantize_model()
    placed = quantizer.model.model
    del placed.graph.value_info[:]
    placed.graph.output.extend(outputs)
    return placed


def _activation_pairs(graph: ir.Graph) -> Iterator[Pair]:
    for node in list(graph):
        if node.op_type == DEQUANTIZE and _input(node, 0).producer() is not None:
            yield Pair(node)


def _give_back(pair: Pair, readers: Iterable[ir.Node]) -> None:
    """Lets `readers` have the exact tensor."""
    for reader in list(readers):
        for index, value in enumerate(reader.inputs):
            if value is pair.output:
                reader.replace_input_with(index, pair.source)


def _input(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    if value is None:
        raise ValueError(f"{node.name}: input {index} is missing")
    return value
