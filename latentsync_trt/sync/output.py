"""The last stage: frames with their patches become the file."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path

from latentsync_trt.face.people import FaceStats
from latentsync_trt.face.search import TURNED_AWAY
from latentsync_trt.measures import Interval
from latentsync_trt.media.c2pa import sign
from latentsync_trt.media.contents import FileExtras
from latentsync_trt.media.parts import ResumeRequest
from latentsync_trt.media.pictures import small_rgb
from latentsync_trt.media.writer import VideoWriter
from latentsync_trt.sync.faces import FrameJob
from latentsync_trt.sync.fingerprint import fingerprint
from latentsync_trt.sync.pace import Pace
from latentsync_trt.sync.run_context import RunContext
from latentsync_trt.sync.timeline import Timeline, soundtrack_of
from latentsync_trt.sync.turns import Span, joined
from latentsync_trt.types import Frame, Patch, Progress, UInt8Array

_ONE_TIME_S = Fraction(1, 2)
"""Times that are nearer than this are named as one."""
_MOST_TIMES = 5
"""How many times a notice names."""


def open_writer(run: RunContext, timeline: Timeline) -> VideoWriter:
    """Returns the writer of the output, whose block publishes it; raises as `VideoWriter`."""
    inputs = run.inputs
    credentials = inputs.credentials
    info = inputs.info
    fps = timeline.playback.fps
    if fps is not None:
        info = replace(info, frames_per_s=fps, time_base=1 / fps)

    def sign_output(path: Path) -> tuple[str, ...]:
        if credentials is None:
            return ()
        return sign(path, inputs.video, credentials, inputs.output.name)

    extras = FileExtras(
        soundtrack_of(inputs.sound, timeline.span),
        inputs.video,
        inputs.sound.picture_delay_s,
        mark=inputs.options.mark,
        sign=sign_output,
    )
    depends_on = fingerprint(inputs, run.slot.bundle.folder, run.slot.selection.name)
    resume = ResumeRequest(depends_on, inputs.options.resume)
    return VideoWriter(inputs.output, info, inputs.encoder, extras, resume)


def write_frames(
    run: RunContext,
    writer: VideoWriter,
    composed: Iterable[tuple[FrameJob, tuple[Patch, ...]]],
    timeline: Timeline,
    leave: Callable[[], None],
    pace: Pace,
) -> FaceStats:
    """Writes every frame that an earlier run has not written; calls `leave` for each.

    Raises `NoFaceError` if none of them shows a face.
    """
    video = run.inputs.video
    expected = timeline.playback.expected_frames(run.inputs.info)
    faces = FaceStats()
    problems = _SourceProblems()
    run.on_progress(Progress("painting first frames", writer.frames_done, expected))
    for job, patches in composed:
        frame = job.frame
        faces.add(
            frame,
            job.seen,
            has_face=bool(job.chosen),
            front=job.front,
            why_unpainted=job.why_unpainted,
            painted=[target.person for target in job.targets],
        )
        problems.add(frame)
        leave()
        if frame.index < pace.frames_done:
            run.on_progress.ask()
            continue
        with run.clock.measure("encode"):
            writer.write(frame, patches)
        pace.add(frame.time_s, job.painting)
        if frame.index == writer.frames_done:
            run.add_notices(writer.notices)
        if frame.index >= writer.frames_done:  # and was not painted again
            picture = partial(small_rgb, run.inputs.info, frame, patches)
            run.on_progress(_progress(frame, faces.frames, expected, pace, picture))
    run.add_notices(problems.notices(video))
    run.add_notices(_notices_of_front(faces.in_front))
    run.add_notices(_notices_of_turns(faces.untouched))
    if not faces.frames_with_face:
        raise faces.no_face(video)
    turned = faces.turned_notice(video)
    if turned is not None:
        run.notices.add(turned)
    run.on_progress(Progress("finishing", faces.frames, faces.frames))
    return faces


def _progress(
    frame: Frame, count: int, expected: int | None, pace: Pace, picture: Callable[[], UInt8Array]
) -> Progress:
    """Returns how far a run is that has written `count` frames, of which `frame` is the last."""
    total = None if expected is None else max(count, expected)
    return Progress(
        "lip-sync",
        count,
        total,
        picture,
        written_s=float(frame.time_s + frame.duration_s),
        frames_per_s=pace.frames_per_s(count),
        left_s=pace.left_s(count, total),
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

    def add(self, frame: Frame) -> None:
        if frame.damaged:
            self._damaged.add(Span(frame.source_s, frame.source_s + frame.duration_s))
        if frame.new_aspect is not None and self._new_aspect is None:
            self._new_aspect = (frame.new_aspect, frame.source_s)

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
        return notices
