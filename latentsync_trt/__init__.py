"""LatentSync lip-sync through ONNX Runtime: TensorRT first, CUDA where it is missing, CPU everywhere."""

from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.types import AudioFeatures, Face, FaceDetector, SyncReport

__version__ = "0.1.0"
__all__ = ["AudioFeatures", "Face", "FaceDetector", "LatentSyncError", "SyncOptions", "SyncReport", "__version__"]
