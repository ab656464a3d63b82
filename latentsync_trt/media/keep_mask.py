"""The mask of `--keep-mask`: what is white in it stays as it is in the video."""

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import cast

from latentsync_trt.config import Extend
from latentsync_trt.errors import InputError
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.paths import is_same_file
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

    def pictures(self, extend: Extend | None) -> "MaskPictures":
        """Returns the mask of each frame of a video that is extended in this way."""
        playback = Playback() if self.is_still else Playback(extend=extend)
        return MaskPictures(cast(Generator[Frame, None, None], read_frames(self.path, playback)))


class MaskPictures:
    """The pictures of a mask, of which each counts until the time of the next one.

    They follow the time in the source, not that of the output: of a mask with another frame rate,
    or a frame more or less, each pass forward or backward lasts a bit longer or shorter than the
    video's.
    """

    def __init__(self, frames: Generator[Frame, None, None]) -> None:
        self._frames = frames
        self._now = next(frames)
        self._next = next(frames, None)

    def of(self, frame: Frame) -> Picture:
        """Returns the mask of a frame of the output; frames in order."""
        time_s = frame.source_s + _SAME_TIME_S
        while self._next is not None:
            is_later = self._now.source_s > time_s
            is_over = self._now.source_s <= self._next.source_s <= time_s
            if not is_later and not is_over:
                break
            self._now = self._next
            self._next = next(self._frames, None)
        return self._now.picture


def check_keep_mask(path: Path, video: Path, info: VideoInfo) -> KeepMask:
    """Returns the mask in a file, of a `video` with the properties `info`.

    Raises:
        MediaError: the mask cannot be read.
        InputError: it is the video, or has another size than its pictures, or another length.
    """
    if is_same_file(path, video):
        raise InputError(f"--keep-mask {path}: is the video itself; give a mask of it")
    mask = probe(path)
    size_px = (mask.width_px, mask.height_px)
    video_px = (info.width_px, info.height_px)
    if size_px != video_px:
        raise InputError(
            f"--keep-mask {path}: is {size_px[0]}x{size_px[1]} pixels large, but {video} is "
            f"{video_px[0]}x{video_px[1]}; give a mask of the video's size"
        )
    with closing(cast(Generator[Frame, None, None], read_frames(path))) as frames:
        is_still = all(frame.source_s == 0 for frame in frames)  # until the second picture
    if not is_still and None not in (mask.duration_s, info.duration_s):
        apart_s = cast(Fraction, mask.duration_s) - cast(Fraction, info.duration_s)
        if abs(apart_s) > _MOST_APART_S:
            raise InputError(
                f"--keep-mask {path}: lasts {float(mask.duration_s or 0):.2f} s, but {video} lasts "
                f"{float(info.duration_s or 0):.2f} s; give a picture, or a video of that length"
            )
    return KeepMask(path, is_still)
