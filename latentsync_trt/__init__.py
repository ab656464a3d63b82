"""LatentSync lip-sync through ONNX Runtime: TensorRT first, CUDA where it is missing, CPU everywhere."""

import importlib
from typing import TYPE_CHECKING, Any

from latentsync_trt.version import __version__

if TYPE_CHECKING:
    from latentsync_trt.config import RuntimeOptions, SyncOptions
    from latentsync_trt.errors import LatentSyncError
    from latentsync_trt.live.moment import Moment
    from latentsync_trt.live.options import LiveOptions
    from latentsync_trt.live.session import LiveSession
    from latentsync_trt.media.demo_clip import demo_clip
    from latentsync_trt.sync.api import LipSync
    from latentsync_trt.types import AudioFeatures, Enhancer, Face, FaceDetector, Progress, SyncReport

__all__ = [
    "AudioFeatures",
    "Enhancer",
    "Face",
    "FaceDetector",
    "LatentSyncError",
    "LipSync",
    "LiveOptions",
    "LiveSession",
    "Moment",
    "Progress",
    "RuntimeOptions",
    "SyncOptions",
    "SyncReport",
    "__version__",
    "demo_clip",
]

_MODULES = {
    **dict.fromkeys(("AudioFeatures", "Enhancer", "Face", "FaceDetector", "Progress", "SyncReport"), "types"),
    **dict.fromkeys(("RuntimeOptions", "SyncOptions"), "config"),
    "LatentSyncError": "errors",
    "LipSync": "sync.api",
    "LiveOptions": "live.options",
    "LiveSession": "live.session",
    "Moment": "live.moment",
    "demo_clip": "media.demo_clip",
}


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use: the command line handles Ctrl-C before NumPy is imported."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
