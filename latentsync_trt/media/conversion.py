"""Converts FFmpeg's frames to arrays and back: planes, RGB, and the rotation that makes a picture upright."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from av.sidedata.sidedata import Type as SideDataType
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Interpolation, VideoReformatter
from numpy.typing import NDArray

from latentsync_trt.errors import InputError
from latentsync_trt.media.color import BT709, UNSPECIFIED, Coding, coding_of
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


def has_rgb_channels(frame: VideoFrame) -> bool:
    """Whether the pixels are R'G'B' or numbers of a palette's colors."""
    return bool(frame.format.is_rgb or frame.format.has_palette)


class FrameConverter:
    """Converts the decoded frames of one video into upright arrays; the first frame sets orientation and color of all.

    Keeps swscale's tables between frames; not thread-safe.
    """

    def __init__(self) -> None:
        self._reformatter = VideoReformatter()
        self._orientation: Orientation | None = None
        self._color: ColorTags | None = None

    def planes(self, frame: VideoFrame) -> YuvPlanes:
        """The frame as 8-bit 4:2:0 planes: the decoder's own bytes for `DIRECT_FORMATS`, else one conversion.

        RGB becomes BT.709 of limited range. Frames are converted to the first one's matrix and range.

        Raises:
            InputError: matrix or pixel format are not supported, or `orientation_of` fails.
        """
        color = _yuv_tags(frame)
        self._color = self._color or color
        own, common = (coding_of(tags, frame.width, frame.height) for tags in (color, self._color))
        coded = frame
        if frame.format.name not in DIRECT_FORMATS or own != common:
            coded = self._yuv420(frame, own, common)
        y, u, v = (self._upright(frame, view) for view in views(coded))
        return YuvPlanes(y, u, v, self._color)

    def rgb(self, frame: VideoFrame) -> UInt8Array:
        """The frame as RGB `(H, W, 3)` uint8, converted directly from its own format; raises as `planes`."""
        if has_rgb_channels(frame):
            with naming_format(frame):
                converted = self._reformatter.reformat(frame, format="rgb24", interpolation=_EXACT_SMOOTH, threads=1)
        else:
            coding = coding_of(tags_of(frame), frame.width, frame.height)
            colored = self._yuv420(frame, coding, coding) if _is_gray(frame) else frame
            with naming_format(frame):
                converted = yuv_to_rgb(self._reformatter, colored, coding, _EXACT_SMOOTH)
        return self._upright(frame, packed_view(converted))

    def _yuv420(self, frame: VideoFrame, own: Coding, wanted: Coding) -> VideoFrame:
        """`frame`, coded as `own` says (if it is not RGB), as 8-bit 4:2:0 in the coding `wanted`."""
        own_range, wanted_range = COLOR_RANGES[own.full_range], COLOR_RANGES[wanted.full_range]
        if has_rgb_channels(frame):
            own_range = ColorRange.JPEG
        elif _is_gray(frame):
            if own != wanted:
                return self._yuv420(self._yuv420(frame, own, own), own, wanted)
            # swscale takes gray as full range, whatever its tag says: to full range it keeps the codes.
            own_range = wanted_range = ColorRange.JPEG
        with naming_format(frame):
            return self._reformatter.reformat(
                frame,
                format="yuv420p",
                interpolation=_EXACT_SMOOTH,
                src_colorspace=own.swscale_matrix,
                dst_colorspace=wanted.swscale_matrix,
                src_color_range=own_range,
                dst_color_range=wanted_range,
                threads=1,
            )

    def _upright(self, frame: VideoFrame, image: UInt8Array) -> UInt8Array:
        # Read once: PyAV's frames and their side data form reference cycles, so each frame would stay in memory until
        # garbage collection.
        if self._orientation is None:
            self._orientation = orientation_of(frame)
        return self._orientation.apply(image)


def _yuv_tags(frame: VideoFrame) -> ColorTags:
    """The tags of the frame's planes; RGB becomes BT.709, and keeps other primaries and transfer that it names."""
    color = tags_of(frame)
    if not has_rgb_channels(frame):
        return color
    primaries, transfer = (BT709 if tag == UNSPECIFIED else tag for tag in (color.primaries, color.transfer))
    return ColorTags(primaries, transfer, BT709, full_range=False)


def _is_gray(frame: VideoFrame) -> bool:
    return frame.format.name.startswith(("gray", "ya"))


@contextmanager
def naming_format(frame: VideoFrame) -> Iterator[None]:
    """Turns swscale's refusal inside the block into an `InputError` that names the format of `frame`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"its pixel format {frame.format.name} is not supported; re-encode it") from error


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
