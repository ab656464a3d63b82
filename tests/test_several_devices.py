"""One clip on several devices: the same frames as on one, whatever happens to one of them."""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import psutil
import pytest
from click.testing import CliRunner

from latentsync_trt.bundle.manifest import AUDIO_ENCODER, Bundle
from latentsync_trt.cli import main
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.errors import (
    BundleError,
    EngineBuildError,
    InferenceError,
    InputError,
    OutOfMemory,
    ProviderUnavailable,
)
from latentsync_trt.runtime.networks import apart as apart_module
from latentsync_trt.runtime.networks import devices
from latentsync_trt.runtime.networks.apart import SubprocessNetworks
from latentsync_trt.runtime.networks.devices import Devices, networks_on
from latentsync_trt.runtime.model import Networks, Notices
from latentsync_trt.runtime.providers import select
from latentsync_trt.runtime.providers.gpu import Gpu
from latentsync_trt.runtime.providers.select import Selection, device_numbers, select_devices
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.sync.api import LipSync
from latentsync_trt.sync.inpaint import Inpainter
from latentsync_trt.types import UInt8Array
from tests.clips import decoded, synced, write_clip
from tests.device import CPU, DemoNetworks
from tests.small import small_bundle

FRAMES, WINDOWS = 18, 2
TIMEOUT_S = 600.0
OPTIONS = SyncOptions(steps=1, codec="ffv1")

GPUS = (
    Gpu(0, "NVIDIA H200", "9.0", 1, "0000:01:00.0"),
    Gpu(1, "NVIDIA H200", "9.0", 1, "0000:41:00.0"),
    Gpu(2, "NVIDIA L4", "8.9", 1, "0000:81:00.0"),
)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_clip(tmp_path_factory.mktemp("clip"), FRAMES)


