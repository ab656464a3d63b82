"""Sessions that several threads open and close, and what their environment says."""

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.errors import EngineBuildError, OutOfMemory
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.runtime.sessions.builders import DirectOpen, GraphSource
from latentsync_trt.runtime.sessions.engines import Engines, OpenedEngine
from latentsync_trt.runtime.sessions.pool import SessionPool
from latentsync_trt.runtime.sessions.session import Session
from tests.device import CPU, GRAPHS, DemoNetworks, Device
from tests.small import small_bundle

VAE = ("vae_encoder", "vae_decoder")


@dataclass
class Opened:
    """An engine that costs nothing to open; counts how often its session was closed."""

    closed: int = 0
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
    selection: Selection = CPU

    def open(self, graph: str) -> OpenedEngine:
        self.opened.append(Opened())
        return OpenedEngine(cast(Session, self.opened[-1]), 1.0, 0.0)


def cheap_pool(on_close: Callable[[tuple[str, ...]], None] = lambda graphs: None) -> SessionPool:
    engines = CheapEngines(Bundle.load(small_bundle(), verify=False))
    return SessionPool(cast(Engines, engines), low_memory=False, on_close=on_close)


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


@pytest.mark.parametrize("error", [EngineBuildError("no"), OutOfMemory("too little"), KeyboardInterrupt()])
def test_an_error_while_others_open_leaves_no_session_behind(
    make: DemoNetworks, device: Device, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    networks, gate = make(), threading.Barrier(2)
    open_graph, calls = DirectOpen.open, itertools.count()

    def fail_once(self: DirectOpen, source: GraphSource) -> Session:
        number = next(calls)
        if number < 2:
            gate.wait(30)
        if number == 1:
            raise error
        return open_graph(self, source)

    monkeypatch.setattr(DirectOpen, "open", fail_once)
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
    [("", 0), ("1", 1), (" 1 ,4", 1), ("0", 0), ("-3", 0), ("²", 0), ("x", 0), ("9" * 30, os.cpu_count())],
)
def test_the_number_of_threads_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, given: str, threads: int, tmp_path: Path
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    session = Session(small_bundle() / "vae_decoder.onnx")
    assert session.ort.get_session_options().intra_op_num_threads == threads
