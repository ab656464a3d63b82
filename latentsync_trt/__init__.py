"""LatentSync lip-sync through ONNX Runtime: TensorRT first, CUDA where it is missing, CPU
everywhere.
"""

import importlib
from typing import TYPE_CHECKING, Any

from latentsync_trt.version import __version__

if TYPE_CHECKING:
    from latentsync_trt.audio.encoder import AudioFeatures as AudioFeatures
    from latentsync_trt.config import RuntimeOptions as RuntimeOptions
    from latentsync_trt.config import SyncOptions as SyncOptions
    from latentsync_trt.errors import BundleError as BundleError
    from latentsync_trt.errors import Busy as Busy
    from latentsync_trt.errors import CheckpointError as CheckpointError
    from latentsync_trt.errors import EngineBuildError as EngineBuildError
    from latentsync_trt.errors import ExportMismatch as ExportMismatch
    from latentsync_trt.errors import GraphRefused as GraphRefused
    from latentsync_trt.errors import InferenceError as InferenceError
    from latentsync_trt.errors import InputError as InputError
    from latentsync_trt.errors import LatentSyncError as LatentSyncError
    from latentsync_trt.errors import MediaError as MediaError
    from latentsync_trt.errors import MissingDependency as MissingDependency
    from latentsync_trt.errors import NoFaceError as NoFaceError
    from latentsync_trt.errors import OutOfMemory as OutOfMemory
    from latentsync_trt.errors import OutputError as OutputError
    from latentsync_trt.errors import ProviderUnavailable as ProviderUnavailable
    from latentsync_trt.live.frame import LiveFrame as LiveFrame
    from latentsync_trt.live.options import LiveOptions as LiveOptions
    from latentsync_trt.live.session import LiveSession as LiveSession
    from latentsync_trt.media.demo_clip import demo_clip as demo_clip
    from latentsync_trt.option_fields import Speaker as Speaker
    from latentsync_trt.sync.api import LipSync as LipSync
    from latentsync_trt.sync.inputs import Helpers as Helpers
    from latentsync_trt.types import Enhancer as Enhancer
    from latentsync_trt.types import Face as Face
    from latentsync_trt.types import FaceDetector as FaceDetector
    from latentsync_trt.types import Progress as Progress
    from latentsync_trt.types import SyncReport as SyncReport

_MODULES = {
    "LipSync": "sync.api",
    **dict.fromkeys(("SyncOptions", "RuntimeOptions"), "config"),
    "Speaker": "option_fields",
    "Helpers": "sync.inputs",
    **dict.fromkeys(("SyncReport", "Progress", "Face", "FaceDetector", "Enhancer"), "types"),
    "AudioFeatures": "audio.encoder",
    "LiveSession": "live.session",
    "LiveOptions": "live.options",
    "LiveFrame": "live.frame",
    "demo_clip": "media.demo_clip",
    **dict.fromkeys(
        (
            *(
                "BundleError",
                "Busy",
                "CheckpointError",
                "EngineBuildError",
                "ExportMismatch",
                "GraphRefused",
            ),
            *(
                "InferenceError",
                "InputError",
                "LatentSyncError",
                "MediaError",
                "MissingDependency",
                "NoFaceError",
            ),
            *("OutOfMemory", "OutputError", "ProviderUnavailable"),
        ),
        "errors",
    ),
}
"""Where each public name is, in the order of the documentation."""

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use: the command line handles Ctrl-C before NumPy is
    imported.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
