"""How many pictures of a clip may be in memory; larger ones are kept on disk while its stages hold them back."""

import weakref
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

import numpy as np

from latentsync_trt.errors import OutputError
from latentsync_trt.types import SampleArray, VideoInfo, YuvPlanes

_IN_FLIGHT_BYTES = 2_000_000_000
"""Of all frames of a clip that are in memory, three samples for each pixel: the bound of what waits between stages."""

_EIGHT_BITS = ("yuv420p", "yuvj420p", "yuv422p", "yuv440p", "yuv444p", "gbrp", "nv12")


def most_in_flight(info: VideoInfo) -> int:
    """How many frames of a clip may be in memory at a time."""
    sample_bytes = 1 if info.pixel_format in _EIGHT_BITS else 2
    return _IN_FLIGHT_BYTES // (3 * sample_bytes * info.width_px * info.height_px)


class PlanesOnDisk(YuvPlanes):
    """Read-only planes in a file without a name in `folder`, which ends with them.

    Each access maps a plane anew, so that only what is being read takes memory. Raises `OutputError`.
    """

    _file: BinaryIO
    _shapes: list[tuple[int, int]]

    def __init__(self, planes: YuvPlanes, folder: Path) -> None:
        arrays = [np.ascontiguousarray(plane) for plane in (planes.y, planes.u, planes.v)]
        try:
            file = TemporaryFile(dir=folder)  # noqa: SIM115 -- open as long as the planes
            weakref.finalize(self, file.close)
            for array in arrays:
                file.write(array.data)
            file.flush()
        except OSError as error:
            what = f"cannot keep the large pictures that wait to be painted ({error.strerror})"
            raise OutputError(f"{folder}: {what}; free some space, or write elsewhere") from error

        values = {"color": planes.color, "bits": planes.bits, "_file": file, "_shapes": [each.shape for each in arrays]}
        for name, value in values.items():  # of a frozen class
            object.__setattr__(self, name, value)

    @property
    def y(self) -> SampleArray:
        return self._plane(0)

    @property
    def u(self) -> SampleArray:
        return self._plane(1)

    @property
    def v(self) -> SampleArray:
        return self._plane(2)

    def _plane(self, number: int) -> SampleArray:
        dtype = np.dtype(np.uint8 if self.bits == 8 else np.uint16)
        offset_bytes = sum(height * width for height, width in self._shapes[:number]) * dtype.itemsize
        return np.asarray(np.memmap(self._file, dtype, "r", offset_bytes, self._shapes[number]))
