"""Closed parts of a video in the making, in a folder that is consistent whenever its process ends.

    parts.json   what the pictures depend on; of each part its file and its packets' stamps
    3fa9.mkv     a part: all packets of one encoder, from its key frame to its last picture

`parts.json` names only files that are complete on disk. Matroska holds every codec that is written
here, but rounds stamps to milliseconds: those in the file are not used.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from fractions import Fraction
from itertools import chain, islice
from math import floor, lcm
from pathlib import Path
from typing import Any, Self

import av
import msgspec
from av import FFmpegError, Packet, VideoFrame, VideoStream
from av.container import OutputContainer

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.files import KEPT_NAME, work_folder_of
from latentsync_trt.media.encoders import VideoEncoder, add_video
from latentsync_trt.media.files import TimedPackets, open_input, video_packets
from latentsync_trt.option_fields import from_json
from latentsync_trt.spans import FramesToDo, frames_from
from latentsync_trt.types import VideoInfo

PART_S = Fraction(30)
"""Length of a part. What carries over between frames begins anew, so that a run can go on there."""
WARM_UP_S = Fraction(1)
"""A run that goes on within such a part paints its last second again, without writing it: what
carries over has then forgotten how it began.
"""
_PART_SUFFIX = ".mkv"
_FINE_PER_S = 600
"""Units of time in a second with which no picture is visibly early or late."""


def part_of(time_s: Fraction) -> int:
    """Returns the number of the part that holds a time of the output."""
    return floor(time_s / PART_S)


def stamps_per_s(info: VideoInfo) -> int:
    """Returns in how many units per second stamps of pictures are written."""
    per_s = MODEL_FPS if info.time_base is None else info.time_base.denominator
    if per_s < _FINE_PER_S:  # pictures held at the model's rate would be rounded visibly
        return lcm(per_s, MODEL_FPS)
    return per_s


@dataclass(frozen=True, slots=True)
class ClosedPart:
    """A part that is complete on disk. Stamps are in units of the video's time base, from the start
    of the output.
    """

    file: str
    size_bytes: int
    stamps: tuple[int, ...]
    """When its pictures are shown, in the order of its packets."""
    end: int
    """The stamp at which its last picture ends."""
    first: int | None = None
    """The number of its first packet in `file`, where that is a whole output of which it is a part.
    """


@dataclass(frozen=True, slots=True)
class FinishedParts:
    """The content of `parts.json`."""

    fingerprint: Mapping[str, str]
    """All that the pictures depend on, by name, as text."""
    per_s: int
    """Units of the video's time base in a second."""
    parts: tuple[ClosedPart, ...] = ()

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
    def todo(self) -> FramesToDo:
        """The frames that are left to a run that goes on."""
        earliest_s = max(self.end_s - WARM_UP_S, part_of(self.end_s) * PART_S)
        paint_from = 0
        for part in self.parts:
            paint_from += sum(stamp * self.time_base < earliest_s for stamp in part.stamps)
        return FramesToDo(write=frames_from(self.frames), paint=frames_from(paint_from))

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Returns what `folder` holds; None if this version has nothing there to go on with."""
        try:
            content = from_json(cls, (folder / KEPT_NAME).read_bytes(), folder)
        except (OSError, ValueError):
            return None
        files = [path for path in folder.glob(f"*{_PART_SUFFIX}") if not path.is_symlink()]
        sizes_bytes = {path.name: path.stat().st_size for path in files}
        whole = list[ClosedPart]()
        for part in content.parts:
            if not part.stamps or sizes_bytes.get(part.file) != part.size_bytes:
                break
            whole.append(part)
        if whole:
            return replace(content, parts=tuple(whole))
        return None

    def write(self, folder: Path) -> None:
        """Replaces what `folder` holds by these parts, safe on disk; removes files of others."""
        with (folder / self.parts[-1].file).open("rb+") as file:
            os.fsync(file.fileno())
        new = folder / f"{KEPT_NAME}.new"
        with new.open("wb") as file:
            file.write(msgspec.json.encode(self))
            file.flush()
            os.fsync(file.fileno())
        new.replace(folder / KEPT_NAME)
        names = [part.file for part in self.parts]
        for path in folder.glob(f"*{_PART_SUFFIX}"):
            if path.name not in names:
                path.unlink()


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """What an interrupted run must have been made of, so that this one can go on with it."""

    fingerprint: Mapping[str, str]
    """All that the pictures depend on, by name, as text."""
    resume: bool = False
    """Whether to go on with an interrupted run; else its parts are kept until they are replaced."""

    def begin(self, output: Path, per_s: int) -> tuple[FinishedParts, tuple[str, ...]]:
        """Returns what is finished of `output`, and notices about that; raises `InputError` if this
        run is to go on with it, but it was made of something else.
        """
        nothing = FinishedParts(self.fingerprint, per_s)
        kept = FinishedParts.read(work_folder_of(output))
        if kept is None:
            if not self.resume:
                return nothing, ()
            return nothing, (
                f"{output}: nothing is kept of an interrupted run; it begins at the start",
            )
        length = timedelta(seconds=floor(kept.end_s))
        if not self.resume:
            return nothing, (
                f"{output}: {length} of an interrupted run are kept until this run has finished "
                "a part; to go on there instead, stop it and add --resume",
            )
        changes = list(differences(kept.fingerprint, self.fingerprint))
        if changes:
            raise InputError(
                f"{output}: cannot go on with the interrupted run, since this changed: "
                f"{', '.join(changes)}; give the same files and options, or leave --resume out to "
                "begin anew"
            )
        return kept, (f"{output}: goes on after {length}",)


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Names what differs, with both values."""
    for name in {**before, **now}:
        first = before.get(name, "not given")
        second = now.get(name, "not given")
        if first != second:
            yield f"{name} ({first} → {second})"


