"""RGB of a YUV picture, converted where somebody looks: faces fill a part of most pictures."""

import threading
from typing import Any

import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter

from latentsync_trt.media.colour import coding_of
from latentsync_trt.media.pictures import packed_view, repeating_rgb, views
from latentsync_trt.types import UInt8Array, YuvPlanes

TILE_PX = 256
"""Side of what is converted at once: even, as chroma covers two pixels; one size, as swscale keeps tables for one."""

_of_thread = threading.local()


class PartlyConverted:
    """A `types.Picture` of `planes`: the RGB that `pictures.PictureConverter.rgb_of_planes` gives, pixel by pixel.

    Raises:
        InputError: the matrix of the planes is unknown.
    """

    def __init__(self, planes: YuvPlanes) -> None:
        height, width = planes.y.shape
        self._planes, self._coding = planes, coding_of(planes.colour, width, height)
        self._rgb = np.empty((height, width, 3), np.uint8)
        self._missing = np.ones((-(-height // TILE_PX), -(-width // TILE_PX)), np.bool_)
        self._lock = threading.Lock()  # a frame may be searched for the next one's face while it is composed

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and 3."""
        height, width = self._planes.y.shape
        return height, width, 3

    def __getitem__(self, place: tuple[slice, slice]) -> UInt8Array:
        """A part, by two slices without steps; read-only."""
        ends = [span.indices(size)[:2] for span, size in zip(place, self.shape, strict=False)]
        rows, columns = (slice(start // TILE_PX, -(-stop // TILE_PX)) for start, stop in ends)
        with self._lock:
            for row, column in np.argwhere(self._missing[rows, columns]).tolist():
                self._convert(rows.start + row, columns.start + column)
        part = self._rgb[place]
        part.flags.writeable = False
        return part

    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> UInt8Array:
        """The whole picture."""
        return np.array(self[:, :], dtype, copy=copy)

    def _convert(self, row: int, column: int) -> None:
        """Fills one tile."""
        top, left = row * TILE_PX, column * TILE_PX
        frame, reformatter = _tools()
        for view, plane, step in zip(
            views(frame), (self._planes.y, self._planes.u, self._planes.v), (1, 2, 2), strict=True
        ):
            side = TILE_PX // step
            part = plane[top // step : top // step + side, left // step : left // step + side]
            view[: part.shape[0], : part.shape[1]] = part
        made = packed_view(repeating_rgb(reformatter, frame, self._coding))
        tile = self._rgb[top : top + TILE_PX, left : left + TILE_PX]
        tile[:] = made[: tile.shape[0], : tile.shape[1]]
        self._missing[row, column] = False


def _tools() -> tuple[VideoFrame, VideoReformatter]:
    """A frame to fill and what converts it, of this thread: both are for one thread at a time."""
    if not hasattr(_of_thread, "tools"):
        _of_thread.tools = VideoFrame(TILE_PX, TILE_PX, "yuv420p"), VideoReformatter()
    frame, reformatter = _of_thread.tools
    return frame, reformatter
