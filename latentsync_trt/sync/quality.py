"""Measures of painted faces while a clip runs: lips against speech, seams, flicker, pictures of moments; their page."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from math import isnan, sqrt
from pathlib import Path
from statistics import fmean

import cv2
import numpy as np
from numpy.typing import NDArray

from latentsync_trt.config import MODEL_FPS, SyncOptions
from latentsync_trt.errors import OutputError
from latentsync_trt.face.align import rescaled, shifted
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.face.paste import Pasted
from latentsync_trt.measure.lips import Curves, Loudness, gap_of, measured
from latentsync_trt.measure.page import Section, svg, sync_figure, write_page
from latentsync_trt.measure.pictures import FlickerMeter, mouth_part
from latentsync_trt.measure.syncnet import SyncMeter, sections
from latentsync_trt.measures import Measures
from latentsync_trt.option_fields import command_line
from latentsync_trt.sync.alarm import Alarm
from latentsync_trt.sync.faces import Target
from latentsync_trt.types import Float32Array, Float64Array, Frame, Patch, SyncReport, UInt8Array, UInt16Array
from latentsync_trt.unexpected import without_paths
from latentsync_trt.version import __version__

_HEIGHT_PX = 240
_AROUND = 0.15
"""How much of the face's size is shown around it on each side: seams lie at its edge."""
_JPEG_QUALITY = 92

_SIDE_PX = 128
"""Side of the aligned faces in which flicker is measured."""

_PASTED = 0.9
_LEAST_NOISE = 6 * 0.5**2
"""The squared second difference of rounding to levels and more: what a picture without any noise is compared with."""

_SILENT_DB = -100.0

_EACH, _MEASURED = 15, 3
"""Seam and flicker are means over the clip: measured in three frames in a row, as flicker needs, of each 15."""

_FILES = ("c2pa", "faces", "mix", "report", "speaker", "turns")
"""Options that name files: a page may be passed on."""

_METHOD = (
    "The lips' opening, found by FaceMesh in the painted faces, is compared with the voice below and above 650 Hz, and "
    "that agreement with the one at wrong times, which is chance: real mouths are 2.7 to 5.7 deviations above it, so "
    "this tells lips that follow from lips that do not, not good from very good. "
    "Seam: the step at the edge of what was pasted, relative to the source's own changes there; 0 = none, below 1 they "
    "hide it. Flicker: change from frame to frame that is no movement, beside the mouth; 1 = as the source."
)


@dataclass(frozen=True, slots=True)
class Moment:
    """A face at `time_s` of the output: `before` and `after` as JPEG files; `shows`: why it was chosen."""

    time_s: float
    shows: str
    before: bytes
    after: bytes


