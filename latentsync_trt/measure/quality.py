"""Measures of painted faces while a clip runs: lips against speech, pictures of moments; the page
that shows them.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from math import isnan, nan
from pathlib import Path

import numpy as np

from latentsync_trt.config import MODEL_FPS, SyncOptions
from latentsync_trt.errors import OutputError
from latentsync_trt.measure.lips import Curves, Loudness, gap_of, measured
from latentsync_trt.measure.mismatch import ModelMismatchCheck
from latentsync_trt.measure.page import jpeg, svg, sync_figure, write_page
from latentsync_trt.measure.syncnet import SyncMeter, curves_of
from latentsync_trt.measures import Measures
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
)
from latentsync_trt.unexpected import without_paths
from latentsync_trt.version import __version__

_HEIGHT_PX = 240
_AROUND = 0.15
"""How much of the face's size is shown around it on each side: seams lie at its edge."""

_NOT_SHOWN = ("c2pa", "faces", "mix", "report", "speaker", "turns", "overwrite")
"""Options; most name files, and a page may be passed on."""


Pasted = tuple[Patch, Float32Array | None]
"""What a frame gets, and FaceMesh's points of the painted face, `(468, 2)` in pixels of the frame,
None without any.
"""


class Quality:
    """Adds up what painted faces look like; memory grows by 12 bytes a face.

    Args:
        starts_s: when each recording begins in the output. people: whose recordings they are, by
            number; None = of the one whom `--face` chose. pictures: whether to keep those of
            `moments`.
        mismatch: looks at the first painted faces. syncnet: new meters of each recording, if
            SyncNet is to measure.
    """

    def __init__(
        self,
        starts_s: Sequence[Fraction],
        *,
        people: Sequence[int] | None = None,
        pictures: bool = False,
        mismatch: ModelMismatchCheck | None = None,
        syncnet: Sequence[SyncMeter] = (),
    ) -> None:
        self.starts_s = tuple(starts_s)
        self.mismatch = mismatch
        self.syncnet = syncnet
        self._loudness = [Loudness() for _ in starts_s]
        self._lips = [(array("q"), array("f")) for _ in starts_s]
        self.people: list[int | None] = [None] * len(self.starts_s) if people is None else [*people]
        self._pictures = pictures
        self._best: dict[str, tuple[float, float, list[bytes]]] = {}

    def listen(self, speaker: int, blocks: Iterable[Float32Array]) -> Iterator[Float32Array]:
        """The same blocks of the speaker's recording, mono at 16 kHz, measured on their way to
        `SpeechStream`.
        """
        return self._loudness[speaker].passing(blocks)

    def add(
        self,
        frame: Frame,
        speaker: int,
        tracked: Face,
        face: AlignedFace,
        painted: UInt16Array,
        pasted: Pasted,
    ) -> None:
        """A face at `tracked` that was cut out as `face`, painted, uint16 `(H, H, 3)`, 257 × the
        level, and pasted into `frame`; frames in order, each face of a frame once.
        """
        patch, mesh = pasted
        gap = nan if mesh is None else gap_of(mesh)
        at = round((frame.time_s - self.starts_s[speaker]) * MODEL_FPS)
        if at >= 0 and not isnan(gap):
            ats, gaps = self._lips[speaker]
            ats.append(at)
            gaps.append(gap)
        if self.syncnet:
            self.syncnet[speaker].add(frame.time_s, _painted(frame, patch), face)
        if self.mismatch is not None:
            self.mismatch.look(face.image, painted)
        if self._pictures:
            for shows, value in {"first": 0.0, "widest open": gap, "shut": -gap}.items():
                if not isnan(value) and (shows not in self._best or value > self._best[shows][0]):
                    self._best[shows] = value, float(frame.time_s), _pictures(frame, tracked, patch)

    def result(self, from_s: float = 0.0) -> Measures:
        """The measures of all faces so far; `from_s`: when the first frame begins that could be
        measured.
        """
        found = zip(self.people, self.curves(), strict=True)
        lips = [measured(curves, person) for person, curves in found if curves is not None]
        mismatch = self.mismatch
        fit: tuple[float | None, float | None, str] = (None, None, "")
        if mismatch is not None:
            fit = (mismatch.color, mismatch.sharpness, mismatch.text)
        return Measures(tuple(lips), from_s, *fit, tuple(meter.result() for meter in self.syncnet))

    def curves(self) -> list[Curves | None]:
        """Of each speaker at the model's rate, the mean of the frames around each time, and silence
        after the recording; None where no lips were measured.
        """
        speakers = zip(self._loudness, self._lips, strict=True)
        return [
            _curves(loudness.levels_db(), *lips) if lips[0] else None for loudness, lips in speakers
        ]

    def moments(self) -> list[tuple[float, str, list[bytes]]]:
        """The first face, the widest and the most shut mouth, by time: what it is, before and after
        as JPEG files.
        """
        return sorted((time_s, shows, files) for shows, (_, time_s, files) in self._best.items())


