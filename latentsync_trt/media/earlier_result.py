"""A result of an earlier run, of which a part is to be done again."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Self

from latentsync_trt.errors import InputError
from latentsync_trt.media.files import guarded, open_input, video_packets
from latentsync_trt.media.parts import ClosedPart
from latentsync_trt.media.playback import HELD_S, video_stream
from latentsync_trt.media.recipe import Recipe
from latentsync_trt.media.timing import nearest
from latentsync_trt.redo_spans import RedoSpan
from latentsync_trt.spans import Span

DO_ALL_AGAIN = "sync the whole clip again with --overwrite"


@dataclass(frozen=True)
class EarlierResult:
    """A result of which a part is to be done again, as it lies on the disk."""

    path: Path
    recipe: Recipe
    per_s: int
    """Units of the picture's time base in a second."""
    stamps: tuple[int, ...]
    """When its pictures are shown, in the order of its packets."""
    keyframes: tuple[int, ...]
    """The numbers of the packets that are keyframes."""
    header: bytes
    """What decoders need before the first packet."""
    has_sound: bool
    version: tuple[int, int]
    """Size and time of the file."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads all of the picture; raises `MediaError`, and `InputError` where the file does not
        say what it was made of, or has another picture than it was made with.
        """
        recipe = Recipe.read(path)
        if recipe is None:
            raise InputError(
                f"{path}: does not say what it was made of: it was made by an earlier version, "
                f"with --no-mark, or by another program; {DO_ALL_AGAIN}",
                usage=False,
            )
        stamps = list[int]()
        keyframes = list[int]()
        digest = sha256()
        with open_input(path) as container:
            stream = video_stream(path, container)
            for packet in guarded(path, stream, video_packets(container)):
                digest.update(packet)
                if packet.is_keyframe:
                    keyframes.append(len(stamps))
                stamps.append(packet.pts or 0)
            time_base = stream.time_base or Fraction(1)
            header = stream.codec_context.extradata or b""
            has_sound = bool(container.streams.audio)
        if digest.hexdigest() != recipe.digest:
            problem = "another program has changed its picture after it was made"
            raise InputError(f"{path}: {problem}; {DO_ALL_AGAIN}", usage=False)
        return cls(
            path,
            recipe,
            time_base.denominator,
            tuple(stamps),
            tuple(keyframes),
            header,
            has_sound,
            version_of(path),
        )

    def check_spans(self, spans: Iterable[RedoSpan]) -> None:
        """Raises `InputError` for a span that is not in the result."""
        end_s = self.recipe.end_s
        for span in spans:
            if span.start_s >= end_s or span.end_s > end_s + HELD_S:
                lasts = f"{self.path} lasts {float(end_s):.2f} s"
                raise InputError(f"--redo {span}: {lasts}; give a span in it")

    @property
    def end(self) -> int:
        """When the last picture ends, in its units."""
        return nearest(self.recipe.end_s, self.per_s)

    @cached_property
    def ordered_stamps(self) -> list[int]:
        """When its pictures are shown, ascending."""
        return sorted(self.stamps)

    @cached_property
    def cuts(self) -> list[int]:
        """The numbers of those keyframes, and of the end, that no picture crosses in time; a packet
        there and a picture there have the same number.
        """
        latest = [-1, *accumulate(self.stamps, max)]
        earliest = [*accumulate(reversed(self.stamps), min)][::-1]
        closed = [cut for cut in self.keyframes if latest[cut] < earliest[cut]]
        return [*closed, len(self.stamps)]

    def time_s(self, frame: int) -> Fraction:
        """Returns when a frame is shown; of one after the last, when that ends."""
        stamp = self.end
        if frame < len(self.ordered_stamps):
            stamp = self.ordered_stamps[frame]
        return Fraction(stamp, self.per_s)

    def frame_from(self, time_s: Fraction) -> int:
        """Returns the first frame that is shown at a time, or after it."""
        return bisect_left(self.ordered_stamps, time_s * self.per_s)

    def span_of(self, frames: range) -> RedoSpan:
        return RedoSpan(self.time_s(frames.start), self.time_s(frames.stop))

    def frames_at(self, span: Span) -> range:
        """Returns the frames that are shown in a span; at least one."""
        first = bisect_right(self.ordered_stamps, span.start_s * self.per_s) - 1
        stop = self.frame_from(span.end_s)
        return range(max(first, 0), max(stop, first + 1))

    def between_keyframes(self, frames: range) -> range:
        """Returns the frames of the parts between keyframes that hold `frames`."""
        start = self.cuts[bisect_right(self.cuts, frames.start) - 1]
        return range(start, self.cuts[bisect_left(self.cuts, frames.stop)])

    def copied(self, frames: range) -> ClosedPart:
        """Returns frames between two keyframes as a part of an output."""
        stamps = self.stamps[frames.start : frames.stop]
        end = self.end
        if frames.stop < len(self.ordered_stamps):
            end = self.ordered_stamps[frames.stop]
        return ClosedPart(str(self.path.absolute()), 0, stamps, end, first=frames.start)


def header_of(path: Path) -> bytes:
    """Returns what decoders need before the first packet of a picture."""
    with open_input(path) as container:
        return container.streams.video[0].codec_context.extradata or b""


def version_of(path: Path) -> tuple[int, int]:
    """Returns size and time of a file, which change where it is replaced."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns
