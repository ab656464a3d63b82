"""LatentSync lip-sync through ONNX Runtime: TensorRT first, CUDA where it is missing, CPU everywhere."""

from typing import TYPE_CHECKING, Any

from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.types import AudioFeatures, Face, FaceDetector, SyncReport
from latentsync_trt.version import __version__

if TYPE_CHECKING:
    from latentsync_trt.sync.api import LipSync

__all__ = [
    "AudioFeatures",
    "Face",
    "FaceDetector",
    "LatentSyncError",
    "LipSync",
    "RuntimeOptions",
    "SyncOptions",
    "SyncReport",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Loads the pipeline, and onnxruntime with it, when it is first asked for."""
    if name == "LipSync":
        from latentsync_trt.sync.api import LipSync

        return LipSync
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