def _curves(levels_db: Float32Array, ats: "array[int]", opened: "array[float]") -> Curves:
    at = np.array(ats)
    gaps = np.array(opened, np.float64)
    count = max(len(levels_db), int(at.max()) + 1)
    frames = np.bincount(at, minlength=count)
    means = np.full(count, np.nan)
    np.divide(np.bincount(at, gaps, count), frames, out=means, where=frames > 0)
    beyond = np.pad(levels_db, ((0, count - len(levels_db)), (0, 0)), constant_values=-100.0)
    return Curves(means.astype(np.float32), beyond)


def _pictures(frame: Frame, tracked: Face, patch: Patch) -> list[bytes]:
    box = tracked.box.astype(np.float64)
    margin = _AROUND * max(box[2] - box[0], box[3] - box[1])
    height, width = frame.picture.shape[:2]
    left, top = np.clip(box[:2] - margin, 0, (width - 1, height - 1)).astype(int).tolist()
    right, bottom = (
        np.clip(box[2:] + margin, (left + 1, top + 1), (width, height)).astype(int).tolist()
    )
    return [
        jpeg(picture[top:bottom, left:right], _HEIGHT_PX)
        for picture in (frame.picture, _painted(frame, patch))
    ]


def _painted(frame: Frame, patch: Patch) -> UInt8Array:
    """The whole picture with the patch."""
    after = np.array(frame.picture)
    high, wide = patch.weight.shape
    place = after[patch.y_px :, patch.x_px :][:high, :wide]
    place[...] = np.rint(place + patch.weight[..., None] * (patch.rgb / np.float32(257) - place))
    return after


def write_report(
    path: Path, source: Path, report: SyncReport, quality: Quality, options: SyncOptions
) -> None:
    """Writes the page of a finished run, which contains its pictures; raises `OutputError` if it
    cannot be written.
    """
    curves = quality.curves()
    names = ["Face" if person is None else f"Person {person}" for person in quality.people]
    lips = []
    for name, start_s, found in zip(names, quality.starts_s, curves, strict=True):
        if found is not None:
            if start_s:
                began = f"The speech begins at {float(start_s):.2f} s of the video."
            else:
                began = ""
            lips.append((f"{name}: lips and speech", svg(sync_figure({"lips": found}, began))))
    facts = {
        "bundle": report.bundle,
        "provider": report.provider,
        "options": " ".join(command_line(options, leave_out=_NOT_SHOWN)) or "all at their defaults",
        "time": f"{report.startup_s:.1f} s start-up + {report.painting_s:.1f} "
        f"s at {report.frames_per_s:.1f} frames/s",
        "busy": ", ".join(f"{stage.stage} {stage.busy_s:.1f} s" for stage in report.stages),
        "version": f"latentsync-trt {__version__}",
    }
    try:
        write_page(
            path,
            "sync.html.j2",
            title=Path(report.output).name,
            source=source.name,
            report=report,
            quality=report.quality,
            moments=[
                (files, f"{time_s:.2f} s: {shows}") for time_s, shows, files in quality.moments()
            ],
            lips=lips,
            syncnet=curves_of(
                dict(zip(names, report.quality.syncnet if report.quality else (), strict=False))
            ),
            untouched=[
                (f"{part.start_s:.2f}", f"{part.end_s:.2f}", part.reason)
                for part in report.untouched
            ],
            facts=facts.items(),
            notices=[without_paths(text) for text in report.notices],
        )
    except OutputError as error:
        raise OutputError(f"{error}; the video is complete: {report.output}") from error
