"""The spans of a result that are done again, as `--redo` takes them."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from latentsync_trt.option_fields import parse_time
from latentsync_trt.spans import Span, joined

REDO_METAVAR = "START:END"


@dataclass(frozen=True, slots=True)
class RedoSpan(Span):
    """A span of a result; its text is read by `parse_redo`."""

    def __str__(self) -> str:
        return f"{_exact_text(self.start_s)}:{_exact_text(self.end_s)}"

    @property
    def in_words(self) -> str:
        return f"{float(self.start_s):.2f} to {float(self.end_s):.2f} s"


def parse_redo(value: Any) -> tuple[RedoSpan, ...]:
    """Returns spans, ascending and apart, from one or several of "12.4:14", "1:02.5-1:04", a
    begin and an end, or a span. Raises `ValueError` where an end is not after its begin.
    """
    values = value if isinstance(value, list | tuple) else [value]
    return _merged(_parse_span(each) for each in values)


def _parse_span(value: Any) -> Span:
    times = value
    if isinstance(value, Span):
        times = (value.start_s, value.end_s)
    elif isinstance(value, str):
        # A time may have colons, too: then a hyphen stands between two.
        times = value.split("-" if "-" in value else ":")
    start_s, end_s = map(parse_time, times)
    if start_s >= end_s:
        raise ValueError(value)
    return Span(start_s, end_s)


def _merged(spans: Iterable[Span]) -> tuple[RedoSpan, ...]:
    return tuple(RedoSpan(span.start_s, span.end_s) for span in joined(spans, Fraction(0)))


def _exact_text(time_s: Fraction) -> str:
    """Returns a number that is read as exactly this time."""
    text = repr(float(time_s))
    return text if Fraction(text) == time_s else str(time_s)
