"""`latentsync-trt doctor` on this machine and on simulated ones."""

import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from latentsync_trt.cli import doctor as doctor_module
from latentsync_trt.cli import main
from latentsync_trt.cli.doctor import SECTIONS, Finding
from latentsync_trt.errors import EngineBuildError, OutOfMemory, OutputError
from latentsync_trt.runtime.cache import prune
from latentsync_trt.runtime.compiler.process import Answer
from latentsync_trt.runtime.networks.verdict import FOLDER
from latentsync_trt.runtime.providers import diagnose, gpu, libraries, messages
from latentsync_trt.runtime.providers.gpu import Gpu
from latentsync_trt.runtime.providers.libraries import Installed
from latentsync_trt.runtime.providers.messages import Obstacle
from latentsync_trt.runtime.providers.select import select_provider
from latentsync_trt.runtime.providers.table import PROVIDERS, Provider

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
    expected = "system", "packages", "gpu", "libraries", "providers", "engines", "media", "bundles", "leftovers"
    assert sections == list(expected)
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
    first, second = SECTIONS["gpu"]()
    assert first == Finding("ok", "NVIDIA driver 580.65.06, supports CUDA up to 13.0")
    assert second.text == "GPU 0 (NVIDIA GeForce RTX 4090, compute capability 8.9), 25.8 GB memory, 20.0 GB free"


def test_a_driver_that_is_too_old_is_a_problem(with_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "driver_cuda", lambda: (12, 4))
    finding = the(SECTIONS["gpu"](), "this build needs CUDA 13")
    assert finding.level == "problem"
    assert "580" in finding.cure


def test_a_driver_that_does_not_start_is_a_problem(with_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "driver_problem", lambda: "cuInit: CUDA_ERROR_UNKNOWN")
    assert the(SECTIONS["gpu"](), "does not start (cuInit: CUDA_ERROR_UNKNOWN)").level == "problem"


def test_no_gpu_is_said(with_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "gpus", lambda: ())
    assert the(SECTIONS["gpu"](), "shows no GPU").level == "missing"


@pytest.fixture
def gpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose, "build_obstacle", lambda name: None)
    monkeypatch.setattr(libraries, "cuda_version", lambda: "13.0")
    monkeypatch.setattr(libraries, "cudnn_version", lambda: "9.19.0")
    monkeypatch.setattr(libraries, "tensorrt_version", lambda: "10.14.1.48")
    monkeypatch.setattr(libraries, "rtx_version", lambda: "0.5.0")


def test_libraries_that_load_are_shown_with_their_versions(gpu_build: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose, "library_obstacle", lambda name: None)
    assert {finding.text: finding.level for finding in SECTIONS["libraries"]()} == {
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
    cuda, tensorrt, rtx = (finding for finding in SECTIONS["libraries"]() if finding.level == "missing")
    assert cuda.text.startswith("cuda: libraries not found: libcudnn.so.9; CUDA 12.8 is installed (nvidia-cuda-runtime")
    assert cuda.cure == 'pip install "latentsync-trt[cuda]"'
    assert "TensorRT 11.4.0.106 is installed (tensorrt-cu13), but this onnxruntime needs TensorRT 10" in tensorrt.text
    assert tensorrt.cure == 'pip install "latentsync-trt[tensorrt]"'
    assert rtx.cure == 'pip install "latentsync-trt[rtx]"'


def test_a_build_without_cuda_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose.ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    (finding,) = SECTIONS["libraries"]()
    assert "is a build without CUDAExecutionProvider" in finding.text
    assert finding.cure


def test_each_provider_with_reason_and_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    obstacles = {"tensorrt": Obstacle("no TensorRT", "install it"), "rtx": Obstacle("no plug-in", "install that")}
    monkeypatch.setattr(diagnose, "diagnose_provider", lambda provider: obstacles.get(provider.name))
    assert list(SECTIONS["providers"]()) == [
        Finding("missing", "tensorrt: no TensorRT", "install it"),
        Finding("missing", "rtx: no plug-in", "install that"),
        Finding("ok", "cuda runs (a trial session used it)"),
        Finding("ok", "cpu runs (a trial session used it)"),
        Finding("info", "--provider auto takes cuda"),
    ]


def test_no_provider_at_all_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose, "diagnose_provider", lambda name: Obstacle("broken", "reinstall"))
    code, out = doctor()
    assert code == 1
    assert "✗ cpu: broken" in out
    assert "auto takes" not in out


@pytest.fixture
def tensorrt_runs(with_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose, "diagnose_provider", lambda name, device=0: None)
    monkeypatch.setattr(libraries, "tensorrt_version", lambda: "10.14.1.48")


CRASH = "the compiler crashed (exit code 1): ImportError: libnvinfer_builder_resource.so.10.14.1"


