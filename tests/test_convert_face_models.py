"""The committed face networks against the TFLite interpreter, and the converter on a network of one convolution."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from latentsync_trt.runtime.sessions.session import Session
from tests.conftest import REPOSITORY

SCRIPT = REPOSITORY / "scripts" / "convert_face_models.py"
GRAPHS = REPOSITORY / "latentsync_trt" / "assets" / "face"
RECORD = Path(__file__).parent / "data" / "face_networks.npz"

PIXEL_RANGE = {"blaze_short": (-1, 1), "blaze_full": (-1, 1), "face_mesh": (0, 1)}
RECORDED_ANCHORS = slice(None, None, 5)
"""Of each detector's boxes, every fifth is recorded."""
INTERPRETER_ERROR = 2e-3
"""Input pixels and logits, which reach 185: the order of float32 sums differs between processors; 1.4e-4 was seen."""
ROUNDING = 1e-5
"""Of one convolution over 18 values near 1."""


@pytest.mark.parametrize("name", sorted(PIXEL_RANGE))
def test_committed_graphs_reproduce_the_interpreter(name: str) -> None:
    session = Session(GRAPHS / f"{name}.onnx", intra_op_threads=1)
    low, high = PIXEL_RANGE[name]
    with np.load(RECORD) as recorded:
        picture = recorded["picture"]
        times = int(session.inputs[0].shape[2]) // len(picture)
        large = picture.repeat(times, axis=0).repeat(times, axis=1).astype(np.float32) / 255 * (high - low) + low
        results = session.run({"image": np.ascontiguousarray(large.transpose(2, 0, 1)[None], np.float32)})
        for info, result in zip(session.outputs, results, strict=True):
            wanted = recorded[f"{name}_{info.name}"].reshape(-1)
            ours = (result[:, RECORDED_ANCHORS] if info.name == "boxes" else result).reshape(-1)
            assert ours.shape == wanted.shape
            assert np.abs(ours - wanted).max() < INTERPRETER_ERROR, info.name


def test_notice_names_the_files_that_are_converted() -> None:
    sources = re.findall(r'"(mediapipe/\S+\.tflite)",\s+"([0-9a-f]{64})"', SCRIPT.read_text(encoding="utf-8"))
    notice = (REPOSITORY / "NOTICE").read_text(encoding="utf-8")
    assert len(sources) == len(PIXEL_RANGE)
    for member, digest in sources:
        assert re.search(rf"{re.escape(member)}\s+sha256 {digest}", notice), member


# The converter ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tflite() -> Any:
    return pytest.importorskip("tflite", reason="needs the extra `convert`")


