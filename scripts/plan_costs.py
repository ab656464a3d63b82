"""Prints what denoising plans cost and change, from measured rows, as the table of
docs/performance.md.

    python scripts/plan_costs.py [ROWS ...]

ROWS: files of `latentsync-trt bench`, by default those in benchmarks/. Faces and lips are those of
the built-in model.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from latentsync_trt.config import SyncOptions
from latentsync_trt.diffusion import full_steps

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
ROWS = (BENCHMARKS / "bench-cuda-h100-512.json", BENCHMARKS / "bench-cuda-h100-256.json")

FEW_STEPS = BENCHMARKS / "plans-demo.json"

PLANS = {
    "`--preset quality`": (SyncOptions(preset="quality"), "20 DDIM, all full (`quality`)"),
    "`--preset balanced`": (SyncOptions(), ""),
    "`--solver dpmpp --steps 8 --cache-interval 0,3,7`": (
        SyncOptions(solver="dpmpp", steps=8, cache_interval=(0, 3, 7)),
        "8 DPM++, steps 0, 3, 7 full",
    ),
    "`--preset fast`": (SyncOptions(preset="fast"), "4 DPM++"),
    "`--preset draft`": (SyncOptions(preset="draft"), "2 DPM++"),
}
"""Options, and the variant in `FEW_STEPS` that measures them."""


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
    """The cost of a plan, in guided full steps; `cached_share`: time of a cached step over that of
    a full one.
    """
    return sum(1.0 if full else cached_share for full in plan)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", type=Path, default=list(ROWS))
    print(table([step_times(path) for path in parser.parse_args().rows]))


def step_times(path: Path) -> StepTimes:
    """The step times in a file of `latentsync-trt bench`."""
    results = json.loads(path.read_text(encoding="utf-8"))
    median_ms = {
        row["case"]: row["time"]["median_ms"]
        for row in results["rows"]
        if row["scenario"] == "graph"
    }
    return StepTimes(
        results["bundle"]["resolution_px"],
        median_ms["denoise_step"],
        median_ms["denoise_step_cached"],
    )


def table(measured: list[StepTimes]) -> str:
    rungs = json.loads(FEW_STEPS.read_text(encoding="utf-8"))["rungs"]
    changes = {rung["variant"].removeprefix("fp16: "): rung for rung in rungs}
    heads = [f"{times.resolution_px} px" for times in measured]
    lines = [
        f"| | full, cached | {' | '.join(heads)} | movement | PSNR |",
        "|---|" + "---:|" * (3 + len(heads)),
    ]
    for name, (options, variant) in PLANS.items():
        plan = full_steps(options)
        costs = (
            full_step_equivalents(plan, times.cached_share) * times.full_ms for times in measured
        )
        cells = [f"{sum(plan)}, {len(plan) - sum(plan)}", *(f"{cost:.0f} ms" for cost in costs)]
        change = changes.get(variant, {})
        cells.append(f"{change['amplitude']:.2f}" if change else "")
        cells.append(f"{change['psnr_db']:.1f} dB" if change.get("psnr_db") else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
