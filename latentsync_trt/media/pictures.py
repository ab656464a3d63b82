"""Pictures: RGB of a decoded one on demand, planes on disk, and frames with their patches for the
encoder.
"""

import mmap
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from av import VideoFormat, VideoFrame
from av.video.reformatter import VideoReformatter

from latentsync_trt.errors import OutputError
from latentsync_trt.media.color import (
    BT709,
    RGB_IDENTITY,
    apply_patch,
    codes_to_rgb,
    coding_of,
    covering,
    hdr_values,
    interleaved_codes,
    planes_from_rgb,
)
from latentsync_trt.media.conversion import bits_of, convert_format, frame_from_planes, tag_color
from latentsync_trt.media.encoders import VideoEncoder
from latentsync_trt.media.filters import apply_filters
from latentsync_trt.media.hdr import hdr_curve
from latentsync_trt.types import (
    ColorTags,
    Frame,
    Patch,
    SampleArray,
    UInt8Array,
    VideoInfo,
    YuvPlanes,
)

_SMALL_HEIGHT_PX = 480
"""The largest height of a picture that shows progress, as `Progress.picture` promises."""

_IN_FLIGHT_BYTES = 1_200_000_000
"""How many bytes of a clip's frames, with three samples for each pixel, may wait in memory between
stages. Decoder and encoder take as much again. Frames of 3840×2160 stay in memory up to 30
frames/s.
"""

TILE_PX = 64
"""Side of a tile; even, as a chroma sample covers two pixels."""
_TILE_ROWS_AT_ONCE = 1024 // TILE_PX
"""Rows of tiles converted at once: a whole 8K picture would need three times its memory."""

_RGB_WHITE = 255
_DEEP_WHITE = 65535


class LazyRgb:
    """A `types.Picture` of `planes`, chroma repeated, HDR as `hdr.py` renders it. Thread-safe.

    It is converted tile by tile on first access, as faces fill a small part of most pictures; with
    the tiles around, as the next stage reads a little more. Raises as `coding_of`.
    """

    def __init__(self, planes: YuvPlanes) -> None:
        height, width = planes.y.shape
        self.shape = (height, width, 3)
        self._planes = planes
        self._curve = hdr_curve(planes.color.transfer)
        self._coding = coding_of(planes.color, width, height, planes.bits)
        self._lock = threading.Lock()  # one stage may detect a face while another composes
        self.forget()

    def forget(self) -> None:
        """Gives back the memory of what was converted; who looks again waits for it again."""
        height, width, _ = self.shape
        rows = covering(0, height, TILE_PX).stop
        columns = covering(0, width, TILE_PX).stop
        with self._lock:
            self._rgb = np.empty(self.shape, np.uint8)
            self._is_missing = np.ones((rows, columns), np.bool_)

    def __getitem__(self, place: tuple[slice, slice]) -> UInt8Array:
        """Returns a read-only part, which two slices without steps name."""
        top, bottom, _ = place[0].indices(self.shape[0])
        left, right, _ = place[1].indices(self.shape[1])
        rows = covering(top, bottom, TILE_PX)
        columns = covering(left, right, TILE_PX)
        with self._lock:
            if self._is_missing[rows, columns].any():
                self._convert_around(rows, columns)
            part = self._rgb[place]
        part.flags.writeable = False
        return part

    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> UInt8Array:
        return np.array(self[:, :], dtype, copy=copy)

    def _convert_around(self, rows: slice, columns: slice) -> None:
        """Converts tiles, and those beside them."""
        top = max(0, rows.start - 1)
        bottom = min(rows.stop + 1, len(self._is_missing))
        left = max(0, columns.start - 1)
        right = columns.stop + 1
        columns_px = slice(left * TILE_PX, right * TILE_PX)
        for first in range(top, bottom, _TILE_ROWS_AT_ONCE):
            last = min(first + _TILE_ROWS_AT_ONCE, bottom)
            self._convert(slice(first * TILE_PX, last * TILE_PX), columns_px)
        self._is_missing[top:bottom, left:right] = False

    def _convert(self, rows: slice, columns: slice) -> None:
        """Converts pixels; the slices may reach beyond the picture."""
        import cv2  # not where inputs are checked, which need other parts of this module

        rgb = self._rgb[rows, columns]
        bottom = rows.start + rgb.shape[0]
        right = columns.start + rgb.shape[1]
        codes = interleaved_codes(
            self._planes, slice(rows.start, bottom), slice(columns.start, right)
        )
        if self._curve is not None:
            rgb[:] = self._curve.sdr[hdr_values(codes, self._coding)]
        elif self._planes.bits == 8:
            cv2.transform(codes, codes_to_rgb(self._coding, _RGB_WHITE), dst=rgb)
        else:
            matrix = codes_to_rgb(self._coding, _DEEP_WHITE)
            deep = cv2.transform(codes.astype(np.uint16), matrix)
            rgb[:] = cv2.convertScaleAbs(deep, alpha=_RGB_WHITE / _DEEP_WHITE)


