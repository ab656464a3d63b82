"""What was measured in a synced clip, and how it reads."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["follows", "weak", "cannot tell"]

_MOST_NAMED = 3
"""Times that a verdict names; a report has all."""
TOO_SHORT = "less than 2 s of a face with speech"
"""Why SyncNet measured nothing."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A time of the output with something to tell of its faces, and what that is."""

    start_s: float
    end_s: float
    reason: str

    def __str__(self) -> str:
        return f"{self.start_s:.1f}–{self.end_s:.1f} s: {self.reason}"


def add_interval(intervals: list[Interval], new: Interval, gap_s: float = 0.0) -> None:
    """Adds an interval that begins not before the last one; both become one if they have the same
    reason and are apart by at most `gap_s`.
    """
    if intervals:
        last = intervals[-1]
        if last.reason == new.reason and new.start_s - last.end_s <= gap_s:
            intervals.pop()
            new = Interval(last.start_s, max(last.end_s, new.end_s), new.reason)
    intervals.append(new)


def person_name(person: int) -> str:
    """Returns what a person is called, by the number that `latentsync-trt faces` shows."""
    return f"person {person}"


@dataclass(frozen=True, slots=True)
class LipMeasure:
    """How the painted lips of one person follow the recording."""

    person: int | None
    """None = the one that `--face` chose."""
    frames: int
    """25ths of a second in which lips were measured."""
    verdict: Verdict
    agreement: float | None = None
    """Correlation in [0, 1] of the opening of the lips with what explains it best of the voice;
    None with too little speech.
    """
    distinct: float | None = None
    """By how many standard deviations the agreement exceeds that with the same sound at wrong
    times; None with too little speech.
    """
    late_ms: int | None = None
    """Delay of the lips, less than 0 = early; None unless it is certain."""
    shut_in_silence: float | None = None
    """Share of the silence in which the lips touch; None without silence."""

    def __str__(self) -> str:
        if self.verdict == "follows" and self.late_ms:
            return f"lips follow the speech, {_late(self.late_ms, 'ms')}"
        if self.verdict == "follows":
            return "lips follow the speech"
        if self.verdict == "weak":
            return (
                "weak: lips hardly follow the speech; try "
                "--guidance 2, or speech without music as --audio"
            )
        return "cannot tell whether lips follow the speech: too short"

    @property
    def with_figures(self) -> str:
        """The verdict, and the numbers behind it."""
        figures = list[str]()
        if self.agreement is not None and self.distinct is not None:
            figures.append(f"agreement {self.agreement:.2f}")
            figures.append(f"{self.distinct:.1f} deviations above chance")
        if self.shut_in_silence is not None:
            figures.append(f"shut in {self.shut_in_silence:.0%} of the silence")
        if figures:
            return f"{self}; {', '.join(figures)}"
        return str(self)


def _late(delay: int, unit: str) -> str:
    """Returns a delay of the lips in words; less than 0 = early."""
    direction = "late" if delay > 0 else "early"
    return f"{abs(delay)} {unit} {direction}"


@dataclass(frozen=True, slots=True)
class SyncNetMeasure:
    """How near SyncNet finds lips and speech, as papers report it."""

    lse_c: float
    """How far the smallest distance is below their median."""
    lse_d: float
    """The smallest distance."""
    offset_frames: int
    """How late the lips are by the smallest distance, at 25 frames per second."""
    windows: int
    """Windows of five frames that were measured."""
    distances: tuple[float, ...]
    """Means over all windows for lips that are 15, 14, … −15 frames late."""

    def __str__(self) -> str:
        offset = _late(self.offset_frames, "frames") if self.offset_frames else "on time"
        return f"LSE-C {self.lse_c:.2f}, LSE-D {self.lse_d:.2f}, {offset}"


@dataclass(frozen=True, slots=True)
class Measures:
    """What was measured in the painted faces while a clip ran."""

    lips: tuple[LipMeasure, ...]
    from_s: float = 0.0
    """Where a resumed run went on, from which it measures."""
    color: float | None = None
    """How far the color of the first painted faces is off, see `measure.pictures.fit_of`; None
    where nothing was to measure.
    """
    sharpness: float | None = None
    """Of the first painted faces, as a share of the source's."""
    alarm: str = ""
    """Why the first painted faces do not look like the source's, or empty."""
    misfits: tuple[Interval, ...] = ()
    """Times at which a painted face does not fit, and what is wrong, in order."""
    syncnet: tuple[SyncNetMeasure | None, ...] = ()
    """Of each person."""

    @property
    def rows(self) -> list[tuple[str, str]]:
        """All but the alarm in words, as name and value."""
        rows = list[tuple[str, str]]()
        for measure in self.lips:
            name = "lips"
            if len(self.lips) > 1:
                name += f" of person {measure.person}"
            rows.append((name, measure.with_figures))
        for syncnet in self.syncnet:
            rows.append(("SyncNet", str(syncnet or TOO_SHORT)))
        if self.color is not None and self.sharpness is not None:
            color = f"color {self.color:.1f} off (Lab)"
            rows.append(("picture", f"{color}, sharpness {self.sharpness:.0%} of the source's"))
        if rows and self.from_s:
            rows.append(("measured", f"from {self.from_s:.2f} s on, not what was painted earlier"))
        return rows

    def __str__(self) -> str:
        """The verdict, without figures; empty where nothing was painted."""
        verdicts = list[str]()
        for measure in self.lips:
            verdict = str(measure)
            if len(self.lips) > 1:
                verdict = f"person {measure.person}: {verdict}"
            verdicts.append(verdict)
        verdict = "; ".join(verdicts)
        if self.alarm:
            verdict = f"alarm: {self.alarm}"
        elif self.misfits:
            verdict = "; ".join([f"alarm: {self._misfits_in_words()}", *verdicts])
        if verdict and self.from_s:
            return f"{verdict} (measured from {self.from_s:.2f} s on)"
        return verdict

    def _misfits_in_words(self) -> str:
        """Returns the first few times at which a painted face does not fit."""
        words = ", ".join(str(each) for each in self.misfits[:_MOST_NAMED])
        left = len(self.misfits) - _MOST_NAMED
        return f"{words} and {left} more" if left > 0 else words
