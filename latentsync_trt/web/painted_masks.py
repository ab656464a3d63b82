"""Masks of what is painted over the first picture of a video. Needs no Gradio: for children."""

from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import cast

import cv2
import numpy as np

from latentsync_trt.media.pictures import small_rgb
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.types import Frame, UInt8Array

_EDITED_HEIGHT_PX = 720
"""The largest height of a picture that is painted on."""


def first_picture(video: Path) -> UInt8Array:
    """Returns the first picture of a video to paint on, RGB `(h, w, 3)` with square pixels; raises
    `MediaError`.
    """
    info = probe(video)
    with closing(cast(Generator[Frame, None, None], read_frames(video))) as frames:
        return small_rgb(info, next(frames), max_height_px=_EDITED_HEIGHT_PX)


def write_mask(video: Path, layers: Sequence[UInt8Array], target: Path) -> None:
    """Writes a picture of the size of a video's that is white where any of the layers is painted,
    RGBA `(h, w, 4)` over the whole picture. Raises `MediaError`.
    """
    info = probe(video)
    size_px = (info.width_px, info.height_px)
    mask = np.zeros(size_px[::-1], np.uint8)
    for layer in layers:
        is_painted = layer[..., 3] > 0
        painted = is_painted.astype(np.uint8) * np.uint8(255)
        mask |= cv2.resize(painted, size_px, interpolation=cv2.INTER_NEAREST)
    _, content = cv2.imencode(".png", mask)
    target.write_bytes(content.tobytes())
