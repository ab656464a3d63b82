"""Finished clips: their lips, and the same face in a source and its results."""

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import InputError
from latentsync_trt.face.align import crop, crop_size_px, mouth_mask, square
from latentsync_trt.face.choice import MainFace
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.measure.lips import CLOSED_GAP, Curves, gap_of, loudness_of
from latentsync_trt.measure.syncnet import SyncMeter
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.types import AlignedFace, Frame, Progress, ProgressCallback, UInt8Array

_FOLLOWED_PX = 256
"""Resolution for which a face is aligned where only its lips are measured."""
_MOMENTS = 6
"""How many frames of a clip stand for all."""


def square_rgb(video: Path, frames: Iterable[Frame]) -> Iterator[UInt8Array]:
    """Yields the pictures of a video's frames, uint8 `(H, W, 3)` RGB, with square pixels."""
    aspect = probe(video).sample_aspect_ratio
    for frame in frames:
        yield np.asarray(square(frame.picture, aspect))


def measure_clip(
    video: Path,
    audio: Path,
    *,
    delay_s: Fraction = Fraction(0),
    on_progress: ProgressCallback | None = None,
    meter: SyncMeter | None = None,
) -> Curves:
    """Returns the lips of `video` and the speech in `audio`; holds one frame at a time. Raises
    `MediaError`.

    Args:
        delay_s: when the audio starts in the video.
        on_progress: called after every frame.
        meter: measures the same recording; sees the faces, too.
    """
    levels_db = loudness_of(read_audio_blocks(audio, delay_s=delay_s))
    gaps = list[float]()
    detector = MediaPipeDetector()
    main_face = MainFace(detector, _FOLLOWED_PX)
    frames = read_frames(video, Playback(Fraction(MODEL_FPS)))
    for index, picture in enumerate(square_rgb(video, frames)):
        tracked = main_face.update(picture)
        mesh = None if tracked is None else detector.mesh(picture, tracked.face)
        gaps.append(math.nan if mesh is None else gap_of(mesh))
        if tracked is not None and meter is not None:
            face = AlignedFace(picture, tracked.matrix, crop_size_px(_FOLLOWED_PX))
            meter.add(Fraction(index, MODEL_FPS), picture, face)
        if on_progress is not None:
            on_progress(Progress("measuring", index + 1, len(levels_db)))
    count = min(len(gaps), len(levels_db))
    return Curves(np.array(gaps[:count], np.float32), levels_db[:count])


def face_views(
    clips: Sequence[Iterable[UInt8Array]], side_px: int
) -> Iterator[tuple[UInt8Array, ...] | None]:
    """Yields the face of each frame in every clip, uint8 `(side, side, 3)` RGB, cut out where the
    first clip's face is; None where that has none. Raises `InputError` if clips differ in size.

    Args:
        clips: the source, then results of it; frames uint8 `(H, W, 3)` RGB.
    """
    main_face = MainFace(MediaPipeDetector(), side_px)
    for frames in zip(*clips, strict=False):
        if len({frame.shape for frame in frames}) > 1:
            shapes = [frame.shape for frame in frames]
            sizes = ", ".join(f"{width}×{height}" for height, width, _ in shapes)
            raise InputError(
                f"pictures of {sizes} px, source first; give videos of one size", usage=False
            )
        followed = main_face.update(frames[0])
        if followed is None:
            yield None
        else:
            yield tuple(crop(frame, followed.matrix, side_px).image for frame in frames)


def masked(face: UInt8Array, resolution_px: int) -> UInt8Array:
    """Returns `face` with the region that a network of this resolution generates in gray; same
    size.
    """
    size = (resolution_px, resolution_px)
    small = cv2.resize(face, size, interpolation=cv2.INTER_AREA).astype(np.float32)
    mask = mouth_mask(resolution_px)[..., None]
    gray = np.rint((small - 127.5) * mask + 127.5).astype(np.uint8)
    return cv2.resize(gray, face.shape[1::-1], interpolation=cv2.INTER_CUBIC)


def choose_moments(curves: Curves) -> dict[int, str]:
    """Returns labels by frame: one with a face in each sixth of the clip, in every second one the
    most shut mouth if its lips touch there, else the widest; as measured.
    """
    gaps = curves.gaps
    moments = dict[int, str]()
    for number, sixth in enumerate(np.array_split(np.arange(len(curves)), _MOMENTS)):
        with_face = sixth[~np.isnan(gaps[sixth])]
        if not with_face.size:
            continue
        index = int(with_face[np.argmin(gaps[with_face])])
        if number % 2 == 0 or gaps[index] >= CLOSED_GAP:
            index = int(with_face[np.argmax(gaps[with_face])])
        label = "shut" if gaps[index] < CLOSED_GAP else "wide"
        moments[index] = f"{index / MODEL_FPS:.2f} s\n{label}"
    return moments
