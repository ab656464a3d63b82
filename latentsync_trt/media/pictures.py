"""Between FFmpeg's frames and arrays: planes, RGB, and the turn that makes a picture upright."""

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from av.sidedata.sidedata import Type as SideDataType
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Interpolation, VideoReformatter
from numpy.typing import NDArray

from latentsync_trt.errors import InputError
from latentsync_trt.media.color import Coding, coding_of, encoded_tags
from latentsync_trt.types import ColorTags, UInt8Array, YuvPlanes

DIRECT_FORMATS = ("yuv420p", "yuvj420p")
"""Pixel formats whose planes are taken from the decoder as they are."""

# swscale's default path from YUV to RGB truncates: about one code too dark. With these flags it rounds, and on frames
# without a chroma location (all that are built here) it repeats chroma, which `patch` relies on.
_EXACT_REPEATING = Interpolation.POINT | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT
_EXACT_SMOOTH = (
    Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT | Interpolation.FULL_CHR_H_INP
)
_CLOCKWISE_DEG = {
    (False, False, False): 0,
    (True, True, False): 90,
    (False, True, True): 180,
    (True, False, True): 270,
    (False, True, False): 0,
    (True, True, True): 90,
    (False, False, True): 180,
    (True, False, False): 270,
}


@dataclass(frozen=True, slots=True)
class Orientation:
    """How a coded picture becomes upright: rows and columns swapped, then columns and rows reversed, each if set."""

    transpose: bool = False
    reverse_columns: bool = False
    reverse_rows: bool = False

    @property
    def mirrored(self) -> bool:
        """Whether the turn includes a mirroring."""
        return self.transpose ^ self.reverse_columns ^ self.reverse_rows

    @property
    def clockwise_deg(self) -> int:
        """Clockwise turn, after mirroring left to right if `mirrored`."""
        return _CLOCKWISE_DEG[self.transpose, self.reverse_columns, self.reverse_rows]

    def apply(self, image: UInt8Array) -> UInt8Array:
        """The upright `image (H, W)` or `(H, W, C)` as a contiguous copy of its own."""
        turned = image.swapaxes(0, 1) if self.transpose else image
        turned = turned[:: -1 if self.reverse_rows else 1, :: -1 if self.reverse_columns else 1]
        return np.array(turned, order="C")


def orientation_of(frame: VideoFrame) -> Orientation:
    """The orientation that a decoded frame's display matrix asks for.

    Raises:
        InputError: the matrix turns by something else than quarter turns.
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
    raise InputError("its display matrix turns the picture by an angle that is no multiple of 90°")


def tags_of(frame: VideoFrame) -> ColorTags:
    """The color tags of a decoded frame; a "yuvj" format says full range by its name."""
    ranges = {int(ColorRange.MPEG): False, int(ColorRange.JPEG): True}
    full_range = True if frame.format.name.startswith("yuvj") else ranges.get(int(frame.color_range))
    return ColorTags(int(frame.color_primaries), int(frame.color_trc), int(frame.colorspace), full_range)


def is_rgb(frame: VideoFrame) -> bool:
    """Whether the frame holds RGB, by components or by palette."""
    return bool(frame.format.is_rgb or frame.format.has_palette)


class PictureConverter:
    """Converts decoded frames into upright arrays. Keeps swscale's tables between frames; for one thread at a time."""

    def __init__(self) -> None:
        self._to_yuv = VideoReformatter()
        self._to_rgb = VideoReformatter()

    def planes(self, frame: VideoFrame, orientation: Orientation) -> YuvPlanes:
        """The frame as 8-bit 4:2:0 planes: the decoder's own bytes for `DIRECT_FORMATS`, else one conversion.

        Raises:
            InputError: the frame must be converted and its matrix is unknown.
        """
        source = tags_of(frame)
        color = encoded_tags(source, source_is_rgb=is_rgb(frame))
        if frame.format.name not in DIRECT_FORMATS:
            coding = coding_of(color, frame.width, frame.height)
            swscale_range = _swscale_range(coding)
            frame = self._to_yuv.reformat(
                frame,
                format="yuv420p",
                interpolation=_EXACT_SMOOTH,
                src_colorspace=coding.swscale_matrix,
                dst_colorspace=coding.swscale_matrix,
                src_color_range=ColorRange.JPEG if is_rgb(frame) else swscale_range,
                dst_color_range=swscale_range,
                threads=1,
            )
        y, u, v = (orientation.apply(view) for view in views(frame))
        return YuvPlanes(y, u, v, color)

    def rgb(self, frame: VideoFrame, orientation: Orientation) -> UInt8Array:
        """The frame as RGB `(H, W, 3)` uint8 straight from its own format.

        Raises:
            InputError: the frame's matrix is unknown.
        """
        if is_rgb(frame):
            converted = self._to_rgb.reformat(frame, format="rgb24", interpolation=_EXACT_SMOOTH, threads=1)
        else:
            coding = coding_of(tags_of(frame), frame.width, frame.height)
            converted = _yuv_to_rgb(self._to_rgb, frame, coding, _EXACT_SMOOTH)
        return orientation.apply(packed_view(converted))

    def rgb_of_planes(self, planes: YuvPlanes) -> UInt8Array:
        """RGB `(H, W, 3)` uint8 of `planes`, chroma repeated over its 2×2 pixels.

        Raises:
            InputError: the matrix of the planes is unknown.
        """
        height_px, width_px = planes.y.shape
        coding = coding_of(planes.color, width_px, height_px)
        # With odd sides swscale stretches the chroma planes instead of repeating their samples.
        converted = repeating_rgb(self._to_rgb, frame_of_planes(planes, even=True), coding)
        return np.ascontiguousarray(packed_view(converted)[:height_px, :width_px])


def repeating_rgb(reformatter: VideoReformatter, frame: VideoFrame, coding: Coding) -> VideoFrame:
    """An rgb24 frame of a yuv420p one with even sides, chroma repeated over its 2×2 pixels."""
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


def frame_of_planes(planes: YuvPlanes, *, even: bool = False) -> VideoFrame:
    """An FFmpeg frame (yuv420p) with a copy of `planes`; with `even`, odd sides are padded by repeating their edge."""
    height_px, width_px = planes.y.shape
    if even:
        height_px, width_px = height_px + height_px % 2, width_px + width_px % 2
    frame = VideoFrame(width_px, height_px, "yuv420p")
    for view, plane in zip(views(frame), (planes.y, planes.u, planes.v), strict=True):
        rows, columns = plane.shape
        view[:rows, :columns] = plane
        view[:rows, columns:] = plane[:, -1:]
        view[rows:] = view[rows - 1]
    return frame


def _swscale_range(coding: Coding) -> ColorRange:
    return ColorRange.JPEG if coding.full_range else ColorRange.MPEG


def views(frame: VideoFrame) -> list[NDArray[np.uint8]]:
    """Each 8-bit plane of `frame` as an array `(H, W)` on FFmpeg's memory."""
    return [_rows(plane, plane.width) for plane in frame.planes]


def packed_view(frame: VideoFrame) -> NDArray[np.uint8]:
    """The one plane of an rgb24 frame as an array `(H, W, 3)` on FFmpeg's memory."""
    return _rows(frame.planes[0], 3 * frame.width).reshape(frame.height, frame.width, 3, copy=False)


def _rows(plane: Any, row_bytes: int) -> NDArray[np.uint8]:
    stored = np.frombuffer(plane, np.uint8)[: plane.height * plane.line_size]
    return stored.reshape(plane.height, plane.line_size)[:, :row_bytes]
