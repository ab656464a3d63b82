"""Replays of CUDA graphs are checked before they are used, and all clips share the buffers they were recorded with."""

from typing import Any, cast

import numpy as np
import pytest

from latentsync_trt import SyncOptions
from latentsync_trt.bench.selftest import REPLAY_NOTICE
from latentsync_trt.bundle.manifest import step_graph
from latentsync_trt.runtime.networks import denoiser as denoiser_module
from latentsync_trt.runtime.denoiser import PooledDenoiser, ReplaysDiffer
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.sync.inpaint import graphs_for
from latentsync_trt.types import Float32Array, WindowBatch
from tests.device import GRAPHS, DemoNetworks, denoised

LATENTS = np.random.default_rng(3).standard_normal((1, 4, 2, 3, 3)).astype(np.float32)
CONDITIONING = np.random.default_rng(4).standard_normal((1, 9, 2, 3, 3)).astype(np.float32)
AUDIO = np.ones((1, 2, 10, 8), np.float32)
INPUTS = (LATENTS, CONDITIONING, AUDIO, 1.5)


class FakeDenoiser(PooledDenoiser):
    """Adds a multiple of the conditioning at every step, and a wrong one after `faithful_runs` steps."""

    def __init__(self, faithful_runs: int = 10**9) -> None:
        super().__init__(cast(Engines, FakeEngines()), cast(Any, None))
        self.left = faithful_runs
        self.kinds: list[tuple[bool, bool]] = []

    def begin_unchecked(self, batch: WindowBatch) -> None:
        self.now, self.known = batch.latents.copy(), batch.conditioning[:, :4]

    def step(
        self, timestep: int, coefficients: Float32Array, *, cached: bool, guided: bool = True, recorded: bool = True
    ) -> None:
        self.left -= 1
        self.kinds.append((guided, cached))
        change = self.known if self.left < 0 else coefficients[0] * self.known
        self.now = self.now + change

    def latents(self) -> Float32Array:
        return self.now


class FakeEngines:
    cuda_graph = True

    class selection:  # noqa: N801 -- stands in for an attribute
        device, device_id = "cuda", 0

    def fact(self, *graphs: str) -> dict[str, Any]:
        return {"graphs": graphs}

    def check(self, **sizes: int) -> None:
        pass


def run_clip(denoiser: PooledDenoiser, guidance: float = 1.5, *, unguided_too: bool = False) -> None:
    for _ in range(2):
        denoiser.begin(WindowBatch(LATENTS, CONDITIONING, AUDIO, guidance, unguided_too=unguided_too))
        denoiser.step(1, np.ones(5, np.float32), cached=False, guided=not unguided_too)
        assert np.array_equal(denoiser.latents(), LATENTS + CONDITIONING[:, :4])


def test_each_kind_of_batch_is_checked_once() -> None:
    denoiser = FakeDenoiser()
    clips = [(1.5, False), (1.0, False), (1.5, True)]
    unchecked = [True, False, True, False, True, False]
    for (guidance, unguided_too), checks in zip([clip for clip in clips for _ in range(2)], unchecked, strict=True):
        before = len(denoiser.kinds)
        run_clip(denoiser, guidance, unguided_too=unguided_too)
        assert (len(denoiser.kinds) - before > 2) is checks  # a clip has two steps
    assert (False, False) in denoiser.kinds


def test_wrong_replays_are_noticed_before_a_window_is_painted() -> None:
    denoiser = FakeDenoiser(faithful_runs=11)
    with pytest.raises(ReplaysDiffer):
        run_clip(denoiser)


def test_wrong_replays_end_cuda_graphs_for_this_run(make: DemoNetworks, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = denoised(make())
    monkeypatch.setattr(Engines, "_uses_cuda_graph", lambda self: True)
    monkeypatch.setattr(denoiser_module, "replays_faithfully", lambda denoiser, batch: False)
    networks = make()
    networks.prepare(GRAPHS)
    networks.warm_up(GRAPHS)
    for _ in range(2):
        assert np.array_equal(denoised(networks), usual)
    (notice,) = make.notices
    assert notice.startswith(REPLAY_NOTICE)  # what `selftest` reports a failure by
    assert notice.endswith("continuing without CUDA graphs")
    assert {time.graph for time in networks.times()} >= set(GRAPHS)  # what was closed is still counted


def test_warming_up_runs_each_graph_once(make: DemoNetworks) -> None:
    networks = make()
    options = SyncOptions(steps=8, guidance_interval=(0.5, 1.0))
    for _ in range(2):
        networks.warm_up(graphs_for(options))
    runs = {time.graph: time.runs for time in networks.times()}
    steps = {step_graph(guided=kind, cached=cached): 1 for kind in (True, False) for cached in (True, False)}
    # The VAE encodes masked faces and whole ones.
    assert runs == {"audio_encoder": 1, "vae_encoder": 2, "vae_decoder": 1, **steps}
