"""Finds the people of an uploaded video."""

from dataclasses import dataclass
from pathlib import Path

from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.track_file import Tracks
from latentsync_trt.serve.admission import Limits, check_media
from latentsync_trt.sync.analysis import analyse, summaries
from latentsync_trt.types import ProgressCallback, UInt8Array


@dataclass(frozen=True, slots=True, eq=False)
class People:
    """Who is seen in a video: `portraits`, uint8 `(160, 160, 3)` RGB, each with the seconds seen, by number."""

    video: str
    tracks: Tracks
    portraits: list[tuple[UInt8Array, float]]


def find_people(video: str, limits: Limits, on_progress: ProgressCallback) -> People:
    """Looks through a whole video.

    Raises:
        MediaError: the video cannot be read. InputError: it is too large or too long. NoFaceError: it shows none.
    """
    path = Path(video)
    limits.check_size(path.stat().st_size)
    check_media("video", path, limits)
    with MediaPipeDetector() as detector:
        tracks, portraits = analyse(path, detector, on_progress)
    return People(video, tracks, [(portraits[one.number], one.seen_s) for one in summaries(tracks)])
