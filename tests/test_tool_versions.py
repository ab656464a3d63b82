"""Versions of the packages that make a bundle are known before the work, in a source tree, too."""

import importlib.metadata
from pathlib import Path

import pytest
from click.testing import CliRunner

from latentsync_trt import __version__
from latentsync_trt.bundle.manifest import tool_versions
from latentsync_trt.cli import main
from latentsync_trt.errors import MissingDependency


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of packages without metadata."""
    hidden: set[str] = set()
    version = importlib.metadata.version

    def visible(name: str) -> str:
        if name in hidden:
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", visible)
    return hidden


def test_own_version_is_that_of_the_running_code(hide: set[str]) -> None:
    hide.add("latentsync-trt")
    assert tool_versions(["numpy"], extra="export") == {
        "latentsync-trt": __version__,
        "numpy": importlib.metadata.version("numpy"),
    }


def test_missing_packages_are_named_with_the_extra(hide: set[str]) -> None:
    hide.update({"onnx", "onnxscript"})
    with pytest.raises(MissingDependency, match=r"^onnx, onnxscript: .*pip install 'latentsync-trt\[export\]'"):
        tool_versions(["numpy", "onnx", "onnxscript"], extra="export")


def test_export_asks_for_them_before_it_looks_for_checkpoints(
    hide: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATENTSYNC_TRT_CHECKPOINTS", str(tmp_path))
    hide.add("onnx-ir")
    result = CliRunner().invoke(main, ["export"])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: onnx-ir: not installed")


def test_version_is_that_of_the_package() -> None:
    assert importlib.metadata.version("latentsync-trt") == __version__
