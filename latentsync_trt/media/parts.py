"""Closed parts of a video in the making, in a folder that is consistent whenever its process ends.

    parts.json   what the pictures depend on; of each part its file and its packets' stamps
    3fa9.mkv     a part: all packets of one encoder, from its key frame to its last picture

`parts.json` names only files that are complete on disk. Matroska holds every codec that is written
here, but rounds stamps to milliseconds: those in the file are not used.
"""

import contextlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from fractions import Fraction
from itertools import chain, takewhile
from math import floor
from pathlib import Path
from typing import Self

import av
import msgspec
from av import FFmpegError, VideoFrame, VideoStream
from av.container import OutputContainer

from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.files import KEPT_NAME, work_folder_of
from latentsync_trt.media.encoders import VideoEncoder, add_video
from latentsync_trt.media.files import TimedPackets, open_input
from latentsync_trt.option_fields import from_json
from latentsync_trt.types import VideoInfo

# Length of a part. What carries over between frames begins anew, so that a run can go on there.
PART_S = Fraction(30)
# A run that goes on within such a part paints its last second again, without writing it: what
# carries over has then forgotten how it began.
WARM_UP_S = Fraction(1)
_SUFFIX = ".mkv"


def part_of(time_s: Fraction) -> int:
    return floor(time_s / PART_S)


