"""Two stages: find the faces in every frame, then crop them.

A face is searched near its last position, so finding is sequential; cropping runs in another thread.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np

from latentsync_trt.errors import NoFaceError
from latentsync_trt.face.align import composed, crop, inverse, moved_face, square, stretch
from latentsync_trt.face.choice import LARGEST, Chooser, Runs, check_people, speakers_of
from latentsync_trt.face.geometry import LEAST_HEIGHT_PX, LEAST_WIDTH_PX
from latentsync_trt.face.identity import luma_of
from latentsync_trt.face.track_file import Tracks
from latentsync_trt.face.tracker import FaceTracker, FrameFaces, LookAhead
from latentsync_trt.media.pictures import LazyRgb
from latentsync_trt.sync.jobs import FrameJob, Target
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.types import FaceDetector, Frame, Interval, UInt8Array
from latentsync_trt.values import FaceChoice

_TURN = "ffmpeg -display_rotation ANGLE -i in.mp4 -c copy out.mp4"
_WRONG_TAG = f"its rotation tag is wrong; set it to 0, 90, 180 or 270: {_TURN}"

_OVERVIEW_PX = 768
"""Longer side, or more, of the picture in which large faces are searched: the network averages it."""

_LUMA_PX = 256


class FaceFinder:
    """Finds and crops the faces of every frame of a clip, and counts the frames with one.

    Holds back half a second of frames, to bridge gaps.

    Args:
        resolution_px: side of an aligned face.
        choice: whose face; or the speaker of each person, by their numbers in `tracks`.
        tracks: where the faces are, instead of searching.
        wanted: whether faces are painted at this time of the output; at others, none is searched.
        pixel_aspect: width / height of a pixel; faces are detected and aligned in square pixels.
        small: whether every search looks for small faces, too; see `FaceTracker`.
        on_notice: called at the first frame that shows several faces, if no one has chosen one.

    Raises:
        InputError: `choice` names a person who is not in `tracks`.
    """

    def __init__(
        self,
        detector: FaceDetector,
        resolution_px: int,
        clock: StageClock,
        *,
        choice: FaceChoice | Mapping[int, int] = LARGEST,
        tracks: Tracks | None = None,
        wanted: Callable[[Fraction], bool] = lambda _: True,
        pixel_aspect: Fraction = Fraction(1),
        small: bool = False,
        on_notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        if tracks is not None:
            check_people(speakers_of(choice) or (), tracks.people, tracks.clip.name)
        self._tracker, self._tracks = FaceTracker(detector, small=small), tracks
        self._choice, self._chooser = choice, Chooser(choice)
        self._runs, self._resolution_px = Runs(resolution_px), resolution_px
        self._clock, self._pixel_aspect = clock, pixel_aspect
        self._wanted, self._on_notice = wanted, on_notice
        self._source_s = self._longest_step_s = Fraction(0)
        self._jumps = 0
        self._untouched: list[Interval] = []
        self._most_faces = self._searched = self.frames_with_face = 0

    @property
    def untouched(self) -> tuple[Interval, ...]:
        """The wanted times so far at which no face was chosen."""
        return tuple(self._untouched)

    def no_face(self, video: Path, frames: int) -> NoFaceError:
        """The error for a `video` of so many `frames`, none of which shows a usable face that was chosen."""
        if not self._searched:
            part = "is in the part that is synced; give another --start or --end"
            return NoFaceError(f"{video}: none of its {frames} frames {part}", usage=True)
        if self._most_faces:
            return NoFaceError(f"{video}: shows faces, but never the chosen one; latentsync-trt faces shows them all")
        if count := self._tracker.turned_frames:
            none = f"no upright face in any of the {self._searched} frames searched, but {count} with one"
            return NoFaceError(f"{video}: {none} on its side or upside down; probably {_WRONG_TAG}")
        least = f"be at least {LEAST_WIDTH_PX} px wide and {LEAST_HEIGHT_PX} px high"
        searched = f"no face in any of the {self._searched} frames searched"
        return NoFaceError(f"{video}: {searched}; a face must look at the camera, and {least}")

    def find(self, frames: Generator[Frame, None, None]) -> Generator[FrameJob, None, None]:
        """A job for every frame, in order."""
        for frame, seen in self.see(frames):
            self._note_jump(frame.source_s)
            with self._clock.measure("face"):
                job = FrameJob(frame) if seen is None else self._job(frame, seen)
            self.frames_with_face += bool(job.targets)
            yield job

    def see(self, frames: Generator[Frame, None, None]) -> Generator[tuple[Frame, FrameFaces | None], None, None]:
        """Every frame in order with all faces in it; None where they are not wanted."""
        ahead: LookAhead[Frame] = LookAhead(self._tracker)
        with closing(frames):
            for frame in frames:
                is_wanted = self._wanted(frame.time_s)
                self._searched += is_wanted
                with self._clock.measure("face"):
                    if not is_wanted:
                        self._tracker.restart()
                        ready: list[tuple[Frame, FrameFaces | None]] = [*ahead.finish(), (frame, None)]
                    elif self._tracks is not None:
                        ready = [(frame, self._tracks.at(frame.source_s))]
                    else:
                        shown = square(frame.picture, self._pixel_aspect)
                        overview = partial(_overview, frame, self._pixel_aspect)
                        seen = self._tracker.update(shown, _luma(frame), overview, frame.time_s)
                        ready = [*ahead.push(frame, frame.time_s, shown, seen)]
                yield from ready
        yield from ahead.finish()

    def _job(self, frame: Frame, seen: FrameFaces) -> FrameJob:
        self._note_several(frame, len(seen.faces))
        chosen = self._chooser.choose(seen, frame.time_s)
        placed = self._runs.advance({(one.track_id, self._jumps): one.face for one, _ in chosen})
        if not chosen:
            self._note_untouched(frame, "other faces" if seen.faces else seen.why_none)
            # A search may have converted the whole picture; a frame that waits to be encoded needs its planes only.
            frame = frame if frame.planes is None else replace(frame, picture=LazyRgb(frame.planes))
            return FrameJob(frame, shot=seen.shot)
        to_square, targets = stretch(frame.picture, self._pixel_aspect), []
        to_stored = inverse(to_square)
        for one, speaker in chosen:
            run, matrix = placed[one.track_id, self._jumps]
            face = moved_face(one.face, to_stored)
            targets.append(Target(run, one.person, speaker, face, composed(to_square, matrix)))
        return FrameJob(frame, tuple(targets), seen.shot)

    def _note_jump(self, source_s: Fraction) -> None:
        """Counts the starts from the beginning; played backwards, a source takes the steps that it took forwards."""
        step_s = source_s - self._source_s
        self._jumps += -step_s > self._longest_step_s
        self._longest_step_s, self._source_s = max(self._longest_step_s, step_s), source_s

    def _note_several(self, frame: Frame, count: int) -> None:
        if self._most_faces < 2 <= count and self._choice == LARGEST:
            self._on_notice(
                f"{count} faces after {float(frame.time_s):.2f} s: the largest is lip-synced; --face takes another, "
                "latentsync-trt faces shows all"
            )
        self._most_faces = max(self._most_faces, count)

    def _note_untouched(self, frame: Frame, reason: str) -> None:
        start_s, end_s = float(frame.time_s), float(frame.time_s + frame.duration_s)
        last = self._untouched[-1] if self._untouched else None
        if last is not None and last.reason == reason and last.end_s == start_s:
            self._untouched[-1] = replace(last, end_s=end_s)
        else:
            self._untouched.append(Interval(start_s, end_s, reason))

    def cut_out(self, jobs: Generator[FrameJob, None, None]) -> Generator[FrameJob, None, None]:
        """Every job in order, with its aligned face."""
        with closing(jobs):
            for job in jobs:
                if not job.targets:
                    yield job
                    continue
                with self._clock.measure("align"):
                    targets = tuple(
                        replace(target, face=crop(job.frame.picture, target.matrix, self._resolution_px))
                        for target in job.targets
                    )
                yield replace(job, targets=targets)


def _luma(frame: Frame) -> UInt8Array:
    if frame.planes is None:
        return luma_of(frame.picture)
    luma = frame.planes.y
    if frame.planes.bits == 8:
        return np.asarray(luma, np.uint8)
    step = max(1, min(luma.shape) // _LUMA_PX)
    return (luma[::step, ::step] >> (frame.planes.bits - 8)).astype(np.uint8)


def _overview(frame: Frame, pixel_aspect: Fraction) -> UInt8Array:
    """All of the picture with square pixels; of a large one, every n-th pixel."""
    picture, planes = frame.picture, frame.planes
    if planes is not None:
        step = max(1, max(planes.y.shape) // _OVERVIEW_PX)
        y, u, v = (plane[::step, ::step] for plane in (planes.y, planes.u, planes.v))
        picture = LazyRgb(replace(planes, y=y, u=u, v=v))
    return np.asarray(square(picture, pixel_aspect))
