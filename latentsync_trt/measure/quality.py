"""Measures of painted faces while a clip runs: lips against speech, pictures of moments; the page
that shows them.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf, isnan, nan
from pathlib import Path

import numpy as np

from latentsync_trt.config import MODEL_FPS, SyncOptions
from latentsync_trt.errors import OutputError
from latentsync_trt.measure.lips import Curves, Loudness, gap_of, measure_lips, near_speech
from latentsync_trt.measure.mismatch import ModelMismatchCheck
from latentsync_trt.measure.page import jpeg, svg, sync_figure, write_page
from latentsync_trt.measure.paint_check import PaintCheck
from latentsync_trt.measure.paint_figures import compared_face
from latentsync_trt.measure.syncnet import SyncMeter, curves_of
from latentsync_trt.measure.time_bands import time_bands_of
from latentsync_trt.measures import Interval, Measures, person_name
from latentsync_trt.option_fields import command_line
from latentsync_trt.types import (
    AlignedFace,
    Face,
    Float32Array,
    Frame,
    Patch,
    SyncReport,
    UInt8Array,
    UInt16Array,
    runs_of_true,
)
from latentsync_trt.unexpected import without_paths
from latentsync_trt.version import __version__

_PICTURE_HEIGHT_PX = 240
_MARGIN_SHARE = 0.15
"""How much of the face's size is shown around it on each side: seams lie at its edge."""

_OPTIONS_LEFT_OUT = ("c2pa", "faces", "keep_mask", "mix", "report", "speaker", "turns", "overwrite")
"""Options that a page does not name: most are names of files, and a page may be passed on."""


@dataclass(frozen=True, slots=True, eq=False)
class PaintSample:
    """A painted face to be measured."""

    source: Face
    """The face in the frame, as it was found there."""
    aligned: AlignedFace
    """The same face as the networks got it."""
    painted: UInt16Array
    """What was painted in its place, `(H, H, 3)` RGB, 257 × the level."""
    patch: Patch
    """What the frame gets."""
    mesh: Float32Array | None
    """FaceMesh's points of the painted face, `(468, 2)` in pixels of the frame."""
    color: Float32Array | None = None
    """The change of its RGB levels with which it is pasted, `(3, 4)`; None for none."""
    track_id: int = 0
    is_free: bool = True
    """Whether nothing is in front of the painted part."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A face at a time that says much about a result."""

    label: str
    time_s: float
    pictures: tuple[bytes, bytes]
    """JPEG files of the face before and after."""

    @property
    def caption(self) -> str:
        return f"{self.time_s:.2f} s: {self.label}"


class _LipsOfSpeaker:
    """The lips of one speaker, and the recording that they follow."""

    def __init__(self) -> None:
        self.loudness = Loudness()
        self._indices = array("q")
        self._gaps = array("f")

    def add(self, index: int, gap: float) -> None:
        """Adds the gap of a frame that is nearest to this one of the recording."""
        if index >= 0 and not isnan(gap):
            self._indices.append(index)
            self._gaps.append(gap)

    def curves(self) -> Curves | None:
        """Returns curves at the model's rate: the mean of the frames around each time, and silence
        after the recording; None where no lips were measured.
        """
        if not self._indices:
            return None
        levels_db = self.loudness.levels_db()
        indices = np.array(self._indices)
        gaps = np.array(self._gaps, np.float64)
        count = max(len(levels_db), int(indices.max()) + 1)
        frames = np.bincount(indices, minlength=count)
        sums = np.bincount(indices, gaps, count)
        means = np.full(count, np.nan)
        np.divide(sums, frames, out=means, where=frames > 0)
        silence = ((0, count - len(levels_db)), (0, 0))
        levels_db = np.pad(levels_db, silence, constant_values=-100.0)
        return Curves(means.astype(np.float32), levels_db)


