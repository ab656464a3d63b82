"""The idle clip, played back and forth: what is computed once for all its frames, and kept."""

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from latentsync_trt.bundle.manifest import PIXELS_PER_LATENT
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import InputError, NoFaceError
from latentsync_trt.face.people import FaceStats
from latentsync_trt.face.tracker import FaceTracker
from latentsync_trt.live.options import LiveOptions
from latentsync_trt.media.pictures import picture_info
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.option_fields import parse_face
from latentsync_trt.sync.faces import FaceFinder, FrameJob, Target
from latentsync_trt.sync.threads import prefetch
from latentsync_trt.types import (
    AlignedFace,
    ColorTags,
    FaceDetector,
    Float32Array,
    Frame,
    VideoInfo,
    YuvPlanes,
)

if TYPE_CHECKING:
    from latentsync_trt.sync.inpainter import Inpainter

_ENCODED_AT_ONCE = 16


@dataclass(frozen=True, slots=True, eq=False)
class IdleLoop:
    """An idle clip at 25 frames/s.

    `planes`: of each frame, repeated ones shared. `targets`: the face of each, cut out. `known (n,
    9, h, w)` float32: what the denoiser knows of each frame, see `diffusion.conditioning`.
    """

    info: VideoInfo
    planes: tuple[YuvPlanes, ...]
    targets: tuple[Target, ...]
    known: Float32Array

    def index(self, position: int) -> int:
        """The frame that is shown at a position, from the first to the last and back again, without
        end.
        """
        count = len(self.planes)
        turned = position % max(1, 2 * (count - 1))
        if turned < count:
            return turned
        return 2 * (count - 1) - turned


def blank_loop(side_px: int) -> IdleLoop:
    """A picture without a face, whose windows take as long to paint as those of a clip; `side_px`:
    of a face.
    """
    side = side_px // PIXELS_PER_LATENT
    nothing = np.zeros((2, 2), np.uint8)
    planes = YuvPlanes(nothing, nothing, nothing, ColorTags())
    return IdleLoop(
        picture_info(2, 2, rgb=False), (planes,), (), np.zeros((1, 9, side, side), np.float32)
    )


def load_idle(
    video: Path, options: LiveOptions, detector: FaceDetector, inpainter: "Inpainter"
) -> IdleLoop:
    """Reads a clip, finds its face and encodes it.

    Raises:
        MediaError: it cannot be read. NoFaceError: a frame shows no usable face, or the shot
            changes.
        InputError: it takes more memory than `options` allow.
    """
    info = probe(video)
    side_px = inpainter.side_px
    planes = list[YuvPlanes]()
    targets = list[Target]()
    size_bytes = 0
    finder = FaceFinder(
        FaceTracker(detector),
        side_px,
        choice=parse_face(options.face),
        pixel_aspect=info.sample_aspect_ratio,
    )
    read = cast(Generator[Frame, None, None], read_frames(video, Playback(Fraction(MODEL_FPS))))
    stats = FaceStats()
    with closing(finder.cut_out(finder.find(prefetch(read, name="decode")))) as jobs:
        for job in jobs:
            stats.add(job.frame, job.seen, has_face=job.has_face)
            shown = cast(YuvPlanes, job.frame.planes)  # of files they are never None
            if not planes or shown is not planes[-1]:
                size_bytes += sum(plane.nbytes for plane in (shown.y, shown.u, shown.v))
            size_bytes += 2 * side_px**2 * 3
            if size_bytes > options.memory_gb * 1e9:
                cure = "give a shorter or smaller clip, or raise --memory-gb"
                raise InputError(f"{video}: takes more than {options.memory_gb:g} GB; {cure}")
            planes.append(shown)
            targets.append(_target(video, job, targets, stats))
    faces: list[AlignedFace] = [target.face for target in targets if target.face is not None]
    starts = range(0, len(faces), _ENCODED_AT_ONCE)
    windows = [
        np.stack([face.image for face in faces[start : start + _ENCODED_AT_ONCE]])
        for start in starts
    ]
    encoded = inpainter.run("encode", lambda: list(map(inpainter.encode_faces, windows)))
    known = [window.transpose(1, 0, 2, 3) for window in encoded]
    return IdleLoop(
        info, tuple(planes), tuple(targets), np.ascontiguousarray(np.concatenate(known))
    )


def _target(video: Path, job: FrameJob, before: list[Target], stats: FaceStats) -> Target:
    after = (
        f"after {float(job.frame.time_s):.2f} s; an idle clip is one shot of one face: cut it there"
    )
    if not job.targets:
        raise NoFaceError(f"{video}: shows no usable face {after} ({stats.no_face(video)})")
    if before and job.targets[0].track_id != before[-1].track_id:
        raise NoFaceError(
            f"{video}: another shot or face begins {after}, or choose the face with --face"
        )
    return job.targets[0]
