"""LatentSync lip-sync through ONNX Runtime: TensorRT first, CUDA where it is missing, CPU everywhere."""

import importlib
from typing import TYPE_CHECKING, Any

from latentsync_trt.version import __version__

if TYPE_CHECKING:
    from latentsync_trt.config import RuntimeOptions, SyncOptions
    from latentsync_trt.errors import (
        BundleError,
        Busy,
        CheckpointError,
        EngineBuildError,
        ExportMismatch,
        GraphRefused,
        InferenceError,
        InputError,
        LatentSyncError,
        MediaError,
        MissingDependency,
        NoFaceError,
        OutOfMemory,
        OutputError,
        ProviderUnavailable,
    )
    from latentsync_trt.live.moment import Moment
    from latentsync_trt.live.options import LiveOptions
    from latentsync_trt.live.session import LiveSession
    from latentsync_trt.media.demo_clip import demo_clip
    from latentsync_trt.sync.api import LipSync
    from latentsync_trt.sync.inputs import Helpers
    from latentsync_trt.types import AudioFeatures, Enhancer, Face, FaceDetector, Progress, SyncReport
    from latentsync_trt.values import Speaker

__all__ = [
    "AudioFeatures",
    "BundleError",
    "Busy",
    "CheckpointError",
    "EngineBuildError",
    "Enhancer",
    "ExportMismatch",
    "Face",
    "FaceDetector",
    "GraphRefused",
    "Helpers",
    "InferenceError",
    "InputError",
    "LatentSyncError",
    "LipSync",
    "LiveOptions",
    "LiveSession",
    "MediaError",
    "MissingDependency",
    "Moment",
    "NoFaceError",
    "OutOfMemory",
    "OutputError",
    "Progress",
    "ProviderUnavailable",
    "RuntimeOptions",
    "Speaker",
    "SyncOptions",
    "SyncReport",
    "__version__",
    "demo_clip",
]

_MODULES = {
    "LipSync": "sync.api",
    **dict.fromkeys(("SyncOptions", "RuntimeOptions"), "config"),
    "Speaker": "values",
    "Helpers": "sync.inputs",
    **dict.fromkeys(("SyncReport", "Progress", "Face", "FaceDetector", "Enhancer", "AudioFeatures"), "types"),
    "LiveSession": "live.session",
    "LiveOptions": "live.options",
    "Moment": "live.moment",
    "demo_clip": "media.demo_clip",
}
"""Where each public name is, in the order of the documentation; what is not here is an error."""


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use: the command line handles Ctrl-C before NumPy is imported."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
