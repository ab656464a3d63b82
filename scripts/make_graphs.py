"""Writes the small graphs in `latentsync_trt/assets/graphs`.

python scripts/make_graphs.py
"""

from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper, save

FOLDER = Path(__file__).resolve().parents[1] / "latentsync_trt" / "assets" / "graphs"
OPSET = 17
OPSET_OF_ANTIALIASING = 18
IR_VERSION = 8
FACES = ("n", "height", "width", 3)
IMAGE = ("n", 3, "height", "width")
MASK = ("height", "width")
LATENTS = ("windows", 4, "frames", "height", "width")
HALF_OF_8_BITS = 127.5
HALF_OF_16_BITS = 32767.5

Tensors = dict[str, tuple[int, tuple[str | int, ...]]]
"""Element type and shape by name."""


def main() -> None:
    graphs = {
        "copy": copy(),
        "faces_in": faces_in(),
        "faces_out": faces_out(),
        "resize": resize(),
    }
    for name, model in graphs.items():
        checker.check_model(model)
        path = FOLDER / f"{name}.onnx"
        save(model, path)
        print(f"{path}: {path.stat().st_size} bytes")


def copy() -> ModelProto:
    """Copies the denoiser's state from one pair of device buffers to another."""
    names = ("latents", "history")
    nodes = [helper.make_node("Identity", [name], [f"{name}_copy"], name) for name in names]
    inputs: Tensors = dict.fromkeys(names, (TensorProto.FLOAT, LATENTS))
    outputs: Tensors = {f"{name}_copy": (TensorProto.FLOAT, LATENTS) for name in names}
    return _model("copy", nodes, inputs, outputs)


def faces_in() -> ModelProto:
    """Converts uint8 faces to the VAE's input in [−1, 1], unmasked and masked."""
    nodes = [
        helper.make_node("Cast", ["faces"], ["levels"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["levels", "half"], ["from_0"]),
        helper.make_node("Sub", ["from_0", "one"], ["pixels"]),
        helper.make_node("Transpose", ["pixels"], ["image"], perm=(0, 3, 1, 2)),
        helper.make_node("Mul", ["image", "mask"], ["masked"]),
    ]
    inputs: Tensors = {"faces": (TensorProto.UINT8, FACES), "mask": (TensorProto.FLOAT, MASK)}
    outputs: Tensors = {"image": (TensorProto.FLOAT, IMAGE), "masked": (TensorProto.FLOAT, IMAGE)}
    return _model("faces_in", nodes, inputs, outputs, {"half": HALF_OF_8_BITS, "one": 1.0})


def faces_out() -> ModelProto:
    """Converts the VAE's output to uint16, rounded: 0 is −1, 65535 is 1."""
    nodes = [
        helper.make_node("Transpose", ["image"], ["pixels"], perm=(0, 2, 3, 1)),
        helper.make_node("Mul", ["pixels", "half"], ["from_middle"]),
        helper.make_node("Add", ["from_middle", "middle"], ["levels"]),
        helper.make_node("Clip", ["levels", "lowest", "highest"], ["clipped"]),
        helper.make_node("Cast", ["clipped"], ["painted"], to=TensorProto.UINT16),
    ]
    # The cast truncates; adding half a level rounds.
    constants = {
        "half": HALF_OF_16_BITS,
        "middle": HALF_OF_16_BITS + 0.5,
        "lowest": 0.0,
        "highest": 65535.0,
    }
    inputs: Tensors = {"image": (TensorProto.FLOAT, IMAGE)}
    return _model("faces_out", nodes, inputs, {"painted": (TensorProto.UINT16, FACES)}, constants)


def resize() -> ModelProto:
    """Resizes a picture by PyTorch's antialiased bicubic filter."""
    filtering = {"mode": "cubic", "cubic_coeff_a": -0.5, "antialias": 1, "exclude_outside": 1}
    nodes = [
        helper.make_node("Resize", ["image", "", "", "size"], ["resized"], axes=(1, 2), **filtering)
    ]
    image = (1, "height", "width", "channels")
    resized = (1, "new_height", "new_width", "channels")
    inputs: Tensors = {"image": (TensorProto.FLOAT, image), "size": (TensorProto.INT64, (2,))}
    outputs: Tensors = {"resized": (TensorProto.FLOAT, resized)}
    return _model("resize", nodes, inputs, outputs, opset=OPSET_OF_ANTIALIASING)


def _model(
    name: str,
    nodes: list,
    inputs: Tensors,
    outputs: Tensors,
    constants: dict[str, float] | None = None,
    opset: int = OPSET,
) -> ModelProto:
    declared = [
        [helper.make_tensor_value_info(tensor, *kind) for tensor, kind in side.items()]
        for side in (inputs, outputs)
    ]
    initializers = [
        numpy_helper.from_array(np.array(v, np.float32), key)
        for key, v in (constants or {}).items()
    ]
    graph = helper.make_graph(nodes, name, *declared, initializers)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION
    )


if __name__ == "__main__":
    main()
