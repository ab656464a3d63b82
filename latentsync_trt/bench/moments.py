"""Cuts the same face out of a source and its results, chooses the frames to show, and draws them in a grid."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_PX = 256
"""Side of the faces in figures."""

_DPI = 100
_BORDER_PX, _LABELS_PX, _FOOT_PX = 8, 180, 64

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


def face_grid(rows: Sequence[str], columns: Mapping[str, Sequence[UInt8Array]]) -> "Figure":
    """Labeled faces pixel by pixel.

    Args:
        rows: labels. columns: label → faces from top to bottom, `(256, 256, 3)` RGB each.
    """
    from matplotlib.figure import Figure

    step_px = SHOWN_PX + _BORDER_PX
    width_px, height_px = _LABELS_PX + len(columns) * step_px, len(rows) * step_px + _BORDER_PX + _FOOT_PX
    figure = Figure(figsize=(width_px / _DPI, height_px / _DPI), dpi=_DPI, facecolor="white")

    def write(x_px: float, y_px: float, text: str, side: str) -> None:
        figure.text(x_px / width_px, y_px / height_px, text, ha=side, va="center", size=13)

    for row, label in enumerate(rows):
        write(_LABELS_PX - 12, height_px - row * step_px - step_px / 2, label, "right")
    for column, (label, faces) in enumerate(columns.items()):
        left_px = _LABELS_PX + column * step_px
        write(left_px + SHOWN_PX / 2, _FOOT_PX / 2, label, "center")
        for row, face in enumerate(faces):
            figure.figimage(face, left_px, height_px - (row + 1) * step_px)
    return figure
