"""The idle clip, played back and forth: what is computed once for all its frames, and kept."""

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import InputError, NoFaceError
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.people import FaceStats
from latentsync_trt.face.tracker import FaceTracker
from latentsync_trt.live.options import LiveOptions
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.option_fields import parse_face
from latentsync_trt.sync.faces import FaceFinder, FrameJobs
from latentsync_trt.sync.fronts import with_fronts
from latentsync_trt.sync.threads import prefetch
from latentsync_trt.sync.turned import with_turns
from latentsync_trt.types import (
    AlignedFace,
    Face,
    Float32Array,
    Frame,
    FrameMask,
    UInt8Array,
    VideoInfo,
    YuvPlanes,
)

if TYPE_CHECKING:
    from latentsync_trt.sync.inpainter import Inpainter

_ENCODED_AT_ONCE = 16
"""Faces in one run of the VAE."""


@dataclass(frozen=True, slots=True, eq=False)
class IdleFace:
    """The face of a frame."""

    tracked: Face
    """Box and landmarks in pixels of the frame."""
    face: AlignedFace
    """The face, cut out."""
    kept: tuple[FrameMask, ...]
    """What is in front of it, and stays as it is."""
    opacity: float
    """How much of a painted face shows at most, in [0, 1]: less where the head turns aside."""


@dataclass(frozen=True, slots=True, eq=False)
class IdleLoop:
    """An idle clip at 25 frames/s."""

    info: VideoInfo
    planes: tuple[YuvPlanes, ...]
    """The picture of each frame; repeated ones are shared."""
    faces: tuple[IdleFace, ...]
    """The face of each frame."""
    conditioning: Float32Array
    """What the denoiser knows of each frame, `(n, 9, h, w)`, see `diffusion.conditioning`."""

    def index(self, position: int) -> int:
        """Returns the frame that is shown at a position, from the first to the last and back again,
        without end.
        """
        last = len(self.planes) - 1
        place = position % max(1, 2 * last)
        return min(place, 2 * last - place)


def load_idle(
    video: Path, options: LiveOptions, detector: MediaPipeDetector, inpainter: "Inpainter"
) -> IdleLoop:
    """Reads a clip, finds its face and encodes it.

    Raises:
        MediaError: the clip cannot be read.
        NoFaceError: a frame shows no usable face, or the shot changes.
        InputError: the clip takes more memory than `options` allow.
    """
    info = probe(video)
    finder = FaceFinder(
        FaceTracker(detector),
        inpainter.side_px,
        choice=parse_face(options.face),
        pixel_aspect=info.sample_aspect_ratio,
    )
    read = read_frames(video, Playback(Fraction(MODEL_FPS)))
    chosen = finder.choose(prefetch(cast(Generator[Frame, None, None], read), name="decode"))
    seen = with_fronts(chosen, options.occluders, detector, info.sample_aspect_ratio)
    turned = with_turns(finder.place(seen), leaves_out=False)
    frames = _frames_with_face(video, options, finder.cut_out(turned))
    planes, faces = zip(*frames, strict=True)
    conditioning = _conditioning([face.face.image for face in faces], inpainter)
    return IdleLoop(info, planes, faces, conditioning)


def _frames_with_face(
    video: Path, options: LiveOptions, cut_out: FrameJobs
) -> Generator[tuple[YuvPlanes, IdleFace], None, None]:
    """Yields the picture and the face of each frame."""
    size_bytes = 0
    before: YuvPlanes | None = None
    track_id: int | None = None
    stats = FaceStats()
    with closing(cut_out) as jobs:
        for job in jobs:
            stats.add(job.frame, job.seen, has_face=bool(job.chosen))
            where = (
                f"after {float(job.frame.time_s):.2f} s; an idle clip is one shot of one face: cut "
                "it there"
            )
            if job.front == "covered":
                where += ", or paint over what is in front (--occluders paint)"
                raise NoFaceError(f"{video}: the mouth is covered {where}")
            if not job.targets:
                reason = stats.no_face(video)
                raise NoFaceError(f"{video}: shows no usable face {where} ({reason})")
            (target,) = job.targets
            if track_id not in (None, target.track_id):
                where += ", or choose the face with --face"
                raise NoFaceError(f"{video}: another shot or face begins {where}")
            track_id = target.track_id
            aligned = cast(AlignedFace, target.face)
            face = IdleFace(target.tracked, aligned, target.kept, target.opacity)
            picture = cast(YuvPlanes, job.frame.planes)  # of files they are never None
            size_bytes += 2 * aligned.image.nbytes
            size_bytes += sum(mask.levels.nbytes for mask in face.kept)
            if picture is not before:
                size_bytes += picture.y.nbytes + picture.u.nbytes + picture.v.nbytes
            before = picture
            if size_bytes > options.memory_gb * 1e9:
                raise InputError(
                    f"{video}: takes more than {options.memory_gb:g} GB; give a shorter or smaller "
                    "clip, or raise --memory-gb"
                )
            yield picture, face


def _conditioning(images: list[UInt8Array], inpainter: "Inpainter") -> Float32Array:
    """Returns what the denoiser knows of each frame, `(n, 9, h, w)`."""
    starts = range(0, len(images), _ENCODED_AT_ONCE)
    windows = [np.stack(images[start : start + _ENCODED_AT_ONCE]) for start in starts]
    encoded = inpainter.run_each("encode", inpainter.encode_faces, windows)
    conditioning = np.concatenate(encoded, axis=1)
    return np.ascontiguousarray(conditioning.swapaxes(0, 1))