@pytest.mark.parametrize(
    ("answer", "level", "text", "cure"),
    [
        (
            Answer(True, "", seconds=3.21, version="10.14.1.48"),
            "ok",
            "TensorRT 10.14.1.48 builds engines (one node took 3.2 s); `latentsync-trt selftest` builds and runs whole "
            "graphs",
            "",
        ),
        (
            Answer(True, "", version="10.16.1.11"),
            "problem",
            "Python's tensorrt is 10.16.1.11, but onnxruntime loads TensorRT 10.14.1.48 and its engines only",
            "install one TensorRT, or put its folder first on the loader's path",
        ),
        (
            Answer(False, CRASH),
            "problem",
            f"TensorRT 10.14.1.48 builds no engine: {CRASH}",
            'pip install "latentsync-trt[tensorrt]" --force-reinstall',
        ),
        (OutOfMemory("close it"), "problem", "TensorRT 10.14.1.48 builds no engine", "close it"),
        (EngineBuildError("no process"), "problem", "TensorRT 10.14.1.48 builds no engine", "no process"),
    ],
)
def test_the_builder_is_tried_on_the_first_gpu(
    tensorrt_runs: None, monkeypatch: pytest.MonkeyPatch, answer: Answer | Exception, level: Any, text: str, cure: str
) -> None:
    tried: list[Gpu] = []

    def build(gpu: Gpu) -> Answer:
        tried.append(gpu)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(diagnose, "try_builder", build)
    assert list(SECTIONS["providers"]())[-1] == Finding(level, text, cure)
    assert tried == [ADA]


def test_the_builder_is_not_tried_where_tensorrt_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    examined: list[str] = []

    def examine(provider: Provider) -> Obstacle:
        examined.append(provider.name)
        return Obstacle("no TensorRT", "install it")

    monkeypatch.setattr(diagnose, "diagnose_provider", examine)
    monkeypatch.setattr(diagnose, "try_builder", lambda gpu: pytest.fail("tried"))
    assert {finding.text for finding in SECTIONS["providers"]()} == {f"{name}: no TensorRT" for name in PROVIDERS}
    assert examined == list(PROVIDERS)


def test_the_engine_cache_with_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATENTSYNC_TRT_CACHE_DIR", str(tmp_path))
    items: list[Any] = [
        types.SimpleNamespace(state="ready", size_bytes=2_000_000_000),
        types.SimpleNamespace(state="damaged", size_bytes=1_500_000_000),
    ]
    monkeypatch.setattr(prune, "survey", lambda folder: tuple(items))
    findings = list(SECTIONS["engines"]())
    assert the(iter(findings), "cache: ").text == f"cache: {tmp_path} (1 engines, 3.5 GB)"
    assert the(iter(findings), "1 damaged").cure == "latentsync-trt cache prune --stale"


def test_measured_providers_are_shown_with_both_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATENTSYNC_TRT_CACHE_DIR", str(tmp_path))
    steps = {"denoise_step": {"difference": 2e-3, "limit": 1e-2, "ms": 51.0, "reference_ms": 103.0}}
    facts = {"provider": "tensorrt", "bundle": "1.6-512-fp16", "gpu": "RTX 4090", "reference": "cuda"}
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "a.json").write_text(json.dumps({**facts, "results": steps}), encoding="utf-8")
    (tmp_path / FOLDER / "b.json").write_text(json.dumps({**facts, "problem": "refused"}), encoding="utf-8")
    used, unused = (finding for finding in doctor_module.SECTIONS["engines"]() if "1.6-512-fp16" in finding.text)
    assert (used.level, used.cure) == ("info", "")
    assert "a step takes 51.0 ms, with cuda 103.0 ms; values differ by 2.0e-03" in used.text
    assert (unused.level, unused.text) == ("missing", "tensorrt, 1.6-512-fp16 on RTX 4090: refused")
    assert "setup" in unused.cure


def test_a_cache_that_cannot_be_listed_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> None:
        raise OutputError(f"{folder}: a file is in the place of the engine cache")

    monkeypatch.setattr(prune, "survey", fail)
    assert the(SECTIONS["engines"](), "a file is in the place").level == "problem"


@pytest.mark.parametrize("installed", [True, False])
def test_whether_check_can_run(monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    monkeypatch.setattr(doctor_module, "distribution_version", lambda name: "1.7.1.116" if installed else None)
    finding = the(SECTIONS["engines"](), "check: ")
    assert finding.level == ("ok" if installed else "missing")
    assert finding.cure == ("" if installed else 'pip install "latentsync-trt[check]"')


def test_packages_that_are_missing_have_an_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = "av", "torch", "onnx", "prometheus-client", "ray"
    monkeypatch.setattr(doctor_module, "distribution_version", lambda name: None if name in missing else "1.0")
    assert [finding for finding in SECTIONS["packages"]() if finding.level != "ok"] == [
        Finding("problem", "av is not installed", "pip install latentsync-trt"),
        Finding("problem", "onnxruntime and onnxruntime-gpu overwrite each other's files", messages.REINSTALL_ORT),
        Finding("missing", "export: torch, onnx not installed", 'pip install "latentsync-trt[export]"'),
        Finding("missing", "ui: prometheus-client not installed", 'pip install "latentsync-trt[ui]"'),
        Finding("missing", "serve: prometheus-client not installed", 'pip install "latentsync-trt[serve]"'),
        Finding("missing", "cluster: ray not installed", 'pip install "latentsync-trt[cluster]"'),
    ]


def test_an_onnxruntime_that_does_not_load_is_a_finding_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("latentsync_trt.runtime.providers.diagnose")
    monkeypatch.setitem(sys.modules, "latentsync_trt.runtime.providers.diagnose", None)
    code, out = doctor()
    assert code == 1
    assert "✗ a package does not load: " in out
    assert messages.REINSTALL_ORT in out
    assert "FFmpeg has all required codecs" in out
