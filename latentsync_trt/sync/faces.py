"""Two stages: find the faces in every frame, then crop them; and the look through a whole clip for
its faces.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np

from latentsync_trt.face.align import composed, crop, inverse, square, stretch, transformed_face
from latentsync_trt.face.choice import LARGEST, Chooser, RunAligner, check_people, named_speakers
from latentsync_trt.face.geometry import Region
from latentsync_trt.face.look_ahead import LookAhead
from latentsync_trt.face.people import PORTRAIT_PX, FaceStats, PeopleCollector
from latentsync_trt.face.track_file import Tracks, mark_of
from latentsync_trt.face.tracker import FaceTracker, FrameFaces
from latentsync_trt.media.pictures import LazyRgb, forget_on_disk, without_rgb
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.option_fields import FaceChoice
from latentsync_trt.sync.pace import PaintingProgress
from latentsync_trt.sync.threads import StageClock, prefetch
from latentsync_trt.types import (
    AlignedFace,
    Face,
    FaceDetector,
    Float64Array,
    Frame,
    Progress,
    ProgressCallback,
    UInt8Array,
    UInt16Array,
    YuvPlanes,
)

_OVERVIEW_PX = 768
"""Longer side, or more, of the picture in which large faces are searched: the network averages
it.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A face that follows a voice, in one frame; without the frame, which would stay in memory as
    long as its window.

    `index`, `time_s`: of the frame. `track_id`: unique for an unbroken run of one face in one shot;
    windows never span two. `person`: identity through the clip, the number shown by `latentsync-trt
    faces`. `speaker`: index of its voice. `tracked`: box and landmarks in pixels of the stored
    frame. `matrix (2, 3)`: frame pixels → crop pixels. `face`: as `cut_out` adds it.
    """

    index: int
    time_s: Fraction
    track_id: int
    person: int
    speaker: int
    tracked: Face
    matrix: Float64Array
    face: AlignedFace | None = None


@dataclass(frozen=True, slots=True, eq=False)
class FrameJob:
    """A frame on its way through the stages; it leaves unchanged where it has no targets.

    `seen`: all faces in it; None where none was searched. `has_face`: one was chosen, whether it
    speaks or not. `painted`: the new face of each target, uint16 `(H, W, 3)`, 257 × level; none
    where an earlier run has written them. `painting`: how far painting was then.
    """

    frame: Frame
    targets: tuple[Target, ...] = ()
    seen: FrameFaces | None = None
    has_face: bool = False
    painted: tuple[UInt16Array, ...] = ()
    painting: PaintingProgress | None = None


class FaceFinder:
    """Finds and crops the faces of every frame of a clip; holds back half a second of frames, to
    bridge gaps.

    Args:
        faces: what searches for them; or where they are. resolution_px: side of an aligned face.
        choice: whose face; or the speaker of each person, by their numbers in `faces`: else raises
            `InputError`.
        wanted: whether faces are painted at this time of the output; at others, none is searched.
        pixel_aspect: width / height of a pixel; faces are detected and aligned in square pixels.
    """

    def __init__(
        self,
        faces: FaceTracker | Tracks,
        resolution_px: int,
        *,
        choice: FaceChoice | Mapping[int, int] = LARGEST,
        wanted: Callable[[Fraction], bool] = lambda _: True,
        pixel_aspect: Fraction = Fraction(1),
        clock: StageClock | None = None,
    ) -> None:
        if isinstance(faces, Tracks):
            check_people(named_speakers(choice) or (), faces.people, faces.clip.name)
        self._faces = faces
        self._wanted = wanted
        self._chooser = Chooser(choice)
        self._aligner = RunAligner(resolution_px)
        self._resolution_px = resolution_px
        self._clock = clock or StageClock()
        self._pixel_aspect = pixel_aspect
        self._places: list[tuple[slice, slice]] = []

    def convert_expected_faces(self, frame: Frame) -> Frame:
        """The same frame, with RGB where faces were seen last: for another thread, as `find` waits
        for nothing else.
        """
        with self._clock.measure("decode"):
            for place in self._places if self._wanted(frame.time_s) else ():
                frame.picture[place]
        return frame

    def find(self, frames: Generator[Frame, None, None]) -> Generator[FrameJob, None, None]:
        """A job for every frame, in order."""
        source_s = longest_step_s = Fraction(0)
        jumps = 0
        for frame, seen in self.see(frames):
            # Played backwards, a source takes the steps that it took forwards; a longer one starts
            # from its beginning.
            step_s = frame.source_s - source_s
            jumps += -step_s > longest_step_s
            longest_step_s = max(longest_step_s, step_s)
            source_s = frame.source_s
            with self._clock.measure("face"):
                job = FrameJob(frame) if seen is None else self._job(frame, seen, jumps)
            yield job

    def see(
        self, frames: Generator[Frame, None, None]
    ) -> Generator[tuple[Frame, FrameFaces | None], None, None]:
        """Every frame in order with all faces in it; None where they are not wanted."""
        with closing(frames):
            if isinstance(self._faces, Tracks):
                for frame in frames:
                    yield (
                        frame,
                        self._faces.at(frame.source_s) if self._wanted(frame.time_s) else None,
                    )
                return
            tracker = self._faces
            ahead = LookAhead(tracker)
            for frame in frames:
                with self._clock.measure("face", frames=0):
                    if self._wanted(frame.time_s):
                        shown = square(frame.picture, self._pixel_aspect)
                        overview = partial(_overview, frame, self._pixel_aspect)
                        seen = tracker.update(shown, frame.time_s, frame.planes, overview)
                        if shown is frame.picture:
                            self._places = [Region.around(one.face).place() for one in seen.faces]
                        ready: list[tuple[Frame, FrameFaces | None]] = [
                            *ahead.push(frame, shown, seen)
                        ]
                        forget_on_disk(frame)
                    else:
                        tracker.restart()
                        ready = [*ahead.finish(), (frame, None)]
                yield from ready
            yield from ahead.finish()

    def _job(self, frame: Frame, seen: FrameFaces, jumps: int) -> FrameJob:
        chosen = self._chooser.choose(seen, frame.time_s)
        aligned = self._aligner.advance({(one.track_id, jumps): one.face for one, _ in chosen})
        if not chosen:
            # a search may have converted the whole picture
            return FrameJob(without_rgb(frame), seen=seen)
        targets = []
        for one, speaker in chosen:
            face = one.face
            place = aligned[one.track_id, jumps]
            matrix = place.matrix
            if self._pixel_aspect != 1:
                to_square = stretch(frame.picture, self._pixel_aspect)
                face = transformed_face(face, inverse(to_square))
                matrix = composed(to_square, matrix)
            targets.append(
                Target(frame.index, frame.time_s, place.run, one.person, speaker, face, matrix)
            )
        return FrameJob(frame, tuple(targets), seen, has_face=True)

    def cut_out(
        self,
        jobs: Generator[FrameJob, None, None],
        speaks: Callable[[int, Fraction], bool] = lambda *_: True,
    ) -> Generator[FrameJob, None, None]:
        """Every job in order, with the aligned faces of those who speak: whether a speaker does, by
        number and time.
        """
        with closing(jobs):
            for job in jobs:
                frame = job.frame
                targets = [each for each in job.targets if speaks(each.speaker, frame.time_s)]
                with self._clock.measure("align", frames=int(bool(targets))):
                    faces = [
                        crop(frame.picture, each.matrix, self._resolution_px) for each in targets
                    ]
                targets = [
                    replace(each, face=face) for each, face in zip(targets, faces, strict=True)
                ]
                yield replace(job, targets=tuple(targets))


def _overview(frame: Frame, pixel_aspect: Fraction) -> UInt8Array:
    """All of the picture with square pixels; of a large one, every n-th pixel."""
    picture = frame.picture
    planes = frame.planes
    if planes is not None:
        step = max(1, max(planes.y.shape) // _OVERVIEW_PX)
        y, u, v = (plane[::step, ::step] for plane in (planes.y, planes.u, planes.v))
        picture = LazyRgb(YuvPlanes(y, u, v, planes.color, planes.bits))
    return np.asarray(square(picture, pixel_aspect))


def analyze(
    video: Path, detector: FaceDetector, on_progress: ProgressCallback = lambda _: None
) -> tuple[Tracks, dict[int, UInt8Array]]:
    """The tracks of all faces of a clip, and a picture of each person; raises `NoFaceError` if
    there is none.
    """
    info = probe(video)
    aspect = info.sample_aspect_ratio
    rate = info.frames_per_s
    finder = FaceFinder(FaceTracker(detector, small=True), PORTRAIT_PX, pixel_aspect=aspect)
    if rate is None or info.duration_s is None:
        expected = 0
    else:
        expected = round(rate * info.duration_s)
    pictures = groupby(read_frames(video), lambda frame: frame.source_s)
    distinct = (next(repeated) for _, repeated in pictures)
    frames = prefetch(distinct, finder.convert_expected_faces, name="decode")
    people = PeopleCollector()
    stats = FaceStats()
    with closing(finder.see(frames)) as seen_frames:
        for frame, seen in seen_frames:
            stats.add(frame, seen, has_face=False)
            if seen is not None:
                people.add(frame.source_s, seen, partial(square, frame.picture, aspect))
            count = stats.frames
            on_progress(
                Progress("finding faces", count, max(expected, count) if expected else None)
            )
    if people.is_empty:
        raise stats.no_face(video)
    return people.result(mark_of(video, info, stats.frames))
