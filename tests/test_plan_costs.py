"""The table of docs/performance.md is what the measured rows come to."""

from dataclasses import replace
from pathlib import Path

import pytest

from latentsync_trt.bench.rows import BundleFacts, Results, Row, Spread
from latentsync_trt.config import PRESETS
from latentsync_trt.diffusion.loop import cache_plan, plan_for
from scripts.plan_costs import PLANS, ROWS, StepTimes, full_step_equivalents, step_times, table
from tests.conftest import REPOSITORY

GOAL = 8.2
"""Full-step equivalents that 20 steps should take at most."""


def test_the_table_is_up_to_date() -> None:
    found = table([step_times(path) for path in ROWS])
    assert found in (REPOSITORY / "docs" / "performance.md").read_text(encoding="utf-8")
    assert all(f"`--preset {name}`" in found for name in PRESETS)


def test_rows_of_the_bench_give_step_times(tmp_path: Path) -> None:
    time = Spread(80.0, 79.0, 81.0, 20)
    full, cached = (Row("graph", name, "cuda", None, time, 3) for name in ("denoise_step", "denoise_step_cached"))
    cached = replace(cached, time=Spread(8.0, 7.9, 8.1, 20))
    bundle = BundleFacts("b", 512, 16, "fp16", "static", "")
    Results({}, bundle, (full, cached)).write(tmp_path / "rows.json")
    assert step_times(tmp_path / "rows.json") == StepTimes(512, 80.0, 8.0)


def test_which_plans_of_20_steps_reach_the_goal() -> None:
    """As the document says."""
    measured = step_times(ROWS[0])
    costs = {name: full_step_equivalents(plan_for(options), measured.cached_share) for name, options in PLANS.items()}
    reached = {name for name, cost in costs.items() if cost <= GOAL and PLANS[name].sampling.steps == 20}
    assert reached == {
        "`--cache-interval 4`",
        "`--cache-interval 5`",
        "`--cache-interval 0,1,2,5,9,14`",
        "`--guidance-interval 0.2-0.8`",
    }
    assert 8.3 < costs["`--preset balanced` (default)"] < 8.4


def test_cost_counts_full_cached_and_unguided_steps() -> None:
    assert full_step_equivalents(cache_plan(20, 1), 0.12) == 20
    assert full_step_equivalents(cache_plan(20, 3), 0.12) == pytest.approx(7 + 13 * 0.12)
    half = cache_plan(20, 3, guidance_interval=(0.2, 0.8))
    assert full_step_equivalents(half, 0.12) == pytest.approx(4 + 8 * 0.12 + (4 + 4 * 0.12) / 2)