@pytest.fixture(scope="module")
def expected(clip: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> UInt8Array:
    """The frames of a run on one device."""
    return synced(clip, tmp_path_factory.mktemp("expected") / "out.mkv", OPTIONS)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "results" / "out.mkv"


def assert_frames(out: Path, expected: UInt8Array) -> None:
    assert np.array_equal(np.stack(decoded(out)), expected)


def paint_together(monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
    """Two devices begin their first batch together; both fail with `error`, if there is one."""
    usual, started, both = Inpainter.encode, set[int](), threading.Barrier(2, timeout=TIMEOUT_S)

    def encode(inpainter: Inpainter, windows: Sequence[Any]) -> Any:
        if id(inpainter) not in started:
            started.add(id(inpainter))
            both.wait()
        if error is not None:
            raise error
        return usual(inpainter, windows)

    monkeypatch.setattr(Inpainter, "encode", encode)


@pytest.mark.integration
def test_frames_are_those_of_one_device(
    make: DemoNetworks,
    clip: tuple[Path, Path],
    expected: UInt8Array,
    out: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paint_together(monkeypatch)
    out.parent.mkdir()
    here = make()
    with LipSync(here, SubprocessNetworks(here.bundle, here.selection, here.options)) as lip_sync:
        report = lip_sync.sync(*clip, out, OPTIONS)
    assert_frames(out, expected)
    assert [device.name for device in report.devices] == ["CPU 0", "CPU 1"]
    assert sum(device.windows for device in report.devices) == report.windows == WINDOWS
    assert all(device.windows and device.busy_s > 0 and not device.error for device in report.devices)
    steps = [time.runs for time in report.engines if time.graph == "denoise_step"]
    assert sorted(steps) == sorted(device.windows for device in report.devices)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("paint")]


@pytest.mark.integration
def test_others_paint_the_windows_of_a_process_that_dies(
    make: DemoNetworks, clip: tuple[Path, Path], expected: UInt8Array, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out.parent.mkdir()
    here = make()
    other = SubprocessNetworks(here.bundle, here.selection, here.options)
    killed, usual = threading.Event(), Inpainter.encode

    def encode(inpainter: Inpainter, windows: Sequence[Any]) -> Any:
        if inpainter.codec is here.codec:
            assert killed.wait(TIMEOUT_S)
        elif not killed.is_set():
            psutil.Process(other._child.pid).kill()
            killed.set()
        return usual(inpainter, windows)

    monkeypatch.setattr(Inpainter, "encode", encode)
    with LipSync(here, other) as lip_sync:
        report = lip_sync.sync(*clip, out, OPTIONS)
        assert_frames(out, expected)
        assert [device.windows for device in report.devices] == [WINDOWS, 0]
        assert report.devices[1].error.startswith("the process of the CPU died: ")
        words = f"CPU 1 is left out of this run, others go on: {report.devices[1].error}"
        assert words in report.notices
        assert words in make.notices
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("paint")]
    assert not psutil.pid_exists(other._child.pid)


@pytest.mark.integration
def test_the_error_of_the_last_device_is_raised_and_nothing_left(
    make: DemoNetworks, clip: tuple[Path, Path], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paint_together(monkeypatch, OutOfMemory("denoise_step: no room"))
    out.parent.mkdir()
    with LipSync(make(), make()) as lip_sync, pytest.raises(OutOfMemory, match="no room"):
        lip_sync.sync(*clip, out, OPTIONS)
    assert sum("is left out of this run" in text for text in make.notices) == 1
    assert list(out.parent.iterdir()) == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("paint")]


@pytest.mark.integration
def test_a_device_whose_networks_do_not_open_is_left_out(make: DemoNetworks, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, usual = make(), make()

    def no_room(*_: Any) -> None:
        raise OutOfMemory("vae_encoder: out of memory for 2 GB more")

    monkeypatch.setattr(broken, "prepare", no_room)
    with LipSync(broken, usual) as lip_sync:
        lip_sync.warm_up(OPTIONS)
        assert make.notices == ["CPU 0 is left out of this run, others go on: vae_encoder: out of memory for 2 GB more"]
        monkeypatch.setattr(usual, "prepare", no_room)
        with pytest.raises(OutOfMemory, match="2 GB more"):
            lip_sync.warm_up(OPTIONS)


@pytest.mark.integration
def test_another_device_encodes_the_audio_if_the_first_cannot(
    make: DemoNetworks, clip: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf, usual = make(), make()

    def encode_mel(mel: Any) -> Any:
        raise InferenceError("audio_encoder on CUDAExecutionProvider: CUDA failure 719")

    monkeypatch.setattr(deaf, "encode_mel", encode_mel)
    with LipSync(deaf, usual) as lip_sync:
        assert len(lip_sync.encode_audio(clip[1]).windows) == FRAMES
    (notice,) = make.notices
    assert notice.startswith("CPU 0 is left out of this run, others go on: audio_encoder on CUDA")


# Networks that open before they are needed


class Opening:
    """Stands for networks on a GPU: `prepare` notes its calls, and waits for `may_go_on`."""

    def __init__(self, selection: Selection, *, builds: bool = False, error: Exception | None = None) -> None:
        self.selection, self.notices, self.calls = selection, Notices(), list[str]()
        self.bundle = self.options = None
        self.may_go_on, self._builds, self._error = threading.Event(), builds, error

    def builds(self, graphs: tuple[str, ...]) -> bool:
        return self._builds

    def prepare(self, graphs: tuple[str, ...]) -> None:
        assert self.may_go_on.wait(TIMEOUT_S)
        self.calls.append(threading.current_thread().name)
        if self._error is not None and len(self.calls) == 1:
            raise self._error


@pytest.mark.parametrize("error", [None, OutOfMemory("no room")])
def test_a_gpus_networks_open_in_a_thread_for_which_prepare_waits(error: Exception | None) -> None:
    networks = Opening(Selection("cuda", gpu=GPUS[0]), error=error)
    on_gpu = Devices(cast(Networks, networks))
    on_gpu.prepare_ahead(["a"])
    assert networks.calls == []  # it did not wait
    networks.may_go_on.set()
    on_gpu.prepare(["a"])
    assert networks.calls == ["prepare_0", "MainThread"]
    on_gpu.prepare(["a"])
    assert len(networks.calls) == 3


@pytest.mark.parametrize("networks", [Opening(CPU), Opening(Selection("cuda", gpu=GPUS[0]), builds=True)])
def test_what_would_build_or_take_the_cpu_does_not_open_ahead(networks: Opening) -> None:
    device = Devices(cast(Networks, networks))
    device.prepare_ahead(["a"])
    networks.may_go_on.set()
    device.prepare(["a"])
    assert "prepare_0" not in networks.calls


# Choosing devices


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, int], str]:
    """A machine with `GPUS`, on which cuda and the CPU run; add what does not run, by provider and GPU, with why."""
    obstacles: dict[tuple[str, int], str] = {}

    def why_unavailable(name: str, device: int = 0) -> str | None:
        return obstacles.get((name, device), "not installed" if name == "tensorrt" else None)

    monkeypatch.setattr(select.driver, "gpus", lambda: GPUS)
    monkeypatch.setattr(select, "why_unavailable", why_unavailable)
    return obstacles


def test_all_are_all_gpus_of_the_machine(machine: dict[tuple[str, int], str], monkeypatch: pytest.MonkeyPatch) -> None:
    for request in ("auto", "cuda"):
        selected, left_out = select_devices(request, "all")
        assert [(each.name, each.gpu) for each in selected] == [("cuda", gpu) for gpu in GPUS]
        assert left_out == ()
    assert [each.device_id for each in select_devices("cuda", (2, 0))[0]] == [2, 0]
    assert select_devices("cpu", "all") == ((Selection("cpu"),), ())
    monkeypatch.setattr(select.driver, "gpus", lambda: ())
    machine["cuda", 0] = "no NVIDIA driver"
    assert device_numbers("all") == (0,)
    assert [each.name for each in select_devices("auto", "all")[0]] == ["cpu"]


def test_a_gpu_without_the_provider_is_left_out_with_a_notice(machine: dict[tuple[str, int], str]) -> None:
    machine["cuda", 1] = "CUDA 13 does not support it"
    for request in ("auto", "cuda"):
        selected, (notice,) = select_devices(request, "all")
        assert [each.device_id for each in selected] == [0, 2]
        assert notice.startswith("GPU 1 is left out: ")
        assert "CUDA 13 does not support it" in notice
    machine.update({("cuda", number): "broken driver" for number in (0, 2)})
    assert [each.name for each in select_devices("auto", "all")[0]] == ["cpu"]
    with pytest.raises(ProviderUnavailable, match="cuda: broken driver"):
        select_devices("cuda", "all")


def test_a_bundle_opens_on_every_gpu(machine: dict[tuple[str, int], str], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int | str | tuple[int, ...], bool]] = []

    def opened(bundle: Bundle, selection: Selection, options: RuntimeOptions, **more: Any) -> Networks:
        made.append((selection.device_id, options.device, "on_notice" in more))
        if selection.device_id == 2:
            raise InputError("bundle b is in fp8, which GPU 2 does not support")
        return Networks(bundle, replace(selection, name="cpu"), options, **more)

    monkeypatch.setattr(devices, "Networks", opened)
    monkeypatch.setattr(devices, "SubprocessNetworks", opened)
    notices: list[str] = []
    LipSync.from_bundle(small_bundle(), "cuda", RuntimeOptions(device="all"), on_notice=notices.append).close()
    assert sorted(made) == [(0, 0, True), (1, 1, False), (2, 2, False)]
    assert notices == ["a GPU is left out: bundle b is in fp8, which GPU 2 does not support"]


@pytest.mark.integration
def test_commands_for_one_gpu_refuse_several() -> None:
    one = str(small_bundle())
    for command in (["bench", "--bundle", one], ["selftest", "--bundle", one], ["compare", one, one]):
        result = CliRunner().invoke(main, [*command, "--provider", "cpu", "--device", "0,1"])
        assert result.exit_code == 2
        assert "--device 0,1: only one GPU can be used here; give its number" in result.stderr


@pytest.mark.integration
def test_build_makes_the_engines_of_each_kind_of_gpu_once(
    machine: dict[tuple[str, int], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[int] = []

    def opened(engines: SessionFactory, graph: str) -> SimpleNamespace:
        kinds.append(engines.selection.device_id)
        assert engines.options.device == engines.selection.device_id
        costs = {"built": False, "build_s": 0.0, "open_s": 0.0, "size_bytes": 0, "node_share": 1.0}
        return SimpleNamespace(session=SimpleNamespace(close=lambda: None), **costs)

    machine.update({("tensorrt", number): None for number in range(3)})  # type: ignore[misc]
    monkeypatch.setattr(Engines, "open", opened)
    options = ["--bundle", str(small_bundle()), "--provider", "tensorrt", "--engine-cache", str(tmp_path)]
    result = CliRunner().invoke(main, ["build", *options, "--device", "all"])
    assert result.exit_code == 0, result.output
    assert kinds == sorted([0, 2] * len(bundle().manifest.graphs))


def bundle() -> Bundle:
    return Bundle.load(small_bundle(), verify=False)


@pytest.fixture
def apart() -> Iterator[SubprocessNetworks]:
    networks = SubprocessNetworks(bundle(), CPU, RuntimeOptions())
    yield networks
    networks.close()
    assert not psutil.pid_exists(networks._child.pid)


@pytest.mark.integration
def test_errors_and_notices_arrive(apart: SubprocessNetworks) -> None:
    with pytest.raises(InferenceError, match="vae_decoder on CPUExecutionProvider"):
        apart.codec.decode_faces(np.zeros((3, 3), np.float32))
    with pytest.raises(BundleError, match="no graph"):
        apart.prepare(["not_there"])
    apart.prepare([AUDIO_ENCODER])
    other = SubprocessNetworks(bundle(), CPU, RuntimeOptions(windows_per_batch=8))
    for _ in range(2):
        with pytest.raises(EngineBuildError, match="8 windows: the engines take 1"):
            other.prepare([AUDIO_ENCODER])
    other.close()


@pytest.mark.integration
def test_calls_of_several_threads_get_their_own_answers(apart: SubprocessNetworks) -> None:
    rng = np.random.default_rng(3)
    latents, mel = rng.standard_normal((1, 4, 16, 16), np.float32), rng.standard_normal((1, 80, 3000), np.float32)
    calls: list[Callable[[], Any]] = [lambda: apart.codec.decode_faces(latents)[0], lambda: apart.encode_mel(mel)]
    alone = [call() for call in calls]
    with ThreadPoolExecutor(2) as threads:
        together = list(threads.map(lambda number: calls[number % 2](), range(6)))
    assert all(np.array_equal(found, alone[number % 2]) for number, found in enumerate(together))


def end_at_once(*_: Any) -> None:
    sys.exit(1)


@pytest.mark.integration
def test_a_process_that_ends_in_a_stop_has_not_died(apart: SubprocessNetworks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its exit code seems to be: another thread may have taken that."""
    apart.prepare([AUDIO_ENCODER])
    monkeypatch.setattr(apart_module, "requested", lambda: True)
    child = psutil.Process(apart._child.pid)
    child.kill()
    psutil.wait_procs([child])  # as a stop does
    with pytest.raises(KeyboardInterrupt):
        apart.encode_mel(np.zeros((1, 80, 3000), np.float32))


@pytest.mark.integration
def test_a_gpu_whose_process_does_not_start_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart_module, "_answer_calls", end_at_once)
    first, others, left_out = networks_on([CPU, CPU], bundle(), RuntimeOptions(), may_fall_back=True, on_notice=None)
    assert left_out == []
    devices = Devices(first, others)
    devices.prepare([AUDIO_ENCODER])
    (notice,) = devices.take_notices()
    assert notice.startswith("CPU 1 is left out of this run, others go on: the process of the CPU died: exit code 1")
    devices.close()
