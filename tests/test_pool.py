"""The pool of sessions: each graph opened once, found again at the next start, and never run silently elsewhere."""

import errno
import itertools
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import onnxruntime as ort
import pytest
from filelock import FileLock

from latentsync_trt.errors import BundleError, EngineBuildError
from latentsync_trt.runtime.providers.gpu import Gpu
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.runtime.sessions import pool
from latentsync_trt.runtime.sessions.engines import Engines
from latentsync_trt.runtime.sessions.options import CpuOptions
from latentsync_trt.runtime.sessions.recipes import OptimizedGraph, Place
from latentsync_trt.runtime.sessions.session import Session, TensorInfo
from tests.device import GRAPHS, DemoNetworks, Device, by_graph, denoised

CPU_PROVIDER = (("CPUExecutionProvider", {}),)


@pytest.fixture
def notices(make: DemoNetworks) -> list[str]:
    return make.notices


# Opened once, found again.


def test_a_graph_is_opened_once_though_many_ask(make: DemoNetworks, device: Device) -> None:
    networks = make()
    gate = threading.Barrier(8)

    def ask(_: int) -> Session:
        gate.wait()
        return networks.session("vae_encoder")

    with ThreadPoolExecutor(8) as askers:
        sessions = set(askers.map(ask, range(8)))
    assert len(sessions) == 1
    assert device.opened == ["vae_encoder"]


