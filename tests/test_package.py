"""What `import latentsync_trt` gives and what it does not load."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clips import write_clip
from tests.small import small_bundle


@pytest.mark.parametrize(
    ("statement", "unneeded"),
    [
        ("from latentsync_trt import *; LipSync, demo_clip", ("torch", "onnxruntime", "matplotlib")),
        ("import latentsync_trt.cli", ("torch", "onnxruntime", "cv2", "av", "librosa", "matplotlib")),
        ("import latentsync_trt.bundle.manifest", ("torch", "onnxruntime", "cv2", "av", "librosa", "matplotlib")),
        ("import latentsync_trt.sync.api", ("torch", "onnx", "diffusers")),
    ],
)
def test_importing_loads_nothing_heavy(statement: str, unneeded: tuple[str, ...]) -> None:
    code = f"{statement}; import sys; print([name for name in {unneeded} if name in sys.modules])"
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
        "from latentsync_trt.runtime.sessions.session import COPY_GRAPH\n"
        "Session(COPY_GRAPH)"
    )
    quiet = {name: text for name, text in os.environ.items() if name not in ("ORT_DISABLE_TELEMETRY", "CI")}
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "LOCALAPPDATA": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=quiet | home)
    assert list(tmp_path.rglob("*")) == []
