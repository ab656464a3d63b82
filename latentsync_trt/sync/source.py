"""The frames of a clip on their way to painting: read, with their faces cut out, in windows."""

from contextlib import closing
from functools import partial
from itertools import islice
from math import ceil

from latentsync_trt.compositing.fading import FADE_HELD_S
from latentsync_trt.face.choice import LARGEST, named_speakers
from latentsync_trt.face.look_ahead import LOOK_AHEAD_S
from latentsync_trt.face.tracker import FaceTracker
from latentsync_trt.files import end_of_links
from latentsync_trt.measure.quality import Quality
from latentsync_trt.media.pictures import forget_on_disk, keep_on_disk, max_frames_in_memory
from latentsync_trt.media.reader import read_frames
from latentsync_trt.spans import FramesToDo
from latentsync_trt.sync.faces import FaceFinder, FrameJobs, analyze
from latentsync_trt.sync.fronts import UNSEEN_FRAMES, with_fronts
from latentsync_trt.sync.run_context import RunContext
from latentsync_trt.sync.threads import ClipStages
from latentsync_trt.sync.timeline import Timeline
from latentsync_trt.sync.turned import with_turns
from latentsync_trt.sync.windows import GatheredJobs, gather, streams_at

_FRAMES_IN_TRANSIT = 6
"""Frames queued between, or processed by, stages that hold none back."""


def clip_stages(run: RunContext, timeline: Timeline) -> ClipStages:
    """Returns stages that as many frames may pass at a time as fit in memory, and at least as many
    as they hold back: then frames are kept on disk.
    """
    window_frames = streams_at(timeline.frames_per_s) * run.slot.bundle.manifest.frames
    fading_frames = ceil((FADE_HELD_S + LOOK_AHEAD_S) * timeline.assumed_fps)
    left_frames = max_frames_in_memory(run.inputs.info) - fading_frames
    least_frames = window_frames + UNSEEN_FRAMES + _FRAMES_IN_TRANSIT
    held_frames = max(least_frames, left_frames)
    return ClipStages(
        held_frames,
        held_frames - window_frames,
        FADE_HELD_S,
        LOOK_AHEAD_S,
        on_disk=left_frames < least_frames,
    )


def gathered_windows(
    run: RunContext, timeline: Timeline, stages: ClipStages, quality: Quality, todo: FramesToDo
) -> GatheredJobs:
    """Returns every frame of the output up to the last one to do, and the windows of faces to
    paint, from now on while the model opens.
    """
    aligned = _with_checks(run, quality, _aligned_frames(run, timeline, stages, todo))
    frames = run.slot.bundle.manifest.frames
    windows = gather(aligned, frames, streams_at(timeline.frames_per_s), todo.paint)
    return stages.prefetch_frames(windows, depth=frames, name="gather")


def _aligned_frames(
    run: RunContext, timeline: Timeline, stages: ClipStages, todo: FramesToDo
) -> FrameJobs:
    """Returns every frame of the output up to the last one in which faces are searched, with the
    aligned faces of those who speak.
    """
    inputs = run.inputs
    tracks = inputs.tracks
    choice = inputs.sound.face_choice(inputs.options.face)
    detector = inputs.helpers.detector or run.detector
    if tracks is None and named_speakers(choice) is not None:
        tracks, _ = analyze(inputs.video, detector, run.on_progress)
    aspect = inputs.info.sample_aspect_ratio
    finder = FaceFinder(
        tracks or FaceTracker(detector),
        run.resolution_px,
        choice=choice,
        wanted=partial(timeline.is_searched, todo),
        pixel_aspect=aspect,
        clock=run.clock,
    )
    store = None
    if stages.on_disk:
        store = partial(keep_on_disk, folder=end_of_links(inputs.output).parent)
    frames = islice(read_frames(inputs.video, timeline.playback, store), todo.search.stop)
    entered = stages.entering(frames, run.clock)
    decoded = stages.prefetch_frames(entered, finder.convert_expected_faces, name="decode")
    chosen = stages.prefetch_frames(finder.choose(decoded), name="face")
    seen = with_fronts(chosen, inputs.options.occluders, run.detector, aspect, run.clock)
    mask = None
    if inputs.keep_mask is not None:
        mask = inputs.keep_mask.pictures(timeline.playback.extend)
    placed = stages.prefetch_frames(finder.place(seen, mask), name="occluders")
    return finder.cut_out(with_turns(placed), inputs.sound.speaks)


def _with_checks(run: RunContext, quality: Quality, jobs: FrameJobs) -> FrameJobs:
    """Yields the same jobs; gives notice which of several faces is taken, and if the first one does
    not suit the model.
    """
    is_open = run.inputs.sound.face_choice(run.inputs.options.face) == LARGEST
    with closing(jobs):
        for job in jobs:
            frame = job.frame
            if is_open and job.seen is not None and len(job.seen.faces) > 1:
                is_open = False
                run.notices.add(
                    f"{len(job.seen.faces)} faces after {float(frame.time_s):.2f} s: the largest "
                    "that moves is lip-synced; --face takes another, latentsync-trt faces shows all"
                )
            if quality.mismatch is not None and job.targets:
                target = job.targets[0]
                quality.mismatch.check_source_face(frame.picture, target.tracked, run.detector)
            forget_on_disk(frame)  # what cutting out has converted
            yield job
