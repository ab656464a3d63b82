"""Two stages: find the faces in every frame, then cut them out; and the search through a whole clip
for its faces.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import get_args

import numpy as np

from latentsync_trt.compositing.occluders import FrontMask, OccluderFinder
from latentsync_trt.face.align import (
    composed,
    crop,
    crop_size_px,
    frame_rectangle,
    inverse,
    square,
    stretch,
    transformed_face,
)
from latentsync_trt.face.choice import (
    LARGEST,
    Chooser,
    RunAligner,
    TrackedFace,
    check_people,
    named_speakers,
)
from latentsync_trt.face.geometry import Region
from latentsync_trt.face.look_ahead import LookAhead
from latentsync_trt.face.people import LEAST_COVERED, PORTRAIT_PX, FaceStats, PeopleCollector
from latentsync_trt.face.track_file import Tracks, mark_of
from latentsync_trt.face.tracker import FaceTracker, FrameFaces
from latentsync_trt.media.keep_mask import MaskPictures
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
    FrameMask,
    Front,
    Picture,
    Progress,
    ProgressCallback,
    UInt8Array,
    UInt16Array,
    VideoInfo,
    YuvPlanes,
)

_OVERVIEW_PX = 768
"""The least length of the longer side of the picture in which large faces are searched: the network
averages it."""


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A face that follows a voice, in one frame; without the frame, which would stay in memory as
    long as its window.
    """

    index: int
    """The index of the frame."""
    time_s: Fraction
    """The time of the frame."""
    track_id: int
    """Unique for an unbroken run of one face in one shot; windows never span two."""
    person: int
    """Identity through the clip, the number that `latentsync-trt faces` shows."""
    speaker: int
    """The index of its voice."""
    tracked: Face
    """Box and landmarks in pixels of the stored frame."""
    matrix: Float64Array
    """Frame pixels → crop pixels, `(2, 3)`."""
    face: AlignedFace | None = None
    """The face, as `cut_out` adds it."""
    kept: tuple[FrameMask, ...] = ()
    """What stays as it is in the frame, as it is in front of the face."""
    opacity: float = 1.0
    """How much of the painted face shows by how far its head turns aside, in [0, 1]."""


@dataclass(frozen=True, slots=True, eq=False)
class ChosenFace:
    """A face that follows a voice, in a frame with square pixels."""

    face: Face
    track_id: tuple[int, int]
    """The number of its track, and how often the source began again before."""
    person: int
    """See `Target`."""
    speaker: int
    """See `Target`."""
    front: FrontMask | None = None
    """What is in front of the face; None where nothing is, or it is not asked."""


@dataclass(frozen=True, slots=True, eq=False)
class FrameJob:
    """A frame on its way through the stages; it leaves unchanged where it has no targets."""

    frame: Frame
    targets: tuple[Target, ...] = ()
    seen: FrameFaces | None = None
    """All faces in the frame; None where none was searched."""
    chosen: tuple[ChosenFace, ...] = ()
    """The faces that follow a voice, whether they speak or not."""
    front: Front = "free"
    """What is in front of their mouths."""
    why_unpainted: str = ""
    """Why none of them shows painted; empty where one does, or none is chosen."""
    painted: tuple[UInt16Array, ...] = ()
    """The new face of each target, `(H, W, 3)`, 257 × level; none where an earlier run has written
    them."""
    painting: PaintingProgress | None = None
    """How far painting was when these were painted."""


FrameJobs = Generator[FrameJob, None, None]
"""Frames on their way from stage to stage, in order."""
SeenFrame = tuple[Frame, FrameFaces | None]
"""A frame and all faces in it; None where none was searched."""


