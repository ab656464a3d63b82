"""What `import latentsync_trt` gives and what it does not load."""

import subprocess
import sys

import pytest

import latentsync_trt

PUBLIC = [
    "AudioFeatures",
    "Enhancer",
    "Face",
    "FaceDetector",
    "LatentSyncError",
    "LipSync",
    "RuntimeOptions",
    "SyncOptions",
    "SyncReport",
    "__version__",
]


def test_public_names() -> None:
    assert sorted(latentsync_trt.__all__) == PUBLIC
    assert all(hasattr(latentsync_trt, name) for name in PUBLIC)
    assert set(PUBLIC) <= set(dir(latentsync_trt))


def test_all_names_are_there_without_loading_what_runs_them() -> None:
    code = "import sys; from latentsync_trt import *; print(LipSync.__name__, 'onnxruntime' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["LipSync", "False"]


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        _ = latentsync_trt.nothing


@pytest.mark.parametrize("module", ["latentsync_trt", "latentsync_trt.cli", "latentsync_trt.bundle.manifest"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    heavy = "torch", "onnxruntime", "cv2", "av", "librosa", "matplotlib"
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_running_needs_no_torch() -> None:
    code = "import sys, latentsync_trt.sync.api; print([n for n in ('torch', 'onnx', 'diffusers') if n in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