class Quality:
    """Adds up what painted faces look like; memory grows by 12 bytes a face.

    Args:
        starts_s: when each recording begins in the output.
        people: whose recordings they are, by number; None = of the one whom `--face` chose.
        pictures: whether to keep those of `moments`.
        mismatch: looks at the first painted faces.
        check: looks at every painted face.
        syncnet: new meters of each recording, if SyncNet is to measure.
    """

    def __init__(
        self,
        starts_s: Sequence[Fraction],
        *,
        people: Sequence[int] | None = None,
        pictures: bool = False,
        mismatch: ModelMismatchCheck | None = None,
        check: PaintCheck | None = None,
        syncnet: Sequence[SyncMeter] = (),
    ) -> None:
        self.starts_s = tuple(starts_s)
        self.people: Sequence[int | None] = people or [None] * len(self.starts_s)
        self.mismatch = mismatch
        self.check = check
        self.syncnet = syncnet
        self._lips = [_LipsOfSpeaker() for _ in starts_s]
        self._pictures = pictures
        self._moments: dict[str, Moment] = {}
        self._gaps_at_moments: dict[str, float] = {}

    def listen(self, speaker: int, blocks: Iterable[Float32Array]) -> Iterator[Float32Array]:
        """Returns the same blocks of the speaker's recording, mono at 16 kHz, measured on their way
        to `SpeechStream`.
        """
        return self._lips[speaker].loudness.passing(blocks)

    def add(self, frame: Frame, speaker: int, sample: PaintSample) -> None:
        """Measures a face that was painted; frames in order, each face of a frame once."""
        gap = nan if sample.mesh is None else gap_of(sample.mesh)
        index = round((frame.time_s - self.starts_s[speaker]) * MODEL_FPS)
        self._lips[speaker].add(index, gap)
        if self.syncnet:
            after = _with_patch(frame, sample.patch)
            self.syncnet[speaker].add(frame.time_s, after, sample.aligned)
        if self.mismatch is not None:
            self.mismatch.check_painted_face(sample.aligned.image, sample.painted)
        if self.check is not None:
            compared = compared_face(sample.aligned, sample.painted, sample.mesh, sample.color)
            self.check.add(frame, sample.track_id, compared, is_free=sample.is_free)
        if self._pictures:
            self._keep_moments(frame, gap, sample)

    def _keep_moments(self, frame: Frame, gap: float, sample: PaintSample) -> None:
        for label, value in {"first": 0.0, "widest open": gap, "shut": -gap}.items():
            if value > self._gaps_at_moments.get(label, -inf):  # False for NaN
                self._gaps_at_moments[label] = value
                pictures = _before_and_after(frame, sample)
                self._moments[label] = Moment(label, float(frame.time_s), pictures)

    def result(self, from_s: float = 0.0) -> Measures:
        """Returns the measures of all faces so far; `from_s`: when the first frame begins that
        could be measured.
        """
        lips = []
        for person, curves in zip(self.people, self.curves(), strict=True):
            if curves is not None:
                lips.append(measure_lips(curves, person))
        syncnet = tuple(meter.result() for meter in self.syncnet)
        misfits = () if self.check is None else self.check.times()
        measures = Measures(tuple(lips), from_s, misfits=misfits, syncnet=syncnet)
        if self.mismatch is None:
            return measures
        fit = self.mismatch.fit
        if fit is not None:
            measures = replace(measures, color=fit.color, sharpness=fit.sharpness)
        return replace(measures, alarm=self.mismatch.text)

    def curves(self) -> list[Curves | None]:
        """Returns the curves of each speaker; None where no lips were measured."""
        return [lips.curves() for lips in self._lips]

    def speech(self, duration_s: Fraction) -> tuple[Interval, ...]:
        """Returns the times of an output that lasts so long at which each recording is heard, with
        whose it is.
        """
        times = []
        for start_s, person, lips in zip(self.starts_s, self.people, self._lips, strict=True):
            name = "speech" if person is None else person_name(person)
            is_spoken = near_speech(lips.loudness.levels_db())
            for first, end in runs_of_true(is_spoken):
                begin_s = max(Fraction(0), start_s + Fraction(first, MODEL_FPS))
                end_s = min(duration_s, start_s + Fraction(end, MODEL_FPS))
                if begin_s < end_s:
                    times.append(Interval(float(begin_s), float(end_s), name))
        return tuple(times)

    def moments(self) -> list[Moment]:
        """Returns the first face, the widest and the most shut mouth, by time."""
        return sorted(self._moments.values(), key=lambda moment: (moment.time_s, moment.label))


