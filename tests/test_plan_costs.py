"""The table of docs/performance.md is what the measured rows come to."""

from latentsync_trt.config import PRESETS
from scripts.plan_costs import ROWS, step_times, table
from tests.conftest import REPOSITORY


def test_the_table_is_up_to_date() -> None:
    found = table([step_times(path) for path in ROWS])
    assert found in (REPOSITORY / "docs" / "performance.md").read_text(encoding="utf-8")
    assert all(f"`--preset {name}`" in found for name in PRESETS)
