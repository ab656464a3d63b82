"""The pool of sessions: opened once, found again, in turn where memory is short, and never silently elsewhere."""

import itertools
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from click.testing import CliRunner

from latentsync_trt import LipSync, SyncOptions, pipeline
from latentsync_trt.bundle import Bundle, demo_folder
from latentsync_trt.cli import main
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.diffusion.inpainting import Inpainter
from latentsync_trt.errors import BundleError, EngineBuildError, InferenceError, OutOfMemory
from latentsync_trt.runtime.gpu import Gpu
from latentsync_trt.runtime.networks import Networks, graphs_for
from latentsync_trt.runtime.providers import Selection
from latentsync_trt.runtime.recipes import OptimisedGraph
from latentsync_trt.runtime.session import Session
from tests.clips import decoded, write_face, write_sound
from tests.device import Device, by_graph, watched_device

GRAPHS = graphs_for(guidance=1.5, full_steps_only=False)
QUICK = SyncOptions(steps=2, cache_interval=2, lossless=True)
FRAMES, WINDOWS = 36, 3
LOW_MEMORY_NOTICE = "one network at a time is kept"
CPU = Selection("cpu")
LATENTS = (1, 4, 16, 16, 16)

Make = Callable[..., Networks]


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return Bundle.load(demo_folder())


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A face of `WINDOWS` windows, and speech as long."""
    folder = tmp_path_factory.mktemp("clip")
    return write_face(folder / "face.mp4", FRAMES), write_sound(folder / "speech.wav", FRAMES / 25)


@pytest.fixture(scope="module")
def usual(clip: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """What a run with all networks open makes of the clip."""
    target = tmp_path_factory.mktemp("usual") / "out.mkv"
    with LipSync.from_bundle(demo_folder(), "cpu") as lip_sync:
        lip_sync.sync(*clip, target, QUICK)
    return np.stack(decoded(target))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return watched_device(monkeypatch)


@pytest.fixture
def notices() -> list[str]:
    return []


@pytest.fixture
def make(bundle: Bundle, tmp_path: Path, notices: list[str]) -> Iterator[Make]:
    """Makes networks on the CPU, with a cache of the test's own."""
    made: list[Networks] = []

    def make(selection: Selection = CPU, *, may_pass_over: bool = False, **options: object) -> Networks:
        settings = RuntimeOptions(**({"engine_cache": tmp_path / "cache"} | options))  # type: ignore[arg-type]
        networks = Networks(bundle, selection, settings, may_pass_over=may_pass_over, on_notice=notices.append)
        made.append(networks)
        return networks

    yield make
    for networks in made:
        networks.close()


def inputs() -> list[np.ndarray]:
    """Latents, conditioning and audio, made up."""
    random = np.random.default_rng(3)
    return [random.standard_normal(shape, np.float32) for shape in (LATENTS, (1, 9, *LATENTS[2:]), (1, 16, 50, 32))]


def denoised(networks: Networks, *, evict: Callable[[], object] = lambda: None) -> np.ndarray:
    """A full step and two cached ones on made-up inputs; `evict` is called where a new batch begins."""
    denoiser = networks.denoiser()
    results = []
    for _ in range(2):
        denoiser.begin(*inputs(), 1.5)
        for cached in (False, True, True):
            denoiser.step(500, np.array([0.9, 0.1, 0, 0, 0], np.float32), cached=cached)
        results.append(denoiser.latents())
        evict()
    assert np.array_equal(*results)
    return results[0]


# Opened once, found again.


def test_a_graph_is_opened_once_though_many_ask(make: Make, device: Device) -> None:
    networks = make()
    gate = threading.Barrier(8)

    def ask(_: int) -> Session:
        gate.wait()
        return networks.session("vae_encoder")

    with ThreadPoolExecutor(8) as askers:
        sessions = set(askers.map(ask, range(8)))
    assert len(sessions) == 1
    assert device.opened == ["vae_encoder"]


