"""What goes into painting: the speech, and the frames of the clip with their faces cut out."""

from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from functools import partial
from math import ceil

from latentsync_trt.audio.mel import filters_of
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.face.choice import speakers_of
from latentsync_trt.face.tracker import HALF_S
from latentsync_trt.media.pictures import LazyRgb
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import read_frames
from latentsync_trt.media.spool import PlanesOnDisk
from latentsync_trt.sync.compose import FADE_S
from latentsync_trt.sync.faces import FaceFinder, FrameJob, analyze
from latentsync_trt.sync.quality import Quality
from latentsync_trt.sync.run_context import RunContext
from latentsync_trt.sync.speech import OpenSpeech
from latentsync_trt.sync.threads import ClipStages, most_in_flight
from latentsync_trt.sync.timeline import Span, notices_of_model, notices_of_rate
from latentsync_trt.types import Float32Array, Progress
from latentsync_trt.values import parse_face

# In the queues between stages that hold no frames back, and in the hands of these.
_UNDER_WAY = 4


def open_speech(run: RunContext, quality: Quality) -> OpenSpeech:
    """The recordings, which are read before anything else, since an engine may take minutes to build.

    Their audio encoder is that of the model, once it is open.
    """
    inputs, opening = run.inputs, run.opening
    run.announce(notices_of_model(opening.bundle.manifest, run.resolution_px))
    run.announce((*notices_of_rate(inputs.info, inputs.options), *opening.selection.notices()))
    run.announce(() if inputs.speech.notice is None else (inputs.speech.notice,))
    run.on_progress(Progress("reading audio", 0, None))

    def encode_mel(mel: Float32Array) -> Float32Array:
        return opening.wait().audio_encoder(mel)

    with run.clock.measure("encode audio", frames=0):
        return OpenSpeech(inputs.speech, encode_mel, filters_of(opening.bundle), inputs.options, quality.listen)


def clip_stages(run: RunContext, playback: Playback, streams: int) -> ClipStages:
    """As many frames may be on their way as fit in memory, and at least as many as stages hold back: then on disk."""
    rate = playback.fps or run.inputs.info.frames_per_s or MODEL_FPS
    window_frames = streams * run.window_frames
    left_frames = most_in_flight(run.inputs.info) - ceil((FADE_S + HALF_S) * rate)
    least_frames = window_frames + _UNDER_WAY
    held_frames = max(least_frames, left_frames)
    return ClipStages(held_frames, held_frames - window_frames, FADE_S, HALF_S, on_disk=left_frames < least_frames)


def aligned_frames(
    run: RunContext, span: Span, playback: Playback, stages: ClipStages
) -> Generator[FrameJob, None, None]:
    """Every frame of the output with the aligned faces of those who speak, from now on while the model opens."""
    finder = _finder(run, span)
    read = (
        partial(read_frames, store=partial(PlanesOnDisk, folder=run.inputs.output.parent))
        if stages.on_disk
        else read_frames
    )
    frames = stages.entering(read(run.inputs.video, playback))
    decoded = stages.prefetch_frames(run.clock.measured("decode", frames), finder.prepared, name="decode")
    found = stages.prefetch_frames(finder.find(decoded), name="face")
    aligned = finder.cut_out(found, run.inputs.speech.speaks)
    return _without_rgb(aligned) if stages.on_disk else aligned


def _without_rgb(jobs: Generator[FrameJob, None, None]) -> Generator[FrameJob, None, None]:
    """The same jobs; what finding faces has converted of their pictures is dropped."""
    with closing(jobs):
        for job in jobs:
            planes = job.frame.planes
            yield job if planes is None else replace(job, frame=replace(job.frame, picture=LazyRgb(planes)))


def _finder(run: RunContext, span: Span) -> FaceFinder:
    inputs, detector = run.inputs, run.helpers.detector or run.own_detector
    speech, tracks = inputs.speech, inputs.tracks
    choice = parse_face(inputs.options.face) if speech.faces is None else speech.speaker_of
    if tracks is None and speakers_of(choice) is not None:
        tracks, _ = analyze(inputs.video, detector, run.on_progress)
    return FaceFinder(
        detector,
        run.resolution_px,
        run.clock,
        choice=choice,
        tracks=tracks,
        wanted=span.__contains__,
        pixel_aspect=inputs.info.sample_aspect_ratio,
        on_notice=run.notices.add,
    )
