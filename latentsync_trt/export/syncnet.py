"""SyncNet as a PyTorch module, and its export: one ONNX file, `syncnet.onnx`, that measures any
bundle's results.

Architecture and names of parameters: https://github.com/joonson/syncnet_python (MIT),
`SyncNetModel.py`.
"""

from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn

from latentsync_trt.bundle.find import SYNCNET_FILE
from latentsync_trt.bundle.manifest import DimensionRange, sha256_file
from latentsync_trt.errors import CheckpointError, OutputError
from latentsync_trt.export.graphs import GraphPlan, build_graph, verify_graph
from latentsync_trt.files import whole_file
from latentsync_trt.measure.syncnet import AT_ONCE, EMBEDDING, INPUTS, OUTPUTS, REACH
from latentsync_trt.paths import why_missing

_PUBLISHED_SHA256 = "961e8696f888fce4f3f3a6c3d5b3267cf5b343100b238e79b2659bff2c605442"
"""Of `syncnet_v2.model`."""

# Of each convolution: outputs, kernel, stride and padding; then kernel, stride and padding of the
# pooling after it.
_SPEECH = (
    (64, (3, 3), 1, 1, (1, 1, 0)),
    (192, (3, 3), 1, 1, (3, (1, 2), 0)),
    (384, (3, 3), 1, 1, None),
    (256, (3, 3), 1, 1, None),
    (256, (3, 3), 1, 1, (3, 2, 0)),
    (512, (5, 4), 1, 0, None),
)
_FACES = (
    (96, (5, 7, 7), (1, 2, 2), 0, ((1, 3, 3), (1, 2, 2), 0)),
    (256, (1, 5, 5), (1, 2, 2), (0, 1, 1), ((1, 3, 3), (1, 2, 2), (0, 1, 1))),
    (256, (1, 3, 3), 1, (0, 1, 1), None),
    (256, (1, 3, 3), 1, (0, 1, 1), None),
    (256, (1, 3, 3), 1, (0, 1, 1), ((1, 3, 3), (1, 2, 2), 0)),
    (512, (1, 6, 6), 1, 0, None),
)


class SyncNet(nn.Module):
    """Embeds faces and speech of a fifth of a second; they are near where the lips say what is
    heard.
    """

    def __init__(self) -> None:
        super().__init__()
        self.netcnnaud = _convolutions(1, _SPEECH, (nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d))
        self.netcnnlip = _convolutions(3, _FACES, (nn.Conv3d, nn.BatchNorm3d, nn.MaxPool3d))
        self.netfcaud, self.netfclip = (
            nn.Sequential(
                nn.Linear(512, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, EMBEDDING)
            )
            for _ in "as"
        )

    def forward(self, faces: Tensor, cepstra: Tensor) -> tuple[Tensor, Tensor]:
        """Faces `(n, 3, 5, 224, 224)`, BGR in 0…255, and cepstra `(m, 1, 13, 20)` → embeddings `(…,
        1024)` of both.
        """
        lips = self.netcnnlip(faces).flatten(1)
        speech = self.netcnnaud(cepstra).flatten(1)
        return self.netfclip(lips), self.netfcaud(speech)


def _convolutions(inputs: int, layers: tuple[Any, ...], kinds: tuple[Any, ...]) -> nn.Sequential:
    convolution, norm, pooling = kinds
    made: list[nn.Module] = []
    for outputs, kernel, stride, padding, pooled in layers:
        made += [convolution(inputs, outputs, kernel, stride, padding), norm(outputs), nn.ReLU()]
        made += [] if pooled is None else [pooling(*pooled)]
        inputs = outputs
    return nn.Sequential(*made)


def load_syncnet(path: Path) -> SyncNet:
    """Reads `syncnet_v2.model`; raises `CheckpointError` if it is missing, or of other names or
    shapes.
    """
    if not path.is_file():
        raise CheckpointError(
            f"{path}: is a folder" if path.is_dir() else why_missing(path), usage=True
        )
    network = SyncNet()
    try:
        network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # PyTorch raises anything for files of others
        raise CheckpointError(
            f"{path}: not SyncNet's weights ({' '.join(str(error).split())[:200]})"
        ) from error
    return network.eval().requires_grad_(False)


def export_syncnet(path: Path, folder: Path) -> str:
    """Writes `syncnet.onnx` into `folder`, verified or not at all; returns what was written, in
    words.

    Args:
        path: the published `syncnet_v2.model`, or weights of the same names and shapes.

    Raises:
        CheckpointError: `path` cannot be used. OutputError: the file cannot be written.
            ExportMismatch: the graph does not reproduce PyTorch.
    """
    network = load_syncnet(path)
    target = folder / SYNCNET_FILE
    generator = torch.Generator().manual_seed(0)
    faces = 255 * torch.rand(2, 3, 5, 224, 224, generator=generator)
    cepstra = 10 * torch.randn(3, 1, 13, 20, generator=generator)
    given = dict(zip(INPUTS, (faces, cepstra), strict=True))
    dynamic = {name: {0: f"{name}_windows"} for name in INPUTS}
    most = zip(INPUTS, (AT_ONCE, AT_ONCE + 2 * REACH), strict=True)
    ranges = {f"{name}_windows": DimensionRange(1, count, count) for name, count in most}
    plan = GraphPlan("syncnet", "syncnet", network, given, OUTPUTS, dynamic=dynamic, ranges=ranges)
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
