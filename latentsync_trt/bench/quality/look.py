"""All that is seen and drawn of one clip once both results are there."""

from dataclasses import dataclass
from pathlib import Path

from latentsync_trt.bench.moments import choose_moments
from latentsync_trt.bench.quality.areas import Tally
from latentsync_trt.bench.quality.lips import as_numbers, compare_lips, watch_lips
from latentsync_trt.bench.quality.results import AreaLikeness, ClipQuality
from latentsync_trt.bench.quality.side_by_side import draw_moments, keeping, write_video
from latentsync_trt.bench.quality.subjects import Subject
from latentsync_trt.bench.quality.views import Eye, Faces, views
from latentsync_trt.config import Extend
from latentsync_trt.types import ProgressCallback


@dataclass(frozen=True, slots=True)
class Pair:
    """Both results of a clip, finished videos, and A's and B's names; `resolution_px`: of the faces to compare."""

    a: Path
    b: Path
    names: tuple[str, str]
    resolution_px: int


def look_at(
    pair: Pair,
    subject: Subject,
    beside: Path,
    areas: tuple[AreaLikeness, ...] | None = None,
    *,
    extend: Extend = "loop",
    on_progress: ProgressCallback | None = None,
) -> ClipQuality:
    """Measures both results and writes the picture and the video that show them.

    Args:
        beside: the report; picture and video are named after it.
        areas: how near the faces are, where that was measured before they were put into a video; else it is done here.
        extend: how the source goes on where it ends before the results.

    Raises:
        InputError: too few frames show a face. OutputError: a file cannot be written. MediaError: one cannot be read.
    """
    ours, theirs = watch_lips(pair.a, pair.b, subject, on_progress)
    lips = compare_lips(ours, theirs, subject.name)
    moments, kept = choose_moments(ours), dict[int, Faces]()
    tally = Tally(pair.resolution_px)
    eye = Eye(pair.resolution_px, tally if areas is None else None)
    stream = views(subject.video, pair.a, pair.b, len(ours), pair.resolution_px, extend=extend)
    picture, video = beside.with_suffix(".png"), beside.with_suffix(".mp4")
    write_video(video, keeping(eye.watch(stream), moments, kept), pair.names, subject.audio)
    seen = [moment for moment in moments if moment.index in kept]
    draw_moments(kept, seen, pair.names).save(picture)
    return ClipQuality(
        name=subject.name,
        frames=eye.frames,
        frames_with_face=eye.frames_with_face,
        areas=tally.result() if areas is None else areas,
        lips=lips,
        curves=as_numbers(ours, theirs),
        flicker=eye.flicker(),
        picture=picture.name,
        video=video.name,
    )
