"""Parts of a result are done again: which frames, and what of the earlier run must be the same."""

from contextlib import closing
from dataclasses import replace
from fractions import Fraction

from latentsync_trt.compositing.fading import FADE_S
from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import InputError, NoFaceError
from latentsync_trt.face.look_ahead import LOOK_AHEAD_S
from latentsync_trt.media.contents import FileExtras
from latentsync_trt.media.earlier_result import DO_ALL_AGAIN, EarlierResult
from latentsync_trt.media.parts import PART_S, WARM_UP_S, differences, part_of
from latentsync_trt.media.recipe import Ingredients
from latentsync_trt.media.redo import PartReplacer, contents_of
from latentsync_trt.redo_spans import RedoSpan
from latentsync_trt.spans import FramesToDo, Span, merged_ranges, without
from latentsync_trt.sync.faces import FrameJob, FrameJobs
from latentsync_trt.sync.inputs import Inputs
from latentsync_trt.types import VideoInfo

_SEARCHED_BEFORE_S = Fraction(10)
"""Faces are searched from at least so long before the first frame to paint, so that they are
followed, and known, as in the whole run. The search begins where a window of a face begins that is
there from the first frame on; in other shots that are older, windows begin at other frames than in
the whole run.
"""
_SEARCHED_AFTER_S = LOOK_AHEAD_S + 2 * FADE_S
"""After the last window faces are searched for so long, since gaps are bridged, and faces fade, by
what follows.
"""


def replacer_of(
    inputs: Inputs,
    earlier: EarlierResult,
    info: VideoInfo,
    extras: FileExtras,
    window_frames: int,
) -> PartReplacer:
    """Returns what writes the spans of a result anew.

    Args:
        info: of the source, with the rate of the output.
        extras: what is done with the file, and the ingredients of this run.
        window_frames: from the first to the last frame of a window.

    Raises:
        InputError: the result was made of something else.
    """
    before = earlier.recipe.ingredients
    now = extras.ingredients or Ingredients({}, {})
    changes = list(differences(before.fixed, now.fixed))
    if changes:
        raise InputError(
            f"{earlier.path}: no part of it can be done again, since it was made of something "
            f"else: {', '.join(changes)}; give the same options and files, by name, size and "
            f"time, or {DO_ALL_AGAIN}"
        )
    todo = _frames_to_do(inputs, earlier, window_frames)
    replacer = PartReplacer(earlier, contents_of(earlier, inputs.encoder, info, extras), todo)
    times = ", ".join(span.in_words for span in replacer.redone)
    replacer.notices += (f"{earlier.path}: encoded anew from {times}; all else is copied",)
    changes = list(differences(before.free, now.free))
    if changes:
        replacer.notices += (f"{earlier.path}: differs there from the rest: {', '.join(changes)}",)
    return replacer


def _frames_to_do(inputs: Inputs, earlier: EarlierResult, window_frames: int) -> FramesToDo:
    """Returns the parts between keyframes that hold the spans, and what is to know before and after
    them; where the source is left, also its surroundings that fade.
    """
    margin_s = FADE_S if inputs.options.keep_source else Fraction(0)
    parts = list[range]()
    kept = list[range]()
    for span in inputs.options.redo:
        wider = Span(span.start_s - margin_s, span.end_s + margin_s)
        parts.append(earlier.between_keyframes(earlier.frames_at(wider)))
        if inputs.options.keep_source:
            first = earlier.frame_from(span.start_s)
            kept.append(range(first, earlier.frame_from(span.end_s)))
    write = merged_ranges(parts)
    painted = list[range]()
    searched = list[range]()
    for part in write.ranges:
        start_s = earlier.time_s(part.start)
        paint_s = max(start_s - WARM_UP_S, part_of(start_s) * PART_S)
        paint = range(earlier.frame_from(paint_s), part.stop)
        after_s = earlier.time_s(part.stop + window_frames) + _SEARCHED_AFTER_S
        painted += without(paint, kept)
        first = earlier.frame_from(paint_s - _SEARCHED_BEFORE_S)
        first -= first % window_frames
        searched.append(range(first, earlier.frame_from(after_s)))
    return FramesToDo(write, merged_ranges(painted), merged_ranges(searched), write)


def left_as_source(jobs: FrameJobs, options: SyncOptions) -> FrameJobs:
    """Yields the same jobs; those in spans where the source is left, without painted faces."""
    with closing(jobs):
        for job in jobs:
            time_s = job.frame.time_s
            if options.keep_source and any(time_s in span for span in options.redo):
                yield replace(job, targets=(), painted=())
            else:
                yield job


class UnpaintedSpans:
    """The spans that are to be done again in which no face has been painted yet."""

    def __init__(self, inputs: Inputs) -> None:
        self._video = inputs.video
        self._spans = list[RedoSpan]()
        if not inputs.options.keep_source:
            self._spans += inputs.options.redo

    def add(self, job: FrameJob) -> None:
        if not job.painted:
            return
        start_s = job.frame.time_s
        end_s = start_s + job.frame.duration_s
        self._spans = [
            span for span in self._spans if start_s >= span.end_s or end_s <= span.start_s
        ]

    def check(self) -> None:
        """Raises `NoFaceError` if there are any."""
        if self._spans:
            times = ", ".join(span.in_words for span in self._spans)
            raise NoFaceError(
                f"{self._video}: no face is painted from {times}: none is seen there, it is "
                "covered, or nobody speaks; the result is as it was"
            )
