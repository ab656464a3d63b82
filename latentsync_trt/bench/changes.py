"""What changed between two runs of the bench: `bench --diff`."""

from dataclasses import dataclass

from latentsync_trt.bench.rows import CEILING, Results, Row
from latentsync_trt.bench.table import console, milliseconds, plain_table, rate, spread, title

_DIFFERS_ALWAYS = ("measured_at", "command")


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows of both runs, rows of only one run, and other differences: name, before, after ("none" if missing)."""

    pairs: tuple[tuple[Row, Row], ...]
    only_before: tuple[Row, ...]
    only_after: tuple[Row, ...]
    differences: tuple[tuple[str, str, str], ...]


def find_changes(before: Results, after: Results) -> Changes:
    """Pairs rows of the same scenario, case, provider and preset."""
    ours, theirs = ({row.key: row for row in results.rows} for results in (before, after))
    pairs = tuple((row, theirs[key]) for key, row in ours.items() if key in theirs)
    first, second = _facts(before), _facts(after)
    differences = [(name, first.get(name, "none"), second.get(name, "none")) for name in {**first, **second}]
    # The ceiling differs on another machine, and on one that is busy.
    differences += [
        (f"ceiling {title(row)}", rate(row), rate(other))
        for row, other in pairs
        if row.scenario == "graph" and row.case.startswith(CEILING) and other.time.against(row.time) != "within noise"
    ]
    return Changes(
        pairs,
        tuple(row for key, row in ours.items() if key not in theirs),
        tuple(row for key, row in theirs.items() if key not in ours),
        tuple((name, one, other) for name, one, other in differences if one != other),
    )


def show_changes(found: Changes, before: str, after: str) -> None:
    """Prints what changed to stdout; `before` and `after` are file names."""
    screen = console()
    for name, first, second in found.differences:
        screen.print(f"differs: {name}: {first} → {second}")
    table = plain_table("what", "scenario", before, "p5–p95 ms", after, "p5–p95 ms", "change", "")
    for row, other in found.pairs:
        times = row.time, other.time
        cells = [cell for time in times for cell in (milliseconds(time.median_ms), spread(time))]
        change = f"{other.time.median_ms / row.time.median_ms - 1:+.1%}"
        verdict = other.time.against(row.time).replace("slower", "SLOWER")
        if min(time.runs for time in times) == 1:
            verdict = "one run: noise unknown"
        table.add_row(title(row), row.scenario, *cells, change, verdict)
    screen.print(table if found.pairs else "no measurement is in both files")
    for name, rows in ((before, found.only_before), (after, found.only_after)):
        for row in rows:
            screen.print(f"only in {name}: {row.scenario} {title(row)}")


def _facts(results: Results) -> dict[str, str]:
    bundle = results.bundle
    return {
        **{name: value for name, value in results.environment.items() if name not in _DIFFERS_ALWAYS},
        "bundle": bundle.name,
        "bundle's content": f"SHA-256 {bundle.sha256[:12]}",
        "face": f"{bundle.resolution_px} px, windows of {bundle.frames}",
        "precision": bundle.precision,
        "shapes": bundle.shapes,
    }