class Quality:
    """Adds up what painted faces look like; memory grows by 36 bytes a face.

    Args:
        starts_s: when the recording of each speaker begins in the output.
        pictures: whether to keep small pictures of the moments that matter, for a page, and to measure all frames.
        alarm: looks at the first painted faces.
        syncnet: new meters of each speaker, if SyncNet is to measure, too.
    """

    def __init__(
        self,
        starts_s: Sequence[Fraction],
        *,
        pictures: bool = False,
        alarm: Alarm | None = None,
        syncnet: Sequence[SyncMeter] = (),
    ) -> None:
        self.starts_s, self._alarm, self.syncnet = tuple(starts_s), alarm, syncnet
        self._loudness = [Loudness() for _ in starts_s]
        self._lips = [(array("q"), array("f")) for _ in starts_s]
        self._meters: dict[int, tuple[int, tuple[FlickerMeter, FlickerMeter]]] = {}
        self._seams, self._own, self._new = array("d"), array("d"), array("d")
        self._pictures = pictures
        self._best: dict[str, tuple[float, Moment]] = {}
        self._last: tuple[Frame, Target, Patch] | None = None
        self._from_s: Fraction | None = None

    def listen(self, speaker: int, blocks: Iterable[Float32Array]) -> Iterator[Float32Array]:
        """The same blocks of the speaker's recording, mono at 16 kHz, measured on their way to `SpeechStream`."""
        return self._loudness[speaker].passing(blocks)

    def looks_at(self, frame: Frame) -> bool:
        """Whether seam and flicker are measured in this frame."""
        return self._pictures or frame.index % _EACH < _MEASURED

    def add(self, frame: Frame, target: Target, pasted: Pasted, seam: float | None) -> None:
        """A face that was pasted into `frame`, with its `seam_score` where `looks_at` says so; frames in order, each
        face of a frame once."""
        gap = float("nan") if pasted.painted_mesh is None else gap_of(pasted.painted_mesh)
        at = round((frame.time_s - self.starts_s[target.speaker]) * MODEL_FPS)
        if at >= 0 and not isnan(gap):
            ats, gaps = self._lips[target.speaker]
            ats.append(at)
            gaps.append(gap)
        if self.syncnet and target.face is not None:
            self.syncnet[target.speaker].add(frame.time_s, _painted(frame, pasted.patch), target.face)
        if self._alarm is not None and target.face is not None and target.painted is not None:
            self._alarm.look(target.face.image, target.painted)
        if seam is None:
            return
        self._seams.append(seam)
        own, new = self._flicker(frame, target, pasted.patch)
        if own is not None and new is not None:
            self._own.append(own)
            self._new.append(new)
        if not self._pictures:
            return
        self._last = frame, target, pasted.patch
        flicker = 0.0 if own is None or new is None else new - own
        shown = {"first": 0.0, "widest open": gap, "shut": -gap, "most visible seam": seam, "most flicker": flicker}
        for shows, value in shown.items():
            if not isnan(value) and (shows not in self._best or value > self._best[shows][0]):
                self._best[shows] = value, _moment(*self._last, shows)

    def _flicker(self, frame: Frame, target: Target, patch: Patch) -> list[float | None]:
        """Of the source and of the new picture, see `FlickerMeter.add`."""
        self._meters = {track: each for track, each in self._meters.items() if each[0] >= frame.index - 1}
        _, meters = self._meters.get(target.track_id, (0, (FlickerMeter(), FlickerMeter())))
        self._meters[target.track_id] = frame.index, meters
        pictures = _aligned(frame, target, patch)
        return [meter.add(picture) for meter, picture in zip(meters, pictures, strict=True)]

    def restart(self, time_s: Fraction) -> None:
        """Begins a new part: the frames before have no influence on what follows."""
        self._from_s = time_s if self._from_s is None else self._from_s
        self._meters.clear()

    def result(self) -> Measures:
        """The measures of all faces so far."""
        flicker = None
        if self._own:
            flicker = sqrt((fmean(self._new) + _LEAST_NOISE) / (fmean(self._own) + _LEAST_NOISE))
        lips = [measured(curves, speaker) for speaker, curves in enumerate(self.curves()) if curves is not None]
        seam, from_s, alarm = fmean(self._seams) if self._seams else None, float(self._from_s or 0), self._alarm
        fit = (None, None, "") if alarm is None else (alarm.color, alarm.sharpness, alarm.text)
        return Measures(tuple(lips), seam, flicker, from_s, *fit, tuple(meter.result() for meter in self.syncnet))

    def curves(self) -> list[Curves | None]:
        """Lips and loudness of each speaker at the model's rate, the mean of the frames around each time.

        Silence after the recording; None where no lips were measured.
        """
        speakers = zip(self._loudness, self._lips, strict=True)
        return [_curves(loudness.levels_db(), *lips) if lips[0] else None for loudness, lips in speakers]

    def moments(self) -> list[Moment]:
        """The extreme moments, first and last face, by time; what is shown twice is named once."""
        found = [moment for _, moment in self._best.values()]
        found += [] if self._last is None else [_moment(*self._last, "last")]
        named: dict[tuple[float, bytes], Moment] = {}
        for moment in found:
            key = moment.time_s, moment.before
            named[key] = replace(moment, shows=f"{named[key].shows}, {moment.shows}") if key in named else moment
        return sorted(named.values(), key=lambda moment: moment.time_s)


def _curves(levels_db: Float32Array, ats: "array[int]", opened: "array[float]") -> Curves:
    at, gaps = np.array(ats), np.array(opened, np.float64)
    count = max(len(levels_db), int(at.max()) + 1)
    frames = np.bincount(at, minlength=count)
    means: Float64Array = np.full(count, np.nan)
    np.divide(np.bincount(at, gaps, count), frames, out=means, where=frames > 0)
    beyond = np.pad(levels_db, ((0, count - len(levels_db)), (0, 0)), constant_values=_SILENT_DB)
    return Curves(means.astype(np.float32), beyond)


@cache
def _beside_mouth() -> NDArray[np.intp]:
    """Places in flat pictures in the network's pose where faces are painted, but no lips move."""
    painted = mouth_mask(_SIDE_PX) == 0
    painted[mouth_part(_SIDE_PX)] = False
    return np.flatnonzero(painted)


def _aligned(frame: Frame, target: Target, patch: Patch) -> Float32Array:
    """Beside the mouth in the network's pose: brightness of the source and of the new picture, `(2,
    n)`, NaN where nothing was pasted."""
    height, width = patch.weight.shape
    if not (height and width and target.face is not None):
        return np.full((2, _beside_mouth().size), np.nan, np.float32)
    own = frame.picture[patch.y_px : patch.y_px + height, patch.x_px : patch.x_px + width]
    matrix = shifted(rescaled(target.face, (_SIDE_PX, _SIDE_PX)), patch.x_px, patch.y_px)
    planes = cv2.merge([_luma(own), _luma(patch.rgb) / np.float32(257), patch.weight])
    values = _warped(np.asarray(planes, np.float32), matrix).reshape(-1, 3)[_beside_mouth()]
    source, painted, weight = values.T.copy()
    source[weight < _PASTED] = np.nan
    return np.stack([source, source + weight * (painted - source)])


