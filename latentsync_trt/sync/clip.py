"""One clip: decode → find faces → align → gather → encode → denoise → decode → inspect → compose →
measure → write.

Each stage is a generator over the previous one, in a thread of its own, joined by a bounded queue.
Those before painting begin while the model opens.
"""

from collections.abc import Iterable
from contextlib import ExitStack, closing
from time import perf_counter

from latentsync_trt.audio.mel import filters_of
from latentsync_trt.measure.quality import Quality
from latentsync_trt.media.sound_pieces import SoundPiece
from latentsync_trt.runtime.model import Model
from latentsync_trt.sync.composing import composed_frames
from latentsync_trt.sync.inpainter import make_inpainter
from latentsync_trt.sync.output import write_frames
from latentsync_trt.sync.pace import Pace
from latentsync_trt.sync.painting import Painter, paint_frames
from latentsync_trt.sync.report import quality_of, report_of
from latentsync_trt.sync.run_context import RunContext
from latentsync_trt.sync.source import clip_stages, gathered_windows
from latentsync_trt.sync.speech import OpenSpeech, asking
from latentsync_trt.sync.timeline import timeline_of
from latentsync_trt.sync.writers import open_writer
from latentsync_trt.types import Float32Array, Progress, SyncReport


def sync_clip(run: RunContext) -> SyncReport:
    """Runs all stages of a clip; this thread writes the video. Raises as `LipSync.sync`."""
    quality = quality_of(run)
    with ExitStack() as stack:
        speech = stack.enter_context(closing(_open_speech(run, quality)))
        timeline = timeline_of(run.inputs, speech)
        writer = open_writer(run, timeline)
        run.add_notices((*timeline.notices, *writer.notices))
        stages = clip_stages(run, timeline)
        windows = gathered_windows(run, timeline, stages, quality, writer.todo)
        stack.enter_context(closing(windows))
        model = _open_networks(run)
        pace = Pace(
            perf_counter(),
            writer.todo,
            timeline.frames,
            timeline.playback.expected_frames(run.inputs.info),
            model.bundle.manifest.frames,
        )
        painter = Painter(
            make_inpainter(model, run.inputs.options, run.inputs.helpers.noise),
            speech.windows,
            writer.todo.paint,
            run.clock,
            stages.check,
        )
        stack.enter_context(writer)  # before threads start that only `composed` stops
        composed = composed_frames(
            run, quality, paint_frames(windows, painter, stages, model), stages
        )
        stack.enter_context(closing(composed))
        faces = write_frames(run, writer, composed, stages.leave, pace)
    run.add_notices(writer.notices)
    return report_of(run, writer, faces, pace, quality)


def _open_speech(run: RunContext, quality: Quality) -> OpenSpeech:
    """Reads the recordings, before anything else, since an engine may take minutes to build."""
    recordings = run.inputs.sound.recordings
    run.on_progress(Progress("reading audio", 0, None))

    def listen(piece: SoundPiece, blocks: Iterable[Float32Array]) -> Iterable[Float32Array]:
        for speaker, recording in enumerate(recordings):
            if recording == piece:
                blocks = quality.listen(speaker, blocks)
        return asking(run.on_progress.ask, blocks)

    def encode_mel(mel: Float32Array) -> Float32Array:
        return run.model().audio_encoder(mel)

    with run.clock.measure("encode audio", frames=0):
        filters = filters_of(run.slot.bundle)
        return OpenSpeech(
            run.inputs.sound, encode_mel, filters, run.inputs.options, listen, run.speech_in
        )


def _open_networks(run: RunContext) -> Model:
    """Waits for the model, and gives notices of a provider that it fell back to."""
    run.on_progress(Progress("opening networks", 0, None))
    with run.clock.measure("open", frames=0):
        model = run.model()
    run.add_notices(model.selection.notices())
    return model
