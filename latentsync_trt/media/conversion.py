"""Converts FFmpeg's frames to arrays and back: planes, RGB, and the rotation that makes a picture upright."""

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
"""Pixel formats whose planes need no conversion."""

COLOR_RANGES = {None: int(ColorRange.UNSPECIFIED), False: int(ColorRange.MPEG), True: int(ColorRange.JPEG)}
"""FFmpeg's number for each value of `ColorTags.full_range`."""
_FULL_RANGE = {number: full_range for full_range, number in COLOR_RANGES.items()}

# By default swscale truncates from YUV to RGB: about one code too dark. With these flags it rounds.
EXACT_REPEATING = Interpolation.POINT | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT
"""Repeats each chroma sample over its 2×2 pixels, which `patching` relies on; requires even sides and frames without a
chroma location, as all frames built here are."""
_EXACT_SMOOTH = (
    Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT | Interpolation.FULL_CHR_H_INP
)


@dataclass(frozen=True, slots=True)
class Orientation:
    """How to make a coded picture upright: transpose it, then reverse the columns, then the rows, if set."""

    transpose: bool = False
    reverse_columns: bool = False
    reverse_rows: bool = False

    def apply(self, image: UInt8Array) -> UInt8Array:
        """The upright `image (H, W)` or `(H, W, C)`, as a contiguous copy."""
        turned = image.swapaxes(0, 1) if self.transpose else image
        turned = turned[:: -1 if self.reverse_rows else 1, :: -1 if self.reverse_columns else 1]
        return np.array(turned, order="C")


def orientation_of(frame: VideoFrame) -> Orientation:
    """The orientation in a decoded frame's display matrix; raises `InputError` unless it is a multiple of 90°."""
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
    """The color tags of a decoded frame; a "yuvj" format means full range."""
    full_range = _FULL_RANGE.get(int(frame.color_range))
    if frame.format.name.startswith("yuvj"):
        full_range = True
    return ColorTags(int(frame.color_primaries), int(frame.color_trc), int(frame.colorspace), full_range)


class FrameConverter:
    """Converts the decoded frames of one video into upright arrays; the first frame sets the orientation of all.

    Keeps swscale's tables between frames; not thread-safe.
    """

    def __init__(self) -> None:
        self._reformatter = VideoReformatter()
        self._orientation: Orientation | None = None

    def planes(self, frame: VideoFrame) -> YuvPlanes:
        """The frame as 8-bit 4:2:0 planes: the decoder's own bytes for `DIRECT_FORMATS`, else one conversion.

        RGB becomes BT.709 of limited range.

        Raises:
            InputError: the frame must be converted and its matrix is unknown, or `orientation_of` fails.
        """
        color = tags_of(frame)
        if _is_rgb(frame):
            color = replace(color, matrix=BT709, full_range=False)
        coded = frame
        if frame.format.name not in DIRECT_FORMATS:
            coding = coding_of(color, frame.width, frame.height)
            color_range = COLOR_RANGES[coding.full_range]
            coded = self._reformatter.reformat(
                frame,
                format="yuv420p",
                interpolation=_EXACT_SMOOTH,
                src_colorspace=coding.swscale_matrix,
                dst_colorspace=coding.swscale_matrix,
                src_color_range=ColorRange.JPEG if _is_rgb(frame) else color_range,
                dst_color_range=color_range,
                threads=1,
            )
        y, u, v = (self._upright(frame, view) for view in views(coded))
        return YuvPlanes(y, u, v, color)

    def rgb(self, frame: VideoFrame) -> UInt8Array:
        """The frame as RGB `(H, W, 3)` uint8, converted directly from its own format.

        Raises:
            InputError: the frame's matrix is unknown, or `orientation_of` fails.
        """
        if _is_rgb(frame):
            converted = self._reformatter.reformat(frame, format="rgb24", interpolation=_EXACT_SMOOTH, threads=1)
        else:
            coding = coding_of(tags_of(frame), frame.width, frame.height)
            converted = yuv_to_rgb(self._reformatter, frame, coding, _EXACT_SMOOTH)
        return self._upright(frame, packed_view(converted))

    def _upright(self, frame: VideoFrame, image: UInt8Array) -> UInt8Array:
        # Read once: PyAV's frames and their side data form reference cycles, so each frame would stay in memory until
        # garbage collection.
        if self._orientation is None:
            self._orientation = orientation_of(frame)
        return self._orientation.apply(image)


def _is_rgb(frame: VideoFrame) -> bool:
    return bool(frame.format.is_rgb or frame.format.has_palette)


def yuv_to_rgb(
    reformatter: VideoReformatter, frame: VideoFrame, coding: Coding, interpolation: Interpolation
) -> VideoFrame:
    """The frame as rgb24."""
    return reformatter.reformat(
        frame,
        format="rgb24",
        interpolation=interpolation,
        src_colorspace=coding.swscale_matrix,
        src_color_range=COLOR_RANGES[coding.full_range],
        threads=1,
    )


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
