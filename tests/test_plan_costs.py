"""The table of docs/performance.md is what the measured rows come to."""

import pytest

from latentsync_trt.config import PRESETS
from latentsync_trt.diffusion import cache_plan
from scripts.plan_costs import ROWS, full_step_equivalents, step_times, table
from tests.conftest import REPOSITORY


def test_the_table_is_up_to_date() -> None:
    found = table([step_times(path) for path in ROWS])
    assert found in (REPOSITORY / "docs" / "performance.md").read_text(encoding="utf-8")
    assert all(f"`--preset {name}`" in found for name in PRESETS)


def test_cost_counts_full_and_cached_steps() -> None:
    assert full_step_equivalents(cache_plan(20, 1), 0.12) == 20
    assert full_step_equivalents(cache_plan(20, 3), 0.12) == pytest.approx(7 + 13 * 0.12)
