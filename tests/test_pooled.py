"""CUDA graphs are tried before they are used, and there is one set of buffers for them."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from latentsync_trt.runtime.networks import pooled
from latentsync_trt.runtime.networks.pooled import Denoisers, PooledDenoiser, replays_faithfully
from latentsync_trt.types import Float32Array, WindowBatch

LATENTS = np.random.default_rng(3).standard_normal((1, 4, 2, 3, 3)).astype(np.float32)
CONDITIONING = np.random.default_rng(4).standard_normal((1, 9, 2, 3, 3)).astype(np.float32)
AUDIO = np.ones((1, 2, 10, 8), np.float32)
INPUTS = (LATENTS, CONDITIONING, AUDIO, 1.5)


class FakeDenoiser:
    """Adds a bit of the conditioning at every step; after `faithful_runs` steps it forgets to."""

    def __init__(
        self, *args: Any, faithful_runs: int = 10**9, cuda_graph: bool = True, unguided_is_wrong: bool = False
    ) -> None:
        self.left = faithful_runs
        self.unguided_is_wrong = unguided_is_wrong
        self.kinds: list[tuple[bool, bool]] = []
        self.cuda_graph = cuda_graph
        self.begun = 0
        self.released = False

    def begin(self, batch: WindowBatch) -> None:
        self.now, self.known = batch.latents.copy(), batch.conditioning[:, :4]
        self.begun += 1

    def step(self, timestep: int, coefficients: Float32Array, *, cached: bool, guided: bool = True) -> None:
        self.left -= 1
        self.kinds.append((guided, cached))
        wrong = self.left < 0 or (self.unguided_is_wrong and not guided and len(self.kinds) > 4)
        change = self.known if wrong else coefficients[0] * self.known
        self.now = self.now + change

    def latents(self) -> Float32Array:
        return self.now

    def release(self) -> None:
        self.released = True


@dataclass(eq=False)
class FakeEngines:
    cuda_graph: bool = True
    checked: list[dict[str, int]] = field(default_factory=list)

    class selection:  # noqa: N801 -- stands in for an attribute
        name, device, device_id = "tensorrt", "cuda", 0

    def without_cuda_graph(self) -> "FakeEngines":
        return FakeEngines(cuda_graph=False)

    def check(self, **sizes: int) -> None:
        self.checked.append(sizes)


class FakePool:
    def __init__(self, *, cuda_graph: bool = True) -> None:
        self.engines = FakeEngines(cuda_graph)

    def session(self, graph: str) -> None:
        raise AssertionError(graph)

    def switch(self, engines: FakeEngines) -> None:
        self.engines = engines


@pytest.mark.parametrize(("faithful_runs", "verdict"), [(10**9, True), (4, False), (11, False)])
def test_a_replay_that_computes_something_else_is_found(faithful_runs: int, verdict: bool) -> None:
    denoiser: Any = FakeDenoiser(faithful_runs=faithful_runs)
    assert replays_faithfully(denoiser, WindowBatch(*INPUTS)) is verdict


def test_unguided_steps_are_tried_where_they_will_come() -> None:
    denoiser: Any = FakeDenoiser(unguided_is_wrong=True)
    assert replays_faithfully(denoiser, WindowBatch(*INPUTS))
    assert set(denoiser.kinds) == {(True, False), (True, True)}
    denoiser = FakeDenoiser(unguided_is_wrong=True)
    assert not replays_faithfully(denoiser, WindowBatch(*INPUTS, unguided_too=True))
    assert denoiser.kinds[:4] == [(True, False), (True, True), (False, False), (False, True)]


def made(monkeypatch: pytest.MonkeyPatch, faithful_runs: int) -> list[FakeDenoiser]:
    all_made: list[FakeDenoiser] = []

    def make(*args: Any, cuda_graph: bool) -> FakeDenoiser:
        runs = faithful_runs if cuda_graph else 10**9
        all_made.append(FakeDenoiser(faithful_runs=runs, cuda_graph=cuda_graph))
        return all_made[-1]

    monkeypatch.setattr(pooled, "GraphDenoiser", make)
    return all_made


def clip(pool: Any, denoisers: Denoisers, guidance: float = 1.5, *, unguided_too: bool = False) -> None:
    denoiser = PooledDenoiser(pool, denoisers)
    for _ in range(2):
        denoiser.begin(WindowBatch(LATENTS, CONDITIONING, AUDIO, guidance, unguided_too=unguided_too))
        denoiser.step(1, np.ones(5, np.float32), cached=False, guided=not unguided_too)
        assert np.array_equal(denoiser.latents(), LATENTS + CONDITIONING[:, :4])


def test_clips_share_the_buffers_that_a_graph_was_recorded_with(monkeypatch: pytest.MonkeyPatch) -> None:
    pool: Any = FakePool()
    notices: list[str] = []
    denoisers = Denoisers(pool, notices.append)
    all_made = made(monkeypatch, 10**9)
    clips = [(1.5, False), (1.0, False), (1.5, True)]
    untried = [True, False, True, False, True, False]
    for (guidance, unguided_too), trial in zip([clip for clip in clips for _ in range(2)], untried, strict=True):
        before = len(all_made[0].kinds) if all_made else 0
        clip(pool, denoisers, guidance, unguided_too=unguided_too)
        assert (len(all_made[0].kinds) - before > 2) is trial  # a clip has two steps
    assert len(all_made) == 1
    assert (False, False) in all_made[0].kinds
    assert not notices
    denoisers.release()
    assert all_made[0].released


def test_wrong_replays_of_unguided_steps_end_cuda_graphs_for_guided_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    pool: Any = FakePool()
    notices: list[str] = []
    denoisers = Denoisers(pool, notices.append)
    all_made = made(monkeypatch, 30)  # enough for guided steps, and for a part of the trial of unguided ones
    clip(pool, denoisers)
    assert pool.engines.cuda_graph
    clip(pool, denoisers, unguided_too=True)
    clip(pool, denoisers)
    assert not pool.engines.cuda_graph
    assert [denoiser.cuda_graph for denoiser in all_made] == [True, False, False]
    assert len(notices) == 1


def test_wrong_replays_end_cuda_graphs_for_this_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pool: Any = FakePool()
    notices: list[str] = []
    denoisers = Denoisers(pool, notices.append)
    all_made = made(monkeypatch, 3)
    clip(pool, denoisers)
    assert not pool.engines.cuda_graph
    assert [denoiser.cuda_graph for denoiser in all_made] == [True, False]
    assert len(notices) == 1
    assert "going on without them" in notices[0]


def test_without_cuda_graphs_every_clip_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pool: Any = FakePool(cuda_graph=False)
    denoisers = Denoisers(pool, pytest.fail)
    all_made = made(monkeypatch, 10**9)
    clip(pool, denoisers)
    clip(pool, denoisers)
    assert [denoiser.begun for denoiser in all_made] == [2, 2]
    assert pool.engines.checked == [{"windows": 1, "frames": 2}] * 4
