"""FFmpeg's frames as arrays and back: planes, RGB, and the rotation that makes a picture upright."""

import struct
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from av.sidedata.sidedata import Type as SideDataType
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Interpolation, VideoReformatter
from numpy.typing import NDArray

from latentsync_trt.errors import InputError
from latentsync_trt.media.color import BT709, Coding, coding_of
from latentsync_trt.types import ColorTags, UInt8Array, YuvPlanes

DIRECT_FORMATS = ("yuv420p", "yuvj420p")
"""Pixel formats whose planes are taken from the decoder unchanged."""

# swscale's default path from YUV to RGB truncates: about one code too dark. With these flags it rounds, and on frames
# without a chroma location (all that are built here) it repeats chroma, which `patching` relies on.
_EXACT_REPEATING = Interpolation.POINT | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT
_EXACT_SMOOTH = (
    Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT | Interpolation.FULL_CHR_H_INP
)


@dataclass(frozen=True, slots=True)
class Orientation:
    """How to make a coded picture upright: swap rows and columns, then reverse the columns, then the rows, if set."""

    transpose: bool = False
    reverse_columns: bool = False
    reverse_rows: bool = False

    @property
    def mirrored(self) -> bool:
        """Whether it includes a mirroring."""
        return self.transpose ^ self.reverse_columns ^ self.reverse_rows

    @property
    def clockwise_deg(self) -> int:
        """Clockwise rotation, after mirroring left to right if `mirrored`."""
        if self.transpose:
            return 90 if self.reverse_columns else 270
        return 180 if self.reverse_rows else 0

    def apply(self, image: UInt8Array) -> UInt8Array:
        """The upright `image (H, W)` or `(H, W, C)` as a contiguous copy."""
        turned = image.swapaxes(0, 1) if self.transpose else image
        turned = turned[:: -1 if self.reverse_rows else 1, :: -1 if self.reverse_columns else 1]
        return np.array(turned, order="C")


def orientation_of(frame: VideoFrame) -> Orientation:
    """The orientation in a decoded frame's display matrix.

    Raises:
        InputError: the matrix rotates by an angle that is not a multiple of 90°.
    """
    side_data: Any = frame.side_data
    matrix = side_data.get(SideDataType.DISPLAYMATRIX)
    if matrix is None:
        return Orientation()
    # Row vectors: x' = a·x + c·y, y' = b·x + d·y, in 16.16 fixed point and machine byte order.
    a, b, _, c, d, *_ = struct.unpack("=9i", bytes(matrix))
    if not (b or c):
        return Orientation(False, a < 0, d < 0)
    if not (a or d):
        return Orientation(True, c < 0, b < 0)
    raise InputError("its display matrix rotates by an angle that is not a multiple of 90°")


def tags_of(frame: VideoFrame) -> ColorTags:
    """The color tags of a decoded frame; the name of a "yuvj" format means full range."""
    ranges = {int(ColorRange.MPEG): False, int(ColorRange.JPEG): True}
    full_range = True if frame.format.name.startswith("yuvj") else ranges.get(int(frame.color_range))
    return ColorTags(int(frame.color_primaries), int(frame.color_trc), int(frame.colorspace), full_range)


class FrameConverter:
    """Converts decoded frames into upright arrays. Keeps swscale's tables between frames; for one thread at a time."""

    def __init__(self) -> None:
        self._to_yuv = VideoReformatter()
        self._to_rgb = VideoReformatter()

    def planes(self, frame: VideoFrame, orientation: Orientation) -> YuvPlanes:
        """The frame as 8-bit 4:2:0 planes: the decoder's own bytes for `DIRECT_FORMATS`, else one conversion.

        RGB becomes BT.709 of limited range.

        Raises:
            InputError: the frame must be converted and its matrix is unknown.
        """
        color = tags_of(frame)
        if _is_rgb(frame):
            color = replace(color, matrix=BT709, full_range=False)
        if frame.format.name not in DIRECT_FORMATS:
            coding = coding_of(color, frame.width, frame.height)
            swscale_range = _swscale_range(coding)
            frame = self._to_yuv.reformat(
                frame,
                format="yuv420p",
                interpolation=_EXACT_SMOOTH,
                src_colorspace=coding.swscale_matrix,
                dst_colorspace=coding.swscale_matrix,
                src_color_range=ColorRange.JPEG if _is_rgb(frame) else swscale_range,
                dst_color_range=swscale_range,
                threads=1,
            )
        y, u, v = (orientation.apply(view) for view in views(frame))
        return YuvPlanes(y, u, v, color)

    def rgb(self, frame: VideoFrame, orientation: Orientation) -> UInt8Array:
        """The frame as RGB `(H, W, 3)` uint8, converted directly from its own format.

        Raises:
            InputError: the frame's matrix is unknown.
        """
        if _is_rgb(frame):
            converted = self._to_rgb.reformat(frame, format="rgb24", interpolation=_EXACT_SMOOTH, threads=1)
        else:
            coding = coding_of(tags_of(frame), frame.width, frame.height)
            converted = _yuv_to_rgb(self._to_rgb, frame, coding, _EXACT_SMOOTH)
        return orientation.apply(packed_view(converted))


def _is_rgb(frame: VideoFrame) -> bool:
    return bool(frame.format.is_rgb or frame.format.has_palette)


def repeating_rgb(reformatter: VideoReformatter, frame: VideoFrame, coding: Coding) -> VideoFrame:
    """A yuv420p frame with even sides as rgb24, each chroma sample repeated over its 2×2 pixels.

    With odd sides swscale would stretch the chroma planes instead.
    """
    return _yuv_to_rgb(reformatter, frame, coding, _EXACT_REPEATING)


def _yuv_to_rgb(
    reformatter: VideoReformatter, frame: VideoFrame, coding: Coding, interpolation: Interpolation
) -> VideoFrame:
    return reformatter.reformat(
        frame,
        format="rgb24",
        interpolation=interpolation,
        src_colorspace=coding.swscale_matrix,
        src_color_range=_swscale_range(coding),
        threads=1,
    )


def _swscale_range(coding: Coding) -> ColorRange:
    return ColorRange.JPEG if coding.full_range else ColorRange.MPEG


def even_frame(planes: YuvPlanes) -> VideoFrame:
    """A yuv420p frame with a copy of `planes`, odd sides padded by repeating their edge."""
    height_px, width_px = planes.y.shape
    frame = VideoFrame(width_px + width_px % 2, height_px + height_px % 2, "yuv420p")
    for view, plane in zip(views(frame), (planes.y, planes.u, planes.v), strict=True):
        rows, columns = plane.shape
        view[:rows, :columns] = plane
        view[:rows, columns:] = plane[:, -1:]
        view[rows:] = view[rows - 1]
    return frame


def views(frame: VideoFrame) -> list[NDArray[np.uint8]]:
    """Each 8-bit plane of `frame` as an array `(H, W)` on FFmpeg's memory."""
    return [_rows(plane, plane.width) for plane in frame.planes]


def packed_view(frame: VideoFrame) -> NDArray[np.uint8]:
    """The plane of an rgb24 frame as an array `(H, W, 3)` on FFmpeg's memory."""
    return _rows(frame.planes[0], 3 * frame.width).reshape(frame.height, frame.width, 3, copy=False)


def _rows(plane: Any, row_bytes: int) -> NDArray[np.uint8]:
    stored = np.frombuffer(plane, np.uint8)[: plane.height * plane.line_size]
    return stored.reshape(plane.height, plane.line_size)[:, :row_bytes]
