"""What goes into painting: the speech, and the frames of the clip with their faces cut out."""

from collections.abc import Generator, Iterable
from contextlib import closing
from fractions import Fraction
from functools import partial
from math import ceil

from latentsync_trt.audio.mel import filters_of
from latentsync_trt.compositing.fading import FADE_HELD_S
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.face.choice import LARGEST, named_speakers
from latentsync_trt.face.tracker import LOST_TRACK_S, FaceTracker
from latentsync_trt.files import end_of_links
from latentsync_trt.measure.quality import Quality
from latentsync_trt.media.ending import notices_of_ending
from latentsync_trt.media.pictures import forget_on_disk, keep_on_disk, max_frames_in_memory
from latentsync_trt.media.playback import Playback, notices_of_rate
from latentsync_trt.media.reader import read_frames
from latentsync_trt.sync.faces import FaceFinder, FrameJob, analyze
from latentsync_trt.sync.model_slot import RunContext
from latentsync_trt.sync.speech import OpenSpeech, asking
from latentsync_trt.sync.threads import ClipStages
from latentsync_trt.sync.timeline import Span
from latentsync_trt.types import Float32Array, Progress

# In the queues between stages that hold no frames back, and in the hands of these.
_UNDER_WAY = 4


def open_speech(run: RunContext, quality: Quality) -> OpenSpeech:
    """The recordings, which are read before anything else, since an engine may take minutes to
    build.
    """
    inputs = run.inputs
    speech = run.inputs.sound
    run.announce(
        (
            *run.bundle.manifest.notices_at(run.resolution_px),
            *notices_of_rate(inputs.info, inputs.options),
        )
    )
    run.announce((*run.selection.notices(), *filter(None, (speech.notice,))))
    for path in dict.fromkeys((inputs.video, *speech.files)):
        run.announce(notices_of_ending(path))
    run.on_progress(Progress("reading audio", 0, None))

    def listen(speaker: int, blocks: Iterable[Float32Array]) -> Iterable[Float32Array]:
        return asking(run.ask, quality.listen(speaker, blocks))

    def encode_mel(mel: Float32Array) -> Float32Array:
        return run.model().audio_encoder(mel)

    with run.clock.measure("encode audio", frames=0):
        filters = filters_of(run.bundle)
        return OpenSpeech(speech, encode_mel, filters, inputs.options, listen, run.speech_in)


def clip_stages(run: RunContext, frames_per_s: Fraction | None, streams: int) -> ClipStages:
    """As many frames may be on their way as fit in memory, and at least as many as stages hold
    back: then on disk.
    """
    window_frames = streams * run.bundle.manifest.frames
    left_frames = max_frames_in_memory(run.inputs.info) - ceil(
        (FADE_HELD_S + LOST_TRACK_S) * (frames_per_s or MODEL_FPS)
    )
    least_frames = window_frames + _UNDER_WAY
    held_frames = max(least_frames, left_frames)
    return ClipStages(
        held_frames,
        held_frames - window_frames,
        FADE_HELD_S,
        LOST_TRACK_S,
        on_disk=left_frames < least_frames,
    )


def aligned_frames(
    run: RunContext, quality: Quality, span: Span, playback: Playback, stages: ClipStages
) -> Generator[FrameJob, None, None]:
    """Every frame of the output with the aligned faces of those who speak, from now on while the
    model opens.
    """
    inputs = run.inputs
    tracks = run.inputs.tracks
    choice = inputs.sound.face_choice(inputs.options.face)
    detector = inputs.helpers.detector or run.detector
    if tracks is None and named_speakers(choice) is not None:
        tracks, _ = analyze(inputs.video, detector, run.on_progress)
    finder = FaceFinder(
        tracks or FaceTracker(detector),
        run.resolution_px,
        choice=choice,
        wanted=span.__contains__,
        pixel_aspect=inputs.info.sample_aspect_ratio,
        clock=run.clock,
    )
    store = (
        partial(keep_on_disk, folder=end_of_links(inputs.output).parent) if stages.on_disk else None
    )
    frames = stages.entering(read_frames(inputs.video, playback, store), run.clock)
    decoded = stages.prefetch_frames(frames, finder.prepared, name="decode")
    found = stages.prefetch_frames(finder.find(decoded), name="face")
    is_told = choice != LARGEST

    def watched(jobs: Generator[FrameJob, None, None]) -> Generator[FrameJob, None, None]:
        """The same jobs; says which of several faces is taken, and if the first one does not suit
        the model.
        """
        nonlocal is_told
        with closing(jobs):
            for job in jobs:
                if not is_told and job.seen is not None and len(job.seen.faces) > 1:
                    is_told = True
                    run.notices.add(
                        f"{len(job.seen.faces)} faces after "
                        f"{float(job.frame.time_s):.2f} s: the largest that moves is "
                        "lip-synced; --face takes another, latentsync-trt faces shows all"
                    )
                if quality.mismatch is not None and job.targets:
                    quality.mismatch.meet(job.frame.picture, job.targets[0].tracked, run.detector)
                forget_on_disk(job.frame)  # what cutting out has converted
                yield job

    return watched(finder.cut_out(found, inputs.sound.speaks))
