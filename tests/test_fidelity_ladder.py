"""The ladder's rungs on a short clip, and its table."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from latentsync_trt.config import SyncOptions
from scripts.fidelity_ladder import PLANS, Bench, Rung, Variant, ladder, table
from scripts.train_demo.held_out import Case, held_out_cases
from scripts.train_demo.texts import HELD_OUT
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


def test_cases_take_languages_in_turn() -> None:
    english, italian = (HELD_OUT[language] for language in ("en-us", "it"))
    assert [case.text for case in held_out_cases(3)] == [english[0], italian[0], english[1]]
    assert sorted(case.text for case in held_out_cases()) == sorted([*english, *italian])
    for case in held_out_cases(2):
        assert len(case.recording.samples) == 640 * len(case)
        assert not np.array_equal(case.other.opening, case.recording.track.opening)


def test_the_ladder_starts_with_the_reference() -> None:
    variants = list(ladder(("fp32", "fp16", "int8")))
    assert [variant.bundle for variant in variants] == ["fp32", *["fp16"] * len(PLANS), "int8"]
    assert variants[0].plan == variants[1].plan == variants[-1].plan == next(iter(PLANS))
    assert len({variant.name for variant in variants}) == len(variants)
    assert all(variant.options.codec == "ffv1" for variant in variants)


def test_rungs_of_a_short_clip(case: Case, tmp_path: Path) -> None:
    full = SyncOptions(steps=2, cache_interval=1, codec="ffv1")
    cached = SyncOptions(steps=2, cache_interval=2, codec="ffv1")
    variants = [Variant("a", "full", full), Variant("b", "full", full), Variant("b", "cached", cached)]
    bench = Bench({"a": small_bundle(), "b": small_bundle()}, "cpu", tmp_path)
    reference, same, other = bench.climb(variants, [case])
    assert (reference.variant, reference.cost_full_steps) == ("a: full", 2.0)
    assert reference.psnr_db is None
    assert replace(same, variant=reference.variant) == reference
    assert 0 < bench.cached_share < 1
    assert other.cost_full_steps == pytest.approx(1 + bench.cached_share, abs=0.01)
    assert other.psnr_db is not None
    assert other.ssim < 1


def test_only_what_is_generated_is_compared(case: Case, tmp_path: Path) -> None:
    options = SyncOptions(steps=1, guidance=1.0, codec="ffv1")
    bench = Bench({"a": small_bundle()}, "cpu", tmp_path)
    bench.climb([Variant("a", "one step", options)], [case])
    clip = (tmp_path / f"{case.number}-source.mkv", tmp_path / f"{case.number}.wav")
    (first, *_) = bench._generated([clip], [tmp_path / f"{case.number}-out.mkv"])
    assert first.shape[0] < 128
    nose = first[: first.shape[0] // 6, first.shape[1] * 2 // 5 : first.shape[1] * 3 // 5]
    assert np.unique(nose).tolist() == [127]


def test_the_table_has_a_line_for_every_rung() -> None:
    rungs = [
        Rung("fp32: all", 20.0, None, 1.0, 0.912, 0.0, -0.05, 1.0, 0.975),
        Rung("fp16: half", 10.04, 43.21, 0.987, 0.9, 0.5, 0.1, 0.8, float("nan")),
    ]
    assert table(rungs).splitlines()[2:] == [
        "| fp32: all | 20.0 | equal | 1.000 | 0.91 | +0.0 | -0.05 | 100% | 98% |",
        "| fp16: half | 10.0 | 43.2 dB | 0.987 | 0.90 | +0.5 | 0.10 | 80% | – |",
    ]
