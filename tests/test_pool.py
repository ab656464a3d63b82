"""The pool of sessions: each graph opened once, engines built once, and nothing run silently on another provider."""

import errno
import functools
import itertools
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import onnxruntime as ort
import pytest
from filelock import FileLock

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.errors import BundleError, EngineBuildError
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.providers.gpu import Gpu
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.runtime.sessions import memory, pool
from latentsync_trt.runtime.sessions import session as session_module
from latentsync_trt.runtime.sessions.builders import DirectOpen, GraphSource
from latentsync_trt.runtime.sessions.engines import Engines, OpenedEngine
from latentsync_trt.runtime.sessions.pool import SessionPool
from latentsync_trt.runtime.sessions.session import CPU, Session, TensorInfo
from tests.compiling import COMPILING, CopyBuilder, compiling_provider
from tests.device import CPU as CPU_SELECTION
from tests.device import GRAPHS, DemoNetworks, Device, by_graph, denoised
from tests.small import small_bundle

GPU = Gpu(0, "RTX", "8.9", 2**34, "0000:01:00.0")
VAE = ("vae_encoder", "vae_decoder")


@pytest.fixture
def notices(make: DemoNetworks) -> list[str]:
    return make.notices


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
    open_graph = DirectOpen.open

    def meet(self: DirectOpen, source: GraphSource) -> Session:
        if next(calls) < 2:
            together.wait(30)  # breaks if graphs are opened one after the other
        return open_graph(self, source)

    monkeypatch.setattr(DirectOpen, "open", meet)
    networks.prepare(GRAPHS)
    assert sorted(device.opened) == sorted(GRAPHS)
    networks.prepare(GRAPHS)
    assert len(device.opened) == len(GRAPHS)


def test_a_second_start_builds_nothing_and_gives_the_same(
    make: DemoNetworks, compiler: CopyBuilder, notices: list[str]
) -> None:
    results = []
    for start in range(2):
        networks = make(COMPILING)
        networks.prepare(VAE)
        results.append(encoded(networks))
        times = by_graph(networks.times())
        assert {time.built for time in times.values()} == {start == 0}
        assert all(time.build_s > 0 and time.open_s > 0 for time in times.values())
        assert times["vae_encoder"].runs == 2  # masked faces and whole ones
        networks.close()
    assert compiler.built == list(VAE)
    assert np.array_equal(*results)
    assert [notice.partition(":")[0] for notice in notices] == ["vae_encoder"] * 2 + ["vae_decoder"] * 2


def test_warm_up_runs_every_graph_once(make: DemoNetworks) -> None:
    networks = make()
    networks.warm_up(GRAPHS)
    assert {time.graph: time.runs for time in networks.times()} == dict.fromkeys(GRAPHS, 1)


def test_a_graph_that_is_not_there(make: DemoNetworks) -> None:
    with pytest.raises(BundleError, match="has no graph upscaler"):
        make().session("upscaler")


TROUBLES = {
    "full": "the disk is full",
    "a file": "the engine cache cannot be used (",
    "read-only": "the engine cache cannot be used (Read-only file system",
}