def _luma(rgb: UInt8Array | UInt16Array) -> Float32Array:
    return np.asarray(cv2.cvtColor(rgb.astype(np.float32), cv2.COLOR_RGB2GRAY), np.float32)


def _warped(image: Float32Array, matrix: Float64Array) -> Float32Array:
    """`image (h, w, c)` in the network's pose; averaged before where warping would skip pixels."""
    shrink = max(1, int(1 / np.linalg.norm(matrix[:, 0])))
    height, width = (max(1, side // shrink) for side in image.shape[:2])
    small = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    scale = np.array([image.shape[1] / width, image.shape[0] / height])
    scaled = np.column_stack([matrix[:, :2] * scale, matrix[:, 2] + matrix[:, :2] @ ((scale - 1) / 2)])
    return np.asarray(cv2.warpAffine(small, scaled, (_SIDE_PX, _SIDE_PX)), np.float32)


def _moment(frame: Frame, target: Target, patch: Patch, shows: str) -> Moment:
    box = target.tracked.box.astype(np.float64)
    margin = _AROUND * max(box[2] - box[0], box[3] - box[1])
    height, width = frame.picture.shape[:2]
    left, top = np.clip(box[:2] - margin, 0, (width - 1, height - 1)).astype(int).tolist()
    right, bottom = np.clip(box[2:] + margin, (left + 1, top + 1), (width, height)).astype(int).tolist()
    before, after = (picture[top:bottom, left:right] for picture in (frame.picture, _painted(frame, patch)))
    return Moment(float(frame.time_s), shows, _jpeg(before), _jpeg(after))


def _painted(frame: Frame, patch: Patch) -> UInt8Array:
    """The whole picture with the patch."""
    after = np.array(frame.picture)
    high, wide = patch.weight.shape
    place = after[patch.y_px :, patch.x_px :][:high, :wide]
    place[...] = np.rint(place + patch.weight[..., None] * (patch.rgb / np.float32(257) - place))
    return after


def _jpeg(rgb: UInt8Array) -> bytes:
    width = max(1, round(rgb.shape[1] * _HEIGHT_PX / rgb.shape[0]))
    small = cv2.resize(rgb, (width, _HEIGHT_PX), interpolation=cv2.INTER_AREA)
    encoded = cv2.imencode(".jpg", cv2.cvtColor(small, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
    return bytes(encoded[1])


def write_report(path: Path, source: Path, report: SyncReport, quality: Quality, options: SyncOptions) -> None:
    """Writes the page of a finished run, which contains its pictures; raises `OutputError` if it cannot be written."""
    try:
        write_page(path, Path(report.output).name, [*_sections(source, report, quality, options)])
    except OutputError as error:
        raise OutputError(f"{error}; the video is complete: {report.output}") from error


def _sections(source: Path, report: SyncReport, quality: Quality, options: SyncOptions) -> Iterator[Section]:
    length = f"{report.frames} frames ({report.duration_s:.2f} s)"
    yield Section(text=[f"{source.name}, lip-synced: {length}, a face in {report.frames_with_face}"])
    if report.quality is not None and report.quality.alarm:
        yield Section("Alarm", notes=[report.quality.alarm])
    rows = report.quality.rows if report.quality else []
    yield Section(rows=rows, text=[_METHOD if rows else "This run painted no face, so nothing was measured."])
    shown = [([each.before, each.after], f"{each.time_s:.2f} s: {each.shows}") for each in quality.moments()]
    if shown:
        yield Section("Before and after", pictures=shown)
    curves = quality.curves()
    for speaker, (start_s, found) in enumerate(zip(quality.starts_s, curves, strict=True)):
        if found is not None:
            title = f"Speaker {speaker}: lips and speech" if len(curves) > 1 else "Lips and speech"
            began = f"The speech begins at {float(start_s):.2f} s of the video." if start_s else ""
            yield Section(title, drawing=svg(sync_figure({"lips": found}, began)))
    names = [f"speaker {speaker}" if len(curves) > 1 else "face" for speaker in range(len(curves))]
    yield from sections(dict(zip(names, quality.syncnet, strict=False)))
    untouched = [(f"{part.start_s:.2f}", f"{part.end_s:.2f}", part.reason) for part in report.untouched]
    if untouched:
        yield Section("Left as it was", untouched, ("from, s", "to, s", "why"))
    painting = f"{report.painting_s:.1f} s at {report.frames_per_s:.1f} frames/s"
    facts = {
        "bundle": report.bundle,
        "provider": report.provider,
        "options": " ".join(command_line(options, leave_out=(*_FILES, "overwrite"))) or "all at their defaults",
        "time": f"{report.startup_s:.1f} s start-up + {painting}",
        "busy": ", ".join(f"{stage.stage} {stage.busy_s:.1f} s" for stage in report.stages),
        "version": f"latentsync-trt {__version__}",
    }
    yield Section("How it was made", [*facts.items()])
    if report.notices:
        yield Section("Notices", notes=[without_paths(text) for text in report.notices])