class PartWriter:
    """Encodes one part into a file of `folder`; stamps are in units of `time_base`, and `start` is
    that of the first picture. The class and its methods raise `OutputError`, `FFmpegError` and
    `OSError`.
    """

    def __init__(
        self, folder: Path, encoder: VideoEncoder, info: VideoInfo, time_base: Fraction, start: int
    ) -> None:
        self._path = folder / f"{secrets.token_hex(4)}{_PART_SUFFIX}"
        self._start = start
        self._time_base = time_base
        self._picture_stamps = list[int]()
        self._packet_stamps = list[int]()
        self._container = av.open(f"file:{self._path}", "w")
        try:
            self._stream = add_video(self._container, encoder, info, time_base)
        except BaseException:
            self.abandon()
            raise

    def write(self, picture: VideoFrame, stamp: int) -> None:
        self._picture_stamps.append(stamp)
        picture.pts = stamp - self._start
        picture.time_base = self._time_base
        self._mux(picture)

    def close(self, end: int) -> ClosedPart:
        """Completes the file of a part whose last picture ends at the stamp `end`."""
        self._mux(None)
        self._container.close()
        stamps = tuple(self._packet_stamps)
        if not stamps or sorted(stamps) != self._picture_stamps:
            name = self._stream.codec_context.name
            raise OutputError(
                f"the encoder {name} gave its pictures other "
                "times; choose another one with --encoder"
            )
        return ClosedPart(self._path.name, self._path.stat().st_size, stamps, end)

    def abandon(self) -> None:
        """Closes and removes the file."""
        abandon(self._container, self._path)

    def _mux(self, picture: VideoFrame | None) -> None:
        for packet in self._stream.encode(picture):
            stamp = self._start + (packet.pts or 0)
            # Only their order counts, and x265 gives pictures of very short parts random times.
            packet.pts = len(self._packet_stamps) + 1
            packet.dts = packet.pts
            self._container.mux(packet)
            # those of packets in the file, also where this is interrupted
            self._packet_stamps.append(stamp)


def abandon(container: OutputContainer, path: Path) -> None:
    """Closes an output and removes its file."""
    # Closing moves all of an MP4 to make room for its index at the front, unless the file
    # is gone; but Windows deletes no open file.
    for end in (path.unlink, container.close, path.unlink):
        with contextlib.suppress(FFmpegError, OSError):
            end()


def join_parts(folder: Path, finished: FinishedParts, stream: VideoStream) -> TimedPackets:
    """Yields the packets of all parts as those of `stream`, with stamps and durations, and when
    each is decoded.
    """
    parts = finished.parts
    packets = packets_of(folder, finished)
    decoding_stamps = _decoding_stamps(parts)
    for index, (packet, stamp) in enumerate(zip(packets, decoding_stamps, strict=False)):
        packet.dts = stamp
        packet.time_base = finished.time_base
        packet.stream = stream
        if index == finished.frames - 1:
            last = parts[-1]
            packet.duration = last.end - max(last.stamps)
        yield stamp * finished.time_base, packet


def packets_of(folder: Path, finished: FinishedParts) -> Iterator["Packet[Any]"]:
    """Yields the packets of all parts, each with the stamp and the duration of its picture."""
    return chain.from_iterable(_packets_of_part(folder, part) for part in finished.parts)


def _packets_of_part(folder: Path, part: ClosedPart) -> Iterator["Packet[Any]"]:
    ordered = sorted(part.stamps)
    ends = dict(zip(ordered, [*ordered[1:], part.end], strict=True))
    stop = None
    if part.first is not None:
        stop = part.first + len(part.stamps)
    with open_input(folder / part.file) as container:
        packets = islice(video_packets(container), part.first, stop)
        for packet, stamp in zip(packets, part.stamps, strict=True):
            packet.pts = stamp
            if part.first is None:  # else it has been rounded
                packet.duration = ends[stamp] - stamp
            yield packet


def _decoding_stamps(parts: Sequence[ClosedPart]) -> list[int]:
    """Returns when the packets of all parts are decoded, and some stamps more.

    These are the sorted stamps of the pictures, later by as many packets as any part delays a
    picture. They ascend across parts, which those of the encoders do not where the rate varies. The
    first ones are such that all packets together last as long as the pictures, since MP4 has a
    duration for each packet only.
    """
    stamps = list[int]()
    delay = 0
    for part in parts:
        ordered = sorted(part.stamps)
        ranks = {stamp: rank for rank, stamp in enumerate(ordered)}
        for place, stamp in enumerate(part.stamps):
            delay = max(delay, place - ranks[stamp])
        stamps += ordered
    lead = stamps[-1] - stamps[-1 - delay]
    first = stamps[0] - lead
    leading = [first + lead * index // delay for index in range(delay)]
    return leading + list(stamps)
