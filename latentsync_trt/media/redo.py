"""A part of a result is done again: between keyframes its picture is encoded anew, all other
packets are copied.

What a new encoder with the same settings writes there has the same header and as many pictures, at
the same times; it begins with a keyframe, and so does what follows.
"""

import errno
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from types import TracebackType
from typing import Self

from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.files import end_of_links, temporary_folder, work_folder
from latentsync_trt.media.audio import first_sample_s
from latentsync_trt.media.contents import Contents, FileExtras
from latentsync_trt.media.earlier_result import DO_ALL_AGAIN, EarlierResult, header_of, version_of
from latentsync_trt.media.encoders import VideoEncoder
from latentsync_trt.media.files import writing
from latentsync_trt.media.muxing import make_whole, replace_output
from latentsync_trt.media.parts import ClosedPart, FinishedParts, PartWriter, stamps_per_s
from latentsync_trt.media.pictures import PictureMaker
from latentsync_trt.media.sound_pieces import SoundPiece
from latentsync_trt.media.soundtrack import ChosenSound
from latentsync_trt.media.timing import nearest
from latentsync_trt.spans import FramesToDo
from latentsync_trt.stopping import delayed
from latentsync_trt.types import Frame, Patch, VideoInfo


def contents_of(
    earlier: EarlierResult, encoder: VideoEncoder, info: VideoInfo, extras: FileExtras
) -> Contents:
    """Returns what a result holds besides its picture, all of which is copied.

    Args:
        extras: what is done with the file.
    """
    path = earlier.path
    pieces: tuple[SoundPiece, ...] = ()
    if earlier.has_sound:
        pieces = (SoundPiece(path, first_sample_s(path) or Fraction(0)),)
    extras = replace(extras, source=path, ingredients=earlier.recipe.ingredients)
    info = replace(info, start_s=Fraction(0))
    return Contents(path.suffix.lower(), encoder, info, ChosenSound(pieces), extras, is_copied=True)


class PartReplacer:
    """Writes frames of a result anew, in their places; the file is replaced when the block ends
    without an error, and stays as it is otherwise.

    Args:
        contents: as `contents_of` returns it.
        todo: writes whole parts between keyframes of the result.

    Raises:
        InputError: the encoder now writes another header.
        OutputError: the file cannot be written, or has been replaced meanwhile.
    """

    def __init__(self, earlier: EarlierResult, contents: Contents, todo: FramesToDo) -> None:
        self.output = earlier.path
        self.todo = todo
        self.end_s = earlier.recipe.end_s
        """When the last frame of the result ends."""
        self.redone = tuple(map(earlier.span_of, todo.write.ranges))
        """The spans that are written anew."""
        self.notices: tuple[str, ...] = ()
        self._earlier = earlier
        self._contents = contents
        self._maker = PictureMaker(contents.info, contents.encoder)
        self._time_base = Fraction(1, stamps_per_s(contents.info))
        self._part: PartWriter | None = None
        self._stamps = list[int]()
        """Those of the open part, as its encoder gets them."""
        self._parts = list[ClosedPart]()

    def __enter__(self) -> Self:
        with ExitStack() as opened, writing(self.output):
            place = end_of_links(self.output)
            self._folder = opened.enter_context(temporary_folder(place.parent))
            opened.enter_context(work_folder(place))  # so that no other run writes it now
            if version_of(place) != self._earlier.version:
                raise OSError(errno.EBUSY, "another run has just replaced it; try again")
            self._cleanup = opened.pop_all()
        return self

    def write(self, frame: Frame, patches: Iterable[Patch] = ()) -> None:
        """Encodes a frame, in which `patches` replace parts of the picture; ignores those that are
        copied.
        """
        if frame.index not in self.todo.write:
            return
        stamp = nearest(frame.time_s, self._time_base.denominator)
        if self._stamps:
            stamp = max(stamp, self._stamps[-1] + 1)
        with delayed(), writing(self.output):
            picture = self._maker.frame(frame, patches)
            if self._part is None:
                self._part = PartWriter(
                    self._folder,
                    self._contents.encoder,
                    self._contents.info,
                    self._time_base,
                    stamp,
                )
            self._part.write(picture, stamp)
            self._stamps.append(stamp)
            if frame.index + 1 not in self.todo.write:
                self._close_part(self._part, frame.index + 1)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            with self._cleanup:
                self._finish()
            return
        try:
            if self._part is not None:
                self._part.abandon()
        finally:
            self._cleanup.__exit__(kind, error, trace)

    def _close_part(self, part: PartWriter, stop: int) -> None:
        """Completes the part that ends before the frame `stop`, with the stamps of the result."""
        self._part = None
        closed = part.close(self._stamps[-1] + 1)
        stamps_in_order = self._earlier.ordered_stamps
        first = stop - len(self._stamps)
        frames = [first + bisect_left(self._stamps, stamp) for stamp in closed.stamps]
        copied = self._earlier.copied(range(first, stop))
        stamps = tuple(stamps_in_order[frame] for frame in frames)
        self._parts.append(replace(copied, file=closed.file, stamps=stamps, first=None))
        self._stamps = []

    def _finish(self) -> None:
        with writing(self.output):
            written = sum(len(part.stamps) for part in self._parts)
            if written != sum(map(len, self.todo.write.ranges)):
                raise OutputError(
                    f"{self.output}: the source has fewer frames than the result; {DO_ALL_AGAIN}"
                )
            finished = FinishedParts({}, self._earlier.per_s, tuple(self._all_parts()))
            suffix = self.output.suffix
            whole, notices = make_whole(self._folder, suffix, finished, self._contents)
            self.notices += notices
            if header_of(whole) != self._earlier.header:
                raise InputError(
                    f"{self.output}: its picture cannot be joined with a new part, as the encoder "
                    "writes another header than then, on another GPU or with another number of "
                    f"cores; {DO_ALL_AGAIN}",
                    usage=False,
                )
            self.notices += replace_output(self.output, whole, self._contents)

    def _all_parts(self) -> Iterator[ClosedPart]:
        """Yields what is copied and what is new, in order."""
        at = 0
        for frames, part in zip(self.todo.write.ranges, self._parts, strict=True):
            if at < frames.start:
                yield self._earlier.copied(range(at, frames.start))
            yield part
            at = frames.stop
        if at < len(self._earlier.stamps):
            yield self._earlier.copied(range(at, len(self._earlier.stamps)))
