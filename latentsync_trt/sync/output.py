"""The last stage: frames with their patches become the file."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from time import perf_counter

from latentsync_trt.media.c2pa import sign
from latentsync_trt.media.parts import Work
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.writer import VideoWriter
from latentsync_trt.sync.faces import FaceStats, FrameJob
from latentsync_trt.sync.inputs import fingerprint
from latentsync_trt.sync.run_context import RunContext
from latentsync_trt.sync.threads import ClipStages
from latentsync_trt.sync.timeline import Span, expected_frames, soundtrack_of
from latentsync_trt.types import Patch, Progress


@dataclass(slots=True)
class PaintStats:
    """When frames were painted and written, from the jobs that reach the file.

    Times are on `time.perf_counter`'s scale. `frames_done`: those that an earlier run wrote. `first`, `last`: when the
    first and the newest windows were painted, and the index after their frames; None before.
    """

    opened_s: float
    frames_done: int
    windows: int = 0
    first: tuple[float, int] | None = None
    last: tuple[float, int] | None = None
    written_s: float = 0.0

    def add(self, job: FrameJob) -> None:
        """Adds a job that was written now."""
        self.windows, self.written_s = self.windows + job.windows, perf_counter()
        if job.painted_at is not None:
            reached = job.painted_at.time_s, job.painted_at.end
            self.first, self.last = self.first or reached, reached

    def frames_per_s(self, count: int) -> float:
        """The pace of painting since all networks were open, where `count` frames were written."""
        # Frames to paint are written a window at a time; others may be written before one is painted.
        reached_s, reached = self.last or (self.written_s, self.frames_done)
        reached_s, reached = (self.written_s, count) if count > reached else (reached_s, reached)
        return (reached - self.frames_done) / (reached_s - self.opened_s)

    def under_way(self, count: int) -> tuple[float, int]:
        """When the first windows were painted, and the index after their frames; `count`: of all frames."""
        first_s, done = self.first or (self.opened_s, count)
        if count - done < done - self.frames_done:  # a window takes as long for one frame as for all
            return self.opened_s, self.frames_done
        return first_s, done


def open_writer(run: RunContext, span: Span, playback: Playback) -> VideoWriter:
    """The writer of the output, whose block publishes it; raises as `VideoWriter`."""
    inputs, helpers, opening = run.inputs, run.helpers, run.opening
    credentials, name, info, fps = inputs.credentials, inputs.output.name, inputs.info, playback.fps
    if fps is not None:
        info = replace(info, frames_per_s=Fraction(fps), time_base=1 / Fraction(fps))
    brought = {"detector": helpers.detector, "enhancer": helpers.enhancer, "noise": helpers.noise}
    made = fingerprint(inputs, opening.bundle.folder, opening.selection.name, brought)
    return VideoWriter(
        inputs.output,
        info,
        inputs.encoder,
        soundtrack_of(inputs.speech, inputs.mix, inputs.own, span),
        inputs.video,
        others_delay_s=inputs.picture_delay_s,
        work=Work(made, inputs.options.resume),
        mark=inputs.options.mark,
        sign=None if credentials is None else lambda path: sign(path, inputs.video, credentials, name),
    )


def write_frames(
    run: RunContext,
    writer: VideoWriter,
    composed: Iterable[tuple[FrameJob, tuple[Patch, ...]]],
    paint: PaintStats,
    playback: Playback,
    stages: ClipStages,
) -> FaceStats:
    """Encodes every frame that an earlier run has not written; raises `NoFaceError` if none shows a face."""
    expected, faces = expected_frames(playback, run.inputs.info), FaceStats()
    run.on_progress(Progress("painting first frames", writer.frames_done, expected))
    for job, patches in composed:
        frame = job.frame
        faces.add(frame, job.seen, has_face=job.has_face)
        stages.leave()
        if frame.index < writer.frames_done:
            continue
        is_first = frame.index == paint.frames_done
        with run.clock.measure("encode"):
            writer.write(frame, patches)
        paint.add(job)
        if is_first:
            run.announce(writer.notices)
        of = None if expected is None else max(faces.frames, expected)
        picture, written_s = partial(writer.small_rgb, frame, patches), float(frame.time_s + frame.duration_s)
        pace = paint.frames_per_s(faces.frames)
        run.on_progress(Progress("lip-sync", faces.frames, of, picture, written_s, pace))
    if not faces.frames_with_face:
        raise faces.no_face(run.inputs.video)
    run.on_progress(Progress("finishing", faces.frames, faces.frames))
    return faces
