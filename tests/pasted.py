"""Patches on RGB pictures, mixed by the code that mixes them into the planes of a video."""

import numpy as np

from latentsync_trt.media.color import RGB_IDENTITY, apply_patch, planes_of
from latentsync_trt.types import BoolArray, ColorTags, Patch, SampleArray, UInt8Array


def applied(frame: UInt8Array, patch: Patch) -> UInt8Array:
    """A copy of `frame (H, W, 3)` with the patch."""
    planes = apply_patch(planes_of(frame, ColorTags(matrix=RGB_IDENTITY, full_range=True)), patch)
    return np.stack([planes.v, planes.y, planes.u], axis=-1).astype(np.uint8)


def changed_pixels(frame: SampleArray, patch: Patch) -> BoolArray:
    """Which pixels of `frame (H, W, …)` the patch may change: `(H, W)`."""
    changed = np.zeros(frame.shape[:2], np.bool_)
    height, width = patch.weight.shape
    changed[patch.y_px : patch.y_px + height, patch.x_px : patch.x_px + width] = patch.weight > 0
    return changed
