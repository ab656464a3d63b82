"""What was measured in a synced clip, and how it reads."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LipMeasure:
    """How the painted lips of one `speaker` follow the recording; rough on real faces.

    `frames`: 25ths of a second in which lips were measured. `follow`: correlation of their opening with the loudness,
    in [−1, 1]; None where fewer than 25 of them have speech. `late_ms`: delay of the lips at which both agree best;
    None where they nowhere do. `shut_in_silence`: share of the silence in which the lips touch; None without silence.
    """

    speaker: int
    frames: int
    follow: float | None
    late_ms: int | None
    shut_in_silence: float | None

    def __str__(self) -> str:
        parts = ["too little speech to compare with"]
        if self.follow is not None:
            late = "" if self.late_ms is None else ", on time"
            if self.late_ms:
                late = f", {abs(self.late_ms)} ms {'late' if self.late_ms > 0 else 'early'}"
            parts = [f"follow the loudness at r = {self.follow:.2f}{late} (rough)"]
        if self.shut_in_silence is not None:
            parts.append(f"shut in {self.shut_in_silence:.0%} of the silence")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Measures:
    """What was measured in the painted faces while a clip ran; None where nothing was to measure.

    `seam`: the step at the edge of what was pasted, relative to the source's own changes there; 0 = none, below 1 these
    hide it. `flicker`: change from frame to frame that is no movement, beside the mouth, relative to the source's own.
    `from_s`: where a resumed run went on; what an earlier one painted is not measured.
    """

    lips: tuple[LipMeasure, ...]
    seam: float | None
    flicker: float | None
    from_s: float = 0.0

    @property
    def rows(self) -> list[tuple[str, str]]:
        """All in words, as name and value."""
        several = len(self.lips) > 1
        rows = [(f"lips of speaker {lips.speaker}" if several else "lips", str(lips)) for lips in self.lips]
        picture = [
            *([] if self.seam is None else [f"seam {self.seam:.1f}×"]),
            *([] if self.flicker is None else [f"flicker {self.flicker:.1f}× of the source's own"]),
        ]
        rows += [("picture", ", ".join(picture))] if picture else []
        return [*rows, ("measured", f"from {self.from_s:.2f} s on, as resumed")] if rows and self.from_s else rows

    def __str__(self) -> str:
        return "; ".join(f"{name}: {value}" for name, value in self.rows)
