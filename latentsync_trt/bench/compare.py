"""What changed from one run of the bench to another, with the noise in view. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from latentsync_trt.bench import words
from latentsync_trt.bench.rows import Results, Row, is_ceiling
from latentsync_trt.bench.spread import Change

_TOLD_APART = ("measured_at", "command")
"""Parts of the environment that differ between any two runs."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The same measurement before and after."""

    before: Row
    after: Row

    @property
    def ratio(self) -> float:
        """Median time after over that before; below 1 is faster."""
        return self.after.time.median_ms / self.before.time.median_ms

    @property
    def change(self) -> Change:
        """Whether nine of ten runs lie clear of the others."""
        return self.after.time.against(self.before.time)


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that both runs measured, in the order of the first; what only one of them did; and what else differs.

    `differences`: name, before, after; "none" where one does not say.
    """

    pairs: tuple[Pair, ...]
    only_before: tuple[Row, ...]
    only_after: tuple[Row, ...]
    differences: tuple[tuple[str, str, str], ...]


def compare(before: Results, after: Results) -> Comparison:
    """Puts rows of the same scenario, case, provider and preset side by side."""
    ours = {row.key: row for row in before.rows}
    theirs = {row.key: row for row in after.rows}
    return Comparison(
        tuple(Pair(row, theirs[key]) for key, row in ours.items() if key in theirs),
        tuple(row for key, row in ours.items() if key not in theirs),
        tuple(row for key, row in theirs.items() if key not in ours),
        (*_differences(before, after), *_moved_ceilings(before, after)),
    )


def _moved_ceilings(before: Results, after: Results) -> Iterator[tuple[str, str, str]]:
    """Ceilings that are not what they were: the machine is another, or has other work to do."""
    ceilings = [{row.key: row for row in results.rows if is_ceiling(row)} for results in (before, after)]
    for key, row in ceilings[0].items():
        other = ceilings[1].get(key)
        if other is not None and other.time.against(row.time) != "within noise":
            yield f"ceiling {words.title(row)}", words.rate(row), words.rate(other)


def _differences(before: Results, after: Results) -> tuple[tuple[str, str, str], ...]:
    first, second = (_facts(results) for results in (before, after))
    names = dict.fromkeys([*first, *second])
    pairs = ((name, first.get(name, "none"), second.get(name, "none")) for name in names)
    return tuple((name, one, other) for name, one, other in pairs if one != other)


def _facts(results: Results) -> dict[str, str]:
    bundle = results.bundle
    return {
        **{name: value for name, value in results.environment.items() if name not in _TOLD_APART},
        "bundle": bundle.name,
        "bundle's content": f"SHA-256 {bundle.sha256[:12]}",
        "face": f"{bundle.resolution_px} px, windows of {bundle.frames}",
        "precision": bundle.precision,
        "shapes": bundle.shapes,
    }
