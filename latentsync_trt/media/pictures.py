"""Pictures: RGB of a decoded one on demand, planes on disk, and frames with their patches for the
encoder.
"""

import mmap
import threading
from collections.abc import Iterable
from dataclasses import replace
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
    hdr_values,
    interleaved_codes,
    planes_from_rgb,
)
from latentsync_trt.media.conversion import COLOR_RANGES, convert_format, frame_from_planes
from latentsync_trt.media.encoders import VideoEncoder
from latentsync_trt.media.filters import apply_filters
from latentsync_trt.media.hdr import hdr_curve
from latentsync_trt.types import ColorTags, Frame, Patch, UInt8Array, VideoInfo, YuvPlanes

_SMALL_PX = 480
# Of all frames of a clip that are in memory, three samples for each pixel: the bound of what waits
# between stages. Decoder and encoder take as much again. In 1.2 GB, frames of 3840×2160 stay in
# memory up to 30 frames/s.
_IN_FLIGHT_BYTES = 1_200_000_000

TILE_PX = 64  # side of a tile; even, as a chroma sample covers two pixels
_WHITE = 255
_DEEP_WHITE = 65535
# Rows of tiles converted at once: a whole 8K picture would need three times its memory.
_MOST_ROWS = 1024 // TILE_PX


class LazyRgb:
    """A `types.Picture` of `planes`, chroma repeated, HDR as `hdr` renders it. Thread-safe. It is
    converted tile by tile on first access, as faces fill a small part of most pictures; with the
    tiles around, as the next stage reads a little more. Raises as `coding_of`.
    """

    def __init__(self, planes: YuvPlanes) -> None:
        height, width = planes.y.shape
        self.shape = height, width, 3
        self._planes = planes
        self._hdr = hdr_curve(planes.color.transfer)
        self._coding = coding_of(planes.color, width, height, planes.bits)
        self._lock = threading.Lock()  # one stage may detect a face while another composes
        self.forget()

    def forget(self) -> None:
        """Gives back the memory of what was converted; who looks again waits for it again."""
        height, width, _ = self.shape
        with self._lock:
            self._rgb = np.empty(self.shape, np.uint8)
            self._missing = np.ones((-(-height // TILE_PX), -(-width // TILE_PX)), np.bool_)

    def __getitem__(self, place: tuple[slice, slice]) -> UInt8Array:
        """A read-only part, given by two slices without steps."""
        (top, bottom, _), (left, right, _) = (
            span.indices(size) for span, size in zip(place, self.shape, strict=False)
        )
        rows = slice(top // TILE_PX, -(-bottom // TILE_PX))
        columns = slice(left // TILE_PX, -(-right // TILE_PX))
        with self._lock:
            if self._missing[rows, columns].any():
                top = max(0, rows.start - 1)
                bottom = min(rows.stop + 1, len(self._missing))
                columns = slice(max(0, columns.start - 1), columns.stop + 1)
                for row in range(top, bottom, _MOST_ROWS):
                    self._convert(row, min(row + _MOST_ROWS, bottom), columns.start, columns.stop)
                self._missing[top:bottom, columns] = False
            part = self._rgb[place]
        part.flags.writeable = False
        return part

    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> UInt8Array:
        return np.array(self[:, :], dtype, copy=copy)

    def _convert(self, top: int, bottom: int, left: int, right: int) -> None:
        import cv2  # not where inputs are checked, which need other parts of this module

        tiles = self._rgb[top * TILE_PX : bottom * TILE_PX, left * TILE_PX : right * TILE_PX]
        height, width, _ = tiles.shape
        y = top * TILE_PX
        x = left * TILE_PX
        whole = interleaved_codes(self._planes, slice(y, y + height), slice(x, x + width))
        if self._hdr is not None:
            tiles[:] = self._hdr.sdr[hdr_values(whole, self._coding)]
        elif self._planes.bits == 8:
            cv2.transform(whole, codes_to_rgb(self._coding, _WHITE), dst=tiles)
        else:
            deep = cv2.transform(whole.astype(np.uint16), codes_to_rgb(self._coding, _DEEP_WHITE))
            tiles[:] = cv2.convertScaleAbs(deep, alpha=_WHITE / _DEEP_WHITE)


def max_frames_in_memory(info: VideoInfo) -> int:
    if VideoFormat(info.pixel_format).components[0].bits == 8:
        sample_bytes = 1
    else:
        sample_bytes = 2
    return _IN_FLIGHT_BYTES // (3 * sample_bytes * info.width_px * info.height_px)


def kept_on_disk(planes: YuvPlanes, folder: Path) -> YuvPlanes:
    """The same planes, read-only, mapped from a file without a name in `folder`, which ends with
    them. Raises `OutputError`.
    """
    arrays = [np.ascontiguousarray(plane) for plane in (planes.y, planes.u, planes.v)]
    try:
        with TemporaryFile(dir=folder) as file:
            for array in arrays:
                file.write(array.data)
            file.flush()
            samples = np.memmap(file, arrays[0].dtype, "r")
    except OSError as error:
        what = f"cannot keep the large pictures that wait to be painted ({error.strerror})"
        raise OutputError(f"{folder}: {what}; free some space, or write elsewhere") from error
    parts = np.split(samples, [arrays[0].size, arrays[0].size + arrays[1].size])
    y, u, v = (part.reshape(array.shape) for part, array in zip(parts, arrays, strict=True))
    return replace(planes, y=y, u=u, v=v)


def forget_on_disk(frame: Frame) -> None:
    """Gives back the memory of a frame that is `kept_on_disk`, until it is looked at again; does
    nothing to others.
    """
    pages = None if frame.planes is None else getattr(frame.planes.y, "_mmap", None)
    if pages is None:
        return
    if isinstance(frame.picture, LazyRgb):
        frame.picture.forget()
    if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows, which takes pages of files back itself
        pages.madvise(mmap.MADV_DONTNEED)


def without_rgb(frame: Frame) -> Frame:
    """The same frame, without what was converted of its planes: one that waits to be encoded needs
    these only.
    """
    if frame.planes is None:
        return frame
    return replace(frame, picture=LazyRgb(frame.planes))


def picture_info(width_px: int, height_px: int, *, rgb: bool) -> VideoInfo:
    """The source of frames without planes: 8-bit RGB, written as that, or as 4:2:0 in BT.709."""
    color = ColorTags(BT709, BT709, RGB_IDENTITY if rgb else BT709, full_range=rgb)
    form, place = ("gbrp", None) if rgb else ("yuv420p", (1, 1))
    return VideoInfo(width_px, height_px, None, form, False, Fraction(1), color, chroma_place=place)


class PictureMaker:
    """Makes frames with their patches pictures of the encoder's format, with its color tags.
    Samples without a patch are those of the source, unless the encoder has another format. Not
    thread-safe. `info`: of the source, with the color of frames without planes.
    """

    def __init__(self, info: VideoInfo, encoder: VideoEncoder) -> None:
        self._info = info
        self._encoder = encoder
        self._reformatter = VideoReformatter()

    def frame(self, frame: Frame, patches: Iterable[Patch] = ()) -> VideoFrame:
        """The picture to encode; later patches cover earlier ones. It has no time stamp."""
        encoder = self._encoder
        if frame.planes is None:
            planes = planes_from_rgb(frame.rgb, self._info.color)
        else:
            planes = frame.planes
        picture = frame_from_planes(planes, encoder.width_px, encoder.height_px, patches)
        converts = picture.format.name != encoder.pixel_format
        if encoder.frame_tags and (converts or encoder.top_field_first is not None):
            picture = apply_filters([picture], ("setparams", encoder.frame_tags))
        if converts:
            own, wanted = (
                coding_of(tags, picture.width, picture.height)
                for tags in (planes.color, encoder.color)
            )
            picture = convert_format(self._reformatter, picture, encoder.pixel_format, own, wanted)
        color = encoder.color
        picture.color_primaries = color.primaries
        picture.color_trc = color.transfer
        picture.colorspace = color.matrix
        picture.color_range = COLOR_RANGES[color.full_range]
        return picture


def small_rgb(
    info: VideoInfo, frame: Frame, patches: Iterable[Patch] = (), most_px: int = _SMALL_PX
) -> UInt8Array:
    """A frame of the source `info` to look at: uint8 `(h, w, 3)` RGB, h ≤ `most_px`, square pixels;
    HDR as SDR.
    """
    import cv2

    if frame.planes is None:
        planes = planes_from_rgb(frame.rgb, info.color)
    else:
        planes = frame.planes
    rgb = LazyRgb(apply_patch(planes, *patches))[:, :]
    height_px = min(len(rgb), most_px)
    width_px = max(1, round(rgb.shape[1] * info.sample_aspect_ratio * height_px / len(rgb)))
    return np.asarray(
        cv2.resize(rgb, (width_px, height_px), interpolation=cv2.INTER_AREA), np.uint8
    )