@pytest.fixture(scope="module")
def script(tflite: ModuleType) -> ModuleType:
    spec = importlib.util.spec_from_file_location("convert_face_models", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for their own types
    spec.loader.exec_module(module)
    return module


class Writer:
    """Puts tables of TFLite's schema into a flatbuffer."""

    def __init__(self, tflite: Any) -> None:
        import flatbuffers

        self.schema, self.builder = tflite, flatbuffers.Builder(1024)

    def table(self, kind: str, **fields: Any) -> int:
        getattr(self.schema, f"{kind}Start")(self.builder)
        for name, value in fields.items():
            getattr(self.schema, f"{kind}Add{name}")(self.builder, value)
        return int(getattr(self.schema, f"{kind}End")(self.builder))

    def numbers(self, values: Any, dtype: type[np.generic] = np.int32) -> int:
        return int(self.builder.CreateNumpyVector(np.asarray(values, dtype).reshape(-1)))

    def tables(self, offsets: list[int]) -> int:
        self.builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self.builder.PrependUOffsetTRelative(offset)
        return int(self.builder.EndVector())

    def sparsity(self, kernel: np.ndarray) -> int:
        """All dimensions but the last dense; of the last, the places that are not zero."""
        schema, last = self.schema, np.argwhere(kernel.reshape(-1, kernel.shape[-1]))
        dense = [
            self.table("DimensionMetadata", Format=schema.DimensionType.DENSE, DenseSize=size)
            for size in kernel.shape[:-1]
        ]
        rows = int(np.prod(kernel.shape[:-1]))
        segments = self.table(
            "Uint8Vector", Values=self.numbers(np.searchsorted(last[:, 0], range(rows + 1)), np.uint8)
        )
        indices = self.table("Int32Vector", Values=self.numbers(last[:, 1]))
        compressed = self.table(
            "DimensionMetadata",
            Format=schema.DimensionType.SPARSE_CSR,
            ArraySegmentsType=schema.SparseIndexVector.Uint8Vector,
            ArraySegments=segments,
            ArrayIndicesType=schema.SparseIndexVector.Int32Vector,
            ArrayIndices=indices,
        )
        order = self.numbers(range(kernel.ndim))
        return self.table("SparsityParameters", TraversalOrder=order, DimMetadata=self.tables([*dense, compressed]))

    def tensor(self, shape: tuple[int, ...], kind: str, buffer: int, **fields: int) -> int:
        size = self.numbers(shape)
        return self.table("Tensor", Shape=size, Type=getattr(self.schema.TensorType, kind), Buffer=buffer, **fields)

    def operator(self, code: int, inputs: list[int], output: int, **fields: int) -> int:
        taken, given = self.numbers(inputs), self.numbers([output])
        return self.table("Operator", OpcodeIndex=code, Inputs=taken, Outputs=given, **fields)


def network(tflite: Any, kernel: np.ndarray, bias: np.ndarray, shapes: tuple[tuple[int, ...], ...]) -> bytes:
    """TFLite bytes: a convolution of stride 2 with a sparse kernel, a half-precision bias and a ReLU."""
    writer = Writer(tflite)
    data = [b"", kernel[kernel != 0].tobytes(), bias.tobytes()]
    buffers = [
        writer.table("Buffer", Data=writer.numbers(np.frombuffer(part, np.uint8), np.uint8)) for part in data[1:]
    ]
    tensors = [
        writer.tensor(shapes[0], "FLOAT32", 0),
        writer.tensor(kernel.shape, "FLOAT32", 1, Sparsity=writer.sparsity(kernel)),
        writer.tensor(kernel.shape, "FLOAT32", 0),
        writer.tensor(bias.shape, "FLOAT16", 2),
        writer.tensor(bias.shape, "FLOAT32", 0),
        writer.tensor(shapes[1], "FLOAT32", 0),
    ]
    options = writer.table(
        "Conv2DOptions",
        Padding=tflite.Padding.SAME,
        StrideW=2,
        StrideH=2,
        FusedActivationFunction=tflite.ActivationFunctionType.RELU,
        DilationWFactor=1,
        DilationHFactor=1,
    )
    operators = [
        writer.operator(0, [1], 2),
        writer.operator(1, [3], 4),
        writer.operator(
            2, [0, 2, 4], 5, BuiltinOptionsType=tflite.BuiltinOptions.Conv2DOptions, BuiltinOptions=options
        ),
    ]
    names = (tflite.BuiltinOperator.DENSIFY, tflite.BuiltinOperator.DEQUANTIZE, tflite.BuiltinOperator.CONV_2D)
    codes = [writer.table("OperatorCode", DeprecatedBuiltinCode=name, BuiltinCode=name, Version=1) for name in names]
    parts = {"Tensors": writer.tables(tensors), "Operators": writer.tables(operators)}
    ends = {"Inputs": writer.numbers([0]), "Outputs": writer.numbers([5])}
    graphs = writer.tables([writer.table("SubGraph", **parts, **ends)])
    stored = writer.tables([writer.table("Buffer"), *buffers])
    known = writer.tables(codes)
    model = writer.table("Model", Version=3, OperatorCodes=known, Subgraphs=graphs, Buffers=stored)
    writer.builder.Finish(model, b"TFL3")
    return bytes(writer.builder.Output())


def convolved(image: np.ndarray, kernel: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """What TensorFlow makes of `image (5, 6, 2)` with SAME padding and stride 2: `(3, 3, n)`."""
    padded = np.pad(image, ((1, 1), (0, 1), (0, 0)))  # 5 rows need two more, 6 columns one, which comes last
    sums = [
        [np.tensordot(kernel, padded[row : row + 3, column : column + 3], 3) for column in (0, 2, 4)]
        for row in (0, 2, 4)
    ]
    return np.asarray(np.maximum(np.array(sums) + bias, 0))


def test_converts_sparse_and_half_precision_constants(script: ModuleType, tflite: Any, tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    kernel = generator.normal(size=(4, 3, 3, 2)).astype(np.float32)
    kernel[generator.uniform(size=kernel.shape) < 0.6] = 0
    bias, image = generator.normal(size=4).astype(np.float16), generator.normal(size=(5, 6, 2)).astype(np.float32)
    source = network(tflite, kernel, bias, ((1, 5, 6, 2), (1, 3, 3, 4)))
    model = script.Converter(tflite.Model.GetRootAsModel(source, 0)).convert("small", ("result",))
    path = tmp_path / "small.onnx"
    path.write_bytes(model.SerializeToString())
    (result,) = Session(path, intra_op_threads=1).run({"image": image.transpose(2, 0, 1)[None].copy()})
    wanted = convolved(image, kernel, bias.astype(np.float32))
    assert 0 < (wanted == 0).mean() < 1, "the activation must matter"
    assert np.abs(result[0].transpose(1, 2, 0) - wanted).max() < ROUNDING


def test_an_unknown_operator_is_named(script: ModuleType, tflite: Any) -> None:
    kernel, bias = np.ones((1, 3, 3, 1), np.float32), np.zeros(1, np.float16)
    source = network(tflite, kernel, bias, ((1, 4, 4, 1), (1, 2, 2, 1)))
    converter = script.Converter(tflite.Model.GetRootAsModel(source, 0))
    converter.conv_2d = None
    with pytest.raises(SystemExit, match="CONV_2D"):
        converter.convert("small", ("result",))
