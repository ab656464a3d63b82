"""RGB of a YUV picture, converted tile by tile on first access, as faces fill a small part of most pictures."""

import threading
from typing import Any

import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from latentsync_trt.media.color import coding_of
from latentsync_trt.media.conversion import EXACT_REPEATING, format_of, packed_view, to_rgb, views
from latentsync_trt.media.hdr import hdr_of
from latentsync_trt.media.patching import pixels_per_sample
from latentsync_trt.types import UInt8Array, YuvPlanes

TILE_PX = 128
"""Side of a tile; even, as a chroma sample covers two pixels."""

_of_thread = threading.local()


class LazyRgb:
    """A `types.Picture` of `planes`, chroma repeated over its pixels, HDR as `hdr` renders it. Thread-safe.

    Raises:
        InputError: the matrix of the planes is unknown.
    """

    def __init__(self, planes: YuvPlanes) -> None:
        height, width = planes.y.shape
        self._planes, self._coding = planes, coding_of(planes.color, width, height)
        self._hdr, self._format = hdr_of(planes.color.transfer), format_of(planes)
        self._rgb = np.empty((height, width, 3), np.uint8)
        self._missing = np.ones((-(-height // TILE_PX), -(-width // TILE_PX)), np.bool_)
        self._lock = threading.Lock()  # one stage may detect a face while another composes

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and 3."""
        height, width = self._planes.y.shape
        return height, width, 3

    def __getitem__(self, place: tuple[slice, slice]) -> UInt8Array:
        """A read-only part, given by two slices without steps."""
        ends = [span.indices(size)[:2] for span, size in zip(place, self.shape, strict=False)]
        rows, columns = (slice(start // TILE_PX, -(-stop // TILE_PX)) for start, stop in ends)
        with self._lock:
            for row in range(rows.start, rows.stop):
                for start, stop in _runs(self._missing[row, columns]):
                    self._convert(row, columns.start + start, columns.start + stop)
        part = self._rgb[place]
        part.flags.writeable = False
        return part

    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> UInt8Array:
        """The whole picture."""
        return np.array(self[:, :], dtype, copy=copy)

    def _convert(self, row: int, first: int, end: int) -> None:
        """Converts the tiles of a row from column `first` to before `end` at once."""
        top, left, width = row * TILE_PX, first * TILE_PX, (end - first) * TILE_PX
        frame, reformatter = _tools(width, self._format)
        steps = (1, 1), *2 * (pixels_per_sample(self._planes),)
        planes = self._planes.y, self._planes.u, self._planes.v
        for view, plane, (down, right) in zip(views(frame), planes, steps, strict=True):
            part = plane[top // down : (top + TILE_PX) // down, left // right : (left + width) // right]
            view[: part.shape[0], : part.shape[1]] = part
        name = "rgb48le" if self._hdr else "rgb24"
        made = packed_view(to_rgb(reformatter, frame, self._coding, EXACT_REPEATING, name))
        if self._hdr:
            made = self._hdr.sdr(made)
        tiles = self._rgb[top : top + TILE_PX, left : left + width]
        tiles[:] = made[: tiles.shape[0], : tiles.shape[1]]
        self._missing[row, first:end] = False


def _runs(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Start and end (exclusive) of each run of true values in `flags (n,)`."""
    steps = np.diff(flags.astype(np.int8), prepend=0, append=0)
    return list(zip(np.flatnonzero(steps > 0).tolist(), np.flatnonzero(steps < 0).tolist(), strict=True))


def _tools(width: int, pixel_format: str) -> tuple[VideoFrame, VideoReformatter]:
    """A frame of that width and format to fill, and a converter, which keeps tables for one size; both per thread."""
    tools: dict[tuple[int, str], tuple[VideoFrame, VideoReformatter]] = _of_thread.__dict__.setdefault("tools", {})
    if (width, pixel_format) not in tools:
        tools[width, pixel_format] = VideoFrame(width, TILE_PX, pixel_format), VideoReformatter()
    return tools[width, pixel_format]
