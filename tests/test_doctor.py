"""`latentsync-trt doctor` on this machine and on simulated ones."""

import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from latentsync_trt.cli import doctor_gpu, main
from latentsync_trt.cli.doctor import Finding
from latentsync_trt.errors import EngineBuildError, OutOfMemory, OutputError
from latentsync_trt.runtime.compiler.process import Answer
from latentsync_trt.runtime.providers import diagnose, gpu, libraries
from latentsync_trt.runtime.providers.gpu import Gpu
from latentsync_trt.runtime.providers.libraries import Installed
from latentsync_trt.runtime.providers.messages import Obstacle
from latentsync_trt.runtime.providers.select import PREFERENCE, select_provider

ADA = Gpu(0, "NVIDIA GeForce RTX 4090", "8.9", 25_757_220_864, "0000:01:00.0")


def doctor(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["doctor", *arguments], catch_exceptions=False)
    return result.exit_code, result.stdout


def the(findings: Iterator[Finding], part: str) -> Finding:
    found = [finding for finding in findings if part in finding.text]
    assert len(found) == 1, found
    return found[0]


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "driver_problem", lambda: None)
    monkeypatch.setattr(gpu, "driver_cuda", lambda: (13, 0))
    monkeypatch.setattr(gpu, "driver_version", lambda: "580.65.06")
    monkeypatch.setattr(gpu, "gpus", lambda: (ADA,))
    monkeypatch.setattr(gpu, "free_memory_bytes", lambda index: 20_000_000_000)


def test_doctor_names_what_it_found() -> None:
    code, out = doctor("--json")
    assert code == 0
    findings = json.loads(out)["findings"]
    sections = list(dict.fromkeys(finding["section"] for finding in findings))
    assert sections == ["system", "packages", "gpu", "libraries", "providers", "engines", "media", "bundles"]
    by_text = {finding["text"]: finding for finding in findings}
    assert by_text["cpu runs (a trial session used it)"]["level"] == "ok"
    assert f"--provider auto takes {select_provider().name}" in by_text
    assert all(finding["cure"] for finding in findings if finding["level"] in ("missing", "problem"))


def test_doctor_reads_well_on_a_screen() -> None:
    code, out = doctor()
    assert code == 0
    assert "✓ cpu runs (a trial session used it)" in out
    assert "\nengines\n" in out
    assert "→ " in out


def test_the_driver_and_each_gpu(with_gpu: None) -> None:
    first, second = doctor_gpu.driver()
    assert first == Finding("gpu", "ok", "NVIDIA driver 580.65.06, supports CUDA up to 13.0")
    assert second.text == "GPU 0 (NVIDIA GeForce RTX 4090, compute capability 8.9), 25.8 GB memory, 20.0 GB free"


def test_a_driver_that_is_too_old_is_a_problem(with_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "driver_cuda", lambda: (12, 4))
    finding = the(doctor_gpu.driver(), "this build needs CUDA 13")
    assert finding.level == "problem"
    assert "580" in finding.cure


def test_a_driver_that_does_not_start_is_a_problem(with_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "driver_problem", lambda: "cuInit: CUDA_ERROR_UNKNOWN")
    assert the(doctor_gpu.driver(), "does not start (cuInit: CUDA_ERROR_UNKNOWN)").level == "problem"


def test_no_gpu_is_said(with_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "gpus", lambda: ())
    assert the(doctor_gpu.driver(), "shows no GPU").level == "missing"


@pytest.fixture
def gpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose, "build_obstacle", lambda name: None)
    monkeypatch.setattr(libraries, "cuda_version", lambda: "13.0")
    monkeypatch.setattr(libraries, "cudnn_version", lambda: "9.19.0")
    monkeypatch.setattr(libraries, "tensorrt_version", lambda: "10.14.1.48")
    monkeypatch.setattr(libraries, "rtx_version", lambda: "0.5.0")


