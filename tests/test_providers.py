"""Choosing a provider, and the message for everything that keeps one from running."""

import ctypes
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from latentsync_trt.errors import InputError, ProviderUnavailable
from latentsync_trt.runtime.compiler.process import Answer, CompileOrder
from latentsync_trt.runtime.providers import diagnose as diagnosis
from latentsync_trt.runtime.providers import gpu, libraries, messages
from latentsync_trt.runtime.providers.diagnose import ORT_NAMES, rtx_devices
from latentsync_trt.runtime.providers.gpu import Gpu
from latentsync_trt.runtime.providers.libraries import Installed
from latentsync_trt.runtime.providers.select import (
    PREFERENCE,
    Selection,
    next_provider,
    select_provider,
    why_unavailable,
)

ADA = ("NVIDIA GeForce RTX 4090", (8, 9), 24 * 1024**3, "0000:01:00.0")
AMPERE_A100 = ("NVIDIA A100-SXM4-80GB", (8, 0), 80 * 1024**3, "0000:41:00.0")
PASCAL = ("NVIDIA GeForce GTX 1080", (6, 1), 8 * 1024**3, "0000:02:00.0")

CUDA_13 = 13_000
MAJOR = 75
NO_DEVICE, DRIVER_MISMATCH = 100, 803
NOT_FOUND = "{0}: cannot open shared object file: No such file or directory"
GPU_BUILD = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]


@dataclass
class FakeDriver:
    """Answers as libcuda does: by pointers, with a status."""

    devices: list[tuple[str, tuple[int, int], int, str]]
    version: int = CUDA_13
    status: int = 0

    def cuInit(self, _flags: int) -> int:
        return self.status

    def cuGetErrorName(self, code: int, out: Any) -> int:
        out._obj.value = b"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" if code == DRIVER_MISMATCH else None
        return 0

    def cuDriverGetVersion(self, out: Any) -> int:
        out._obj.value = self.version
        return 0

    def cuDeviceGetCount(self, out: Any) -> int:
        out._obj.value = len(self.devices)
        return self.status

    def cuDeviceGet(self, out: Any, index: int) -> int:
        out._obj.value = index
        return 0

    def cuDeviceGetName(self, out: Any, _length: int, device: Any) -> int:
        out.value = self.devices[device.value][0].encode()
        return 0

    def cuDeviceGetAttribute(self, out: Any, attribute: int, device: Any) -> int:
        out._obj.value = self.devices[device.value][1][attribute - MAJOR]
        return 0

    def cuDeviceTotalMem_v2(self, out: Any, device: Any) -> int:
        out._obj.value = self.devices[device.value][2]
        return 0

    def cuDeviceGetPCIBusId(self, out: Any, _length: int, device: Any) -> int:
        out.value = self.devices[device.value][3].encode()
        return 0


@dataclass
class Machine:
    """A simulated machine; by default one on which everything works, with two GPUs.

    `missing`: libraries that do not load. `absent`: Python packages that are not installed.
    """

    monkeypatch: pytest.MonkeyPatch
    missing: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)
    used: dict[str, list[str]] = field(default_factory=dict)

    def session(self, name: str) -> Any:
        actual = self.used.get(name, [ORT_NAMES[name], "CPUExecutionProvider"])
        return types.SimpleNamespace(get_providers=lambda: actual, run=lambda outputs, inputs: [])

    def driver(self, *devices: Any, **fields: Any) -> None:
        fake = FakeDriver(list(devices), **fields)
        self.monkeypatch.setattr(gpu, "_open_driver", lambda: fake)

    def no_driver(self) -> None:
        self.monkeypatch.setattr(gpu, "_open_driver", lambda: ctypes.CDLL("libcuda-that-is-not-there.so.1"))

    def installed(self, tensorrt: tuple[Installed, ...] = (), cuda: tuple[Installed, ...] = ()) -> None:
        self.monkeypatch.setattr(libraries, "installed_tensorrt", lambda: tensorrt)
        self.monkeypatch.setattr(libraries, "installed_cuda", lambda: cuda)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(monkeypatch)
    for cached in (gpu.gpus, gpu._driver):
        cached.cache_clear()
    made.driver(ADA, AMPERE_A100)
    made.installed()
    monkeypatch.setattr(diagnosis.ort, "get_available_providers", lambda: GPU_BUILD)
    monkeypatch.setattr(gpu, "driver_version", lambda: "580.65.06")
    monkeypatch.setattr(libraries, "tensorrt_version", lambda: "10.14.1.48")
    monkeypatch.setattr(libraries, "preload", lambda: None)
    monkeypatch.setattr(libraries, "_WINDOWS", False)
    monkeypatch.setattr(libraries, "package_folder", lambda name: None if name in made.absent else Path("installed"))
    monkeypatch.setattr(
        libraries, "load_problem", lambda name: NOT_FOUND.format(name) if name in made.missing else None
    )
    monkeypatch.setattr(diagnosis, "_register_plugin", lambda: None)
    monkeypatch.setattr(diagnosis.ort, "get_ep_devices", lambda: [plugin_device(0), plugin_device(1)])
    monkeypatch.setattr(diagnosis, "_trial_session", lambda name, device: made.session(name))
    yield made
    for cached in (gpu.gpus, gpu._driver):
        cached.cache_clear()


