"""What `--provider auto` measures of a provider that builds engines, remembers and follows. Both providers are the CPU;
only durations are made up."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from latentsync_trt.bundle.manifest import FULL_STEP
from latentsync_trt.errors import EngineBuildError, GraphRefused, OutOfMemory
from latentsync_trt.runtime.networks import networks as networks_module
from latentsync_trt.runtime.networks import opened
from latentsync_trt.runtime.networks.verdict import kept
from latentsync_trt.runtime.providers import gpu as driver
from latentsync_trt.runtime.providers import select
from latentsync_trt.runtime.providers.gpu import Gpu
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.runtime.engines import trial
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.runtime.engines.session import CPU, RunClock, Session, SessionSettings
from tests.compiling import CopyBuilder, compiling_provider
from tests.device import GRAPHS, DemoNetworks
from tests.perturbed import perturbed_copy
from tests.small import small_bundle

pytestmark = pytest.mark.integration

GPU = Gpu(0, "NVIDIA GeForce RTX 4090", "8.9", 2**34, "0000:01:00.0")
TENSORRT = Selection("tensorrt", gpu=GPU)


class Machine:
    """A GPU with "tensorrt" and "cuda". `builder` builds for the first; `ms`: duration of a step; `compared`: graphs
    that were run to compare them, by provider."""

    def __init__(self, builder: CopyBuilder) -> None:
        self.builder = builder
        self.ms = {"tensorrt": 50.0, "cuda": 100.0}
        self.compared: list[str] = []


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(compiling_provider(monkeypatch))
    outputs_of = trial.outputs_of

    def timed(session: Session, ranges: Any, selection: Selection, *, runs: int) -> Any:
        outputs = outputs_of(session, ranges, Selection("cpu"))
        provider = "tensorrt" if session.path.name == "engine.onnx" else "cuda"
        made.compared.append(f"{session.path.stem if provider == 'cuda' else 'engine'} on {provider}")
        session.clock = RunClock(runs, 1.0, (runs - 1) * made.ms[provider] / 1000)
        return outputs

    monkeypatch.setattr(trial, "outputs_of", timed)
    monkeypatch.setattr(Engines, "_providers", lambda *_: CPU)
    monkeypatch.setattr(select, "why_unavailable", lambda name, device=0: None)
    monkeypatch.setattr(driver, "gpus", lambda: (GPU,))
    for module in (opened, trial):
        monkeypatch.setattr(module, "give_back_gpu_memory", lambda selection: None)
    return made


@pytest.fixture
def make(tmp_path: Path) -> Iterator[DemoNetworks]:
    with DemoNetworks(tmp_path / "cache") as networks:
        yield networks


def prepared(make: DemoNetworks, **options: Any) -> str:
    """The provider that runs, after `prepare` under `auto`."""
    make.notices.clear()
    networks = make(TENSORRT, **{"may_fall_back": True, "cuda_graph": False, "graph_form": "portable", **options})
    networks.prepare(GRAPHS)
    return networks.selection.name


def test_providers_are_compared_once_after_building(make: DemoNetworks, machine: Machine, tmp_path: Path) -> None:
    assert prepared(make) == "tensorrt"
    assert sorted(machine.builder.built) == sorted(GRAPHS)
    assert machine.compared == [text for graph in GRAPHS for text in ("engine on tensorrt", f"{graph} on cuda")]
    (verdict,) = kept(tmp_path / "cache")
    assert set(verdict.graphs) == set(GRAPHS)
    assert (verdict.problem, verdict.step_ms, verdict.reference_ms) == ("", 50.0, 100.0)
    assert any(f"compared once: {verdict}" == notice for notice in make.notices)
    assert prepared(make) == "tensorrt"
    assert len(machine.compared) == 2 * len(GRAPHS)


def test_the_faster_provider_runs_from_then_on(
    make: DemoNetworks, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.ms["cuda"] = 40.0
    assert prepared(make) == "cuda"
    words = "tensorrt is not used for this bundle, continuing with cuda: a step takes 50.0 ms, with cuda 40.0 ms"
    assert words in make.notices
    built, compared = list(machine.builder.built), list(machine.compared)
    assert prepared(make) == "cuda"
    assert make.notices == [f"{words} (found before; latentsync-trt setup tries again)"]
    assert (machine.builder.built, machine.compared) == (built, compared)
    assert prepared(make, may_fall_back=False) == "tensorrt"  # named
    machine.ms["cuda"] = 60.0
    with monkeypatch.context() as patch:
        patch.setattr("latentsync_trt.runtime.engines.session_factory.driver_version", lambda: "599.1")
        assert prepared(make) == "tensorrt"
    assert prepared(make) == "cuda"
    assert prepared(make, verify=True) == "tensorrt"
    assert prepared(make) == "tensorrt"


def test_an_engine_with_wrong_values_is_not_used(
    make: DemoNetworks, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = perturbed_copy(small_bundle(), tmp_path / "wrong", noise=0.2)

    def opened(builder: CopyBuilder, graph: Path, folder: Path) -> Session:
        weights = wrong if graph.stem == "denoise_step_cached" else graph.parent
        return Session(folder / "engine.onnx", SessionSettings(weights_folder=weights))

    monkeypatch.setattr(CopyBuilder, "open", opened)
    assert prepared(make) == "cuda"
    (verdict,) = kept(tmp_path / "cache")
    assert verdict.problem.startswith("denoise_step_cached: its values differ from those of cuda by ")
    assert any(verdict.problem in notice for notice in make.notices)
    assert prepared(make) == "cuda"


def test_a_refused_graph_is_not_built_again(
    make: DemoNetworks, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = CopyBuilder.build

    def refuse(builder: CopyBuilder, graph: Path, folder: Path) -> None:
        build(builder, graph, folder)
        if graph.stem == FULL_STEP:
            raise GraphRefused(f"{graph}: TensorRT built no engine: no kernel")

    monkeypatch.setattr(CopyBuilder, "build", refuse)
    assert prepared(make) == "cuda"
    assert "TensorRT built no engine: no kernel" in make.notices[-1]
    built = list(machine.builder.built)
    assert prepared(make) == "cuda"
    assert machine.builder.built == built
    with pytest.raises(EngineBuildError, match="no kernel"):
        prepared(make, may_fall_back=False)


def test_where_memory_is_short_nothing_is_compared_or_remembered(
    make: DemoNetworks, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: Any, **__: Any) -> None:
        raise OutOfMemory("vae_decoder: out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(trial, "outputs_of", short)
        assert prepared(make) == "tensorrt"
    assert "tensorrt was not compared with another provider: vae_decoder: out of memory" in make.notices
    assert kept(tmp_path / "cache") == []
    assert prepared(make) == "tensorrt"
    assert len(kept(tmp_path / "cache")) == 1


@pytest.mark.parametrize(("each_gb", "fits"), [(1, True), (5, False)])
def test_the_memory_of_built_engines_decides_how_they_are_held(
    make: DemoNetworks, machine: Machine, monkeypatch: pytest.MonkeyPatch, each_gb: int, fits: bool
) -> None:
    build = CopyBuilder.build

    def told(builder: CopyBuilder, graph: Path, folder: Path) -> int:
        build(builder, graph, folder)
        return each_gb * 10**9

    monkeypatch.setattr(CopyBuilder, "build", told)
    monkeypatch.setattr(networks_module, "free_memory_bytes", lambda index: 20 * 10**9)
    networks = make(TENSORRT, cuda_graph=False)
    networks.prepare(GRAPHS)
    assert (networks.low_memory, networks.side_by_side) == (not fits, fits)
    assert any("this bundle takes about 29.2 GB, 20.0 GB is free" in notice for notice in make.notices) is not fits
