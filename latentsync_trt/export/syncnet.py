"""SyncNet as a PyTorch module, and its export: one ONNX file, `syncnet.onnx`, that measures any
bundle's results.

Architecture and names of parameters: https://github.com/joonson/syncnet_python (MIT),
`SyncNetModel.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn

from latentsync_trt.bundle.find import SYNCNET_FILE
from latentsync_trt.bundle.manifest import DimensionRange, sha256_file
from latentsync_trt.errors import CheckpointError, OutputError
from latentsync_trt.export.checkpoints import read_weights
from latentsync_trt.export.graphs import GraphPlan, build_graph, verify_graph
from latentsync_trt.files import whole_file
from latentsync_trt.measure.syncnet import (
    EMBEDDING,
    REACH,
    SYNCNET_INPUTS,
    SYNCNET_OUTPUTS,
    WINDOWS_PER_RUN,
)

_PUBLISHED_SHA256 = "961e8696f888fce4f3f3a6c3d5b3267cf5b343100b238e79b2659bff2c605442"
"""The checksum of the published `syncnet_v2.model`."""

Size = int | tuple[int, ...]
"""A number for all axes, or one for each."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """A convolution, its norm and activation, and perhaps a pooling after them."""

    outputs: int
    kernel: Size
    stride: Size = 1
    padding: Size = 0
    pooling: nn.Module | None = None


_SPEECH_LAYERS = (
    _Layer(64, (3, 3), 1, 1, nn.MaxPool2d(1, 1)),
    _Layer(192, (3, 3), 1, 1, nn.MaxPool2d(3, (1, 2))),
    _Layer(384, (3, 3), 1, 1),
    _Layer(256, (3, 3), 1, 1),
    _Layer(256, (3, 3), 1, 1, nn.MaxPool2d(3, 2)),
    _Layer(512, (5, 4)),
)
_FACE_LAYERS = (
    _Layer(96, (5, 7, 7), (1, 2, 2), 0, nn.MaxPool3d((1, 3, 3), (1, 2, 2))),
    _Layer(256, (1, 5, 5), (1, 2, 2), (0, 1, 1), nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1))),
    _Layer(256, (1, 3, 3), 1, (0, 1, 1)),
    _Layer(256, (1, 3, 3), 1, (0, 1, 1)),
    _Layer(256, (1, 3, 3), 1, (0, 1, 1), nn.MaxPool3d((1, 3, 3), (1, 2, 2))),
    _Layer(512, (1, 6, 6)),
)


class SyncNetModule(nn.Module):
    """Embeds faces and speech of a fifth of a second; they are near where the lips say what is
    heard.
    """

    def __init__(self) -> None:
        super().__init__()
        self.netcnnaud = _convolutions(1, _SPEECH_LAYERS, nn.Conv2d, nn.BatchNorm2d)
        self.netcnnlip = _convolutions(3, _FACE_LAYERS, nn.Conv3d, nn.BatchNorm3d)
        self.netfcaud = _head()
        self.netfclip = _head()

    def forward(self, faces: Tensor, cepstra: Tensor) -> tuple[Tensor, Tensor]:
        """Faces `(n, 3, 5, 224, 224)`, BGR in 0…255, and cepstra `(m, 1, 13, 20)` → embeddings `(…,
        1024)` of both.
        """
        lips = self.netcnnlip(faces).flatten(1)
        speech = self.netcnnaud(cepstra).flatten(1)
        return self.netfclip(lips), self.netfcaud(speech)


def _convolutions(
    inputs: int, layers: Sequence[_Layer], convolution: Any, norm: Any
) -> nn.Sequential:
    modules = nn.Sequential()
    for layer in layers:
        outputs = layer.outputs
        modules.append(convolution(inputs, outputs, layer.kernel, layer.stride, layer.padding))
        modules.extend([norm(outputs), nn.ReLU()])
        if layer.pooling is not None:
            modules.append(layer.pooling)
        inputs = outputs
    return modules


def _head() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(512, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, EMBEDDING)
    )


def load_syncnet(path: Path) -> SyncNetModule:
    """Reads `syncnet_v2.model`; raises `CheckpointError` if it is missing, or of other names or
    shapes.
    """
    network = SyncNetModule()
    weights = read_weights(path)
    try:
        network.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path}: not SyncNet's weights ({' '.join(str(error).split())[:200]})"
        ) from error
    return network.eval().requires_grad_(False)


def export_syncnet(path: Path, folder: Path) -> str:
    """Writes `syncnet.onnx` into `folder`, verified or not at all; returns a sentence about it.

    Args:
        path: the published `syncnet_v2.model`, or weights of the same names and shapes.

    Raises:
        CheckpointError: `path` cannot be used. OutputError: the file cannot be written.
            ExportMismatch: the graph does not reproduce PyTorch.
    """
    network = load_syncnet(path)
    target = folder / SYNCNET_FILE
    plan = _plan_syncnet(network)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(target, keep=True) as staged:
            ir.save(build_graph(plan), staged)
            error = verify_graph(staged, plan, network, "fp32")
    except OSError as failed:
        raise OutputError(f"{target}: cannot be written ({failed.strerror})") from failed
    if sha256_file(path) == _PUBLISHED_SHA256:
        weights = "the published weights"
    else:
        weights = "other weights than the published"
    return f"{target}: SyncNet, within {error:.1e} of PyTorch; {weights}"


def _plan_syncnet(network: SyncNetModule) -> GraphPlan:
    generator = torch.Generator().manual_seed(0)
    faces = 255 * torch.rand(2, 3, 5, 224, 224, generator=generator)
    cepstra = 10 * torch.randn(3, 1, 13, 20, generator=generator)
    inputs = dict(zip(SYNCNET_INPUTS, (faces, cepstra), strict=True))
    dynamic = {}
    ranges = {}
    most_windows = (WINDOWS_PER_RUN, WINDOWS_PER_RUN + 2 * REACH)
    for name, most in zip(SYNCNET_INPUTS, most_windows, strict=True):
        dynamic[name] = {0: f"{name}_windows"}
        ranges[f"{name}_windows"] = DimensionRange(1, most, most)
    return GraphPlan("syncnet", "syncnet", network, inputs, SYNCNET_OUTPUTS, dynamic, ranges)
