"""Writes the graphs of one matrix product, whose speed `latentsync-trt bench` takes as what the hardware can do.

python scripts/make_matmul_graphs.py
"""

from pathlib import Path

from onnx import TensorProto, checker, helper, save

FOLDER = Path(__file__).resolve().parents[1] / "latentsync_trt" / "assets" / "graphs"
OPSET = 17
IR_VERSION = 8
TYPES = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16}


def main() -> None:
    for precision, kind in TYPES.items():
        inputs = [helper.make_tensor_value_info(name, kind, ("side", "side")) for name in ("left", "right")]
        outputs = [helper.make_tensor_value_info("product", kind, ("side", "side"))]
        node = helper.make_node("MatMul", ["left", "right"], ["product"], "product")
        graph = helper.make_graph([node], "matmul", inputs, outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        checker.check_model(model)
        target = FOLDER / f"matmul_{precision}.onnx"
        save(model, target)
        print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
