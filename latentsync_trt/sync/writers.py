"""What writes an output: all of it, or parts of an earlier one anew."""

from dataclasses import replace
from pathlib import Path

from latentsync_trt.media.c2pa import sign
from latentsync_trt.media.contents import FileExtras
from latentsync_trt.media.parts import ResumeRequest
from latentsync_trt.media.redo import PartReplacer
from latentsync_trt.media.writer import VideoWriter
from latentsync_trt.sync.fingerprint import fingerprint, ingredients_of
from latentsync_trt.sync.redo import replacer_of
from latentsync_trt.sync.run_context import RunContext
from latentsync_trt.sync.timeline import Timeline, soundtrack_of
from latentsync_trt.sync.windows import streams_at

OutputWriter = VideoWriter | PartReplacer


def open_writer(run: RunContext, timeline: Timeline) -> OutputWriter:
    """Returns the writer of the output, whose block publishes it; raises as `VideoWriter`, and as
    `replacer_of`.
    """
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

    ingredients = ingredients_of(inputs, run.slot.bundle.folder)
    extras = FileExtras(
        soundtrack_of(inputs.sound, timeline.span),
        inputs.video,
        inputs.sound.picture_delay_s,
        mark=inputs.options.mark,
        ingredients=ingredients,
        backup=inputs.options.backup,
        sign=sign_output,
    )
    if inputs.earlier is not None:
        window_frames = streams_at(timeline.frames_per_s) * run.slot.bundle.manifest.frames
        return replacer_of(inputs, inputs.earlier, info, extras, window_frames)
    depends_on = fingerprint(inputs, run.slot.bundle.folder, run.slot.selection.name)
    resume = ResumeRequest(depends_on, inputs.options.resume)
    return VideoWriter(inputs.output, info, inputs.encoder, extras, resume)
