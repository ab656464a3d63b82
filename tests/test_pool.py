"""The pool of sessions: each graph opened once, engines built once, and nothing run silently on another provider."""

import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from typing import cast

import numpy as np
import onnxruntime as ort
import pytest

from latentsync_trt.bundle.manifest import GraphForm
from latentsync_trt.errors import EngineBuildError, OutOfMemory
from latentsync_trt.runtime.networks import opened as opened_module
from latentsync_trt.runtime.model import Networks
from latentsync_trt.runtime.providers.gpu import Gpu
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.runtime.engines.session import CPU, Providers, Session, TensorInfo
from tests.compiling import COMPILING, CopyBuilder, compiling_provider
from tests.device import GRAPHS, DemoNetworks, Device, denoised
from tests.small import small_bundle

pytestmark = pytest.mark.integration

GPU = Gpu(0, "RTX", "8.9", 2**34, "0000:01:00.0")
VAE = ("vae_encoder", "vae_decoder")


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> CopyBuilder:
    return compiling_provider(monkeypatch)


def encoded(networks: Networks) -> np.ndarray:
    faces = np.arange(128 * 128 * 3, dtype=np.uint8).reshape(1, 128, 128, 3)
    return networks.codec.encode_faces(faces, np.ones((128, 128), np.float32))[1]


# Opened once, built once.


def test_a_graph_that_many_threads_ask_for_is_opened_once(make: DemoNetworks, device: Device) -> None:
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
    open_form = Engines._open_form

    def meet(self: SessionFactory, graph: str, form: GraphForm) -> Session:
        if next(calls) < 2:
            together.wait(600)  # breaks if graphs are opened one after the other
        return open_form(self, graph, form)

    monkeypatch.setattr(Engines, "_open_form", meet)
    networks.prepare(GRAPHS)
    assert sorted(device.opened) == sorted(GRAPHS)
    networks.prepare(GRAPHS)
    assert len(device.opened) == len(GRAPHS)


def test_a_second_start_builds_nothing_and_gives_the_same(make: DemoNetworks, compiler: CopyBuilder) -> None:
    results = []
    for start in range(2):
        networks = make(COMPILING)
        networks.prepare(VAE)
        results.append(encoded(networks))
        times = {time.graph: time for time in networks.times()}
        assert len(times) == len(VAE)
        assert {time.built for time in times.values()} == {start == 0}
        assert all(time.build_s > 0 and time.open_s > 0 for time in times.values())
        assert times["vae_encoder"].runs == 2 * 2  # masked faces and whole ones, the first time to warm up
        networks.close()
    assert compiler.built == list(VAE)
    assert np.array_equal(*results)
    assert [notice.partition(":")[0] for notice in make.notices] == ["vae_encoder"] * 2 + ["vae_decoder"] * 2


# Nothing runs silently on another provider.


def test_a_session_that_runs_mostly_on_another_provider_is_refused(
    make: DemoNetworks, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"CPUExecutionProvider": 89, "CUDAExecutionProvider": 911}
    monkeypatch.setattr(Session, "nodes_by_provider", lambda self: counts)
    monkeypatch.setattr(Engines, "_providers", lambda *_: CPU)
    monkeypatch.setattr(ort.InferenceSession, "get_providers", lambda self: ["CUDAExecutionProvider"])
    networks = make(Selection("cuda", gpu=GPU))
    networks.session("vae_encoder")
    (opened,) = networks.times()
    assert opened.node_share == pytest.approx(0.911)
    counts["CPUExecutionProvider"] = 389
    with pytest.raises(EngineBuildError, match=r"cuda runs 70% .* 90% .*389 on CPUEx.*, 911 on CUDAEx.*provider"):
        networks.session("vae_decoder")


@pytest.mark.parametrize(("size", "on_cpu"), [("windows", 1), (2, 3)])
def test_nodes_that_compute_shapes_on_the_cpu_do_not_count(size: int | str, on_cpu: int) -> None:
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


@pytest.fixture
def failing_gpu(monkeypatch: pytest.MonkeyPatch) -> Selection:
    """A GPU whose provider cannot open the last graph of a run."""

    def refuse(self: SessionFactory, graph: str, form: GraphForm) -> Providers:
        if self.selection.gpu is not None and graph == "vae_decoder":
            raise EngineBuildError("no kernel image")
        return CPU

    monkeypatch.setattr(Engines, "_providers", refuse)
    monkeypatch.setattr(Engines, "_node_share", lambda self, session: 1.0)
    monkeypatch.setattr(opened_module, "give_back_gpu_memory", lambda selection: None)
    return Selection("cuda", gpu=GPU)


def test_with_auto_the_next_provider_runs_with_a_notice(make: DemoNetworks, failing_gpu: Selection) -> None:
    networks = make(failing_gpu, may_fall_back=True)
    networks.prepare(GRAPHS)
    assert networks.selection.name == "cpu"
    assert make.notices == ["cuda is not used for this bundle, continuing with cpu: no kernel image"]
    assert {time.provider for time in networks.times() if time.graph == "vae_decoder"} == {"cpu"}
    assert np.array_equal(denoised(networks), denoised(make()))


# Several threads.


def test_two_threads_that_close_a_pool_close_each_session_once(
    make: DemoNetworks, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, closed, close = threading.Barrier(2), [], Session.close

    def meet(session: Session) -> None:
        with suppress(threading.BrokenBarrierError):
            gate.wait(0.2)  # as where both threads come here, which they should not
        closed.append(session)
        close(session)

    networks = make()
    opened = [networks.session(graph) for graph in VAE]
    monkeypatch.setattr(Session, "close", meet)
    with ThreadPoolExecutor(2) as threads:
        for ended in [threads.submit(networks.close) for _ in range(2)]:
            ended.result()
    assert sorted(map(id, closed)) == sorted(map(id, opened))


@pytest.mark.parametrize("error", [EngineBuildError("no"), OutOfMemory("too little"), KeyboardInterrupt()])
def test_an_error_while_others_open_leaves_no_session_behind(
    make: DemoNetworks, device: Device, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    networks, gate = make(), threading.Barrier(2)
    open_form, calls = Engines._open_form, itertools.count()

    def fail_once(self: SessionFactory, graph: str, form: GraphForm) -> Session:
        number = next(calls)
        if number < 2:
            gate.wait(600)
        if number == 1:
            raise error
        return open_form(self, graph, form)

    monkeypatch.setattr(Engines, "_open_form", fail_once)
    if isinstance(error, OutOfMemory):
        networks.prepare(GRAPHS)  # one network at a time
        assert len(device.networks()) == 1
    else:
        with pytest.raises(type(error)):
            networks.prepare(GRAPHS)
    networks.close()
    assert device.networks() == set()
    networks.session("vae_encoder")


@pytest.mark.parametrize(
    ("given", "threads"),
    [("", 0), (" 1 ,4", 1), ("-3", 0), ("²", 0), ("9" * 30, os.cpu_count())],
)
def test_the_number_of_threads_in_the_environment(monkeypatch: pytest.MonkeyPatch, given: str, threads: int) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    session = Session(small_bundle() / "vae_decoder.onnx")
    assert session.ort.get_session_options().intra_op_num_threads == threads
