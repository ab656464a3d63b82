"""One bundle for several resolutions: at each it computes what a bundle exported for that one does."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from latentsync_trt import LipSync, RuntimeOptions, SyncOptions
from latentsync_trt.bench.run import run_bench, settings_for
from latentsync_trt.bundle.manifest import REQUIRED_GRAPHS, Bundle
from latentsync_trt.errors import InputError
from latentsync_trt.media.demo_clip import choose_clip
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.types import UInt8Array
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
        lip_sync.sync(*clip, tmp_path / "out.mkv", replace(LOSSLESS, resolution=resolution, overwrite=True))
        return np.stack(decoded(tmp_path / "out.mkv")).astype(np.int16)

    return synced


def test_a_clip_looks_as_from_a_bundle_of_that_resolution(lip_sync: LipSync, narrow_bundle: Path, run: Synced) -> None:
    with LipSync.from_bundle(narrow_bundle, "cpu") as fixed:
        wanted = run(fixed)
    largest = run(lip_sync)
    for found in (run(lip_sync, LEAST_PX), run(lip_sync, LEAST_PX)):
        assert (
            np.abs(found - wanted).max() <= 4
        )  # a level of luma and of chroma; at 64 px another norm computes the same
    assert np.abs(largest - wanted).max() > 4
    assert np.array_equal(run(lip_sync, MOST_PX), largest)


def test_fixed_engines_refuse_another_resolution(several: Path, clip: tuple[Path, Path], tmp_path: Path) -> None:
    out, options = tmp_path / "out.mkv", SyncOptions(resolution=LEAST_PX)
    with LipSync.from_bundle(several, "cpu", RuntimeOptions(dynamic=False)) as fixed:
        with pytest.raises(InputError, match="--static fixes engines at 192 px"):
            fixed.sync(*clip, out, options)
        with pytest.raises(InputError, match="--static fixes engines at 192 px"):
            fixed.warm_up(options)
        fixed.warm_up(SyncOptions(steps=1, resolution=MOST_PX))


def test_a_bench_measures_at_its_resolution(several: Path, clip: tuple[Path, Path], tmp_path: Path) -> None:
    sync = SyncOptions(steps=1, resolution=LEAST_PX)
    (setting,) = settings_for(Bundle.load(several), RuntimeOptions(), sync, ("cpu",), print)
    measured = [replace(setting, runs=1, warm_up=0)]
    (row,) = run_bench(measured, [sync], choose_clip(*clip, tmp_path), tmp_path, None)
    assert (setting.resolution_px, row.frames > 0) == (LEAST_PX, True)


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
