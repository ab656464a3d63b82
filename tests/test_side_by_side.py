"""Networks open while pictures are read, and their stages run side by side. The GPU here is the CPU, which runs engines
that are copies of the graphs."""

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latentsync_trt import LipSync
from latentsync_trt.errors import EngineBuildError, InferenceError, InputError
from latentsync_trt.runtime.networks import denoiser as denoiser_module
from latentsync_trt.runtime.denoiser import GraphDenoiser
from latentsync_trt.runtime.model import Networks
from latentsync_trt.runtime.networks.opened import Opened
from latentsync_trt.runtime.stages import StageThreads, results
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.runtime.engines.session import Session
from latentsync_trt.sync.inpaint import Inpainter
from latentsync_trt.sync.paint import Painter
from latentsync_trt.types import Progress
from tests.clips import LOSSLESS, decoded, synced
from tests.compiling import COMPILING, compiling_provider
from tests.device import GRAPHS, DemoNetworks, Device
from tests.serving import until

WINDOWS = 3
STAGES = ("encode", "denoise", "decode")
TIMEOUT_S = 600.0


@pytest.fixture
def gpu(make: DemoNetworks, monkeypatch: pytest.MonkeyPatch) -> Networks:
    compiling_provider(monkeypatch)
    monkeypatch.setattr(Selection, "device", "cpu")
    return make(COMPILING)


Watch = Callable[[str, int], object]


