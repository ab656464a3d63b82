"""The last stage: frames with their patches become the file."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from latentsync_trt.face.people import FaceStats
from latentsync_trt.media.c2pa import sign
from latentsync_trt.media.parts import Work
from latentsync_trt.media.pictures import small_rgb
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.writer import VideoWriter
from latentsync_trt.sync.faces import FrameJob
from latentsync_trt.sync.fingerprint import fingerprint
from latentsync_trt.sync.paint import Pace
from latentsync_trt.sync.run_context import RunContext
from latentsync_trt.sync.threads import ClipStages
from latentsync_trt.sync.timeline import Span, soundtrack_of
from latentsync_trt.types import Patch, Progress


def open_writer(run: RunContext, span: Span, playback: Playback) -> VideoWriter:
    """The writer of the output, whose block publishes it; raises as `VideoWriter`."""
    inputs, sound = run.inputs, run.inputs.sound
    credentials, name, info, fps = inputs.credentials, inputs.output.name, inputs.info, playback.fps
    if fps is not None:
        info = replace(info, frames_per_s=fps, time_base=1 / fps)
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
    pace: Pace,
) -> FaceStats:
    """Encodes every frame that an earlier run has not written; raises `NoFaceError` if none shows a face."""
    expected, faces = playback.expected_frames(run.inputs.info), FaceStats()
    run.on_progress(Progress("painting first frames", writer.frames_done, expected))
    for job, patches in composed:
        frame = job.frame
        faces.add(frame, job.seen, has_face=job.has_face)
        stages.leave()
        if frame.index < pace.frames_done:
            continue
        with run.clock.measure("encode"):
            writer.write(frame, patches)
        pace.written(frame)
        if frame.index == pace.frames_done:
            run.announce(writer.notices)
        of = None if expected is None else max(faces.frames, expected)
        picture, written_s = partial(small_rgb, run.inputs.info, frame, patches), float(frame.time_s + frame.duration_s)
        speed = pace.frames_per_s(faces.frames), None if of is None else pace.seconds_left(faces.frames, of)
        run.on_progress(Progress("lip-sync", faces.frames, of, picture, written_s, *speed))
    if not faces.frames_with_face:
        raise faces.no_face(run.inputs.video)
    run.on_progress(Progress("finishing", faces.frames, faces.frames))
    return faces
