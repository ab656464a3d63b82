"""A small picture of a head before and after its face was painted. Pure."""

from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np

from latentsync_trt.face.align import cut, mouth_mask, rescaled
from latentsync_trt.types import AlignedFace, Float64Array, Picture, UInt8Array, UInt16Array

VIEW_PX = 224
VIEW_CROP_PX = (120, 160)
_CROP_LEFT_PX = 50
_CROP_TOP_PX = 42
"""Width, height and place of the crop in the view: around it the whole head is seen, at about the
size that the mesh network takes.
"""
_CROP_ROWS = slice(_CROP_TOP_PX, _CROP_TOP_PX + VIEW_CROP_PX[1])
_CROP_COLUMNS = slice(_CROP_LEFT_PX, _CROP_LEFT_PX + VIEW_CROP_PX[0])


@dataclass(frozen=True, slots=True, eq=False)
class HeadView:
    """A head with what is around it, at one size for all heads."""

    from_frame: Float64Array
    """Shape `(2, 3)`: frame pixels → pixels of the view."""
    source: UInt8Array
    """The frame before painting, `(224, 224, 3)` RGB, black outside the frame."""
    painted: UInt8Array
    """The same after painting."""
    generated: UInt8Array
    """255 where painting may have changed the view, else 0; `(224, 224)`."""


def view_head(picture: Picture, face: AlignedFace, painted: UInt16Array) -> HeadView:
    """Returns the head around an aligned `face`, before and after it was `painted`.

    Args:
        painted: uint16 `(r, r, 3)` RGB, 257 × the 8-bit level.
    """
    from_frame = rescaled(face, VIEW_CROP_PX)
    from_frame[:, 2] += _CROP_LEFT_PX, _CROP_TOP_PX
    source = cut(picture, from_frame, (VIEW_PX, VIEW_PX), outside=0)

    crop_shape = (*VIEW_CROP_PX[::-1], 3)
    small = np.empty(crop_shape, np.uint16)
    cv2.resize(painted, VIEW_CROP_PX, dst=small, interpolation=cv2.INTER_AREA)
    levels = np.empty(crop_shape, np.uint8)
    cv2.convertScaleAbs(small, dst=levels, alpha=1 / 257)
    generated = _generated(len(face.image))
    result = source.copy()
    in_crop = generated[_CROP_ROWS, _CROP_COLUMNS]
    cv2.copyTo(levels, in_crop, result[_CROP_ROWS, _CROP_COLUMNS])
    return HeadView(from_frame, source, result, generated)


@lru_cache(maxsize=2)
def _generated(resolution_px: int) -> UInt8Array:
    """Returns where painting may change a view; see `HeadView`."""
    generated = np.zeros((VIEW_PX, VIEW_PX), np.uint8)
    mask = cv2.resize(mouth_mask(resolution_px), VIEW_CROP_PX, interpolation=cv2.INTER_AREA)
    generated[_CROP_ROWS, _CROP_COLUMNS][mask < 0.5] = 255
    return generated
