"""Cuts the same face out of a source and its results, and chooses the frames to show."""

from collections.abc import Iterable, Iterator, Sequence

import cv2
import numpy as np

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import InputError
from latentsync_trt.face.align import crop
from latentsync_trt.face.choice import MainFace
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.sync.lips import Curves
from latentsync_trt.types import UInt8Array

SHOWN_PX = 256
"""Side of the faces in figures."""

Faces = tuple[UInt8Array, ...]
"""The same face in the source and in each result, uint8 `(side, side, 3)` RGB."""


def face_views(
    clips: Sequence[Iterable[UInt8Array]], side_px: int, detector: MediaPipeDetector | None = None
) -> Iterator[Faces | None]:
    """The face of each frame in every clip, cut out where the first clip's face is; None where that has none.

    Args:
        clips: the source, then results of it; frames uint8 `(H, W, 3)` RGB.

    Raises:
        InputError: the pictures differ in size.
    """
    follower = MainFace(detector or MediaPipeDetector(), side_px)
    for frames in zip(*clips, strict=False):
        if len({frame.shape for frame in frames}) > 1:
            sizes = ", ".join(f"{frame.shape[1]}×{frame.shape[0]}" for frame in frames)
            raise InputError(f"pictures of {sizes} px, source first; give videos of one size", usage=False)
        followed = follower.update(frames[0])
        yield None if followed is None else tuple(crop(frame, followed.matrix, side_px).image for frame in frames)


def shown(face: UInt8Array) -> UInt8Array:
    """A face at the size of the figures."""
    return np.asarray(cv2.resize(face, (SHOWN_PX, SHOWN_PX), interpolation=cv2.INTER_AREA), np.uint8)


def masked(face: UInt8Array, resolution_px: int) -> UInt8Array:
    """`face` with the region that a network of this resolution generates in gray; same size."""
    small = cv2.resize(face, (resolution_px, resolution_px), interpolation=cv2.INTER_AREA).astype(np.float32)
    gray = np.rint((small - 127.5) * mouth_mask(resolution_px)[..., None] + 127.5).astype(np.uint8)
    return np.asarray(cv2.resize(gray, face.shape[1::-1], interpolation=cv2.INTER_CUBIC), np.uint8)


def choose_moments(curves: Curves, count: int = 6) -> dict[int, str]:
    """Chooses one frame with a face in each of `count` equal parts of the clip, alternating a wide and a shut mouth.

    A known mouth decides by what it should do (m, b, p rather than silence), else the measured gap does.

    Returns:
        Frame index → label.
    """
    opening = curves.mouth.opening - curves.mouth.shut if curves.mouth else curves.gaps
    moments = {}
    for number, part in enumerate(np.array_split(np.arange(len(curves)), count)):
        seen = part[~np.isnan(curves.gaps[part])]
        if seen.size:
            shows, choose = ("shut", np.argmin) if number % 2 else ("wide", np.argmax)
            index = int(seen[choose(opening[seen])])
            moments[index] = f"{index / MODEL_FPS:.2f} s\n{shows}"
    return moments