def test_libraries_that_load_are_shown_with_their_versions(gpu_build: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose, "library_obstacle", lambda name: None)
    assert {finding.text: finding.level for finding in doctor_gpu.shared_libraries()} == {
        f"onnxruntime {libraries.onnxruntime_version()} is built for CUDA 13 and TensorRT 10": "info",
        "CUDA 13.0, cuDNN 9.19.0": "ok",
        "TensorRT 10.14.1.48": "ok",
        "TensorRT-RTX plug-in 0.5.0": "ok",
    }


def test_libraries_that_do_not_load_are_shown_with_the_installed_ones(
    gpu_build: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = "{0}: cannot open shared object file: No such file or directory"
    absent = ("libcudnn.so.9", "libnvinfer.so.10")
    monkeypatch.setattr(libraries, "preload", lambda: None)
    monkeypatch.setattr(libraries, "load_problem", lambda name: missing.format(name) if name in absent else None)
    monkeypatch.setattr(libraries, "installed_cuda", lambda: (Installed("12.8", "nvidia-cuda-runtime-cu12"),))
    monkeypatch.setattr(libraries, "installed_tensorrt", lambda: (Installed("11.4.0.106", "tensorrt-cu13"),))
    monkeypatch.setattr(libraries, "rtx_version", lambda: libraries.UNKNOWN)
    cuda, tensorrt, rtx = (finding for finding in doctor_gpu.shared_libraries() if finding.level == "missing")
    assert cuda.text.startswith("cuda: libraries not found: libcudnn.so.9; CUDA 12.8 is installed (nvidia-cuda-runtime")
    assert cuda.cure == 'pip install "latentsync-trt[cuda]"'
    assert "TensorRT 11.4.0.106 is installed (tensorrt-cu13), but this onnxruntime needs TensorRT 10" in tensorrt.text
    assert tensorrt.cure == 'pip install "latentsync-trt[tensorrt]"'
    assert rtx.cure == 'pip install "latentsync-trt[rtx]"'


def test_a_build_without_cuda_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose.ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    (finding,) = doctor_gpu.shared_libraries()
    assert "is a build without CUDAExecutionProvider" in finding.text
    assert finding.cure


def test_each_provider_with_reason_and_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    obstacles = {"tensorrt": Obstacle("no TensorRT", "install it"), "rtx": Obstacle("no plug-in", "install that")}
    monkeypatch.setattr(diagnose, "examine", obstacles.get)
    assert list(doctor_gpu.providers()) == [
        Finding("providers", "missing", "tensorrt: no TensorRT", "install it"),
        Finding("providers", "missing", "rtx: no plug-in", "install that"),
        Finding("providers", "ok", "cuda runs (a trial session used it)"),
        Finding("providers", "ok", "cpu runs (a trial session used it)"),
        Finding("providers", "info", "--provider auto takes cuda"),
    ]


def test_no_provider_at_all_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose, "examine", lambda name: Obstacle("broken", "reinstall"))
    code, out = doctor()
    assert code == 1
    assert "✗ cpu: broken" in out
    assert "auto takes" not in out


# TensorRT's builder.


@pytest.fixture
def tensorrt_runs(with_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose, "examine", lambda name, device=0: None)
    monkeypatch.setattr(libraries, "tensorrt_version", lambda: "10.14.1.48")


def test_a_builder_that_works_is_shown_with_its_time(tensorrt_runs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Gpu] = []

    def accept(gpu: Gpu) -> Answer:
        tried.append(gpu)
        return Answer(True, "", seconds=3.21, version="10.14.1.48")

    monkeypatch.setattr(diagnose, "try_builder", accept)
    finding = doctor_gpu.builder()
    assert finding.level == "ok"
    assert finding.text.startswith("TensorRT 10.14.1.48 builds engines (one node took 3.2 s)")
    assert tried == [ADA]


def test_two_versions_of_tensorrt_are_a_problem(tensorrt_runs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose, "try_builder", lambda gpu: Answer(True, "", version="10.16.1.11"))
    finding = doctor_gpu.builder()
    assert finding.level == "problem"
    assert "Python's tensorrt is 10.16.1.11, but onnxruntime loads TensorRT 10.14.1.48" in finding.text


