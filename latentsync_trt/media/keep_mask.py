"""The mask of `--keep-mask`: what is white in it stays as it is in the video."""

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import cast

from latentsync_trt.errors import InputError
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.types import Frame, Picture, VideoInfo

_MOST_APART_S = Fraction(1, 10)
"""How much longer or shorter than the video a mask may be: editors round to a frame or two."""
_SAME_TIME_S = Fraction(1, 1000)
"""Times that are no further apart are the same: containers round to milliseconds."""


@dataclass(frozen=True, slots=True)
class KeepMask:
    """A mask that fits a video."""

    path: Path
    is_still: bool
    """Whether one picture is the mask of all frames."""

    def pictures(self, playback: Playback) -> "MaskPictures":
        """Returns the mask of each frame of a video that is played in this way."""
        frames = read_frames(self.path, Playback() if self.is_still else playback)
        return MaskPictures(cast(Generator[Frame, None, None], frames))


class MaskPictures:
    """The pictures of a mask, of which each counts until the time of the next one."""

    def __init__(self, frames: Generator[Frame, None, None]) -> None:
        self._frames: Iterator[Frame] = frames
        self._now = next(frames)
        self._next = next(frames, None)
        self.close = frames.close

    def at(self, time_s: Fraction) -> Picture:
        """Returns the mask at a time of the output, not before that of the last call."""
        while self._next is not None and self._next.time_s <= time_s + _SAME_TIME_S:
            self._now = self._next
            self._next = next(self._frames, None)
        return self._now.picture


def check_keep_mask(path: Path, video: Path, info: VideoInfo) -> KeepMask:
    """Returns the mask in a file, of a `video` with the properties `info`.

    Raises:
        MediaError: the mask cannot be read.
        InputError: it has another size than the video's pictures, or another length.
    """
    mask = probe(path)
    size_px = (mask.width_px, mask.height_px)
    video_px = (info.width_px, info.height_px)
    if size_px != video_px:
        raise InputError(
            f"--keep-mask {path}: is {size_px[0]}x{size_px[1]} pixels large, but {video} is "
            f"{video_px[0]}x{video_px[1]}; give a mask of the video's size"
        )
    with closing(cast(Generator[Frame, None, None], read_frames(path))) as frames:
        is_still = len({frame.source_s for frame, _ in zip(frames, range(2), strict=False)}) == 1
    if not is_still and None not in (mask.duration_s, info.duration_s):
        apart_s = cast(Fraction, mask.duration_s) - cast(Fraction, info.duration_s)
        if abs(apart_s) > _MOST_APART_S:
            raise InputError(
                f"--keep-mask {path}: lasts {float(mask.duration_s or 0):.2f} s, but {video} lasts "
                f"{float(info.duration_s or 0):.2f} s; give a picture, or a video of that length"
            )
    return KeepMask(path, is_still)