def plugin_device(index: int, name: str = "NvTensorRTRTXExecutionProvider") -> Any:
    return types.SimpleNamespace(ep_name=name, memory_info=lambda kind: types.SimpleNamespace(device_id=index))


def test_gpus_are_read_from_the_driver(machine: Machine) -> None:
    first, second = gpu.gpus()
    assert first == Gpu(0, "NVIDIA GeForce RTX 4090", "8.9", 24 * 1024**3, "0000:01:00.0")
    assert second.capability == (8, 0)
    assert str(second) == "GPU 1 (NVIDIA A100-SXM4-80GB, compute capability 8.0)"
    assert gpu.driver_cuda() == (13, 0)
    assert gpu.driver_problem() is None


def test_without_a_driver_there_are_no_gpus_and_no_exception(machine: Machine) -> None:
    machine.no_driver()
    assert gpu.gpus() == ()
    assert gpu.driver_cuda() is None
    assert "libcuda-that-is-not-there.so.1" in str(gpu.driver_problem())
    assert gpu.free_memory_bytes(0) is None


def test_free_memory_is_asked_by_pci_address(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bytes] = []

    def handle(address: bytes) -> str:
        calls.append(address)
        return "handle"

    monkeypatch.setattr(gpu.pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(gpu.pynvml, "nvmlDeviceGetHandleByPciBusId", handle)
    monkeypatch.setattr(gpu.pynvml, "nvmlDeviceGetMemoryInfo", lambda handle: types.SimpleNamespace(free=123))
    assert gpu.free_memory_bytes(1) == 123
    assert calls == [b"0000:41:00.0"]
    assert gpu.free_memory_bytes(7) is None


def test_auto_takes_the_best(machine: Machine) -> None:
    selection = select_provider()
    assert (selection.name, selection.passed_over) == ("tensorrt", ())
    assert selection.gpu == gpu.gpus()[0]
    assert (selection.device, selection.device_id) == ("cuda", 0)


def test_auto_gives_the_reason_for_each_provider_passed_over(machine: Machine) -> None:
    machine.missing = {"libnvinfer.so.10", "libnvonnxparser.so.10"}
    selection = select_provider("auto", device=1)
    assert selection.name == "cuda"
    assert selection.device_id == 1
    assert [name for name, _ in selection.passed_over] == ["tensorrt", "rtx"]
    reason = dict(selection.passed_over)
    assert reason["tensorrt"].startswith("libraries not found: libnvinfer.so.10, libnvonnxparser.so.10; pip install")
    assert "TensorRT-RTX does not support GPU 1 (NVIDIA A100-SXM4-80GB, compute capability 8.0)" in reason["rtx"]


def test_auto_takes_the_plug_in_where_it_has_the_gpu_and_tensorrt_is_missing(machine: Machine) -> None:
    machine.missing = {"libnvinfer.so.10"}
    selection = select_provider()
    assert (selection.name, selection.device) == ("rtx", "cuda")


@pytest.mark.parametrize("name", ["tensorrt", "rtx", "cuda"])
def test_no_driver_is_the_first_reason(machine: Machine, name: str) -> None:
    machine.no_driver()
    with pytest.raises(ProviderUnavailable, match=rf"{name}: no NVIDIA driver .*; install NVIDIA driver 580"):
        select_provider(name)
    assert select_provider().name == "cpu"
    assert len(select_provider().passed_over) == 3


@pytest.mark.parametrize("name", ["tensorrt", "rtx", "cuda"])
def test_a_driver_that_is_too_old_is_named_with_the_cuda_version_it_supports(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    machine.driver(ADA, version=12_040)
    monkeypatch.setattr(gpu, "driver_version", lambda: "550.54.14")
    with pytest.raises(ProviderUnavailable, match=r"too old: 550\.54\.14 supports CUDA 12\.4.* needs CUDA 13;.* 580"):
        select_provider(name)


def test_a_driver_for_a_newer_cuda_is_fine(machine: Machine) -> None:
    machine.driver(ADA, version=14_020)
    assert select_provider().name == "tensorrt"


def test_a_driver_that_does_not_start_is_not_reported_as_missing(machine: Machine) -> None:
    machine.driver(ADA, status=DRIVER_MISMATCH)
    assert gpu.gpus() == ()
    assert "does not start (cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)" in str(why_unavailable("cuda"))


def test_the_message_shows_the_variable_that_hides_gpus(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.driver(ADA, status=NO_DEVICE)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert 'shows no GPU ($CUDA_VISIBLE_DEVICES is "-1")' in str(why_unavailable("cuda"))


@pytest.mark.parametrize("request_", ["auto", "cuda", "tensorrt"])
def test_a_gpu_that_does_not_exist_is_refused_with_those_that_do(machine: Machine, request_: str) -> None:
    with pytest.raises(InputError, match=r"--device 5: no such GPU; available: GPU 0 \(.*4090.*\), GPU 1 \(.*A100"):
        select_provider(request_, device=5)


def test_a_second_gpu_is_refused_where_there_is_none(machine: Machine) -> None:
    machine.no_driver()
    with pytest.raises(InputError, match="--device 1: no such GPU; this machine has none"):
        select_provider("auto", device=1)
    assert select_provider("cpu", device=1).name == "cpu"


def test_the_second_of_two_gpus_is_selected(machine: Machine) -> None:
    selection = select_provider("cuda", device=1)
    assert selection.gpu is not None
    assert selection.gpu.name == "NVIDIA A100-SXM4-80GB"


def test_a_gpu_that_cuda_does_not_support(machine: Machine) -> None:
    machine.driver(PASCAL)
    assert "CUDA 13 does not support GPU 0 (NVIDIA GeForce GTX 1080, compute capability 6.1): it needs" in str(
        why_unavailable("cuda")
    )


def test_a_cpu_build_is_recognized(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis.ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert "is a build without CUDAExecutionProvider" in str(why_unavailable("cuda"))
    assert select_provider().name == "rtx"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((), "libraries not found: libnvinfer.so.10; pip install"),
        (
            (Installed("11.4.0.106", "tensorrt-cu13"),),
            "TensorRT 11.4.0.106 is installed (tensorrt-cu13), but this onnxruntime needs TensorRT 10;",
        ),
        ((Installed("8", "/usr/lib"),), "TensorRT 8 is installed (/usr/lib), but this onnxruntime needs TensorRT 10;"),
        # The right one is there and does not load: another being there too is not the reason.
        ((Installed("11.4.0", "a"), Installed("10.14.1", "b")), "libraries not found: libnvinfer.so.10; pip install"),
    ],
)
def test_another_major_version_of_tensorrt_is_named(
    machine: Machine, found: tuple[Installed, ...], expected: str
) -> None:
    machine.missing = {"libnvinfer.so.10"}
    machine.installed(tensorrt=found)
    reason = str(why_unavailable("tensorrt"))
    assert expected in reason
    assert 'pip install "latentsync-trt[tensorrt]"' in reason


def test_a_tensorrt_that_is_too_old_for_the_graphs(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "tensorrt_version", lambda: "10.9.0.34")
    assert "TensorRT 10.9.0.34 is too old: its ONNX parser supports the graphs' operators from 10.14 on" in str(
        why_unavailable("tensorrt")
    )


# TensorRT's builder.


def test_a_tensorrt_without_its_python_package(machine: Machine) -> None:
    """As the libraries of a system's package are, which come without Python."""
    machine.absent = {libraries.TENSORRT_MODULE}
    assert why_unavailable("tensorrt") == (
        "TensorRT 10.14.1.48 is installed without its Python package, which builds engines; "
        'pip install "latentsync-trt[tensorrt]"'
    )
    with pytest.raises(ProviderUnavailable, match="is installed without its Python package"):
        select_provider("tensorrt")
    assert why_unavailable("cuda") is None
    selection = select_provider()
    assert selection.name == "rtx"
    assert [name for name, _ in selection.passed_over] == ["tensorrt"]


def test_library_obstacles_come_before_the_missing_python_package(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.absent = {libraries.TENSORRT_MODULE}
    machine.missing = {"libnvinfer.so.10"}
    assert str(why_unavailable("tensorrt")).startswith("libraries not found: libnvinfer.so.10")
    machine.missing = set()
    monkeypatch.setattr(libraries, "tensorrt_version", lambda: "10.9.0.34")
    assert str(why_unavailable("tensorrt")).startswith("TensorRT 10.9.0.34 is too old")


@pytest.mark.parametrize("file", ["tensorrt.py", "tensorrt/__init__.py"])
def test_a_package_or_a_module_is_found_and_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    name = "a_tensorrt_that_is_not_there"
    assert libraries.package_folder(name) is None
    path = tmp_path / file.replace("tensorrt", name)
    path.parent.mkdir(exist_ok=True)
    path.write_text("raise RuntimeError('loaded')")
    monkeypatch.syspath_prepend(tmp_path)
    assert libraries.package_folder(name) == path.parent


def test_the_builder_is_tried_on_one_node_and_one_gpu(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[CompileOrder, bytes, dict[str, str]]] = []
    answer = Answer(False, "no", version="10.14.1.48")

    def compiler(order: CompileOrder, environment: dict[str, str]) -> Answer:
        calls.append((order, Path(order.path).read_bytes(), environment))
        return answer

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr(diagnosis, "run_compiler", compiler)
    assert diagnosis.try_builder(gpu.gpus()[1]) is answer
    ((order, content, environment),) = calls
    assert order == CompileOrder("tensorrt", order.path, {}, optimization_level=0)
    assert content == diagnosis._TRIAL_MODEL
    assert environment == {"CUDA_VISIBLE_DEVICES": "5"}
    assert not Path(order.path).parent.exists()


@pytest.mark.parametrize(
    ("shown", "index", "name"),
    [
        (None, 0, "0"),
        (None, 1, "1"),
        ("2,3", 0, "2"),
        ("2,3", 1, "3"),
        ("1,0", 0, "1"),
        (" 2 , 3 ", 1, "3"),
        ("GPU-8f2a,GPU-1c3b", 0, "GPU-8f2a"),
        ("GPU-8f2a,GPU-1c3b", 1, "GPU-1c3b"),
        ("MIG-11111111-2222-3333-4444-555555555555", 0, "MIG-11111111-2222-3333-4444-555555555555"),
    ],
)
def test_a_child_process_that_sees_one_gpu_gets_its_name(
    monkeypatch: pytest.MonkeyPatch, shown: str | None, index: int, name: str
) -> None:
    """The name follows from this process's own variable, which hides and orders GPUs."""
    if shown is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    one = Gpu(index, "NVIDIA GeForce RTX 4090", "8.9", 24 * 1024**3, "0000:01:00.0")
    assert gpu.visible_only(one) == {"CUDA_VISIBLE_DEVICES": name}


def test_another_major_version_of_cuda_is_named(machine: Machine) -> None:
    machine.missing = {"libcudart.so.13", "libcublas.so.13"}
    machine.installed(cuda=(Installed("12.8", "nvidia-cuda-runtime-cu12"),))
    assert (
        "libraries not found: libcudart.so.13, libcublas.so.13; CUDA 12.8 is installed (nvidia-cuda-runtime-cu12), "
        "but this onnxruntime needs CUDA 13" in str(why_unavailable("cuda"))
    )


def test_a_missing_cudnn_is_found_although_the_provider_loads_without_it(machine: Machine) -> None:
    machine.missing = {"libcudnn.so.9"}
    assert "libraries not found: libcudnn.so.9" in str(why_unavailable("cuda"))


def test_a_broken_library_is_not_reported_as_missing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = "libcublas.so.13: cannot open shared object file: No such file or directory"
    monkeypatch.setattr(libraries, "load_problem", lambda name: problem if name == "libcudnn.so.9" else None)
    assert f"libcudnn.so.9 is installed but does not load ({problem})" in str(why_unavailable("cuda"))


def test_on_windows_the_missing_file_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "_WINDOWS", True)
    message = "Could not find module '{0}' (or one of its dependencies). Try using the full path"
    monkeypatch.setattr(
        libraries, "load_problem", lambda name: message.format(name) if name == "nvinfer_10.dll" else None
    )
    assert "libraries not found: nvinfer_10.dll, or what they need; pip install" in str(why_unavailable("tensorrt"))
    needed = libraries.needed_libraries("cuda")
    assert needed == ("cudart64_13.dll", "cublasLt64_13.dll", "cublas64_13.dll", "cudnn64_9.dll")


def test_a_session_that_runs_on_another_provider_is_an_obstacle(machine: Machine) -> None:
    machine.used["cuda"] = ["CPUExecutionProvider"]
    assert "a trial session runs on CPUExecutionProvider instead" in str(why_unavailable("cuda"))


def test_a_session_that_cannot_be_created_gives_the_message_of_onnxruntime(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str, device: int) -> None:
        raise RuntimeError("first line\n  CUDA failure 35: driver insufficient")

    monkeypatch.setattr(diagnosis, "_trial_session", fail)
    assert "a trial session fails (CUDA failure 35: driver insufficient)" in str(why_unavailable("cuda"))


def test_the_plug_in_is_absent(machine: Machine) -> None:
    machine.absent = {libraries.RTX_PACKAGE}
    with pytest.raises(
        ProviderUnavailable, match=r'rtx: .*plug-in is not installed; pip install "latentsync-trt\[rtx\]"'
    ):
        select_provider("rtx")


def test_the_plug_in_offers_the_gpu_that_cuda_counts(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [plugin_device(0, "CPUExecutionProvider"), plugin_device(1), plugin_device(0)]
    monkeypatch.setattr(diagnosis.ort, "get_ep_devices", lambda: devices)
    assert rtx_devices(0) == [devices[2]]
    assert rtx_devices(1) == [devices[1]]
    monkeypatch.setattr(diagnosis.ort, "get_ep_devices", lambda: devices[:2])
    assert "does not offer GPU 0 (NVIDIA GeForce RTX 4090" in str(why_unavailable("rtx"))


def test_a_plug_in_that_does_not_load(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    obstacle = messages.Obstacle(messages.PLUGIN_FAILS.format(problem="no libcuda"), "reinstall")
    monkeypatch.setattr(diagnosis, "_register_plugin", lambda: obstacle)
    assert str(why_unavailable("rtx")).startswith("NVIDIA's TensorRT-RTX plug-in does not load (no libcuda); ")
    with pytest.raises(ProviderUnavailable, match="does not load"):
        rtx_devices(0)


@pytest.mark.parametrize(
    ("name", "missing", "after"),
    [
        ("tensorrt", set(), "cuda"),
        ("rtx", set(), "cuda"),
        ("cuda", set(), "cpu"),
        ("tensorrt", {"libcudnn.so.9"}, "cpu"),
    ],
)
def test_the_next_provider_is_one_that_starts_at_once(
    machine: Machine, name: Any, missing: set[str], after: str
) -> None:
    machine.missing = missing
    machine.driver(AMPERE_A100, ADA)  # the second is one that the plug-in would take
    following = next_provider(Selection(name, (), gpu.gpus()[1]))
    assert following.name == after
    assert following.device_id == (1 if after == "cuda" else 0)


def test_the_next_provider_may_be_one_that_builds_too(machine: Machine) -> None:
    assert next_provider(Selection("tensorrt", (), gpu.gpus()[0]), at_once=False).name == "rtx"
    following = next_provider(Selection("tensorrt", (), gpu.gpus()[1]), at_once=False)
    assert following.name == "cuda"
    assert [name for name, _ in following.passed_over] == ["rtx"]


def test_a_gpu_without_kernels_in_the_provider_is_found_before_the_run(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(outputs: Any, inputs: Any) -> None:
        raise RuntimeError("no kernel image is available for execution on the device")

    broken = types.SimpleNamespace(run=run, get_providers=lambda: GPU_BUILD)
    monkeypatch.setattr(diagnosis, "_trial_session", lambda name, device: broken)
    assert "a trial session fails (no kernel image is available" in str(why_unavailable("cuda"))


def test_nothing_comes_after_the_cpu(machine: Machine) -> None:
    with pytest.raises(ProviderUnavailable, match="cpu: there is no other provider to run on"):
        next_provider(Selection("cpu"))


def test_an_unknown_provider_is_refused() -> None:
    with pytest.raises(ProviderUnavailable, match="npu: not a provider; choose auto, tensorrt, rtx, cuda, cpu"):
        select_provider("npu")


def test_auto_says_why_better_providers_do_not_run_here() -> None:
    selection = select_provider("auto")
    assert [name for name, _ in selection.passed_over] == list(PREFERENCE[: PREFERENCE.index(selection.name)])
    assert all(reason for _, reason in selection.passed_over)


def test_the_cpu_always_runs() -> None:
    assert select_provider("cpu") == Selection("cpu")
    assert Selection("cpu").device == "cpu"


def test_the_loader_names_the_file_that_is_missing() -> None:
    assert "a-library-that-is-not-there" in str(libraries.load_problem("a-library-that-is-not-there"))


def test_major_versions_are_those_of_the_installed_onnxruntime() -> None:
    provider = libraries.provider_library("tensorrt")
    if not provider.is_file():
        pytest.skip("this onnxruntime is a build without GPU providers")
    assert set(re.findall(rb"nvinfer(?:\.so\.|_)(\d+)", provider.read_bytes())) == {b"%d" % libraries.TENSORRT_MAJOR}
    assert diagnosis.ort.cuda_version.split(".")[0] == str(libraries.CUDA_MAJOR)


@pytest.mark.parametrize(
    ("exported", "version"),
    [({"Major": 10, "Minor": 14, "Patch": 1, "Build": 48}, "10.14.1.48"), ({"": 101_401}, "unknown")],
)
def test_the_version_of_the_loaded_tensorrt(
    monkeypatch: pytest.MonkeyPatch, exported: dict[str, int], version: str
) -> None:
    functions = {f"getInferLib{part}Version": (lambda number=number: number) for part, number in exported.items()}
    monkeypatch.setattr(libraries, "_load", lambda name: types.SimpleNamespace(**functions))
    assert libraries.tensorrt_version() == version


def test_libraries_are_found_where_the_loader_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libnvinfer.so.11.4.0").touch()
    (tmp_path / "libnvinfer.so.11").symlink_to("libnvinfer.so.11.4.0")
    (tmp_path / "libnvinfer_plugin.so.11").touch()
    monkeypatch.setattr(libraries, "_WINDOWS", False)
    monkeypatch.setattr(libraries, "distribution_version", lambda name: None)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}")
    assert libraries.installed_tensorrt()[0] == Installed("11.4.0", str(tmp_path))
    assert libraries.installed_tensorrt()[0].major == 11


def test_on_windows_libraries_are_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvinfer_11.dll").touch()
    monkeypatch.setattr(libraries, "_WINDOWS", True)
    monkeypatch.setattr(libraries, "distribution_version", lambda name: None)
    monkeypatch.setenv("PATH", f"{tmp_path}")
    assert libraries.installed_tensorrt() == (Installed("11", str(tmp_path)),)


@pytest.mark.parametrize(("system", "expected"), [("win32", "nvidia.com/drivers"), ("linux", "nvidia-driver-580")])
def test_the_cure_is_for_this_platform(monkeypatch: pytest.MonkeyPatch, system: str, expected: str) -> None:
    monkeypatch.setattr(messages.sys, "platform", system)
    assert expected in messages.driver_line()
    monkeypatch.setattr(messages.platform, "machine", lambda: "AMD64" if system == "win32" else "x86_64")
    assert "pip install onnxruntime-gpu" in messages.gpu_build_line()
    monkeypatch.setattr(messages.platform, "machine", lambda: "aarch64")
    assert "--provider cpu" in messages.gpu_build_line()
