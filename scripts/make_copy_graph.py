"""Writes the graph that copies the denoiser's state from one pair of device buffers to another.

python scripts/make_copy_graph.py
"""

from pathlib import Path

from onnx import TensorProto, checker, helper, save

TARGET = Path(__file__).resolve().parents[1] / "latentsync_trt" / "assets" / "graphs" / "copy.onnx"
OPSET = 17
IR_VERSION = 8
AXES = ("windows", 4, "frames", "height", "width")


def main() -> None:
    names = ("latents", "history")
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, AXES) for name in names]
    outputs = [helper.make_tensor_value_info(f"{name}_copy", TensorProto.FLOAT, AXES) for name in names]
    nodes = [helper.make_node("Identity", [name], [f"{name}_copy"], name) for name in names]
    graph = helper.make_graph(nodes, "copy", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    checker.check_model(model)
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    save(model, TARGET)
    print(f"{TARGET}: {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
