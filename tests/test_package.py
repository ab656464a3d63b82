"""What `import latentsync_trt` gives and what it does not load."""

import os
import subprocess
import sys
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

import matplotlib
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import latentsync_trt
from latentsync_trt import errors
from tests.clips import write_clip
from tests.conftest import REPOSITORY
from tests.small import small_bundle


def test_importing_loads_nothing_heavy() -> None:
    statements = {
        "import sys, latentsync_trt.cli, latentsync_trt.bundle.manifest": (
            "onnxruntime",
            "cv2",
            "av",
            "librosa",
        ),
        "from latentsync_trt import *; LipSync, demo_clip": ("onnxruntime", "matplotlib"),
        "import latentsync_trt.sync.api": ("torch", "onnx", "diffusers", "matplotlib"),
    }
    code = "\n".join(
        f"{line}; print({{*{unneeded}}} & {{*sys.modules}})"
        for line, unneeded in statements.items()
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == ["set()"] * 3


def test_what_callers_need_is_exported() -> None:
    """All errors that are documented, and these; each by its name."""
    of_errors = {
        name
        for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, Exception)
    }
    others = {
        *(
            "LipSync",
            "SyncOptions",
            "RuntimeOptions",
            "SyncReport",
            "Progress",
            "Speaker",
            "demo_clip",
        ),
        *(
            "AudioFeatures",
            "Enhancer",
            "Face",
            "FaceDetector",
            "Helpers",
            "LiveSession",
            "LiveOptions",
            "LiveFrame",
        ),
    }
    assert set(latentsync_trt.__all__) == of_errors | others | {"__version__"}
    assert all(getattr(latentsync_trt, name).__name__ == name for name in of_errors | others)
    with pytest.raises(AttributeError, match="no attribute 'LipSink'"):
        latentsync_trt.LipSink  # noqa: B018


@pytest.mark.integration
def test_a_run_needs_neither_librosa_nor_a_home_folder(tmp_path: Path) -> None:
    """librosa's packages take a second to import, and numba's cache fails where the home folder
    cannot be written.
    """
    video, audio = write_clip(tmp_path, 4)
    given = (
        "--bundle",
        small_bundle(),
        "--video",
        video,
        "--audio",
        audio,
        "--steps",
        "1",
        "--guidance",
        "1",
    )
    sync = (
        "sync",
        *given,
        "--provider",
        "cpu",
        "-o",
        tmp_path / "out.mp4",
        "--report",
        tmp_path / "report.html",
    )
    foreign = (
        *("librosa", "numba", "scipy", "sklearn", "soundfile", "joblib", "pooch"),
        *("asyncio", "c2pa", "fsspec", "onnx", "pandas", "torch"),
    )
    code = (
        "import sys; from click.testing import CliRunner; from latentsync_trt.cli import main; "
        f"print(CliRunner().invoke(main, {list(map(str, sync))}).exit_code); "
        f"print([name for name in {foreign} if name in sys.modules])"
    )
    (tmp_path / "file").touch()
    nowhere = str(tmp_path / "file" / "home")  # nobody can make it, not even root
    homes = dict.fromkeys(
        ("HOME", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "XDG_CACHE_HOME"), nowhere
    )
    homes["MPLCONFIGDIR"] = matplotlib.get_cachedir()  # else it would look at all fonts again
    answer = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **homes},
    )
    assert answer.stdout.splitlines() == ["0", "[]"]


def test_onnx_runtime_keeps_nothing_about_the_user(tmp_path: Path) -> None:
    """Its packages have telemetry, which leaves an identifier in the user's cache."""
    code = (
        "from latentsync_trt.runtime.engines.buffers import COPY_GRAPH\n"
        "from latentsync_trt.runtime.engines.session import Session\n"
        "Session(COPY_GRAPH)"
    )
    quiet = {
        name: text
        for name, text in os.environ.items()
        if name not in ("ORT_DISABLE_TELEMETRY", "CI")
    }
    home = {
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "LOCALAPPDATA": str(tmp_path),
    }
    subprocess.run([sys.executable, "-c", code], check=True, env=quiet | home)
    assert list(tmp_path.rglob("*")) == []


owners_of = cache(metadata.packages_distributions)


def installed_with(extra: str) -> set[str]:
    """Names of all distributions that `pip install ".[extra]"` brings."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting = [
        Requirement(each)
        for each in project["dependencies"] + project["optional-dependencies"].get(extra, [])
    ]
    found: set[tuple[str, str]] = set()
    while waiting:
        requirement = waiting.pop()
        for chosen in ("", *requirement.extras):
            key = canonicalize_name(requirement.name), chosen
            if key in found or (
                requirement.marker and not requirement.marker.evaluate({"extra": ""})
            ):
                continue
            found.add(key)
            for text in metadata.requires(key[0]) or ():
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate({"extra": chosen}):
                    needed.marker = None
                    waiting.append(needed)
    return {name for name, _ in found}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("extra", "modules"),
    [
        (
            "",
            (
                "sync.api",
                *("cli.sync", "cli.demo", "cli.faces", "cli.batch", "cli.bench", "cli.compare"),
                *("cli.doctor", "cli.selftest", "cli.engines"),
                *("cli.export", "cli.calibrate", "cli.setup"),
            ),
        ),
        ("serve", ("serve.app",)),
        ("live", ("serve.live", "serve.call", "cli.live")),
        ("ui", ("web.app", "web.page")),
    ],
)
def test_what_a_module_imports_comes_with_its_extra(extra: str, modules: tuple[str, ...]) -> None:
    there = installed_with(extra)
    foreign = {
        name
        for name, owners in owners_of().items()
        if not there & {canonicalize_name(owner) for owner in owners} and name != "latentsync_trt"
    }
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {foreign - {'pip', 'setuptools'}}:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
    ) + "".join(f"import latentsync_trt.{module}\n" for module in modules)
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