def watch(monkeypatch: pytest.MonkeyPatch, called: Watch) -> None:
    """Calls `called` with the name of each stage that runs and the number of its earlier runs, in its thread."""
    counts = dict.fromkeys(STAGES, 0)

    def watched(stage: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            called(stage, counts[stage])
            counts[stage] += 1
            return usual(*given)

        return run

    for stage in STAGES:
        monkeypatch.setattr(Inpainter, stage, watched(stage, getattr(Inpainter, stage)))


def our_threads() -> set[threading.Thread]:
    """Also those of networks that other tests keep open."""
    return {each for each in threading.enumerate() if each.name.startswith((*STAGES, "paint", "gather", "open"))}


@pytest.mark.integration
def test_a_window_is_encoded_and_one_decoded_while_another_is_denoised(
    gpu: Networks,
    three_windows: tuple[Path, Path],
    three_windows_synced: np.ndarray,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = our_threads()
    running = {(stage, number): threading.Event() for stage in STAGES for number in range(2 * WINDOWS)}
    used: set[tuple[str, str, int]] = set()

    def meet(stage: str, number: int) -> None:
        running[stage, number].set()
        used.add((stage, threading.current_thread().name, threading.get_ident()))
        if (stage, number) == ("denoise", 1):
            assert running["decode", 0].wait(TIMEOUT_S)
            assert running["encode", 2].wait(TIMEOUT_S)

    watch(monkeypatch, meet)
    with LipSync(gpu) as lip_sync:
        for number in range(2):
            report = lip_sync.sync(*three_windows, tmp_path / f"{number}.mkv", LOSSLESS)
            assert np.array_equal(np.stack(decoded(tmp_path / f"{number}.mkv")), three_windows_synced)
            assert report.windows == report.devices[0].windows == WINDOWS
            assert 0 < report.devices[0].busy_s < report.wall_s
        assert sorted(stage for stage, _, _ in used) == sorted(STAGES)  # a thread for each, the same for all clips
        assert all(name.startswith(stage) for stage, name, _ in used)
    assert our_threads() <= before


@pytest.mark.integration
@pytest.mark.parametrize("on_gpu", [True, False])
def test_two_clips_at_once(
    request: pytest.FixtureRequest,
    make: DemoNetworks,
    three_windows: tuple[Path, Path],
    three_windows_synced: np.ndarray,
    tmp_path: Path,
    on_gpu: bool,
) -> None:
    """They open networks for different steps, and paint at the same time; one that is stopped leaves the other."""
    networks = request.getfixturevalue("gpu") if on_gpu else make()
    other, both = replace(LOSSLESS, guidance=1.0), threading.Barrier(3)
    alone = synced(three_windows, tmp_path / "alone.mkv", other)

    def meet(progress: Progress) -> None:
        if progress.stage == "painting first frames":
            both.wait(TIMEOUT_S)

    def stop(progress: Progress) -> None:
        meet(progress)
        if progress.stage == "lip-sync":
            raise InputError("stopped")

    with LipSync(networks) as lip_sync, ThreadPoolExecutor() as threads:
        runs = [
            threads.submit(lip_sync.sync, *three_windows, tmp_path / f"{number}.mkv", options, on_progress=progress)
            for number, (options, progress) in enumerate([(LOSSLESS, meet), (other, meet), (other, stop)])
        ]
        for run in runs[:2]:
            assert run.result(TIMEOUT_S).windows == WINDOWS
        with pytest.raises(InputError, match="stopped"):
            runs[2].result(TIMEOUT_S)
    assert np.array_equal(np.stack(decoded(tmp_path / "0.mkv")), three_windows_synced)
    assert np.array_equal(np.stack(decoded(tmp_path / "1.mkv")), alone)
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix) == ["0.mkv", "1.mkv", "alone.mkv"]


def test_stages_of_an_older_clip_pass_those_of_a_younger_one_but_not_for_ever() -> None:
    threads, go_on, ran = StageThreads(lambda: True), threading.Event(), list[str]()
    first = threads.start("denoise", lambda: go_on.wait(TIMEOUT_S))
    given = {"younger": 3, "older 1": 0, "older 2": 0, "older 3": 0}
    made = [threads.start("denoise", partial(ran.append, name), after=after) for name, after in given.items()]
    go_on.set()
    results([first, *made])
    threads.close()
    assert ran == ["older 1", "older 2", "younger", "older 3"]


def test_an_action_alone_runs_while_no_other_stage_does_anything() -> None:
    threads, begun, go_on, ran = StageThreads(lambda: True), threading.Event(), threading.Event(), list[str]()

    def decode() -> None:
        begun.set()
        assert go_on.wait(TIMEOUT_S)
        ran.append("decode")

    made = [threads.start("decode", decode)]
    assert begun.wait(TIMEOUT_S)
    made.append(threads.start("denoise", partial(ran.append, "alone"), alone=lambda: True))
    assert not wait(made, timeout=0.2, return_when=FIRST_COMPLETED).done
    made.append(threads.start("encode", partial(ran.append, "encode")))
    assert not wait(made, timeout=0.2, return_when=FIRST_COMPLETED).done
    go_on.set()
    results(made)
    threads.close()
    assert ran == ["decode", "alone", "encode"]


@pytest.mark.integration
@pytest.mark.parametrize("fails", [False, True])
def test_first_windows_are_encoded_while_other_networks_open(
    gpu: Networks,
    three_windows: tuple[Path, Path],
    three_windows_synced: np.ndarray,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fails: bool,
) -> None:
    opening, encoded, order = threading.Event(), threading.Event(), list[str]()
    steps, gather = Opened._steps, Painter.gather

    def first_steps(self: Opened, *given: Any, **named: Any) -> None:
        opening.set()
        assert encoded.wait(TIMEOUT_S)
        steps(self, *given, **named)
        order.append("open")

    def late(self: Painter, jobs: Any) -> Any:
        assert opening.wait(TIMEOUT_S)
        yield from gather(self, jobs)

    def note(stage: str, _: int) -> None:
        order.append(stage)
        if stage == "encode":
            encoded.set()
            if fails and order.count("encode") == 1:
                raise InferenceError("no kernel image")

    monkeypatch.setattr(Opened, "_steps", first_steps)
    monkeypatch.setattr(Painter, "gather", late)
    watch(monkeypatch, note)
    with LipSync(gpu) as lip_sync:
        lip_sync.sync(*three_windows, tmp_path / "out.mkv", LOSSLESS)
    assert np.array_equal(np.stack(decoded(tmp_path / "out.mkv")), three_windows_synced)
    assert order[0] == "encode"
    assert order.count("encode") == WINDOWS + fails


@pytest.mark.integration
@pytest.mark.parametrize("warm", [False, True])
def test_cuda_graphs_are_recorded_alone_and_once_a_window_is_there(
    make: DemoNetworks,
    three_windows: tuple[Path, Path],
    three_windows_synced: np.ndarray,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    warm: bool,
) -> None:
    """The networks of a service have recorded before."""
    compiling_provider(monkeypatch)
    monkeypatch.setattr(Engines, "_uses_cuda_graph", lambda self: True)
    monkeypatch.setattr(denoiser_module, "replays_faithfully", lambda denoiser, batch: True)
    monkeypatch.setattr(Opened, "_records_at_opening", False)  # as with the CUDA provider
    networks, steps, usual = make(COMPILING), dict[int, set[tuple[bool, bool]]](), Session.run_bound

    def copy_back(self: GraphDenoiser) -> None:
        for name, value in self._states[1].items():
            self._states[0][name].update_inplace(value.numpy())

    def run_bound(self: Session, binding: Any, *, recorded: bool = True) -> None:
        if threading.current_thread().name.startswith("denoise"):
            steps.setdefault(len(windows), set()).add((recorded, networks._threads.alone))
        usual(self, binding, recorded=recorded)

    def meet(stage: str, number: int) -> None:
        if stage == "denoise":
            windows.append(number)
            if number == 1:
                until(lambda: networks._opened.decoded)
        elif (stage, number) == ("decode", 0):
            until(lambda: 1 in windows)  # else the second window might record

    windows = list[int]()
    monkeypatch.setattr(GraphDenoiser, "_copy_back", copy_back)
    watch(monkeypatch, meet)
    with LipSync(networks) as lip_sync:
        if warm:
            lip_sync.warm_up(LOSSLESS)
        monkeypatch.setattr(Session, "run_bound", run_bound)
        lip_sync.sync(*three_windows, tmp_path / "out.mkv", LOSSLESS)
    assert np.array_equal(np.stack(decoded(tmp_path / "out.mkv")), three_windows_synced)
    replayed, first, recording = {(True, False)}, {(False, False)}, {(True, True)}
    steps.pop(0, None)  # before any window
    assert [steps[number] for number in (1, 2, 3)] == ([replayed] * 3 if warm else [first, first, recording])


@pytest.mark.integration
def test_networks_open_while_no_window_is_painted(gpu: Networks, monkeypatch: pytest.MonkeyPatch) -> None:
    painting, painted, opened = threading.Event(), threading.Event(), threading.Event()
    open_all = Networks.open_all

    def noted(self: Networks, graphs: tuple[str, ...]) -> None:
        assert painted.is_set()
        open_all(self, graphs)
        opened.set()

    def paint() -> None:
        painting.set()
        assert not opened.wait(0.2)
        painted.set()

    monkeypatch.setattr(Networks, "open_all", noted)
    with ThreadPoolExecutor() as threads:
        window = threads.submit(gpu.run, paint)
        assert painting.wait(TIMEOUT_S)
        gpu.prepare(GRAPHS)
        window.result(TIMEOUT_S)
    assert gpu.is_ready(GRAPHS)  # so that the next clip need not wait for windows


@pytest.mark.integration
@pytest.mark.parametrize("stage", STAGES)
def test_memory_that_runs_out_side_by_side(
    gpu: Networks,
    device: Device,
    three_windows: tuple[Path, Path],
    three_windows_synced: np.ndarray,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
) -> None:
    before = our_threads()
    shrunk = threading.Event()

    def shrink(running: str, number: int) -> None:
        if (running, number) == (stage, 1):
            device.room_to_run = 1
            shrunk.set()
        elif (running, number) == ("denoise", 2):  # else nothing but decoding might be left
            assert shrunk.wait(TIMEOUT_S)

    watch(monkeypatch, shrink)
    with LipSync(gpu) as lip_sync:
        report = lip_sync.sync(*three_windows, tmp_path / "out.mkv", LOSSLESS)
        assert np.array_equal(np.stack(decoded(tmp_path / "out.mkv")), three_windows_synced)
        assert [notice.partition(": ")[2] for notice in report.notices if "is short (it ran out)" in notice] == [
            "stages of painting run in turn, which is slower",
            "one network at a time is kept on it, which is slower",
        ]
        assert gpu.low_memory
        assert len(device.networks()) == 1
    assert our_threads() <= before


@pytest.mark.integration
def test_memory_that_runs_out_at_first_runs(gpu: Networks, device: Device) -> None:
    device.room_to_run = 1
    gpu.prepare(GRAPHS)
    gpu.encode_mel(np.zeros((1, 80, 3000), np.float32))
    assert gpu.low_memory
    assert len(device.networks()) == 1


@pytest.mark.integration
@pytest.mark.parametrize("fails", [False, True])
def test_pictures_are_read_while_networks_open(
    make: DemoNetworks,
    three_windows: tuple[Path, Path],
    three_windows_synced: np.ndarray,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fails: bool,
) -> None:
    networks, gathered = make(), threading.Event()
    prepare, gather = Networks.prepare, Painter.gather

    def wait(self: Networks, graphs: tuple[str, ...]) -> None:
        assert gathered.wait(TIMEOUT_S)
        if fails:
            raise EngineBuildError("no kernel image")
        prepare(self, graphs)

    def watched(self: Painter, jobs: Any) -> Any:
        for item in gather(self, jobs):
            if item.windows:
                gathered.set()
            yield item

    monkeypatch.setattr(Networks, "prepare", wait)
    monkeypatch.setattr(Painter, "gather", watched)
    out = tmp_path / "results" / "out.mkv"
    out.parent.mkdir()
    before = set(threading.enumerate())
    with LipSync(networks) as lip_sync:
        if fails:
            with pytest.raises(EngineBuildError, match="no kernel image"):
                lip_sync.sync(*three_windows, out, LOSSLESS)
            assert set(threading.enumerate()) <= before
            assert list(out.parent.iterdir()) == []
            return
        report = lip_sync.sync(*three_windows, out, LOSSLESS)
    assert np.array_equal(np.stack(decoded(out)), three_windows_synced)
    assert 0 < report.opened_s < report.startup_s < report.wall_s
