"""The ladder's rungs on a short clip, and its table."""

from dataclasses import replace
from pathlib import Path

import pytest

from latentsync_trt.config import SyncOptions
from scripts.fidelity_ladder import Bench, Variant
from scripts.train_demo.held_out import Case, held_out_cases
from scripts.train_demo.visemes import MouthTrack
from tests.small import small_bundle

pytestmark = pytest.mark.integration

FRAMES = 20
SAMPLES = FRAMES * 640


@pytest.fixture(scope="module")
def case() -> Case:
    """The beginning of a held-out sentence: its pause, and the first word."""
    (whole,) = held_out_cases(1)
    track = whole.recording.track
    parts = (track.opening, track.width, track.rounding, track.shut, track.silent)
    cut = MouthTrack(*(part[:FRAMES] for part in parts))
    return replace(whole, recording=replace(whole.recording, samples=whole.recording.samples[:SAMPLES], track=cut))


def test_rungs_of_a_short_clip(case: Case, tmp_path: Path) -> None:
    full = SyncOptions(steps=2, cache_interval=1, codec="ffv1")
    cached = SyncOptions(steps=2, cache_interval=2, codec="ffv1")
    variants = [Variant("a", "full", full), Variant("b", "full", full), Variant("b", "cached", cached)]
    bench = Bench({"a": small_bundle(), "b": small_bundle()}, "cpu", tmp_path)
    *_, (reference, same, other) = bench.climb(variants, [case])
    assert (reference.variant, reference.cost_full_steps) == ("a: full", 2.0)
    assert reference.psnr_db is None
    assert replace(same, variant=reference.variant) == reference
    assert 0 < bench.cached_share < 1
    assert other.cost_full_steps == pytest.approx(1 + bench.cached_share, abs=0.01)
    assert other.psnr_db is not None
    assert other.ssim < 1
