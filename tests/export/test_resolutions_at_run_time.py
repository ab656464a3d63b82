"""One bundle for several resolutions: at each it computes what a bundle exported for that one does."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from latentsync_trt import LipSync, RuntimeOptions, SyncOptions
from latentsync_trt.bench.rows import BenchOptions
from latentsync_trt.bench.run import run_bench
from latentsync_trt.bundle.manifest import REQUIRED_GRAPHS, Bundle
from latentsync_trt.errors import InputError
from latentsync_trt.runtime.compiler.profiles import at_resolution
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.runtime.sessions.session import Session
from latentsync_trt.runtime.sessions.trial import random_inputs
from latentsync_trt.types import UInt8Array, WindowBatch
from tests import narrow
from tests.clips import LOSSLESS, decoded, write_clip
from tests.tensorrt_stand_in.stand_in import StandIn

pytestmark = pytest.mark.integration

LEAST_PX, MOST_PX = narrow.RESOLUTION_PX, 192
SAME = 1e-5
"""Relative: the same float32 arithmetic, in graphs that were optimized differently."""
CPU = Selection("cpu")

Synced = Callable[..., UInt8Array]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two windows of a face."""
    return write_clip(tmp_path_factory.mktemp("clip"), 2 * narrow.FRAMES)


@pytest.fixture(scope="module")
def lip_sync(several: Path) -> Iterator[LipSync]:
    with LipSync.from_bundle(several, "cpu") as opened:
        yield opened


@pytest.fixture
def run(clip: tuple[Path, Path], tmp_path: Path) -> Synced:
    """Syncs the clip; its frames."""

    def synced(lip_sync: LipSync, resolution: int | None = None) -> UInt8Array:
        lip_sync.sync(*clip, tmp_path / "out.mkv", replace(LOSSLESS, resolution=resolution))
        return np.stack(decoded(tmp_path / "out.mkv")).astype(np.int16)

    return synced


def test_graphs_compute_what_those_of_that_resolution_do(several: Path, narrow_bundle: Path) -> None:
    ours, theirs = (Networks(Bundle.load(path), CPU) for path in (several, narrow_bundle))
    manifest = theirs.bundle.manifest
    ranges = at_resolution(ours.bundle.manifest.ranges, LEAST_PX)
    for graph in REQUIRED_GRAPHS:
        inputs = random_inputs(theirs.session(graph).inputs, manifest.ranges)
        for name, value in random_inputs(ours.session(graph).inputs, ranges).items():
            assert value.shape == inputs[name].shape
        for found, wanted in zip(ours.session(graph).run(inputs), theirs.session(graph).run(inputs), strict=True):
            assert np.abs(found - wanted).max() <= SAME * np.abs(wanted).max(), graph
    for networks in (ours, theirs):
        networks.close()


def test_a_clip_looks_as_from_a_bundle_of_that_resolution(lip_sync: LipSync, narrow_bundle: Path, run: Synced) -> None:
    with LipSync.from_bundle(narrow_bundle, "cpu") as fixed:
        wanted = run(fixed)
    largest = run(lip_sync)
    for found in (run(lip_sync, LEAST_PX), run(lip_sync, LEAST_PX)):
        assert np.abs(found - wanted).max() <= 2  # levels; at 64 px another norm computes the same
    assert np.abs(largest - wanted).max() > 1
    assert np.array_equal(run(lip_sync, MOST_PX), largest)


def test_first_runs_have_the_resolution_of_the_run(several: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sides: dict[str, set[int]] = {}
    bound = Session.run_bound

    def watched(self: Session, binding: object, **how: bool) -> None:
        bound(self, binding, **how)
        for value in binding.get_outputs():  # type: ignore[attr-defined]
            if len(value.shape()) > 3:
                sides.setdefault(self.name, set()).update(value.shape()[-2:])

    monkeypatch.setattr(Session, "run_bound", watched)
    with LipSync.from_bundle(several, "cpu") as opened:
        opened.warm_up(SyncOptions(resolution=LEAST_PX))
    wanted = {"vae_encoder": {8}, "vae_decoder": {64}, "denoise_step": {8}, "denoise_step_cached": {8}}
    assert {name: sides[name] for name in wanted} == wanted


def test_fixed_engines_refuse_another_resolution(several: Path, clip: tuple[Path, Path], tmp_path: Path) -> None:
    out, options = tmp_path / "out.mkv", SyncOptions(resolution=LEAST_PX)
    with LipSync.from_bundle(several, "cpu", RuntimeOptions(dynamic=False)) as fixed:
        with pytest.raises(InputError, match="--static fixes engines at 192 px"):
            fixed.sync(*clip, out, options)
        with pytest.raises(InputError, match="--static fixes engines at 192 px"):
            fixed.warm_up(options)
        fixed.warm_up(SyncOptions(steps=1, resolution=MOST_PX))


def test_engines_say_which_sizes_they_take(several: Path) -> None:
    sizes = [(1, 4, 4, 40, 40), (1, 9, 4, 40, 40), (1, 4, 50, narrow.AUDIO_WIDTH)]
    batch = WindowBatch(*(np.zeros(size, np.float32) for size in sizes), 1.5)
    refused = pytest.raises(InputError, match="40 latent_height: the engines take 8 to 24")
    with closing(Networks(Bundle.load(several), CPU)) as networks, refused:
        networks.denoiser.begin(batch)


def test_a_bench_measures_at_its_resolution(several: Path, clip: tuple[Path, Path]) -> None:
    options = BenchOptions(("cpu",), ("quality",), ("graph", "loop"), video=clip[0], audio=clip[1], runs=1, warm_up=0)
    sync = SyncOptions(steps=1, resolution=LEAST_PX)
    *_, results = run_bench(Bundle.load(several), options, RuntimeOptions(), sync)
    assert results.bundle.resolution_px == LEAST_PX
    assert {row.scenario for row in results.rows} == {"graph", "loop"}


@pytest.mark.slow
def test_one_engine_of_tensorrt_runs_all_of_them(several: Path, stand_in: StandIn) -> None:
    settings: list[dict[str, object]] = [
        {"resolutions": [192, 64, 128, 64]},
        {"resolutions": [64, 128], "windows": 2, "faces": False, "low_memory": True},
    ]
    answers, ended = stand_in.scenario("pictures", bundle=str(several), settings=settings)
    for setting, answer in zip(settings, answers, strict=True):
        assert answer["difference"] <= SAME, setting
    # Steps of two windows have engines of their own; no resolution has.
    assert ended.count(r"build nodes=.* profiles=1 ") == ended.count(r"build nodes=") == len(REQUIRED_GRAPHS) + 2
