"""`latentsync-trt doctor` on this machine and on simulated ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from latentsync_trt.bench import rows
from latentsync_trt.bundle import machine
from latentsync_trt.bundle.find import CHECKPOINTS_VARIABLE
from latentsync_trt.cli import main
from latentsync_trt.cli.doctor import SECTIONS
from latentsync_trt.runtime.providers import devices, table
from latentsync_trt.runtime.providers.choice import select_provider
from latentsync_trt.runtime.providers.devices import Gpu
from tests.bundles import make_bundle

MISSING = """
import logging, warnings
logging.getLogger("onnxruntime").warning("a log")
warnings.warn("a warning")
raise ImportError("a library is missing")
"""
"""A library in place of ONNX Runtime."""


def doctor(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["doctor", *arguments], catch_exceptions=False)
    return result.exit_code, result.stdout


@pytest.mark.usefixtures("here")
def test_findings_and_a_verdict_first() -> None:
    code, out = doctor("--json")
    assert code == 0
    report = json.loads(out)
    findings = report["findings"]
    if devices.gpus():
        empty = {"interrupted runs"}
    else:
        empty = {"interrupted runs", "engines"}
    sections = [section for section in SECTIONS if section not in empty]
    assert list(dict.fromkeys(finding["section"] for finding in findings)) == sections
    assert any(
        finding["text"].startswith("cpu runs") and finding["level"] == "ok" for finding in findings
    )
    assert all(
        finding["cure"] for finding in findings if finding["level"] in ("missing", "problem")
    )
    assert select_provider().name in report["verdict"]["text"]
    assert report["verdict"]["cure"].startswith("latentsync-trt setup")
    code, out = doctor()
    assert code == 0
    assert out.splitlines()[0].endswith(report["verdict"]["text"])
    assert "✓ cpu runs" in out
    assert "→ latentsync-trt setup" in out


@pytest.mark.parametrize(
    ("on_gpu", "memory_gb", "cure"),
    [
        (False, 24, "latentsync-trt setup --model 1.5"),
        (False, 64, "latentsync-trt setup"),
        (True, 24, "latentsync-trt setup"),
    ],
)
@pytest.mark.usefixtures("here")
def test_the_model_that_the_machine_can_run_is_advised(
    monkeypatch: pytest.MonkeyPatch, on_gpu: bool, memory_gb: int, cure: str
) -> None:
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: on_gpu)
    monkeypatch.setattr(machine, "machine_bytes", lambda: memory_gb * 1e9)
    assert json.loads(doctor("--json")[1])["verdict"]["cure"] == cure
    result = CliRunner().invoke(main, ["build"])
    assert (result.exit_code, f"`{cure}`" in result.stderr) == (2, True)


@pytest.mark.usefixtures("here")
def test_what_needs_a_gpu_is_shown_where_there_is_one(
    gpus: list[Gpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries and engines; on a CPU the libraries that pip installed mean nothing, and nothing is
    built.
    """
    monkeypatch.setattr(rows, "library_versions", lambda: {"cuda": "13.0"})
    for shown in (True, False):
        code, out = doctor()
        assert code == 0
        assert {"cuda 13.0" in out, "\nengines\n" in out, "GPU 0" in out} == {shown}
        gpus.clear()


@pytest.mark.usefixtures("here")
def test_a_folder_of_bundles_whose_name_the_system_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHECKPOINTS_VARIABLE, "x" * 300)
    assert doctor()[0] == 0


def test_an_onnxruntime_that_does_not_load_is_a_finding_not_a_crash(tmp_path: Path) -> None:
    (tmp_path / "onnxruntime.py").write_text(MISSING)
    words = [sys.executable, "-m", "latentsync_trt", "doctor"]
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 1
    assert done.stdout.startswith("✗ a package")
    assert table.REINSTALL_ORT in done.stdout
    assert "demo: model" in done.stdout
    assert done.stderr == ""  # what other libraries log and warn of is for developers


def test_graphs_and_sizes_of_a_bundle_are_checked_and_its_weights_are_not_read(
    checkpoints: Path,
) -> None:
    folder = make_bundle(checkpoints / "made", "fp32").folder
    weights = folder / "net.weights"
    graph = next(folder.glob("*.onnx"))
    others = bytes(weights.stat().st_size)
    weights.write_bytes(others)
    assert doctor()[0] == 0
    for path, content, problem in (
        (weights, b"short", "net.weights has 5 bytes"),
        (graph, bytes(graph.stat().st_size), f"{graph.name} was changed"),
    ):
        path.write_bytes(content)
        code, out = doctor()
        assert (code, problem in out) == (1, True)