def max_frames_in_memory(info: VideoInfo) -> int:
    """Returns how many frames of a video may wait in memory between stages."""
    sample_bytes = 2 if bits_of(VideoFormat(info.pixel_format)) > 8 else 1
    return _IN_FLIGHT_BYTES // (3 * sample_bytes * info.width_px * info.height_px)


@dataclass(frozen=True, slots=True, eq=False)
class PlanesOnDisk(YuvPlanes):
    """Read-only planes in a file without a name, which ends with them."""

    pages: mmap.mmap = field(kw_only=True)


def keep_on_disk(planes: YuvPlanes, folder: Path) -> PlanesOnDisk:
    """Returns the same planes in a file in `folder`; raises `OutputError` if it cannot be
    written.
    """
    try:
        with TemporaryFile(dir=folder) as file:
            for plane in (planes.y, planes.u, planes.v):
                file.write(np.ascontiguousarray(plane).data)
            file.flush()
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise OutputError(
            f"{folder}: cannot keep the large pictures that wait to be painted "
            f"({error.strerror}); free some space, or write elsewhere"
        ) from error
    views = list[SampleArray]()
    offset = 0
    for plane in (planes.y, planes.u, planes.v):
        view = np.frombuffer(pages, plane.dtype, plane.size, offset)
        views.append(view.reshape(plane.shape))
        offset += plane.nbytes
    y, u, v = views
    return PlanesOnDisk(y, u, v, planes.color, planes.bits, pages=pages)


def forget_on_disk(frame: Frame) -> None:
    """Gives back the memory of a frame whose planes are on disk, until it is looked at again; does
    nothing to others.
    """
    if not isinstance(frame.planes, PlanesOnDisk):
        return
    if isinstance(frame.picture, LazyRgb):
        frame.picture.forget()
    if sys.platform != "win32":  # which takes pages of files back itself
        frame.planes.pages.madvise(mmap.MADV_DONTNEED)


def without_rgb(frame: Frame) -> Frame:
    """Returns the same frame without what was converted of its planes: one that waits to be encoded
    needs these only.
    """
    if frame.planes is None:
        return frame
    return replace(frame, picture=LazyRgb(frame.planes))


def picture_info(width_px: int, height_px: int, *, rgb: bool) -> VideoInfo:
    """Returns the properties of a source whose frames have no planes: 8-bit RGB, written as that,
    or as 4:2:0 in BT.709.
    """
    matrix = RGB_IDENTITY if rgb else BT709
    color = ColorTags(BT709, BT709, matrix, full_range=rgb)
    info = VideoInfo(width_px, height_px, None, "gbrp", False, Fraction(1), color)
    if rgb:
        return info
    return replace(info, pixel_format="yuv420p", chroma_place=(1, 1))


def _planes_of(frame: Frame, info: VideoInfo) -> YuvPlanes:
    if frame.planes is None:
        return planes_from_rgb(frame.rgb, info.color)
    return frame.planes


class PictureMaker:
    """Makes frames with their patches pictures of the encoder's format, with its color tags.

    Samples without a patch are those of the source, unless the encoder has another format. Not
    thread-safe.

    Args:
        info: of the source, with the color of frames without planes.
    """

    def __init__(self, info: VideoInfo, encoder: VideoEncoder) -> None:
        self._info = info
        self._encoder = encoder
        self._reformatter = VideoReformatter()

    def frame(self, frame: Frame, patches: Iterable[Patch] = ()) -> VideoFrame:
        """Returns the picture to encode, without a time stamp; later patches cover earlier ones."""
        encoder = self._encoder
        planes = _planes_of(frame, self._info)
        picture = frame_from_planes(planes, encoder.width_px, encoder.height_px, patches)
        converts = picture.format.name != encoder.pixel_format
        if encoder.frame_tags and (converts or encoder.top_field_first is not None):
            picture = apply_filters([picture], ("setparams", encoder.frame_tags))
        color = encoder.color
        if converts:
            coding = coding_of(planes.color, picture.width, picture.height)
            target = coding_of(color, picture.width, picture.height)
            picture = convert_format(
                self._reformatter, picture, encoder.pixel_format, coding, target
            )
        tag_color(picture, color)
        return picture


def small_rgb(
    info: VideoInfo,
    frame: Frame,
    patches: Iterable[Patch] = (),
    max_height_px: int = _SMALL_HEIGHT_PX,
) -> UInt8Array:
    """Returns a frame of the source `info` to look at: uint8 `(h, w, 3)` RGB, h ≤ `max_height_px`,
    square pixels; HDR as SDR.
    """
    import cv2

    rgb = LazyRgb(apply_patch(_planes_of(frame, info), *patches))[:, :]
    height, width = rgb.shape[:2]
    height_px = min(height, max_height_px)
    width_px = max(1, round(width * info.sample_aspect_ratio * height_px / height))
    small = cv2.resize(rgb, (width_px, height_px), interpolation=cv2.INTER_AREA)
    return np.asarray(small, np.uint8)
