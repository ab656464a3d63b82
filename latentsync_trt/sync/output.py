"""The last stage: frames with their patches become the file."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from time import perf_counter

from latentsync_trt.face.people import FaceStats
from latentsync_trt.media.c2pa import sign
from latentsync_trt.media.parts import Work
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.writer import VideoWriter
from latentsync_trt.sync.faces import FrameJob, PaintedAt
from latentsync_trt.sync.fingerprint import fingerprint
from latentsync_trt.sync.run_context import RunContext
from latentsync_trt.sync.threads import ClipStages
from latentsync_trt.sync.timeline import Span, soundtrack_of
from latentsync_trt.types import Patch, Progress


@dataclass(slots=True)
class Pace:
    """When frames were painted and written, from the jobs that reach the file.

    Times are on `time.perf_counter`'s scale. `frames_done`: those that an earlier run wrote; `from_s`: when the first
    one after them begins in the output. `first`, `last`: the first and the newest windows.
    """

    opened_s: float
    frames_done: int
    from_s: Fraction = Fraction(0)
    windows: int = 0
    first: PaintedAt | None = None
    last: PaintedAt | None = None
    written_s: float = 0.0

    def add(self, job: FrameJob) -> None:
        """Adds a job that was written now."""
        if job.frame.index == self.frames_done:
            self.from_s = job.frame.time_s
        self.windows, self.written_s = self.windows + job.windows, perf_counter()
        self.first, self.last = self.first or job.painted_at, job.painted_at or self.last

    def frames_per_s(self, count: int) -> float:
        """The pace of painting since all networks were open, where `count` frames were written."""
        # Frames to paint are written a window at a time; others may be written before one is painted.
        last = self.last
        if last is None or count > last.end:
            last = PaintedAt(self.written_s, count)
        return (last.end - self.frames_done) / (last.time_s - self.opened_s)

    def under_way(self, count: int) -> tuple[float, int]:
        """When the first windows were painted, and the index after their frames; `count`: of all frames."""
        first = self.first or PaintedAt(self.opened_s, count)
        if count - first.end < first.end - self.frames_done:  # a window takes as long for one frame as for all
            return self.opened_s, self.frames_done
        return first.time_s, first.end


def open_writer(run: RunContext, span: Span, playback: Playback) -> VideoWriter:
    """The writer of the output, whose block publishes it; raises as `VideoWriter`."""
    inputs, sound = run.inputs, run.inputs.sound
    credentials, name, info, fps = inputs.credentials, inputs.output.name, inputs.info, playback.fps
    if fps is not None:
        info = replace(info, frames_per_s=Fraction(fps), time_base=1 / Fraction(fps))
    made = fingerprint(inputs, run.bundle.folder, run.selection.name)
    return VideoWriter(
        inputs.output,
        info,
        inputs.encoder,
        soundtrack_of(sound, span),
        inputs.video,
        others_delay_s=sound.picture_delay_s,
        work=Work(made, inputs.options.resume),
        mark=inputs.options.mark,
        sign=None if credentials is None else lambda path: sign(path, inputs.video, credentials, name),
    )


def write_frames(
    run: RunContext,
    writer: VideoWriter,
    composed: Iterable[tuple[FrameJob, tuple[Patch, ...]]],
    playback: Playback,
    stages: ClipStages,
    opened_s: float,
) -> tuple[FaceStats, Pace]:
    """Encodes every frame that an earlier run has not written; raises `NoFaceError` if none shows a face."""
    expected, faces = playback.expected_frames(run.inputs.info), FaceStats()
    pace = Pace(opened_s, writer.frames_done)
    run.on_progress(Progress("painting first frames", writer.frames_done, expected))
    for job, patches in composed:
        frame = job.frame
        faces.add(frame, job.seen, has_face=job.has_face)
        stages.leave()
        if frame.index < pace.frames_done:
            continue
        with run.clock.measure("encode"):
            writer.write(frame, patches)
        pace.add(job)
        if frame.index == pace.frames_done:
            run.announce(writer.notices)
        of = None if expected is None else max(faces.frames, expected)
        picture, written_s = partial(writer.small_rgb, frame, patches), float(frame.time_s + frame.duration_s)
        run.on_progress(Progress("lip-sync", faces.frames, of, picture, written_s, pace.frames_per_s(faces.frames)))
    if not faces.frames_with_face:
        raise faces.no_face(run.inputs.video)
    run.on_progress(Progress("finishing", faces.frames, faces.frames))
    return faces, pace
