"""Choosing a provider, and the message for everything that keeps one from running."""

import re
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

import pytest

from latentsync_trt.errors import InputError, ProviderUnavailable
from latentsync_trt.runtime.providers import devices, diagnosis, libraries, table
from latentsync_trt.runtime.providers.choice import next_provider, select_provider
from latentsync_trt.runtime.providers.devices import Gpu
from latentsync_trt.runtime.providers.remembered_tests import TestResult, remember_test
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.runtime.providers.table import CUDA, PROVIDERS, TENSORRT

ADA = Gpu(0, "NVIDIA GeForce RTX 4090", "8.9", 24 * 1024**3, "0000:01:00.0")
AMPERE_A100 = Gpu(1, "NVIDIA A100-SXM4-80GB", "8.0", 80 * 1024**3, "0000:41:00.0")
PASCAL = Gpu(0, "NVIDIA GeForce GTX 1080", "6.1", 8 * 1024**3, "0000:02:00.0")

NOT_FOUND = "{0}: cannot open shared object file: No such file or directory"
(*_, CUDNN), (*_, NVINFER, _) = map(libraries.needed_libraries, (CUDA, TENSORRT))

NAMES = tuple(provider.ort_name for provider in PROVIDERS.values())


@dataclass
class Machine:
    """A simulated machine; by default one on which everything works, with two GPUs.

    `missing`: libraries that the loader does not find. `absent`: Python packages that are not
    installed. `used`: providers that a trial session uses. `run`: what running that session does.
    `visible`: $CUDA_VISIBLE_DEVICES.
    """

    gpus: tuple[Gpu, ...] = (ADA, AMPERE_A100)
    cuda: tuple[int, int] | None = (13, 0)
    problem: str | None = None
    driver_version: str = "580.65.06"
    missing: tuple[str, ...] = ()
    absent: str = ""
    tensorrt: str = "10.14.1.48"
    built: tuple[str, ...] = NAMES
    used: tuple[str, ...] = NAMES
    run: Callable[..., Any] = lambda *_: []
    visible: str | None = "-1"

    def package_folder(self, name: str) -> Path | None:
        if name == self.absent:
            return None
        return Path("installed")

    def load_problem(self, name: str) -> str | None:
        if name in self.missing:
            return NOT_FOUND.format(name)
        return None

    def session(self) -> Any:
        return types.SimpleNamespace(get_providers=lambda: list(self.used), run=self.run)


@pytest.fixture
def machine(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, tmp_path: Path
) -> Machine:
    made = Machine(**getattr(request, "param", {}))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", made.visible or "")
    for module, name, value in (
        (devices, "gpus", lambda: made.gpus),
        (devices, "driver_problem", lambda: made.problem),
        (devices, "driver_cuda", lambda: made.cuda),
        (devices, "driver_version", lambda: made.driver_version),
        (libraries, "tensorrt_version", lambda: made.tensorrt),
        (diagnosis, "PCI_DEVICES", tmp_path),
        (libraries, "preload", lambda: None),
        (libraries, "package_folder", made.package_folder),
        (libraries, "load_problem", made.load_problem),
        (diagnosis.ort, "get_available_providers", lambda: list(made.built)),
        (diagnosis.ort, "InferenceSession", lambda *_, **__: made.session()),
    ):
        monkeypatch.setattr(module, name, value)
    return made


def test_auto_takes_the_best(machine: Machine) -> None:
    selection = select_provider()
    assert (selection.name, selection.skipped_providers) == ("tensorrt", ())
    assert selection.gpu == ADA
    assert (selection.device, selection.device_id) == ("cuda", 0)


OTHERS: dict[str, Callable[[Machine], dict[str, Any]]] = {
    "another bundle": lambda machine: {"bundle_sha256": "cd"},
    "another GPU": lambda machine: {"device": 1},
    "another TensorRT": lambda machine: vars(machine).update(tensorrt="10.15.0.1") or {},
}


