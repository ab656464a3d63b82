"""Replays of CUDA graphs are checked before they are used, and all clips share the buffers they were recorded with."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from latentsync_trt import SyncOptions
from latentsync_trt.bench.selftest import REPLAY_NOTICE
from latentsync_trt.bundle.manifest import step_graph
from latentsync_trt.runtime.networks import denoiser as denoiser_module
from latentsync_trt.runtime.networks.denoiser import PooledDenoiser
from latentsync_trt.sync.inpaint import graphs_for
from latentsync_trt.types import Float32Array, WindowBatch
from tests.device import DemoNetworks

LATENTS = np.random.default_rng(3).standard_normal((1, 4, 2, 3, 3)).astype(np.float32)
CONDITIONING = np.random.default_rng(4).standard_normal((1, 9, 2, 3, 3)).astype(np.float32)
AUDIO = np.ones((1, 2, 10, 8), np.float32)
INPUTS = (LATENTS, CONDITIONING, AUDIO, 1.5)


class FakeDenoiser:
    """Adds a multiple of the conditioning at every step, and a wrong one after `faithful_runs` steps."""

    def __init__(self, *args: Any, faithful_runs: int = 10**9, cuda_graph: bool = True) -> None:
        self.left = faithful_runs
        self.kinds: list[tuple[bool, bool]] = []
        self.cuda_graph = cuda_graph
        self.released = False

    def begin(self, batch: WindowBatch) -> None:
        self.now, self.known = batch.latents.copy(), batch.conditioning[:, :4]

    def step(self, timestep: int, coefficients: Float32Array, *, cached: bool, guided: bool = True) -> None:
        self.left -= 1
        self.kinds.append((guided, cached))
        change = self.known if self.left < 0 else coefficients[0] * self.known
        self.now = self.now + change

    def latents(self) -> Float32Array:
        return self.now

    def release(self) -> None:
        self.released = True


@dataclass(eq=False)
class FakeEngines:
    cuda_graph: bool = True

    class selection:  # noqa: N801 -- stands in for an attribute
        name, device, device_id = "tensorrt", "cuda", 0

    def without_cuda_graph(self) -> "FakeEngines":
        return FakeEngines(cuda_graph=False)

    def fact(self, *graphs: str) -> dict[str, Any]:
        return {"graphs": graphs}

    def check(self, **sizes: int) -> None:
        pass


class FakePool:
    def __init__(self) -> None:
        self.engines = FakeEngines()

    def session(self, graph: str) -> None:
        raise AssertionError(graph)

    def switch(self, engines: FakeEngines) -> None:
        self.engines = engines


def made(monkeypatch: pytest.MonkeyPatch, faithful_runs: int) -> list[FakeDenoiser]:
    all_made: list[FakeDenoiser] = []

    def make(*args: Any, cuda_graph: bool) -> FakeDenoiser:
        runs = faithful_runs if cuda_graph else 10**9
        all_made.append(FakeDenoiser(faithful_runs=runs, cuda_graph=cuda_graph))
        return all_made[-1]

    monkeypatch.setattr(denoiser_module, "GraphDenoiser", make)
    return all_made


def run_clip(denoiser: PooledDenoiser, guidance: float = 1.5, *, unguided_too: bool = False) -> None:
    for _ in range(2):
        denoiser.begin(WindowBatch(LATENTS, CONDITIONING, AUDIO, guidance, unguided_too=unguided_too))
        denoiser.step(1, np.ones(5, np.float32), cached=False, guided=not unguided_too)
        assert np.array_equal(denoiser.latents(), LATENTS + CONDITIONING[:, :4])


def test_each_kind_of_batch_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pool: Any = FakePool()
    notices: list[str] = []
    denoiser = PooledDenoiser(pool, notices.append)
    all_made = made(monkeypatch, 10**9)
    clips = [(1.5, False), (1.0, False), (1.5, True)]
    unchecked = [True, False, True, False, True, False]
    for (guidance, unguided_too), checks in zip([clip for clip in clips for _ in range(2)], unchecked, strict=True):
        before = len(all_made[0].kinds) if all_made else 0
        run_clip(denoiser, guidance, unguided_too=unguided_too)
        assert (len(all_made[0].kinds) - before > 2) is checks  # a clip has two steps
    assert len(all_made) == 1
    assert (False, False) in all_made[0].kinds
    assert not notices
    denoiser.release()
    assert all_made[0].released


def test_wrong_replays_end_cuda_graphs_for_this_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pool: Any = FakePool()
    notices: list[str] = []
    denoiser = PooledDenoiser(pool, notices.append)
    all_made = made(monkeypatch, 11)
    run_clip(denoiser)
    assert not pool.engines.cuda_graph
    assert [denoiser.cuda_graph for denoiser in all_made] == [True, False]
    assert len(notices) == 1
    assert notices[0].startswith(REPLAY_NOTICE)  # what `selftest` reports a failure by
    assert "continuing without CUDA graphs" in notices[0]


def test_warming_up_runs_each_graph_once(make: DemoNetworks) -> None:
    networks = make()
    options = SyncOptions(preset="fast", guidance_interval=(0.5, 1.0))
    for _ in range(2):
        networks.warm_up(graphs_for(options))
    runs = {time.graph: time.runs for time in networks.times()}
    steps = {step_graph(guided=kind, cached=cached): 1 for kind in (True, False) for cached in (True, False)}
    # The VAE encodes masked faces and whole ones.
    assert runs == {"audio_encoder": 1, "vae_encoder": 2, "vae_decoder": 1, **steps}
