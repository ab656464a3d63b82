"""SyncNet with random weights, in the format of the published file, and a small graph in its
place.
"""

from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from latentsync_trt.export.syncnet import SyncNetModule
from latentsync_trt.measure.syncnet import EMBEDDING, SYNCNET_INPUTS, SYNCNET_OUTPUTS

SEED = 11


def random_weights() -> dict[str, Tensor]:
    """Of all shapes; statistics of the norms are not those of a new network, and counters are left
    out as there.
    """
    torch.manual_seed(SEED)
    state = SyncNetModule().state_dict()
    for name, tensor in state.items():
        if name.endswith("running_mean"):
            tensor.normal_(0, 0.3)
        elif name.endswith("running_var"):
            tensor.uniform_(0.5, 2)
    return {
        name: tensor for name, tensor in state.items() if not name.endswith("num_batches_tracked")
    }


def write_weights(path: Path, weights: dict[str, Tensor] | None = None) -> Path:
    torch.save(weights or random_weights(), path, _use_new_zipfile_serialization=False)
    return path


def write_means(path: Path) -> Path:
    """A quick graph with SyncNet's inputs and outputs: embeddings are multiples of their input's
    mean.
    """
    nodes = list[onnx.NodeProto]()
    inputs = list[onnx.ValueInfoProto]()
    outputs = list[onnx.ValueInfoProto]()
    shapes = (("n", 3, 5, 224, 224), ("m", 1, 13, 20))
    kept = {
        "ones": np.full((1, EMBEDDING), 0.01, np.float32),
        "shape": np.array([0, -1]),
        "axes": np.array([1]),
    }
    for given, embedded, shape in zip(SYNCNET_INPUTS, SYNCNET_OUTPUTS, shapes, strict=True):
        nodes += [
            helper.make_node("Reshape", [given, "shape"], [f"{given} flat"]),
            helper.make_node("ReduceMean", [f"{given} flat", "axes"], [f"{given} mean"]),
            helper.make_node("Mul", [f"{given} mean", "ones"], [embedded]),
        ]
        inputs.append(helper.make_tensor_value_info(given, TensorProto.FLOAT, shape))
        outputs.append(
            helper.make_tensor_value_info(embedded, TensorProto.FLOAT, (shape[0], EMBEDDING))
        )
    constants = [numpy_helper.from_array(value, name) for name, value in kept.items()]
    made = helper.make_graph(nodes, "means", inputs, outputs, constants)
    model = helper.make_model(made, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    onnx.save(model, path)
    return path
