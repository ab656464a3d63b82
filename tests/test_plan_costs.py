"""The table of docs/performance.md is what the measured rows come to."""

from latentsync_trt.config import PRESETS
from latentsync_trt.diffusion.plan import full_step_equivalents, plan_for
from scripts.plan_costs import PLANS, ROWS, step_times, table
from tests.conftest import REPOSITORY

GOAL = 8.2
"""Full-step equivalents that 20 steps should take at most."""


def test_the_table_is_up_to_date() -> None:
    found = table([step_times(path) for path in ROWS])
    assert found in (REPOSITORY / "docs" / "performance.md").read_text(encoding="utf-8")
    assert all(f"`--preset {name}`" in found for name in PRESETS)


def test_which_plans_of_20_steps_reach_the_goal() -> None:
    """As the document says."""
    measured = step_times(ROWS[0])
    costs = {name: full_step_equivalents(plan_for(options), measured.cached_share) for name, options in PLANS.items()}
    reached = {name for name, cost in costs.items() if cost <= GOAL and PLANS[name].sampling.steps == 20}
    assert reached == {
        "`--cache-interval 4`",
        "`--cache-interval 5`",
        "`--full-steps 0,1,2,5,9,14`",
        "`--guidance-interval 0.2-0.8`",
    }
    assert 8.5 < costs["`--preset balanced` (default)"] < 8.6
