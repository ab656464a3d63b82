"""The faces of a run on disk, until those of the other run are compared with them."""

from pathlib import Path

import numpy as np

from latentsync_trt.bench.quality.areas import Tally
from latentsync_trt.bench.quality.results import AreaLikeness
from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.types import Float32Array


class FaceStore:
    """The faces that A and then B generate for one clip, window by window; both see the same windows.

    Args:
        folder: a new one is made there.
        resolution_px: sides of the faces.

    Raises:
        OutputError: it cannot be made.
    """

    def __init__(self, folder: Path, resolution_px: int) -> None:
        self._folder = folder
        self._tally = Tally(resolution_px)
        self._kept = 0
        self._compared = 0
        try:
            folder.mkdir()
        except OSError as error:
            raise OutputError(f"{folder}: cannot be created ({error.strerror})") from error

    def keep(self, faces: Float32Array) -> None:
        """Takes A's faces of the next window, `(F, H, W, 3)` in [−1, 1].

        Raises:
            OutputError: the disk is full.
        """
        path = self._path(self._kept)
        try:
            np.save(path, faces)
        except OSError as error:
            raise OutputError(f"{path}: cannot be written ({error.strerror}); --out says on which disk") from error
        self._kept += 1

    def compare(self, faces: Float32Array) -> None:
        """Takes B's faces of the next window, and forgets A's.

        Raises:
            InputError: A had no such window.
        """
        if self._compared == self._kept:
            raise InputError(f"B paints more windows of this clip than A's {self._kept}: the faces do not match")
        path = self._path(self._compared)
        self._tally.add(np.load(path, allow_pickle=False), faces)
        path.unlink()
        self._compared += 1

    def result(self) -> tuple[AreaLikeness, ...]:
        """How near B's faces are; raises `InputError` where windows are missing, or there were none."""
        if self._compared != self._kept:
            raise InputError(f"B paints {self._compared} windows of this clip, A {self._kept}: the faces do not match")
        return self._tally.result()

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06d}.npy"