def test_a_builder_that_refuses_is_a_problem(tensorrt_runs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "the compiler crashed (exit code 1): ImportError: libnvinfer_builder_resource.so.10.14.1"
    monkeypatch.setattr(diagnose, "try_builder", lambda gpu: Answer(False, reason))
    cure = 'pip install "latentsync-trt[tensorrt]" --force-reinstall'
    assert doctor_gpu.builder() == Finding(
        "engines", "problem", f"TensorRT 10.14.1.48 builds no engine: {reason}", cure
    )


@pytest.mark.parametrize(
    "error", [OutOfMemory("close other programs"), EngineBuildError("the compiler's process cannot be started (no)")]
)
def test_a_builder_that_cannot_be_tried_is_a_problem(
    tensorrt_runs: None, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(gpu: Gpu) -> None:
        raise error

    monkeypatch.setattr(diagnose, "try_builder", fail)
    text = "TensorRT 10.14.1.48 builds no engine"
    assert doctor_gpu.builder() == Finding("engines", "problem", text, str(error))


@pytest.mark.parametrize("runs", [True, False])
def test_the_builder_is_tried_only_where_tensorrt_runs_and_each_provider_is_tried_once(
    with_gpu: None, monkeypatch: pytest.MonkeyPatch, runs: bool
) -> None:
    examined: list[str] = []

    def examine(name: str, device: int = 0) -> Obstacle | None:
        examined.append(name)
        return None if runs else Obstacle("no TensorRT", "install it")

    monkeypatch.setattr(diagnose, "examine", examine)
    monkeypatch.setattr(diagnose, "library_obstacle", lambda name: None)
    monkeypatch.setattr(diagnose, "try_builder", lambda gpu: Answer(False, "refused"))
    found = [finding for finding in doctor_gpu.findings() if "builds no engine" in finding.text]
    assert len(found) == runs
    assert examined == list(PREFERENCE)


def test_a_builder_that_does_not_work_fails_the_command(tensorrt_runs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_gpu, "builder", lambda: Finding("engines", "problem", "builds no engine", "x"))
    code, out = doctor()
    assert code == 1
    assert "✗ builds no engine\n      → x" in out


def test_the_engine_cache_with_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATENTSYNC_TRT_CACHE_DIR", str(tmp_path))
    items: list[Any] = [
        types.SimpleNamespace(state="ready", size_bytes=2_000_000_000),
        types.SimpleNamespace(state="damaged", size_bytes=1_500_000_000),
    ]
    monkeypatch.setattr(doctor_gpu, "survey", lambda folder: tuple(items))
    findings = list(doctor_gpu.engines())
    assert the(iter(findings), "cache: ").text == f"cache: {tmp_path} (1 engines, 3.5 GB)"
    assert the(iter(findings), "1 damaged").cure == "latentsync-trt cache prune --stale"


def test_a_cache_that_cannot_be_listed_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> None:
        raise OutputError(f"{folder}: a file is in the place of the engine cache")

    monkeypatch.setattr(doctor_gpu, "survey", fail)
    assert the(doctor_gpu.engines(), "a file is in the place").level == "problem"


@pytest.mark.parametrize("installed", [True, False])
def test_whether_check_can_run(monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    monkeypatch.setattr(libraries, "distribution_version", lambda name: "1.7.1.116" if installed else None)
    finding = the(doctor_gpu.engines(), "check: ")
    assert finding.level == ("ok" if installed else "missing")
    assert finding.cure == ("" if installed else 'pip install "latentsync-trt[check]"')


def test_an_onnxruntime_that_does_not_load_is_a_finding_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "latentsync_trt.cli.doctor_gpu")
    monkeypatch.delattr("latentsync_trt.cli.doctor_gpu", raising=False)
    monkeypatch.setitem(sys.modules, "latentsync_trt.cli.doctor_gpu", None)
    code, out = doctor()
    assert code == 1
    assert "✗ onnxruntime does not load: " in out
    assert "FFmpeg has all required codecs" in out