def read_only(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


@pytest.mark.parametrize("trouble", TROUBLES)
def test_without_a_cache_engines_are_built_for_this_run(
    make: DemoNetworks,
    compiler: CopyBuilder,
    notices: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trouble: str,
) -> None:
    wanted = encoded(make())
    if trouble == "full":
        usage = shutil.disk_usage(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    elif trouble == "a file":
        (tmp_path / "cache").write_text("")
    else:
        monkeypatch.setattr(FileLock, "acquire", read_only)
    networks = make(COMPILING)
    networks.prepare(VAE)
    assert np.array_equal(encoded(networks), wanted)
    assert all(time.built for time in networks.times())
    assert len(compiler.built) == (trouble == "full")  # one is tried; the others would be lost as well
    for graph in VAE:
        (notice,) = (notice for notice in notices if f"; {graph} is built for this run only" in notice)
        assert TROUBLES[trouble] in notice


def test_a_cache_that_was_deleted_is_made_again(
    make: DemoNetworks, compiler: CopyBuilder, tmp_path: Path, notices: list[str]
) -> None:
    networks = make(COMPILING)
    networks.prepare(VAE[:1])
    wanted = encoded(networks)
    shutil.rmtree(tmp_path / "cache")
    assert len(networks.codec.decode_faces(wanted)) == 1
    assert np.array_equal(encoded(networks), wanted)
    assert by_graph(networks.times())["vae_decoder"].built
    assert len(notices) == 4  # two builds, begun and done


def test_a_damaged_engine_is_built_again_with_a_notice(
    make: DemoNetworks, compiler: CopyBuilder, tmp_path: Path, notices: list[str]
) -> None:
    first = make(COMPILING)
    first.prepare(VAE[:1])
    first.close()
    (engine,) = (tmp_path / "cache").glob("*/engine.onnx")
    os.truncate(engine, 1000)
    notices.clear()
    again = make(COMPILING)
    again.prepare(VAE[:1])
    assert by_graph(again.times())["vae_encoder"].built
    assert "instead of" in notices[0]
    assert notices[0].endswith("building it again")


# Several threads.


@dataclass
class Opened:
    """An engine that costs nothing to open; counts how often its session was closed."""

    closed: int = 0
    opened_at_s: float = 0.0
    runs: int = 0
    first_run_s: float = 0.0
    later_runs_s: float = 0.0

    def close(self) -> None:
        self.closed += 1


@dataclass
class CheapEngines:
    """`Engines` of the demo bundle whose sessions are made at once."""

    bundle: Bundle
    opened: list[Opened] = field(default_factory=list)
    selection: Selection = CPU_SELECTION

    def open(self, graph: str, *, profile_prefix: Path | None) -> OpenedEngine:
        self.opened.append(Opened())
        return OpenedEngine(cast(Session, self.opened[-1]), 1.0, built=False, build_s=0.0, open_s=0.0, size_bytes=0)


def cheap_pool(on_close: Callable[[tuple[str, ...]], None] = lambda graphs: None) -> SessionPool:
    engines = CheapEngines(Bundle.load(small_bundle(), verify=False))
    return SessionPool(
        cast(Engines, engines), low_memory=False, trace_folder=None, on_notice=lambda text: None, on_close=on_close
    )


def test_two_threads_that_close_a_pool_close_each_session_once() -> None:
    gate = threading.Barrier(2)

    def meet(graphs: tuple[str, ...]) -> None:
        with suppress(threading.BrokenBarrierError):
            gate.wait(0.2)  # as where both threads come here, which they should not

    made = cheap_pool(meet)
    for graph in VAE:
        made.session(graph)
    with ThreadPoolExecutor(2) as threads:
        for ended in [threads.submit(made.close) for _ in range(2)]:
            ended.result()
    assert [session.closed for session in cast(CheapEngines, made.engines).opened] == [1, 1]


def test_a_session_is_given_though_another_thread_closes_it() -> None:
    made, stopped = cheap_pool(), threading.Event()

    def close() -> None:
        while not stopped.is_set():
            made.close()

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as threads:
            closing = threads.submit(close)
            try:
                for _ in range(3000):
                    made.session("vae_encoder")
            finally:
                stopped.set()
            closing.result()
    finally:
        sys.setswitchinterval(interval_s)
    made.close()
    assert {session.closed for session in cast(CheapEngines, made.engines).opened} == {1}


def test_shared_memory_is_made_once_for_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def make(*arguments: object) -> None:
        time.sleep(0.05)
        made.append(str(arguments[0]))

    for cached in (memory._share_cpu_memory, memory._share_gpu_memory):
        monkeypatch.setattr(memory, cached.__name__, functools.cache(cached.__wrapped__))
    monkeypatch.setattr(ort, "create_and_register_allocator", lambda *_: make("cpu"))
    monkeypatch.setattr(ort, "create_and_register_allocator_v2", make)
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(lambda _: memory.share_memory((("CUDAExecutionProvider", {}),)), range(4)))
    assert sorted(made) == ["CUDAExecutionProvider", "cpu"]


@pytest.mark.parametrize(
    ("given", "threads"),
    [("", 0), ("1", 1), (" 1 ,4", 1), ("0", 0), ("-3", 0), ("²", 0), ("x", 0), ("9" * 30, os.cpu_count())],
)
def test_the_number_of_threads_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, given: str, threads: int, tmp_path: Path
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    session = Session(small_bundle() / "vae_decoder.onnx")
    assert session.ort.get_session_options().intra_op_num_threads == threads


def test_options_that_onnxruntime_refuses_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no such device")

    monkeypatch.setattr(session_module, "share_memory", fail)
    with pytest.raises(EngineBuildError, match=r"vae_decoder\.onnx: no such device"):
        Session(small_bundle() / "vae_decoder.onnx")


# Nothing runs silently on another provider.


def test_a_session_that_is_refused_leaves_no_trace(
    make: DemoNetworks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Session, "nodes_by_provider", lambda self: {"CUDAExecutionProvider": 1})
    with pytest.raises(EngineBuildError):
        make(profile=str(tmp_path / "profile")).session("vae_encoder")
    assert list((tmp_path / "profile").iterdir()) == []


def test_a_session_that_runs_mostly_on_another_provider_is_refused(
    make: DemoNetworks, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"CPUExecutionProvider": 89, "CUDAExecutionProvider": 911}
    monkeypatch.setattr(Session, "nodes_by_provider", lambda self: counts)
    monkeypatch.setattr(Engines, "_opener", lambda self, graph: DirectOpen(CPU))
    monkeypatch.setattr(ort.InferenceSession, "get_providers", lambda self: ["CUDAExecutionProvider"])
    networks = make(Selection("cuda", gpu=GPU))
    networks.session("vae_encoder")
    assert by_graph(networks.times())["vae_encoder"].node_share == pytest.approx(0.911)
    counts["CPUExecutionProvider"] = 389
    with pytest.raises(EngineBuildError, match=r"cuda runs 70% .* 90% .*389 on CPUEx.*, 911 on CUDAEx.*--provider"):
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


def test_a_provider_that_did_not_load_is_refused(
    make: DemoNetworks, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort.InferenceSession, "get_providers", lambda self: ["AzureExecutionProvider"])
    with pytest.raises(EngineBuildError, match="choose another --provider"):
        make().session("vae_encoder")
    assert device.networks() == set()


@pytest.fixture
def failing_gpu(monkeypatch: pytest.MonkeyPatch) -> Selection:
    """A GPU whose provider cannot open the last graph of a run."""
    open_graph = DirectOpen.open

    def refuse(self: DirectOpen, source: GraphSource) -> Session:
        if self.providers[0][0].startswith("CUDA") and source.path.stem == "vae_decoder":
            raise EngineBuildError("no kernel image")
        return open_graph(DirectOpen(CPU), source)

    monkeypatch.setattr(DirectOpen, "open", refuse)
    monkeypatch.setattr(Engines, "_node_share", lambda self, session: 1.0)
    monkeypatch.setattr(pool, "give_back_gpu_memory", lambda selection: None)
    return Selection("cuda", gpu=GPU)


@pytest.mark.parametrize("low_memory", [False, True])
def test_with_auto_the_next_provider_runs_with_a_notice(
    make: DemoNetworks, notices: list[str], failing_gpu: Selection, low_memory: bool
) -> None:
    networks = make(failing_gpu, may_fall_back=True, low_memory=low_memory)
    networks.prepare(GRAPHS)
    assert networks.selection.name == "cpu"
    assert notices == ["cuda cannot run this bundle, continuing with cpu: no kernel image"]
    assert {time.provider for time in networks.times() if time.graph == "vae_decoder"} == {"cpu"}
    assert np.array_equal(denoised(networks), denoised(make()))


def test_a_named_provider_that_fails_is_an_error(make: DemoNetworks, failing_gpu: Selection) -> None:
    networks = make(failing_gpu)
    with pytest.raises(EngineBuildError, match="no kernel image"):
        networks.prepare(GRAPHS)


def test_with_no_provider_left_the_reason_is_raised(make: DemoNetworks, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: DirectOpen, source: GraphSource) -> Session:
        raise EngineBuildError("unknown operator")

    monkeypatch.setattr(DirectOpen, "open", refuse)
    with pytest.raises(EngineBuildError, match="unknown operator"):
        make(may_fall_back=True).prepare(GRAPHS)
