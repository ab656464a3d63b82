"""Writes the graphs that turn pictures into what the VAE takes, and what it gives into pictures, on its own device.

python scripts/make_picture_graphs.py
"""

from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper, save

FOLDER = Path(__file__).resolve().parents[1] / "latentsync_trt" / "assets" / "graphs"
OPSET = 17
IR_VERSION = 8
FACES, IMAGE, MASK = ("n", "height", "width", 3), ("n", 3, "height", "width"), ("height", "width")
HALF_OF_8_BITS, HALF_OF_16_BITS = 127.5, 32767.5


def main() -> None:
    for name, model in (("faces_in", faces_in()), ("faces_out", faces_out())):
        checker.check_model(model)
        path = FOLDER / f"{name}.onnx"
        save(model, path)
        print(f"{path}: {path.stat().st_size} bytes")


def faces_in() -> ModelProto:
    """Bytes → [−1, 1] as the VAE takes it, whole and masked."""
    nodes = [
        helper.make_node("Cast", ["faces"], ["levels"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["levels", "half"], ["from_0"]),
        helper.make_node("Sub", ["from_0", "one"], ["pixels"]),
        helper.make_node("Transpose", ["pixels"], ["image"], perm=(0, 3, 1, 2)),
        helper.make_node("Mul", ["image", "mask"], ["masked"]),
    ]
    inputs = {"faces": (TensorProto.UINT8, FACES), "mask": (TensorProto.FLOAT, MASK)}
    outputs = {"image": (TensorProto.FLOAT, IMAGE), "masked": (TensorProto.FLOAT, IMAGE)}
    return _model("faces_in", nodes, inputs, outputs, {"half": HALF_OF_8_BITS, "one": 1.0})


def faces_out() -> ModelProto:
    """What the VAE gives → 16 bits, rounded: 0 is −1, 65535 is 1."""
    nodes = [
        helper.make_node("Transpose", ["image"], ["pixels"], perm=(0, 2, 3, 1)),
        helper.make_node("Mul", ["pixels", "half"], ["from_middle"]),
        helper.make_node("Add", ["from_middle", "middle"], ["levels"]),
        helper.make_node("Clip", ["levels", "lowest", "highest"], ["clipped"]),
        helper.make_node("Cast", ["clipped"], ["painted"], to=TensorProto.UINT16),
    ]
    # The cast cuts off what is behind the point: half a level more rounds.
    constants = {"half": HALF_OF_16_BITS, "middle": HALF_OF_16_BITS + 0.5, "lowest": 0.0, "highest": 65535.0}
    inputs = {"image": (TensorProto.FLOAT, IMAGE)}
    return _model("faces_out", nodes, inputs, {"painted": (TensorProto.UINT16, FACES)}, constants)


def _model(name: str, nodes: list, inputs: dict, outputs: dict, constants: dict[str, float]) -> ModelProto:
    declared = [
        [helper.make_tensor_value_info(tensor, *kind) for tensor, kind in side.items()] for side in (inputs, outputs)
    ]
    initializers = [numpy_helper.from_array(np.array(value, np.float32), key) for key, value in constants.items()]
    graph = helper.make_graph(nodes, name, *declared, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


if __name__ == "__main__":
    main()