def test_prepare_opens_side_by_side(make: DemoNetworks, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    networks = make()
    together, calls = threading.Barrier(2), itertools.count()
    open_graph = OptimizedGraph.open

    def meet(self: OptimizedGraph, *arguments: object) -> Session:
        if next(calls) < 2:
            together.wait(30)  # breaks if graphs are opened one after the other
        return open_graph(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(OptimizedGraph, "open", meet)
    networks.prepare(GRAPHS)
    assert sorted(device.opened) == sorted(GRAPHS)
    networks.prepare(GRAPHS)
    assert len(device.opened) == len(GRAPHS)


def test_a_second_start_builds_nothing_and_gives_the_same(make: DemoNetworks, notices: list[str]) -> None:
    results = []
    for start in range(2):
        networks = make()
        networks.prepare(GRAPHS)
        results.append(denoised(networks))
        times = by_graph(networks.times())
        assert {time.built for time in times.values()} == {start == 0}
        assert all(time.build_s > 0 and time.open_s > 0 for time in times.values())
        assert times["denoise_step"].runs == times["denoise_step_cached"].runs == 1
        networks.close()
    assert np.array_equal(*results)
    assert notices == []


def test_warm_up_runs_every_graph_once(make: DemoNetworks) -> None:
    networks = make()
    networks.warm_up(GRAPHS)
    assert {time.graph: time.runs for time in networks.times()} == dict.fromkeys(GRAPHS, 1)


def test_a_graph_that_is_not_there(make: DemoNetworks) -> None:
    with pytest.raises(BundleError, match="has no graph upscaler"):
        make().session("upscaler")


TROUBLES = {
    "full": "the disc is full",
    "a file": "a file is in the place of the engine cache",
    "read-only": "the engine cache cannot be used (Read-only file system",
}


def read_only(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


@pytest.mark.parametrize("trouble", TROUBLES)
def test_without_a_cache_engines_are_built_for_this_run(
    make: DemoNetworks, notices: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    wanted = denoised(make(engine_cache=tmp_path / "good"))
    builds: list[str] = []
    make_engine = OptimizedGraph.make

    def count(self: OptimizedGraph, place: object, folder: Path) -> None:
        builds.append(str(place))
        make_engine(self, place, folder)  # type: ignore[arg-type]

    monkeypatch.setattr(OptimizedGraph, "make", count)
    if trouble == "full":
        usage = shutil.disk_usage(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    elif trouble == "a file":
        (tmp_path / "cache").write_text("")
    else:
        monkeypatch.setattr(FileLock, "acquire", read_only)
    networks = make()
    networks.prepare(GRAPHS)
    assert np.array_equal(denoised(networks), wanted)
    assert all(time.built for time in networks.times())
    assert len(builds) == (trouble == "full")  # one is tried; the others would be lost as well
    for graph in GRAPHS:
        (told,) = (notice for notice in notices if f"; {graph} is built for this run only" in notice)
        assert TROUBLES[trouble] in told


def test_a_cache_deleted_meanwhile_is_made_again(make: DemoNetworks, tmp_path: Path, notices: list[str]) -> None:
    networks = make()
    networks.prepare(GRAPHS[:2])
    wanted = networks.encode(np.zeros((4, 3, 128, 128), np.float32))
    shutil.rmtree(tmp_path / "cache")
    assert networks.decode(wanted).shape == (4, 3, 128, 128)
    assert np.array_equal(networks.encode(np.zeros((4, 3, 128, 128), np.float32)), wanted)
    assert by_graph(networks.times())["vae_decoder"].built
    assert notices == []


def test_a_damaged_engine_is_built_again_with_a_notice(make: DemoNetworks, tmp_path: Path, notices: list[str]) -> None:
    first = make()
    first.prepare(["vae_encoder"])
    first.close()
    (graph,) = (tmp_path / "cache").glob("*/graph.onnx")
    os.truncate(graph, 1000)
    again = make()
    again.prepare(["vae_encoder"])
    assert by_graph(again.times())["vae_encoder"].built
    assert len(notices) == 1
    assert "instead of" in notices[0]
    assert notices[0].endswith("discarded")


# Never silently elsewhere.


def test_a_session_that_runs_elsewhere_is_refused_with_counts(
    make: DemoNetworks, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"CPUExecutionProvider": 89, "CUDAExecutionProvider": 911}
    monkeypatch.setattr(Session, "nodes_by_provider", lambda self: counts)
    monkeypatch.setattr(OptimizedGraph, "_providers", lambda self: CPU_PROVIDER)
    monkeypatch.setattr(ort.InferenceSession, "get_providers", lambda self: ["CUDAExecutionProvider"])
    networks = make(Selection("cuda", gpu=Gpu(0, "RTX", "8.9", 2**34, "0000:01:00.0")))
    networks.session("vae_encoder")
    assert by_graph(networks.times())["vae_encoder"].node_share == pytest.approx(0.911)
    counts["CPUExecutionProvider"] = 389
    with pytest.raises(EngineBuildError, match=r"cuda runs 70% .* 90% .*389 on CPUEx.*, 911 on CUDAEx.*--provider"):
        networks.session("vae_decoder")


@pytest.mark.parametrize(("size", "on_cpu"), [("windows", 1), (2, 3)])
def test_shapes_computed_on_the_cpu_are_no_fallback(size: int | str, on_cpu: int) -> None:
    def given(provider: str, *operators: str) -> SimpleNamespace:
        nodes = [SimpleNamespace(op_type=operator) for operator in operators]
        return SimpleNamespace(ep_name=provider, get_nodes=lambda: nodes)

    parts = [given("CUDAExecutionProvider", "Concat", "Conv"), given("CPUExecutionProvider", "Concat", "Mul", "Conv")]
    session = SimpleNamespace(
        inputs=(TensorInfo("latents", (size, 4), np.dtype(np.float32)),),
        ort=SimpleNamespace(get_provider_graph_assignment_info=lambda: parts),
    )
    counts = Session.nodes_by_provider(cast(Session, session))
    assert counts == {"CUDAExecutionProvider": 2, "CPUExecutionProvider": on_cpu}


def test_a_provider_that_did_not_load_is_refused(
    make: DemoNetworks, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort.InferenceSession, "get_providers", lambda self: ["AzureExecutionProvider"])
    with pytest.raises(EngineBuildError, match="choose another --provider"):
        make().session("vae_encoder")
    assert device.networks() == set()


@pytest.fixture(params=["make", "open"])
def gpu_in_vain(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Selection:
    """A GPU whose provider cannot make, or not open, the last graph of a run."""
    do = getattr(OptimizedGraph, request.param)

    def refuse(self: OptimizedGraph, place: Place, folder: Path) -> object:
        if self.provider.startswith("CUDA") and place.graph.stem == "vae_decoder":
            raise EngineBuildError("no kernel image")
        return do(replace(self, provider="CPUExecutionProvider", provider_options=CpuOptions()), place, folder)

    monkeypatch.setattr(OptimizedGraph, request.param, refuse)
    monkeypatch.setattr(OptimizedGraph, "_providers", lambda self: CPU_PROVIDER)
    monkeypatch.setattr(Engines, "_node_share", lambda self, session: 1.0)
    return Selection("cuda", gpu=Gpu(0, "RTX", "8.9", 2**34, "0000:01:00.0"))


@pytest.mark.parametrize("low_memory", [False, True])
def test_left_to_us_the_next_provider_runs_and_it_is_said(
    make: DemoNetworks, notices: list[str], gpu_in_vain: Selection, monkeypatch: pytest.MonkeyPatch, low_memory: bool
) -> None:
    monkeypatch.setattr(pool, "give_back_gpu_memory", lambda device: None)
    networks = make(gpu_in_vain, may_pass_over=True, low_memory=low_memory)
    networks.prepare(GRAPHS)
    assert networks.selection.name == "cpu"
    assert notices == ["cuda cannot run this bundle, going on with cpu: no kernel image"]
    assert {time.provider for time in networks.times() if time.graph == "vae_decoder"} == {"cpu"}
    assert np.array_equal(denoised(networks), denoised(make()))


def test_a_demanded_provider_raises(make: DemoNetworks, gpu_in_vain: Selection) -> None:
    networks = make(gpu_in_vain)
    with pytest.raises(EngineBuildError, match="no kernel image"):
        networks.prepare(GRAPHS)


def test_with_no_provider_left_the_reason_is_raised(make: DemoNetworks, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: OptimizedGraph, place: object, folder: Path) -> None:
        raise EngineBuildError("unknown operator")

    monkeypatch.setattr(OptimizedGraph, "make", refuse)
    with pytest.raises(EngineBuildError, match="unknown operator"):
        make(may_pass_over=True).prepare(GRAPHS)
