"""What `import latentsync_trt` gives and what it does not load."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import latentsync_trt
from tests.clips import write_clip
from tests.small import small_bundle

PUBLIC = [
    "AudioFeatures",
    "Enhancer",
    "Face",
    "FaceDetector",
    "LatentSyncError",
    "LipSync",
    "Progress",
    "RuntimeOptions",
    "SyncOptions",
    "SyncReport",
    "__version__",
    "demo_clip",
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


@pytest.mark.integration
def test_a_run_needs_neither_librosa_nor_a_home_folder(tmp_path: Path) -> None:
    """librosa's packages take a second to import, and numba's cache fails where the home folder cannot be written."""
    video, audio = write_clip(tmp_path, 6)
    given = ("--bundle", small_bundle(), "--video", video, "--audio", audio, "--preset", "fast", "-q")
    sync = ("sync", *given, "--provider", "cpu", "-o", tmp_path / "out.mp4", "--report", tmp_path / "report.html")
    runs = [list(map(str, words)) for words in (sync, ("demo", *given, "--out", tmp_path / "demo"))]
    foreign = (
        *("librosa", "numba", "scipy", "sklearn", "soundfile", "joblib", "pooch"),
        *("asyncio", "c2pa", "fsspec", "onnx", "pandas", "torch"),
    )
    code = (
        "import sys; from click.testing import CliRunner; from latentsync_trt.cli import main; "
        f"print([CliRunner().invoke(main, words).exit_code for words in {runs}]); "
        f"print([name for name in {foreign} if name in sys.modules])"
    )
    (tmp_path / "file").touch()
    nowhere = str(tmp_path / "file" / "home")  # nobody can make it, not even root
    homes = dict.fromkeys(("HOME", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "XDG_CACHE_HOME"), nowhere)
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, **homes}
    )
    assert answer.stdout.splitlines() == ["[0, 0]", "[]"]


def test_onnx_runtime_keeps_nothing_about_the_user(tmp_path: Path) -> None:
    """Its packages have telemetry, which leaves an identifier in the user's cache."""
    code = (
        "from latentsync_trt.runtime.sessions.session import Session\n"
        "from latentsync_trt.runtime.sessions.memory import COPY_GRAPH\n"
        "Session(COPY_GRAPH)"
    )
    quiet = {name: text for name, text in os.environ.items() if name not in ("ORT_DISABLE_TELEMETRY", "CI")}
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "LOCALAPPDATA": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=quiet | home)
    assert list(tmp_path.rglob("*")) == []