def _before_and_after(frame: Frame, sample: PaintSample) -> tuple[bytes, bytes]:
    """Returns JPEG files of a face and its surroundings."""
    low, high = sample.source.box.astype(np.float64).reshape(2, 2)
    margin = _MARGIN_SHARE * (high - low).max()
    height, width = frame.picture.shape[:2]
    begin = np.clip(low - margin, 0, (width - 1, height - 1)).astype(int)
    end = np.clip(high + margin, begin + 1, (width, height)).astype(int)
    columns, rows = map(slice, begin.tolist(), end.tolist())
    before = frame.picture[rows, columns]
    after = _with_patch(frame, sample.patch)[rows, columns]
    return jpeg(before, _PICTURE_HEIGHT_PX), jpeg(after, _PICTURE_HEIGHT_PX)


def _with_patch(frame: Frame, patch: Patch) -> UInt8Array:
    """Returns the whole picture with the patch."""
    after = np.array(frame.picture)
    high, wide = patch.weight.shape
    area = after[patch.y_px :, patch.x_px :][:high, :wide]
    weight = patch.weight[..., None]
    levels = patch.rgb / np.float32(257)
    area[...] = np.rint(area + weight * (levels - area))
    return after


def write_report(
    path: Path, source: Path, report: SyncReport, quality: Quality, options: SyncOptions
) -> None:
    """Writes the page of a finished run, which contains its pictures; raises `OutputError` if it
    cannot be written.
    """
    names = ["Face" if person is None else f"Person {person}" for person in quality.people]
    syncnet = report.quality.syncnet if report.quality else ()
    misfits = report.quality.misfits if report.quality else ()
    try:
        write_page(
            path,
            "sync.html.j2",
            title=Path(report.output).name,
            source=source.name,
            report=report,
            quality=report.quality,
            moments=[(moment.pictures, moment.caption) for moment in quality.moments()],
            lips=list(_lips_figures(names, quality)),
            syncnet=curves_of(dict(zip(names, syncnet, strict=False))),
            misfits=_rows_of_page(misfits),
            untouched=_rows_of_page(report.untouched),
            in_front=_rows_of_page(report.in_front),
            bands=time_bands_of(report),
            facts=_facts(report, options).items(),
            notices=[without_paths(text) for text in report.notices],
        )
    except OutputError as error:
        raise OutputError(f"{error}; the video is complete: {report.output}") from error


def _rows_of_page(intervals: Sequence[Interval]) -> list[tuple[str, str, str]]:
    """Returns start, end and reason of each, as text."""
    return [(f"{each.start_s:.2f}", f"{each.end_s:.2f}", each.reason) for each in intervals]


def _lips_figures(names: Sequence[str], quality: Quality) -> Iterator[tuple[str, str]]:
    """Yields title and drawing of each speaker's lips."""
    for name, start_s, curves in zip(names, quality.starts_s, quality.curves(), strict=True):
        if curves is None:
            continue
        began = ""
        if start_s:
            began = f"The speech begins at {float(start_s):.2f} s of the video."
        yield f"{name}: lips and speech", svg(sync_figure({"lips": curves}, began))


def _facts(report: SyncReport, options: SyncOptions) -> Mapping[str, str]:
    """Returns how a result was made, by name."""
    words = command_line(options, leave_out=_OPTIONS_LEFT_OUT)
    speed = f"{report.painting_s:.1f} s at {report.frames_per_s:.1f} frames/s"
    return {
        "bundle": report.bundle,
        "provider": report.provider,
        "options": " ".join(words) or "all at their defaults",
        "time": f"{report.startup_s:.1f} s start-up + {speed}",
        "busy": ", ".join(f"{stage.stage} {stage.busy_s:.1f} s" for stage in report.stages),
        "version": f"latentsync-trt {__version__}",
    }