@pytest.mark.parametrize("other", OTHERS)
def test_auto_takes_tensorrt_only_where_a_test_of_all_that_matters_has_passed_it(
    machine: Machine, other: str
) -> None:
    given: dict[str, Any] = {"bundle_sha256": "ab"}
    untested = select_provider(**given)
    assert untested.name == "cuda"
    (notice,) = untested.notices()
    assert notice.startswith("skipped tensorrt: ") and "not tested with this bundle" in notice
    assert "latentsync-trt selftest --provider tensorrt" in notice
    remember_test(select_provider("tensorrt"), "ab", "passed")
    assert (select_provider(**given).name, select_provider(**given).notices()) == ("tensorrt", [])
    given |= OTHERS[other](machine)
    assert select_provider(**given).name == "cuda"
    assert select_provider("tensorrt").name == "tensorrt"  # which needs no test where it is named


@pytest.mark.parametrize(
    ("result", "words"), [("failed", "self-test .* failed"), ("slower", "took longer")]
)
def test_auto_does_not_take_what_the_newest_test_found_wrong_or_slower(
    machine: Machine, result: TestResult, words: str
) -> None:
    for name in ("tensorrt", "cuda"):
        named = select_provider(name)
        remember_test(named, "ab", "passed")
        assert select_provider(bundle_sha256="ab").name == name
        remember_test(named, "ab", result)
    selection = select_provider(bundle_sha256="ab")
    assert selection.name == "cpu"
    assert [one.name for one in selection.skipped_providers if re.search(words, one.reason)] == [
        "tensorrt",
        "cuda",
    ]
    assert next_provider(select_provider("tensorrt"), "ab").name == "cpu"
    assert select_provider("cuda").name == "cuda"  # named
    assert select_provider(bundle_sha256="cd").name == "cuda"  # another bundle


def test_a_missing_driver_is_the_first_reason_and_noted_where_there_is_a_gpu(
    machine: Machine, tmp_path: Path
) -> None:
    machine.gpus = ()
    machine.cuda = None
    machine.problem = "libcuda.so.1: cannot open shared object file"
    for name in ("tensorrt", "cuda"):
        with pytest.raises(ProviderUnavailable, match=rf"{name}: no NVIDIA driver .* 580"):
            select_provider(name)
    assert (select_provider().name, select_provider().notices()) == ("cpu", [])
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "vendor").write_text("0x10de\n")
    (tmp_path / "gpu" / "class").write_text("0x030200\n")
    assert "no NVIDIA driver" in select_provider().notices()[0]


def test_a_gpu_that_does_not_exist_is_refused_with_those_that_do(machine: Machine) -> None:
    with pytest.raises(InputError, match=r"^--device 5: .* 0 \(.*4090.*\), GPU 1 \(.*A100"):
        select_provider("cuda", device=5)


OLD_DRIVER = {"cuda": (12, 4), "driver_version": "550.54.14"}
NO_MODULE = {"absent": libraries.TENSORRT_MODULE}
OBSTACLES: list[tuple[str, dict[str, Any], str]] = [
    (
        "cuda",
        OLD_DRIVER,
        "550.54.14 supports CUDA 12.4, and this build needs CUDA 13; install NVIDIA driver 580",
    ),
    ("cuda", {"gpus": ()}, 'shows no GPU ($CUDA_VISIBLE_DEVICES is "-1")'),
    ("cuda", {"gpus": (PASCAL,)}, "GPU 0 (NVIDIA GeForce GTX 1080, compute capability 6.1): it"),
    ("cuda", {"built": ("CPUExecutionProvider",)}, "is a build without CUDAExecutionProvider"),
    ("tensorrt", {"missing": (NVINFER,)}, 'directory); pip install "latentsync-trt[tensorrt]"'),
    # The provider itself loads without cuDNN.
    ("cuda", {"missing": (CUDNN,)}, f"libraries do not load ({CUDNN}: "),
    (
        "tensorrt",
        NO_MODULE,
        "TensorRT 10.14.1.48 is installed without its Python package, which builds engines; pip",
    ),
    # The first obstacle is reported: the libraries, their version, and then the Python package.
    (
        "tensorrt",
        {"tensorrt": "10.9.0.34", **NO_MODULE},
        "TensorRT 10.9.0.34 is too old: its ONNX parser supports",
    ),
    (
        "cuda",
        {"used": ("CPUExecutionProvider",)},
        "a trial session fails (it runs on CPUExecutionProvider instead)",
    ),
    # As "no kernel image is available", on a GPU that the wheel has no code for.
    ("cuda", {"run": lambda *_: 1 / 0}, "a trial session fails (division by zero)"),
]


