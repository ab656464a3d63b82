"""The same face in the source and in both results, frame by frame, cut out where the source's face is."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from latentsync_trt.bench.moments import CELL_PX, aligned
from latentsync_trt.bench.quality.areas import Tally, as_face, parts_of
from latentsync_trt.bench.quality.flicker import FlickerMeter
from latentsync_trt.bench.quality.results import Flicker
from latentsync_trt.config import Extend
from latentsync_trt.errors import InputError
from latentsync_trt.face.align import crop
from latentsync_trt.media.reader import read_frames
from latentsync_trt.types import UInt8Array

Faces = tuple[UInt8Array, UInt8Array, UInt8Array]
"""Of the source, of A and of B, `(side, side, 3)`."""


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A frame's faces as the network has them, and as people look at them; None where the source shows none."""

    index: int
    small: Faces | None = None
    shown: Faces | None = None


def views(
    source: Path, a: Path, b: Path, frames: int, resolution_px: int, *, extend: Extend = "loop"
) -> Iterator[View]:
    """The first so many frames of three videos.

    Args:
        extend: how the source goes on where it ends before the results.

    Raises:
        MediaError: a file cannot be read. InputError: their pictures have different sizes.
    """
    clips = [_pictures(path, frames) for path in (a, b)]
    sources = (frame.rgb for frame in read_frames(source, rgb_only=True, frame_count=frames, extend=extend))
    sides = (resolution_px, CELL_PX)
    for index, ((before, matrices), one, other) in enumerate(zip(aligned(sources, sides), *clips, strict=False)):
        if not before.shape == one.shape == other.shape:
            sizes = ", ".join(f"{picture.shape[1]}×{picture.shape[0]}" for picture in (before, one, other))
            raise InputError(f"{source.name}, {a.name} and {b.name}: pictures of {sizes} px; give videos of one size")
        if matrices is None:
            yield View(index)
            continue
        small, shown = (_cut((before, one, other), matrix, side) for matrix, side in zip(matrices, sides, strict=True))
        yield View(index, small, shown)


class Eye:
    """Watches views go by, and sums up what is seen.

    Args:
        tally: counts B's faces against A's, too, where nobody else does.
    """

    def __init__(self, resolution_px: int, tally: Tally | None = None) -> None:
        self._mouth = parts_of(resolution_px)["mouth"]
        self._tally = tally
        self._meters = {name: FlickerMeter() for name in ("source", "a", "b", "difference")}
        self.frames = 0
        self.frames_with_face = 0

    def watch(self, stream: Iterable[View]) -> Iterator[View]:
        """The same views."""
        for view in stream:
            self._look(view)
            yield view

    def flicker(self) -> Flicker:
        """Of all that was seen."""
        return Flicker(**{name: meter.result() for name, meter in self._meters.items()})

    def _look(self, view: View) -> None:
        self.frames += 1
        if view.small is None:
            for meter in self._meters.values():
                meter.add(None)
            return
        self.frames_with_face += 1
        source, a, b = (face[self._mouth].astype(np.float32) for face in view.small)
        for name, picture in (("source", source), ("a", a), ("b", b), ("difference", b - a)):
            self._meters[name].add(picture)
        if self._tally is not None:
            _, ours, theirs = map(as_face, view.small)
            self._tally.add(ours[None], theirs[None])


def _pictures(path: Path, frames: int) -> Iterator[UInt8Array]:
    return (frame.rgb for frame in read_frames(path, rgb_only=True, frame_count=frames))


def _cut(pictures: Faces, matrix: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]", side_px: int) -> Faces:
    source, a, b = (crop(picture, matrix, side_px).image for picture in pictures)
    return source, a, b
