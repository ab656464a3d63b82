"""What was measured in a synced clip, and how it reads."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["follows", "weak", "cannot tell"]

TOO_SHORT = "less than 2 s of a face with speech"
"""Why SyncNet measured nothing."""


@dataclass(frozen=True, slots=True)
class LipMeasure:
    """How the painted lips of one `person` follow the recording; None = the one that `--face`
    chose.

    `frames`: 25ths of a second in which lips were measured. `agreement`: correlation in [0, 1] of
    their opening with what explains it best of the voice; `distinct`: by how many standard
    deviations it exceeds the same sound at wrong times; None with too little speech. `late_ms`:
    delay of the lips, less than 0 = early; None unless it is certain. `shut_in_silence`: share of
    the silence in which the lips touch; None without silence.
    """

    person: int | None
    frames: int
    verdict: Verdict
    agreement: float | None = None
    distinct: float | None = None
    late_ms: int | None = None
    shut_in_silence: float | None = None

    def __str__(self) -> str:
        if self.verdict == "follows":
            if self.late_ms:
                late = f", {abs(self.late_ms)} ms {'late' if self.late_ms > 0 else 'early'}"
            else:
                late = ""
            return f"lips follow the speech{late}"
        if self.verdict == "weak":
            return (
                "weak: lips hardly follow the speech; try "
                "--guidance 2, or speech without music as --audio"
            )
        return "cannot tell whether lips follow the speech: too short"

    @property
    def with_figures(self) -> str:
        """The verdict, and the numbers behind it."""
        parts = []
        if self.agreement is not None and self.distinct is not None:
            parts.append(
                f"agreement {self.agreement:.2f}, {self.distinct:.1f} deviations above chance"
            )
        if self.shut_in_silence is not None:
            parts.append(f"shut in {self.shut_in_silence:.0%} of the silence")
        return "; ".join([str(self), *filter(None, [", ".join(parts)])])


@dataclass(frozen=True, slots=True)
class SyncNetMeasure:
    """How near SyncNet finds lips and speech, as papers report it.

    `lse_d`: the smallest of `distances`, means over all `windows` of five frames at 25 per second
    for lips that are 15, 14, … −15 frames late; at `offset_frames`. `lse_c`: how far it is below
    their median.
    """

    lse_c: float
    lse_d: float
    offset_frames: int
    windows: int
    distances: tuple[float, ...]

    def __str__(self) -> str:
        late = f"{abs(self.offset_frames)} frames {'late' if self.offset_frames > 0 else 'early'}"
        return (
            f"LSE-C {self.lse_c:.2f}, LSE-D {self.lse_d:.2f}, "
            f"{late if self.offset_frames else 'on time'}"
        )


@dataclass(frozen=True, slots=True)
class Measures:
    """What was measured in the painted faces while a clip ran; None where nothing was to measure.

    `from_s`: where a resumed run went on, and measures. `color`, `sharpness`: of the first painted
    faces, see `measure.pictures.fit_of`; `alarm`: why they do not look like the source's, or empty.
    `syncnet`: of each person.
    """

    lips: tuple[LipMeasure, ...]
    from_s: float = 0.0
    color: float | None = None
    sharpness: float | None = None
    alarm: str = ""
    syncnet: tuple[SyncNetMeasure | None, ...] = ()

    @property
    def rows(self) -> list[tuple[str, str]]:
        """All but the alarm in words, as name and value."""
        several = len(self.lips) > 1
        rows = [
            (f"lips of person {each.person}" if several else "lips", each.with_figures)
            for each in self.lips
        ]
        rows += [("SyncNet", str(found or TOO_SHORT)) for found in self.syncnet]
        if self.color is not None and self.sharpness is not None:
            figures = (
                f"color {self.color:.1f} off (Lab), sharpness {self.sharpness:.0%} of the source's"
            )
            rows.append(("picture", figures))
        if rows and self.from_s:
            return [*rows, ("measured", f"from {self.from_s:.2f} s on, as resumed")]
        return rows

    def __str__(self) -> str:
        """The verdict, without figures; empty where nothing was painted."""
        several = len(self.lips) > 1
        lips = "; ".join(
            f"person {each.person}: {each}" if several else str(each) for each in self.lips
        )
        verdict = f"alarm: {self.alarm}" if self.alarm else lips
        if verdict and self.from_s:
            return f"{verdict} (measured from {self.from_s:.2f} s on, as resumed)"
        return verdict