@pytest.mark.parametrize(("name", "machine", "expected"), OBSTACLES, indirect=["machine"])
def test_what_keeps_a_provider_from_running(machine: Machine, name: Any, expected: str) -> None:
    with pytest.raises(ProviderUnavailable, match=f"{name}: .*{re.escape(expected)}"):
        select_provider(name)


@pytest.mark.parametrize(
    ("machine", "index", "name"),
    [
        ({"visible": None}, 1, "1"),
        ({"visible": " 2 , 3 "}, 1, "3"),
        ({"visible": "GPU-8f2a,GPU-1c3b"}, 1, "GPU-1c3b"),
    ],
    indirect=["machine"],
)
def test_a_child_process_that_sees_one_gpu_gets_its_name(
    machine: Machine, index: int, name: str
) -> None:
    """The name follows from this process's own variable, which hides and orders GPUs."""
    assert devices.visible_only(machine.gpus[index]) == {"CUDA_VISIBLE_DEVICES": name}


@pytest.mark.parametrize(
    ("name", "missing", "after"),
    [("tensorrt", (), "cuda"), ("tensorrt", (CUDNN,), "cpu")],
)
def test_the_next_provider_is_one_that_starts_at_once(
    machine: Machine, name: Any, missing: tuple[str, ...], after: str
) -> None:
    machine.missing = missing
    following = next_provider(Selection(name, (), AMPERE_A100))
    assert following.name == after
    assert following.device_id == (1 if after == "cuda" else 0)


def test_major_versions_are_those_of_the_installed_onnxruntime() -> None:
    provider = libraries.provider_library("tensorrt")
    if not provider.is_file():
        pytest.skip("this onnxruntime is a build without GPU providers")
    assert set(re.findall(rb"nvinfer(?:\.so\.|_)(\d+)", provider.read_bytes())) == {
        b"%d" % libraries.TENSORRT_MAJOR
    }
    assert diagnosis.ort.cuda_version.split(".")[0] == str(libraries.CUDA_MAJOR)


CURES = {
    "TENSORRT_DOWNLOAD",
    "REINSTALL_ORT",
    "GET_ORT",
    "GET_DRIVER",
    "CHECK_DRIVER",
    "CHECK_GPUS",
    "CHECK_SESSION",
}
TEMPLATES = {
    name: text
    for name, text in vars(table).items()
    if name[0] != "_" and name.isupper() and isinstance(text, str) and name not in CURES
}


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_every_obstacle_has_a_cure_in_the_documentation(template: str) -> None:
    page = Path(__file__).resolve().parents[1] / "docs" / "providers.md"
    problems = page.read_text(encoding="utf-8").partition("\n## Problems\n")[2]
    rows = [line.strip("|").split(" | ") for line in problems.splitlines() if line.startswith("| ")]
    pattern = ".*".join(re.escape(text) for text, *_ in Formatter().parse(template))
    cures = [cells[1].strip() for cells in rows if len(cells) == 2 and re.search(pattern, cells[0])]
    assert cures
    assert all(cures)
