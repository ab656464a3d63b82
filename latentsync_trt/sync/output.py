"""The last stage: frames with their patches become the file."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path

from latentsync_trt.face.people import FaceStats
from latentsync_trt.face.search import TURNED_AWAY
from latentsync_trt.measures import Interval
from latentsync_trt.media.encoder_choice import LOST_CAPTIONS
from latentsync_trt.media.pictures import small_rgb
from latentsync_trt.spans import Span, joined
from latentsync_trt.sync.faces import FrameJob
from latentsync_trt.sync.pace import Pace
from latentsync_trt.sync.redo import UnpaintedSpans
from latentsync_trt.sync.run_context import RunContext
from latentsync_trt.sync.writers import OutputWriter
from latentsync_trt.types import Frame, Patch, Progress, UInt8Array

_ONE_TIME_S = Fraction(1, 2)
"""Times that are nearer than this are named as one."""
_MOST_TIMES = 5
"""How many times a notice names."""


def write_frames(
    run: RunContext,
    writer: OutputWriter,
    composed: Iterable[tuple[FrameJob, tuple[Patch, ...]]],
    leave: Callable[[], None],
    pace: Pace,
) -> FaceStats:
    """Writes every frame that the file lacks; calls `leave` for each.

    Raises `NoFaceError` if none of them shows a face, or none of a span that is to be done again.
    """
    video = run.inputs.video
    todo = writer.todo
    unpainted = UnpaintedSpans(run.inputs)
    faces = FaceStats()
    problems = _SourceProblems()
    done = todo.write.start - todo.counted.start
    run.on_progress(Progress("painting first frames", done, pace.total))
    for job, patches in composed:
        frame = job.frame
        if frame.index not in todo.counted:
            leave()
            run.on_progress.ask()
            continue
        faces.add(
            frame,
            job.seen,
            has_face=bool(job.chosen),
            front=job.front,
            why_unpainted=job.why_unpainted,
            painted=[target.person for target in job.targets],
        )
        problems.add(frame)
        unpainted.add(job)
        leave()
        if frame.index not in todo.paint and frame.index not in todo.write:
            run.on_progress.ask()
            continue
        with run.clock.measure("encode"):
            writer.write(frame, patches)
        pace.add(frame, job.painting)
        if frame.index == todo.write.start:
            run.add_notices(writer.notices)
        if frame.index in todo.write:  # and was not painted again
            picture = partial(small_rgb, run.inputs.info, frame, patches)
            run.on_progress(_progress(frame, faces.frames, pace, picture))
    run.add_notices(problems.notices(video))
    run.add_notices(_notices_of_front(faces.in_front))
    run.add_notices(_notices_of_turns(faces.untouched))
    unpainted.check()
    if not (faces.frames_with_face or run.inputs.options.keep_source):
        raise faces.no_face(video)
    turned = faces.turned_notice(video)
    if turned is not None:
        run.notices.add(turned)
    run.on_progress(Progress("finishing", faces.frames, faces.frames))
    return faces


def _progress(frame: Frame, count: int, pace: Pace, picture: Callable[[], UInt8Array]) -> Progress:
    """Returns how far a run is that has written `count` frames, of which `frame` is the last."""
    total = pace.total
    if total is not None:
        total = max(count, total)
    return Progress(
        "lip-sync",
        count,
        total,
        picture,
        written_s=float(frame.time_s + frame.duration_s),
        frames_per_s=pace.frames_per_s(),
        left_s=pace.left_s(),
    )


def _notices_of_front(intervals: Sequence[Interval]) -> Iterator[str]:
    """Yields what to tell of something in front of a mouth."""
    spans = {each: Span(Fraction(each.start_s), Fraction(each.end_s)) for each in intervals}
    covered = [span for each, span in spans.items() if each.reason == "covered"]
    if spans:
        lasts_s = sum(each.end_s - each.start_s for each in intervals)
        yield (
            f"something is in front of the mouth for {lasts_s:.1f} s, from "
            f"{_named(spans.values())}; it stays as it is (--occluders paint paints over it)"
        )
    if covered:
        yield (
            f"most of the mouth is covered from {_named(covered)}; the face is not painted there"
        )


def _notices_of_turns(intervals: Sequence[Interval]) -> Iterator[str]:
    """Yields what to tell of heads that are turned away."""
    away = [each for each in intervals if each.reason == TURNED_AWAY]
    if away:
        spans = [Span(Fraction(each.start_s), Fraction(each.end_s)) for each in away]
        yield f"the head is turned away from {_named(spans)}; the face is not painted there"


def _named(spans: Iterable[Span]) -> str:
    """Returns times in words, as in "1.00 to 1.20, 3.00 to 4.00 s"."""
    times = list(map(str, joined(spans, _ONE_TIME_S)))
    words = f"{', '.join(times[:_MOST_TIMES])} s"
    if len(times) > _MOST_TIMES:
        words += f", and {len(times) - _MOST_TIMES} more times"
    return words


class _SourceProblems:
    """What is wrong with the pictures of the source."""

    def __init__(self) -> None:
        self._damaged = set[Span]()
        """Damaged pictures, in times of the source."""
        self._new_aspect: tuple[Fraction, Fraction] | None = None
        """The first other aspect of pixels, and its time in the source."""
        self._captions_s = Fraction(0)
        """When captions begin in the source; those of its first picture are told before."""

    def add(self, frame: Frame) -> None:
        if frame.damaged:
            self._damaged.add(Span(frame.source_s, frame.source_s + frame.duration_s))
        if frame.new_aspect is not None and self._new_aspect is None:
            self._new_aspect = (frame.new_aspect, frame.source_s)
        if frame.has_captions:
            self._captions_s = frame.source_s

    def notices(self, video: Path) -> list[str]:
        notices = []
        if self._damaged:
            notices.append(
                f"{video}: its picture is damaged from {_named(self._damaged)}; "
                "copy or download it again"
            )
        if self._new_aspect is not None:
            aspect, source_s = self._new_aspect
            change = f"its pixel aspect changes to {aspect} at about {float(source_s):.1f} s"
            command = "ffmpeg -i OLD -vf scale=iw*sar:ih,setsar=1 NEW.mp4"
            notices.append(
                f"{video}: {change}, and the output keeps the first one; "
                f"make its pixels square first: {command}"
            )
        if self._captions_s:
            notices.append(f"from {float(self._captions_s):.1f} s on, {LOST_CAPTIONS}")
        return notices
