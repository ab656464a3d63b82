"""RGB of a YUV picture, converted tile by tile on first access, as faces fill a small part of most pictures."""

import threading
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter

from latentsync_trt.media.color import coding_of
from latentsync_trt.media.conversion import EXACT_REPEATING, format_of, packed_view, to_rgb, views
from latentsync_trt.media.hdr import hdr_of
from latentsync_trt.media.patching import pixels_per_sample
from latentsync_trt.types import BoolArray, UInt8Array, YuvPlanes

TILE_PX = 64
"""Side of a tile; even, as a chroma sample covers two pixels."""

_MOST_ROWS = 1024 // TILE_PX
"""Rows of tiles converted at once: a whole 8K picture would need three times its memory."""


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
            missing = self._missing[rows, columns]
            for top, bottom, left, right in _rectangles(missing):
                self._convert(rows.start + top, rows.start + bottom, columns.start + left, columns.start + right)
            missing[:] = False
        part = self._rgb[place]
        part.flags.writeable = False
        return part

    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> UInt8Array:
        """The whole picture."""
        return np.array(self[:, :], dtype, copy=copy)

    def _convert(self, top: int, bottom: int, left: int, right: int) -> None:
        """Converts a rectangle of tiles, up to before row `bottom` and column `right` of them, at once."""
        tiles = self._rgb[top * TILE_PX : bottom * TILE_PX, left * TILE_PX : right * TILE_PX]
        # Both are made anew: to keep them for the next rectangle of the same size saves a twentieth of the time.
        frame = VideoFrame((right - left) * TILE_PX, (bottom - top) * TILE_PX, self._format)
        steps = (1, 1), *2 * (pixels_per_sample(self._planes),)
        planes = self._planes.y, self._planes.u, self._planes.v
        for view, plane, (down, across) in zip(views(frame), planes, steps, strict=True):
            part = plane[top * TILE_PX // down :, left * TILE_PX // across :][: view.shape[0], : view.shape[1]]
            view[: part.shape[0], : part.shape[1]] = part
        name = "rgb48le" if self._hdr else "rgb24"
        made = packed_view(to_rgb(VideoReformatter(), frame, self._coding, EXACT_REPEATING, name))
        made = made[: tiles.shape[0], : tiles.shape[1]]
        tiles[:] = self._hdr.sdr(made) if self._hdr else made


def _rectangles(missing: BoolArray) -> Iterator[tuple[int, int, int, int]]:
    """Rectangles (top, bottom, left, right; ends exclusive) that together are the true values of `missing (h, w)`."""
    for (flags, _), rows in groupby(enumerate(missing.tolist()), lambda row: (row[1], row[0] // _MOST_ROWS)):
        top, *rest = (row for row, _ in rows)
        for flag, run in groupby(range(len(flags)), flags.__getitem__):
            if flag:
                left, *others = run
                yield top, top + 1 + len(rest), left, left + 1 + len(others)
