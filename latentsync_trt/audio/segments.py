"""Where a recording is cut into segments for the audio encoder, which sees 30 s at once. Pure.

Next to a cut the encoder misses half of the sound around it. Segments therefore overlap, and features change from one
to the next in a pause, if there is one. Positions count features, 50 per second.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

FEATURES_PER_S = 50
SEGMENT_FEATURES = 30 * FEATURES_PER_S

_MARGIN = 1 * FEATURES_PER_S
"""Of sound that the encoder sees on both sides of all that is used, except at the recording's ends."""

_OVERLAP = 10 * FEATURES_PER_S


@dataclass(frozen=True, slots=True)
class Segment:
    """The encoder sees `encoded` of the recording, up to `SEGMENT_FEATURES`; `used` are the features taken of it."""

    encoded: range
    used: range


Plan = Callable[[int], Sequence[Segment]]
"""Segments for a recording of so many features; what they use is the whole recording, in order."""


def public_segments(total: int) -> list[Segment]:
    """As the public release cuts `total` features: every 30 s, without overlap."""
    cuts = [range(start, start + SEGMENT_FEATURES) for start in range(0, total, SEGMENT_FEATURES)]
    return [Segment(cut, range(cut.start, min(cut.stop, total))) for cut in cuts]


def joined_segments(total: int, speech_s: Iterable[tuple[float, float]]) -> list[Segment]:
    """Segments of 30 s that overlap by at least 10 s, joined in the longest pause of each overlap, else in its middle.

    A `total` of up to 30 s makes one segment.

    Args:
        speech_s: starts and ends of speech in seconds, ascending.
    """
    length = SEGMENT_FEATURES
    if total <= length:
        return public_segments(total)
    steps = ceil((total - length) / (length - _OVERLAP))
    starts = [step * (total - length) // steps for step in range(steps + 1)]
    silent = [0, *(round(edge_s * FEATURES_PER_S) for span in speech_s for edge_s in span), total]
    pauses, joints = list(zip(silent[::2], silent[1::2], strict=True)), [0]
    for before, after in pairwise(starts):
        first, last = max(after + _MARGIN, joints[-1]), before + length - _MARGIN
        within = [(max(start, first), min(end, last)) for start, end in pauses]
        start, end = max(within, key=lambda pause: pause[1] - pause[0])
        joints.append((start + end) // 2 if start < end else (first + last) // 2)
    return [
        Segment(range(start, start + length), range(*used))
        for start, used in zip(starts, pairwise([*joints, total]), strict=True)
    ]