class FaceFinder:
    """Finds and crops the faces of every frame of a clip; holds back half a second of frames, to
    bridge gaps.

    Args:
        faces: what searches for faces; or where they are.
        resolution_px: side of an aligned face.
        choice: whose face; or the speaker of each person, by their numbers in `faces`: else raises
            `InputError`.
        wanted: whether faces are searched in a frame.
        pixel_aspect: width / height of a pixel; faces are detected and aligned in square pixels.
    """

    def __init__(
        self,
        faces: FaceTracker | Tracks,
        resolution_px: int,
        *,
        choice: FaceChoice | Mapping[int, int] = LARGEST,
        wanted: Callable[[Frame], bool] = lambda _: True,
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
        """Returns the same frame, with RGB where faces were seen last: for another thread, as
        `find` waits for nothing else.
        """
        with self._clock.measure("decode"):
            if self._wanted(frame):
                for place in self._places:
                    _ = frame.picture[place]  # converts this part
        return frame

    def find(self, frames: Generator[Frame, None, None]) -> FrameJobs:
        """Yields a job for every frame, in order, with the places of its chosen faces."""
        return self.place(self.choose(frames))

    def choose(self, frames: Generator[Frame, None, None]) -> FrameJobs:
        """Yields a job for every frame, in order, with its chosen faces."""
        source_s = Fraction(0)
        longest_step_s = Fraction(0)
        jumps = 0
        for frame, seen in self.see(frames):
            # Played backwards, a source takes the steps that it took forwards; a longer one starts
            # from its beginning.
            step_s = frame.source_s - source_s
            if -step_s > longest_step_s:
                jumps += 1
            longest_step_s = max(longest_step_s, step_s)
            source_s = frame.source_s
            job = FrameJob(frame)
            with self._clock.measure("face"):
                if seen is not None:
                    chosen = tuple(
                        ChosenFace(one.face, (one.track_id, jumps), one.person, speaker)
                        for one, speaker in self._chooser.choose(seen, frame.time_s)
                    )
                    # A search may have converted the whole picture.
                    job = FrameJob(
                        frame if chosen else without_rgb(frame), seen=seen, chosen=chosen
                    )
            yield job

    def see(self, frames: Generator[Frame, None, None]) -> Generator[SeenFrame, None, None]:
        """Yields every frame in order with all faces in it; None where they are not wanted."""
        with closing(frames):
            if isinstance(self._faces, Tracks):
                for frame in frames:
                    wanted = self._wanted(frame)
                    yield frame, self._faces.at(frame.source_s) if wanted else None
            else:
                yield from self._search(self._faces, frames)

    def _search(
        self, tracker: FaceTracker, frames: Iterable[Frame]
    ) -> Generator[SeenFrame, None, None]:
        ahead = LookAhead(tracker)
        for frame in frames:
            ready: list[SeenFrame] = []
            with self._clock.measure("face", frames=0):
                if self._wanted(frame):
                    picture = square(frame.picture, self._pixel_aspect)
                    overview = partial(_overview, frame, self._pixel_aspect)
                    seen = tracker.update(picture, frame.time_s, frame.planes, overview)
                    if picture is frame.picture:
                        self._places = [Region.around(each.face).place() for each in seen.faces]
                    ready += ahead.push(frame, picture, seen)
                    forget_on_disk(frame)
                else:
                    tracker.restart()
                    ready += ahead.finish()
                    ready.append((frame, None))
            yield from ready
        yield from ahead.finish()

    def place(self, jobs: FrameJobs, mask: MaskPictures | None = None) -> FrameJobs:
        """Yields every job in order, with the places of its chosen faces, except of those whose
        mouths are covered; `mask`: what stays as it is.
        """
        with closing(jobs):
            for job in jobs:
                masked = None if mask is None else mask.of(job.frame)
                yield self._placed(job, masked)

    def _placed(self, job: FrameJob, masked: Picture | None) -> FrameJob:
        """Returns the job with the places of its faces; `masked`: white stays as it is."""
        aligned = self._aligner.advance({one.track_id: one.face for one in job.chosen})
        targets = []
        fronts: set[Front] = {"free"}
        for one in job.chosen:
            if one.front is not None and one.front.is_most:
                fronts.add("covered")
                continue
            if one.front is not None and one.front.mouth_share >= LEAST_COVERED:
                fronts.add("kept")
            targets.append(self._target(job.frame, one, aligned[one.track_id], masked))
        front = max(fronts, key=get_args(Front).index)
        why_unpainted = "mouth covered" if front == "covered" and not targets else ""
        return replace(job, targets=tuple(targets), front=front, why_unpainted=why_unpainted)

    def _target(
        self, frame: Frame, one: ChosenFace, place: TrackedFace, masked: Picture | None
    ) -> Target:
        face = one.face
        matrix = place.matrix
        kept: tuple[FrameMask, ...] = ()
        if one.front is not None:
            kept = (one.front,)
        if self._pixel_aspect != 1:
            to_square = stretch(frame.picture, self._pixel_aspect)
            face = transformed_face(face, inverse(to_square))
            matrix = composed(to_square, matrix)
            kept = tuple(
                replace(each, from_frame=composed(to_square, each.from_frame)) for each in kept
            )
        if masked is not None:
            kept += (_part_of_mask(masked, matrix, crop_size_px(self._resolution_px)),)
        return Target(
            index=frame.index,
            time_s=frame.time_s,
            track_id=place.track_id,
            person=one.person,
            speaker=one.speaker,
            tracked=face,
            matrix=matrix,
            kept=kept,
        )

    def cut_out(
        self,
        jobs: FrameJobs,
        speaks: Callable[[int, Fraction], bool] = lambda *_: True,
    ) -> FrameJobs:
        """Yields every job in order, with the aligned faces of those who speak.

        Args:
            speaks: whether a speaker, by number, does at a time of the output.
        """
        with closing(jobs):
            for job in jobs:
                frame = job.frame
                speaking = [each for each in job.targets if speaks(each.speaker, frame.time_s)]
                targets = []
                with self._clock.measure("align", frames=int(bool(speaking))):
                    for target in speaking:
                        face = crop(frame.picture, target.matrix, self._resolution_px)
                        targets.append(replace(target, face=face))
                yield replace(job, targets=tuple(targets))


def _part_of_mask(picture: Picture, matrix: Float64Array, crop_px: tuple[int, int]) -> FrameMask:
    """Returns the part of a mask of the frame's size that lies over a crop."""
    area = frame_rectangle(matrix, crop_px, picture.shape)
    levels = area.of(picture)[..., 1]
    from_frame = np.array([[1.0, 0, -area.left], [0, 1, -area.top]])
    return FrameMask(from_frame, levels.copy())


def _overview(frame: Frame, pixel_aspect: Fraction) -> UInt8Array:
    """Returns all of the picture with square pixels; of a large one, every n-th pixel."""
    picture = frame.picture
    planes = frame.planes
    if planes is not None:
        step = max(1, max(planes.y.shape) // _OVERVIEW_PX)
        y, u, v = (plane[::step, ::step] for plane in (planes.y, planes.u, planes.v))
        picture = LazyRgb(YuvPlanes(y, u, v, planes.color, planes.bits))
    return np.asarray(square(picture, pixel_aspect))


def analyze(
    video: Path,
    detector: FaceDetector,
    on_progress: ProgressCallback = lambda _: None,
    occluders: OccluderFinder | None = None,
) -> tuple[Tracks, dict[int, UInt8Array]]:
    """Returns the tracks of all faces of a clip, with what `occluders` find, and a picture of each
    person; raises `NoFaceError` if there is none.
    """
    info = probe(video)
    aspect = info.sample_aspect_ratio
    finder = FaceFinder(FaceTracker(detector, small=True), PORTRAIT_PX, pixel_aspect=aspect)
    # Every picture once, also those that are shown for long.
    pictures = (next(group) for _, group in groupby(read_frames(video), attrgetter("source_s")))
    frames = prefetch(pictures, finder.convert_expected_faces, name="decode")
    people = PeopleCollector()
    stats = FaceStats()
    with closing(finder.see(frames)) as seen_frames:
        for frame, seen in seen_frames:
            stats.add(frame, seen, has_face=False)
            if seen is not None:
                picture = partial(square, frame.picture, aspect)
                covered = {}
                if occluders is not None:
                    covered = _covered(occluders, picture(), seen, frame.time_s)
                people.add(frame.source_s, seen, picture, covered)
            on_progress(_search_progress(info, stats.frames))
    if people.is_empty:
        raise stats.no_face(video)
    return people.result(mark_of(video, info, stats.frames))


def _covered(
    occluders: OccluderFinder, picture: Picture, seen: FrameFaces, time_s: Fraction
) -> dict[int, float]:
    """Returns the part of each mouth that is behind something, by track."""
    covered = {}
    for each in seen.faces:
        _, front = occluders.find(picture, (each.track_id, 0), each.face, time_s)
        covered[each.track_id] = 0.0
        if front is not None:
            covered[each.track_id] = front.mouth_share
    return covered


def _search_progress(info: VideoInfo, count: int) -> Progress:
    total = None
    if info.frames_per_s is not None and info.duration_s is not None:
        total = max(count, round(info.frames_per_s * info.duration_s))
    return Progress("finding faces", count, total)