def test_prepare_opens_side_by_side(make: Make, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    networks = make()
    together, calls = threading.Barrier(2), itertools.count()
    open_graph = OptimisedGraph.open

    def meet(self: OptimisedGraph, *arguments: object) -> Session:
        if next(calls) < 2:
            together.wait(30)  # breaks if graphs are opened one after the other
        return open_graph(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(OptimisedGraph, "open", meet)
    networks.prepare(GRAPHS)
    assert sorted(device.opened) == sorted(GRAPHS)
    networks.prepare(GRAPHS)
    assert len(device.opened) == len(GRAPHS)


def test_a_second_start_builds_nothing_and_gives_the_same(make: Make, notices: list[str]) -> None:
    results = []
    for start in range(2):
        networks = make()
        networks.prepare(GRAPHS)
        results.append(denoised(networks))
        times = by_graph(networks.times())
        assert {time.built for time in times.values()} == {start == 0}
        assert all(time.build_s > 0 and time.open_s > 0 for time in times.values())
        assert times["denoise_step"].runs == 2
        assert times["denoise_step_cached"].runs == 4
        networks.close()
    assert np.array_equal(*results)
    assert notices == []


def test_warm_up_runs_every_graph_once(make: Make) -> None:
    networks = make()
    networks.warm_up(GRAPHS)
    assert {time.graph: time.runs for time in networks.times()} == dict.fromkeys(GRAPHS, 1)


def test_a_graph_that_is_not_there(make: Make) -> None:
    with pytest.raises(BundleError, match="has no graph upscaler"):
        make().session("upscaler")


@pytest.mark.parametrize("trouble", ["full", "a file"])
def test_without_a_cache_engines_are_built_for_this_run(
    make: Make, notices: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    wanted = denoised(make(engine_cache=tmp_path / "good"))
    builds: list[str] = []
    make_engine = OptimisedGraph.make

    def count(self: OptimisedGraph, place: object, folder: Path) -> None:
        builds.append(str(place))
        make_engine(self, place, folder)  # type: ignore[arg-type]

    monkeypatch.setattr(OptimisedGraph, "make", count)
    if trouble == "full":
        usage = shutil.disk_usage(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    else:
        (tmp_path / "cache").write_text("")
    networks = make()
    networks.prepare(GRAPHS)
    assert np.array_equal(denoised(networks), wanted)
    assert all(time.built for time in networks.times())
    assert len(builds) == (trouble == "full")  # one is tried; the others would be lost as well
    for graph in GRAPHS:
        (told,) = (notice for notice in notices if f"; {graph} is built for this run only" in notice)
        assert ("the disc is full" if trouble == "full" else "a file is in the place") in told


def test_a_cache_deleted_meanwhile_is_made_again(make: Make, tmp_path: Path, notices: list[str]) -> None:
    networks = make()
    networks.prepare(GRAPHS[:2])
    wanted = networks.encode(np.zeros((4, 3, 128, 128), np.float32))
    shutil.rmtree(tmp_path / "cache")
    assert networks.decode(wanted).shape == (4, 3, 128, 128)
    assert np.array_equal(networks.encode(np.zeros((4, 3, 128, 128), np.float32)), wanted)
    assert by_graph(networks.times())["vae_decoder"].built
    assert notices == []


def test_a_damaged_engine_is_built_again_with_a_notice(make: Make, tmp_path: Path, notices: list[str]) -> None:
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


# Memory.


def test_low_memory_keeps_one_network_and_paints_the_same(
    clip: tuple[Path, Path],
    usual: np.ndarray,
    device: Device,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups: list[int] = []
    paint = Inpainter.paint

    def count(self: Inpainter, windows: list[object]) -> object:
        groups.append(len(windows))
        return paint(self, windows)  # type: ignore[arg-type]

    monkeypatch.setattr(Inpainter, "paint", count)
    assert pipeline._WINDOWS_IN_TURN > 2
    monkeypatch.setattr(pipeline, "_WINDOWS_IN_TURN", 2)  # as few as show the groups
    options = RuntimeOptions(low_memory=True, engine_cache=tmp_path / "cold")
    with LipSync.from_bundle(demo_folder(), "cpu", options) as lip_sync:
        report = lip_sync.sync(*clip, tmp_path / "out.mkv", QUICK)
    assert device.most_networks == 1
    assert report.windows == WINDOWS
    assert groups == [2, 1]
    assert not any(LOW_MEMORY_NOTICE in notice for notice in report.notices)  # nothing that was not asked for
    assert np.array_equal(np.stack(decoded(tmp_path / "out.mkv")), usual)


def test_steps_after_an_eviction(make: Make, device: Device) -> None:
    usual = make()
    wanted = denoised(usual)
    usual.close()
    networks = make(low_memory=True)
    found = denoised(networks, evict=lambda: networks.session("vae_decoder"))
    assert np.array_equal(found, wanted)
    assert device.opened.count("denoise_step") == 3  # one of them before
    denoiser = networks.denoiser()
    denoiser.begin(*inputs(), 1.5)
    denoiser.step(1, np.zeros(5, np.float32), cached=False)
    networks.session("vae_decoder")
    assert device.networks() == {"vae.weights"}  # no buffer or binding keeps the denoiser alive
    with pytest.raises(InferenceError, match="needs a full step"):
        denoiser.step(1, np.zeros(5, np.float32), cached=True)


@pytest.mark.parametrize("room", [1, 2])
def test_too_little_memory_to_open_all(
    clip: tuple[Path, Path], usual: np.ndarray, device: Device, tmp_path: Path, room: int
) -> None:
    device.room = room
    with LipSync.from_bundle(demo_folder(), "cpu") as lip_sync:
        report = lip_sync.sync(*clip, tmp_path / "out.mkv", QUICK)
    assert device.most_networks <= room
    assert sum(LOW_MEMORY_NOTICE in notice for notice in report.notices) == 1
    assert np.array_equal(np.stack(decoded(tmp_path / "out.mkv")), usual)


def test_too_little_memory_to_run(clip: tuple[Path, Path], usual: np.ndarray, device: Device, tmp_path: Path) -> None:
    device.room_to_run = 1
    with LipSync.from_bundle(demo_folder(), "cpu") as lip_sync:
        report = lip_sync.sync(*clip, tmp_path / "out.mkv", QUICK)
    assert sum(LOW_MEMORY_NOTICE in notice for notice in report.notices) == 1
    assert np.array_equal(np.stack(decoded(tmp_path / "out.mkv")), usual)


def test_memory_that_runs_out_at_a_cached_step(make: Make, device: Device) -> None:
    usual = make()
    wanted = denoised(usual)
    usual.close()
    networks = make()
    networks.prepare(GRAPHS)
    denoiser = networks.denoiser()
    denoiser.begin(*inputs(), 1.5)
    for cached, room in ((False, 9), (True, 1), (True, 9)):
        device.room_to_run = room
        denoiser.step(500, np.array([0.9, 0.1, 0, 0, 0], np.float32), cached=cached)
    assert np.array_equal(denoiser.latents(), wanted)
    assert device.networks() == {"unet.weights"}


def test_a_build_takes_the_room_of_open_networks(make: Make, device: Device, notices: list[str]) -> None:
    networks = make()
    networks.prepare(GRAPHS[:2])
    device.room = 2
    networks.prepare(GRAPHS[2:4])  # a second clip, with other settings
    assert device.networks() == {"unet.weights"}
    assert len(notices) == 1
    assert networks.low_memory


def test_too_little_memory_for_one_network_reaches_the_caller(make: Make, device: Device, notices: list[str]) -> None:
    networks = make()
    device.room = 0
    with pytest.raises(OutOfMemory, match="out of memory .*; use --low-memory, a bundle of a lower --resolution"):
        networks.prepare(GRAPHS)
    device.room, device.room_to_run = 9, 0
    with pytest.raises(OutOfMemory):
        networks.encode(np.zeros((4, 3, 128, 128), np.float32))


def test_the_command_says_out_of_memory_in_one_line(clip: tuple[Path, Path], device: Device, tmp_path: Path) -> None:
    device.room_to_run = 0
    video, audio = map(str, clip)
    arguments = ["--video", video, "--audio", audio, "-o", str(tmp_path / "out.mp4"), "--bundle", "demo", "-q"]
    result = CliRunner().invoke(main, ["sync", *arguments])
    assert result.exit_code == 1
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith("error: ")
    assert "on CPUExecutionProvider: out of memory " in result.stderr
    assert "; use --low-memory, a bundle of a lower --resolution or --precision fp16" in result.stderr
    assert list(tmp_path.iterdir()) == []


# Never silently elsewhere.


def test_a_session_that_runs_elsewhere_is_refused_with_counts(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"CPUExecutionProvider": 89, "CUDAExecutionProvider": 911}
    monkeypatch.setattr(Session, "nodes_by_provider", lambda self: counts)
    monkeypatch.setattr(OptimisedGraph, "_providers", lambda self: (("CPUExecutionProvider", {}),))
    monkeypatch.setattr(ort.InferenceSession, "get_providers", lambda self: ["CUDAExecutionProvider"])
    networks = make(Selection("cuda", gpu=Gpu(0, "RTX", "8.9", 2**34, "0000:01:00.0")))
    networks.session("vae_encoder")
    assert by_graph(networks.times())["vae_encoder"].placed == pytest.approx(0.911)
    counts["CPUExecutionProvider"] = 389
    with pytest.raises(EngineBuildError, match=r"cuda runs 70% .* 90% .*389 on CPUEx.*, 911 on CUDAEx.*--provider"):
        networks.session("vae_decoder")


def test_a_provider_that_did_not_load_is_refused(make: Make, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort.InferenceSession, "get_providers", lambda self: ["AzureExecutionProvider"])
    with pytest.raises(EngineBuildError, match="choose another --provider"):
        make().session("vae_encoder")
    assert device.networks() == set()


def refuse_on_cuda(monkeypatch: pytest.MonkeyPatch) -> Selection:
    """A GPU whose provider cannot compile anything."""
    make_engine = OptimisedGraph.make

    def refuse(self: OptimisedGraph, place: object, folder: Path) -> None:
        if self.provider.startswith("CUDA"):
            raise EngineBuildError("no kernel image")
        make_engine(self, place, folder)  # type: ignore[arg-type]

    monkeypatch.setattr(OptimisedGraph, "make", refuse)
    return Selection("cuda", gpu=Gpu(0, "RTX", "8.9", 2**34, "0000:01:00.0"))


def test_left_to_us_the_next_provider_runs_and_it_is_said(
    make: Make, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    networks = make(refuse_on_cuda(monkeypatch), may_pass_over=True)
    networks.prepare(GRAPHS)
    assert networks.selection.name == "cpu"
    assert notices == ["cuda cannot run this bundle, going on with cpu: no kernel image"]
    assert {time.provider for time in networks.times()} == {"cpu"}
    assert np.array_equal(denoised(networks), denoised(make()))


def test_a_demanded_provider_raises(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    networks = make(refuse_on_cuda(monkeypatch))
    with pytest.raises(EngineBuildError, match="no kernel image"):
        networks.prepare(GRAPHS)


def test_with_no_provider_left_the_reason_is_raised(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: OptimisedGraph, place: object, folder: Path) -> None:
        raise EngineBuildError("unknown operator")

    monkeypatch.setattr(OptimisedGraph, "make", refuse)
    with pytest.raises(EngineBuildError, match="unknown operator"):
        make(may_pass_over=True).prepare(GRAPHS)