@dataclass(frozen=True, slots=True)
class Part:
    """A closed part. `stamps`: when its pictures are shown, in the order of its packets; `end`:
    when the last one ends. Both in units of the video's time base, from the start of the output.
    """

    file: str
    size_bytes: int
    stamps: tuple[int, ...]
    end: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The content of `parts.json`. `made_of`: by name, all that the pictures depend on, as text.
    `per_s`: units of the video's time base in a second.
    """

    made_of: Mapping[str, str]
    per_s: int
    parts: tuple[Part, ...] = ()

    @property
    def time_base(self) -> Fraction:
        return Fraction(1, self.per_s)

    @property
    def frames(self) -> int:
        return sum(len(part.stamps) for part in self.parts)

    @property
    def end_s(self) -> Fraction:
        if self.parts:
            return self.parts[-1].end * self.time_base
        return Fraction(0)

    @property
    def paint_from(self) -> int:
        """Index of the first frame to paint in a run that goes on: not later than that of the first
        one to write.
        """
        part = part_of(self.end_s)
        earliest_s = max(self.end_s - WARM_UP_S, part * PART_S)
        stamps = (stamp for part in self.parts for stamp in part.stamps)
        return sum(stamp * self.time_base < earliest_s for stamp in stamps)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """What `folder` holds; None if this version finds nothing there to go on with."""
        try:
            content = from_json(cls, (folder / KEPT_NAME).read_bytes(), folder)
        except (OSError, ValueError):
            return None
        sizes = {
            path.name: path.stat().st_size
            for path in folder.glob(f"*{_SUFFIX}")
            if not path.is_symlink()
        }
        whole = tuple(
            takewhile(
                lambda part: part.stamps and sizes.get(part.file) == part.size_bytes, content.parts
            )
        )
        if whole:
            return replace(content, parts=whole)
        return None

    def write(self, folder: Path) -> None:
        """Replaces what `folder` holds by this, safe on disk; removes files of other parts."""
        with (folder / self.parts[-1].file).open("rb+") as file:
            os.fsync(file.fileno())
        new = folder / f"{KEPT_NAME}.new"
        with new.open("wb") as file:
            file.write(msgspec.json.encode(self))
            file.flush()
            os.fsync(file.fileno())
        new.replace(folder / KEPT_NAME)
        for name in {path.name for path in folder.glob(f"*{_SUFFIX}")} - {
            part.file for part in self.parts
        }:
            (folder / name).unlink()


@dataclass(frozen=True, slots=True)
class Work:
    """What a run is made of, which an interrupted one must equal; `resume`: go on with it."""

    made_of: Mapping[str, str]
    resume: bool = False

    def begin(self, output: Path, per_s: int) -> tuple[Finished, tuple[str, ...]]:
        """What is finished of `output`, and what to tell about that; `InputError` if it is to be
        gone on with, but made of something else.
        """
        nothing = Finished(self.made_of, per_s)
        kept = Finished.read(work_folder_of(output))
        if kept is None:
            if not self.resume:
                return nothing, ()
            why = "nothing is kept of an interrupted run; it begins at the start"
            return nothing, (f"{output}: {why}",)
        length = timedelta(seconds=floor(kept.end_s))
        if not self.resume:
            what = (
                f"{output}: {length} of an interrupted run "
                "are kept until this run has finished a part"
            )
            return nothing, (f"{what}; to go on there instead, stop it and add --resume",)
        changed = [
            f"{name} ({before} → {now})"
            for name in dict.fromkeys([*kept.made_of, *self.made_of])
            if (before := kept.made_of.get(name, "not given"))
            != (now := self.made_of.get(name, "not given"))
        ]
        if changed:
            what = (
                f"cannot go on with the interrupted run, since this changed: {', '.join(changed)}"
            )
            raise InputError(
                f"{output}: {what}; give the same files and "
                "options, or leave --resume out to begin anew"
            )
        return kept, (f"{output}: goes on after {length}",)


class PartWriter:
    """Encodes one part into a file of `folder`; it and its methods raise `OutputError`,
    `FFmpegError` and `OSError`. Stamps are in units of `time_base`; `start`: that of the first
    picture.
    """

    def __init__(
        self, folder: Path, encoder: VideoEncoder, info: VideoInfo, time_base: Fraction, start: int
    ) -> None:
        self._path = folder / f"{secrets.token_hex(4)}{_SUFFIX}"
        self._start = start
        self._time_base = time_base
        self._shown = list[int]()
        self._stamps = list[int]()
        self._container = av.open(f"file:{self._path}", "w")
        try:
            self._stream = add_video(self._container, encoder, info, time_base)
        except BaseException:
            self.abandon()
            raise

    def write(self, picture: VideoFrame, stamp: int) -> None:
        self._shown.append(stamp)
        picture.pts = stamp - self._start
        picture.time_base = self._time_base
        self._mux(picture)

    def close(self, end: int) -> Part:
        self._mux(None)
        self._container.close()
        if not self._stamps or sorted(self._stamps) != self._shown:
            name = self._stream.codec_context.name
            raise OutputError(
                f"the encoder {name} gave its pictures other "
                "times; choose another one with --encoder"
            )
        return Part(self._path.name, self._path.stat().st_size, tuple(self._stamps), end)

    def abandon(self) -> None:
        abandon(self._container, self._path)

    def _mux(self, picture: VideoFrame | None) -> None:
        for packet in self._stream.encode(picture):
            stamp = self._start + (packet.pts or 0)
            # Only their order counts, and x265 gives pictures of very short parts random times.
            packet.pts = packet.dts = len(self._stamps) + 1
            self._container.mux(packet)
            # those of packets in the file, also where this is interrupted
            self._stamps.append(stamp)


def abandon(container: OutputContainer, path: Path) -> None:
    # Closing moves all of an MP4 to make room for its index at the front, unless the file
    # is gone; but Windows deletes no open file.
    for end in (path.unlink, container.close, path.unlink):
        with contextlib.suppress(FFmpegError, OSError):
            end()


def joined(folder: Path, finished: Finished, stream: VideoStream) -> TimedPackets:
    """The packets of all parts as those of `stream`, with stamps and durations, and when each is
    decoded. Decoding stamps are the sorted presentation stamps, later by as many packets as any
    part delays a picture. They ascend across parts, which those of the encoders do not where the
    rate varies. The first ones are such that all packets together last as long as the pictures,
    since MP4 has a duration for each packet only.
    """
    parts = finished.parts
    time_base = finished.time_base
    delay = 0  # how many packets at most come between the time to show a picture and its packet
    for part in parts:
        ranks = {stamp: rank for rank, stamp in enumerate(sorted(part.stamps))}
        delay = max(delay, *(place - ranks[stamp] for place, stamp in enumerate(part.stamps)))
    latest = sorted(stamp for part in parts[-1 - delay :] for stamp in part.stamps)[-1 - delay :]
    lead = latest[-1] - latest[0]
    last = parts[-1].end - latest[-1]
    first = min(parts[0].stamps)
    shown = (stamp for part in parts for stamp in sorted(part.stamps))
    decoded = chain((first - lead + lead * index // delay for index in range(delay)), shown)
    left = sum(len(part.stamps) for part in parts)
    for part in parts:
        ordered = sorted(part.stamps)
        ends = dict(zip(ordered, [*ordered[1:], part.end], strict=True))
        with open_input(folder / part.file) as container:
            packets = (packet for packet in container.demux(video=0) if packet.size)
            for packet, stamp in zip(packets, part.stamps, strict=True):
                left -= 1
                packet.pts = stamp
                packet.dts = next(decoded)
                packet.time_base = time_base
                packet.stream = stream
                packet.duration = ends[stamp] - stamp if left else last
                yield packet.dts * time_base, packet
