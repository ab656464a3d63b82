"""SVG by hand: marks, text and a level axis, as text that goes into an HTML page. Pure.

Colors come from the page's style sheet by class: `c0` to `c6` are categories, `axis`, `rule` and `faint` are lines.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

WIDTH_PX = 860
_MOST_TICKS = 6
_TICK_STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True, slots=True)
class Axis:
    """A level axis from 0 to `most`, drawn from `left_px` to `right_px`, with ticks at round numbers."""

    most: float
    left_px: float
    right_px: float

    def at(self, value: float) -> float:
        """Where `value` lies, px."""
        return self.left_px + (self.right_px - self.left_px) * value / self.most

    @property
    def ticks(self) -> list[float]:
        """Round numbers from 0 to the end."""
        step = tick_step(self.most)
        return [step * index for index in range(floor(self.most / step + 1e-9) + 1)]


class Drawing:
    """A picture of `WIDTH_PX` and a height, to which marks are added in their order."""

    def __init__(self, height_px: float, description: str) -> None:
        self._height_px = height_px
        self._description = description
        self._parts: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, style: str, tip: str = "") -> None:
        """A rectangle; `tip` shows under the pointer."""
        place = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}"'
        self._parts.append(f'<rect {place} class="{style}">{_tip(tip)}</rect>')

    def line(self, start: tuple[float, float], end: tuple[float, float], style: str) -> None:
        """A straight line."""
        place = f'x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
        self._parts.append(f'<line {place} class="{style}"/>')

    def dot(self, x: float, y: float, radius: float, style: str, tip: str = "") -> None:
        """A circle."""
        self._parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" class="{style}">{_tip(tip)}</circle>')

    def text(self, x: float, y: float, text: str, style: str = "", anchor: str = "start") -> None:
        """A line of text on base line `y`; `anchor`: start, middle or end."""
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self._parts.append(f'<text {place} class="{style}">{escape(text)}</text>')

    def axis(self, axis: Axis, top_px: float, bottom_px: float, unit: str) -> None:
        """Ticks with numbers below `bottom_px`, faint lines up to `top_px`, and the unit at the end."""
        ticks = axis.ticks
        for tick in ticks:
            x = axis.at(tick)
            self.line((x, top_px), (x, bottom_px), "axis" if tick == 0 else "faint")
            self.text(x, bottom_px + 16, label_of(tick), "tick", "middle")
        self.text(axis.right_px, bottom_px + 32, unit, "tick", "end")

    def legend(self, names: Sequence[tuple[str, str]], x: float, y: float) -> None:
        """Names with a patch of their class's color, in one line."""
        for name, style in names:
            self.rect(x, y - 9, 11, 11, style)
            self.text(x + 16, y, name, "tick")
            x += 34 + 6.6 * len(name)

    def done(self) -> str:
        """The whole `<svg>` element."""
        size = f'viewBox="0 0 {WIDTH_PX} {self._height_px:.0f}"'
        label = f'role="img" aria-label="{escape(self._description)}"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {label}>{"".join(self._parts)}</svg>'


def tick_step(most: float) -> float:
    """A round distance between at most seven ticks from 0 to `most`."""
    least = most / _MOST_TICKS
    power = 10.0 ** floor(log10(least))
    return next(power * step for step in _TICK_STEPS if power * step >= least * (1 - 1e-9))


def label_of(value: float) -> str:
    """A tick's number, without the digits that binary fractions bring."""
    return f"{value:.10g}"


def _tip(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""
