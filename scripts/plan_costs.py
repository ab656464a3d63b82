"""Prints the cost of denoising plans, computed from measured step times, as the table of docs/performance.md.

    python scripts/plan_costs.py [ROWS ...]

ROWS: files of `latentsync-trt bench`, by default those in benchmarks/.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from latentsync_trt.config import SyncOptions
from latentsync_trt.diffusion import plan_for

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
ROWS = (BENCHMARKS / "bench-cuda-h100-512.json", BENCHMARKS / "bench-cuda-h100-256.json")

PLANS = {
    "`--preset quality`": SyncOptions(preset="quality"),
    "`--preset balanced` (default)": SyncOptions(),
    "`--cache-interval 4`": SyncOptions(cache_interval=4),
    "`--cache-interval 5`": SyncOptions(cache_interval=5),
    "`--cache-interval 0,1,2,5,9,14`": SyncOptions(cache_interval=(0, 1, 2, 5, 9, 14)),
    "`--solver dpmpp --steps 10 --cache-interval 1`": SyncOptions(solver="dpmpp", steps=10, cache_interval=1),
    "`--solver dpmpp --steps 10 --cache-interval 2`": SyncOptions(solver="dpmpp", steps=10, cache_interval=2),
    "`--solver dpmpp --steps 10 --cache-interval 3`": SyncOptions(solver="dpmpp", steps=10, cache_interval=3),
    "`--solver dpmpp --steps 8 --cache-interval 0,3,7`": SyncOptions(solver="dpmpp", steps=8, cache_interval=(0, 3, 7)),
    "`--preset fast`": SyncOptions(preset="fast"),
    "`--preset draft`": SyncOptions(preset="draft"),
}


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Measured milliseconds of guided steps."""

    resolution_px: int
    full_ms: float
    cached_ms: float

    @property
    def cached_share(self) -> float:
        """Time of a cached step relative to a full one."""
        return self.cached_ms / self.full_ms


def full_step_equivalents(plan: Sequence[bool], cached_share: float) -> float:
    """The cost of a plan, in guided full steps; `cached_share`: time of a cached step over that of a full one."""
    return sum(1.0 if full else cached_share for full in plan)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", type=Path, default=list(ROWS))
    print(table([step_times(path) for path in parser.parse_args().rows]))


def step_times(path: Path) -> StepTimes:
    """The step times in a file of `latentsync-trt bench`."""
    results = json.loads(path.read_text(encoding="utf-8"))
    median_ms = {row["case"]: row["time"]["median_ms"] for row in results["rows"] if row["scenario"] == "graph"}
    return StepTimes(results["bundle"]["resolution_px"], median_ms["denoise_step"], median_ms["denoise_step_cached"])


def table(measured: list[StepTimes]) -> str:
    heads = [f"{times.resolution_px} px | loop" for times in measured]
    lines = [
        f"| plan | full | cached | {' | '.join(heads)} |",
        "|---|" + "---:|" * (2 + 2 * len(heads)),
    ]
    for name, options in PLANS.items():
        plan = plan_for(options)
        cells = [f"{sum(plan)}", f"{len(plan) - sum(plan)}"]
        for times in measured:
            cost = full_step_equivalents(plan, times.cached_share)
            cells += [f"{cost:.2f}", f"{cost * times.full_ms:.0f} ms"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
