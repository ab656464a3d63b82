"""Where a file ends: what it states about that, and what is in it."""

import re
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

import av
from av import FFmpegError
from av.container import InputContainer

from latentsync_trt.media.files import codec_name, is_mp4, open_input, picture_streams
from latentsync_trt.media.timing import NO_STAMPS, RESETS


@dataclass(frozen=True, slots=True)
class _SizeField:
    """Where a header states a size."""

    pattern: re.Pattern[bytes]
    """Its group is the size, in bytes."""
    order: Literal["big", "little"]
    is_of_file: bool = False
    """Whether the size is that of the whole file, or of what follows the field."""

    def stated_bytes(self, head: bytes) -> int | None:
        """Returns how long the file is by its first bytes; None if they are of another kind."""
        field = self.pattern.match(head)
        if field is None:
            return None
        size = int.from_bytes(field[1], self.order)
        if size >= _UNKNOWN_SIZE << 8 * (len(field[1]) - 4):
            size = 0
        return size if self.is_of_file else field.end() + size


# In these, FFmpeg takes what is there for the stated length, or, in Matroska, does not say whether
# that is the end.
_SIZE_FIELDS = (
    _SizeField(re.compile(rb"(?s)RIFF(.{4})"), "little"),
    _SizeField(
        re.compile(rb"(?s)riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\0\0(.{8})"),
        "little",
        is_of_file=True,
    ),
    # "data" may also stand in a comment before the samples: no size begins with letters.
    _SizeField(re.compile(rb"(?s)caff.*?data(\0\0.{6}|\xff{8})"), "big"),
    _SizeField(re.compile(rb"(?s)\x1aE\xdf\xa3.*?\x18S\x80g\x01(.{7})"), "big"),
    _SizeField(
        # ASF: the header, and in it the properties of the file.
        re.compile(
            rb"(?s)0&\xb2u\x8ef\xcf\x11.*?\xa1\xdc\xab\x8cG\xa9\xcf\x11"
            rb"\x8e\xe4\0\xc0\x0c Se.{24}(.{8})"
        ),
        "little",
        is_of_file=True,
    ),
)
_HEADER_BYTES = 65_536
"""How much of a file is searched for the size that it states: comments may come before it."""
_UNKNOWN_SIZE = 0x7FFFF000
"""A size of four bytes from which on it means that it was not known yet when it was written."""

_TAIL_S = 2
"""How long before the stated end packets are read from."""
_UNNOTICED_S = Fraction(1, 10)
"""A difference below this needs no notice: it is the padding of encoders."""
_UNNOTICED_PICTURE_S = Fraction(1, 2)
"""In a file with pictures, a difference below this needs no notice: it may be the duration of the
last one, which is not stated.
"""

_NOT_SAMPLES = re.compile(rb"(?s)([\w \-]{4}|ID3[\2-\4]).{4}")
"""What follows samples in WAV and is none: a chunk, or a tag of MP3 that programs append."""


@dataclass(frozen=True, slots=True)
class FileEnd:
    """What the packets of a file say."""

    ends_s: dict[int, Fraction]
    """The stamp at which each stream ends, by its index."""
    from_bytes: int
    to_bytes: int
    """Where in the file the packets are."""

    @property
    def end_s(self) -> Fraction:
        return max(self.ends_s.values(), default=Fraction(0))


def knows_end(container: InputContainer) -> bool:
    """Returns whether FFmpeg's length of a file is that of what is in it: of all stamps, or, in
    MP4, of the index, which `open_input` compares with the file.
    """
    return bool(container.format.flags & (RESETS | NO_STAMPS)) or is_mp4(container)


def end_of(path: Path, index: int | None = None) -> FileEnd:
    """Returns where a file ends, by the packets near the end that it states; by all where none of
    stream `index` is there.
    """
    with open_input(path) as container:
        start = container.start_time or 0
        duration = container.duration or 0
        with suppress(FFmpegError):  # as a damaged index does not lead there
            container.seek(start + max(duration - _TAIL_S * av.time_base, 0))
        end = _end_of_packets(container)
    if end.ends_s and (index is None or index in end.ends_s):
        return end
    return _end_of_all(path)


def _end_of_all(path: Path) -> FileEnd:
    with open_input(path) as container:
        return _end_of_packets(container)


def _end_of_packets(container: InputContainer) -> FileEnd:
    ends_s = dict[int, Fraction]()
    from_bytes = 0
    to_bytes = 0
    with suppress(FFmpegError):  # readers of pictures and sound say where a file breaks off
        for packet in container.demux():
            if packet.size and packet.pos is not None:
                if not to_bytes:
                    from_bytes = packet.pos
                to_bytes = max(to_bytes, packet.pos + packet.size)
            stamp = packet.dts if packet.pts is None else packet.pts
            if stamp is not None:
                end_s = (stamp + (packet.duration or 0)) * packet.time_base
                ends_s[packet.stream_index] = max(end_s, ends_s.get(packet.stream_index, end_s))
    return FileEnd(ends_s, from_bytes, to_bytes)


def notices_of_ending(path: Path) -> list[str]:
    """Returns the notice that a file ends before the end that its header states, or goes on after
    it: FFmpeg reads up to either.
    """
    with open_input(path) as container:
        stated_bytes = _stated_bytes(path)
        if stated_bytes is None:
            stated = _later_end(path, container)
        else:
            stated = _larger_size(path, container, stated_bytes)
        if stated:
            length_s = float(_length_s(path, container))
            return [
                f"{path}: is cut off after {length_s:.1f} s: its header states {stated}; "
                "copy or download it again"
            ]
        if container.format.name != "wav":
            return []
        unread_s = _unread_s(path, container)
    if unread_s < _UNNOTICED_S:
        return []
    return [
        f"{path}: goes on for {float(unread_s):.1f} s after the end that its header states; "
        "to use that, write it anew: ffmpeg -ignore_length 1 -i OLD.wav -c copy NEW.wav"
    ]


def _length_s(path: Path, container: InputContainer) -> Fraction:
    return end_of(path).end_s - Fraction(container.start_time or 0, av.time_base)


def _larger_size(path: Path, container: InputContainer, stated_bytes: int) -> str:
    """Returns the size that a file states, if the file is notably smaller; else nothing."""
    lacks_bytes = stated_bytes - container.size
    if lacks_bytes <= 0:
        return ""
    if _length_s(path, container) * lacks_bytes < _UNNOTICED_S * container.size:
        return ""
    return f"{stated_bytes} bytes, the file has {container.size}"


def _later_end(path: Path, container: InputContainer) -> str:
    """Returns when a file states that it ends, if it ends notably earlier; else nothing."""
    if container.duration is None or knows_end(container):
        return ""
    stated_s = Fraction(container.duration, av.time_base)
    least_s = stated_s - (_UNNOTICED_PICTURE_S if picture_streams(container) else _UNNOTICED_S)
    if end_of(path).end_s > least_s:
        return ""
    # A stream of few packets may end last, and none of them be near the end.
    end = _end_of_all(path)
    if end.end_s > least_s or _is_guess(stated_s, container, end):
        return ""
    return f"{float(stated_s):.1f} s"


def _is_guess(stated_s: Fraction, container: InputContainer, end: FileEnd) -> bool:
    """Returns whether FFmpeg derived a duration from bit rates, as of files without a header."""
    decodable = filter(codec_name, container.streams)
    bits_per_s = sum(stream.codec_context.bit_rate or 0 for stream in decodable)
    bits = 8 * (container.size - end.from_bytes)
    guess_s = Fraction(bits, bits_per_s) if bits_per_s else Fraction(0)
    return abs(guess_s - stated_s) < _UNNOTICED_S


def _stated_bytes(path: Path) -> int | None:
    """Returns how long a file is by its header; None where that does not say it in bytes."""
    with path.open("rb") as file:
        head = file.read(_HEADER_BYTES)
    sizes = [field.stated_bytes(head) for field in _SIZE_FIELDS]
    return next((size for size in sizes if size is not None), None)


def _unread_s(path: Path, container: InputContainer) -> Fraction:
    """Returns how much follows the samples of a WAV file and is no part of another kind: a recorder
    that was switched off has not written how long they are.
    """
    end_bytes = end_of(path).to_bytes
    end_bytes += end_bytes % 2
    with path.open("rb") as file:
        file.seek(end_bytes)
        rest = file.read(_HEADER_BYTES)
    # Zeros pad recovered and preallocated files.
    is_sound = any(rest) and _NOT_SAMPLES.match(rest) is None
    bits_per_s = 0
    if container.streams.audio:
        bits_per_s = container.streams.audio[0].codec_context.bit_rate or 0
    if not is_sound or not bits_per_s:
        return Fraction(0)
    return Fraction(8 * (container.size - end_bytes), bits_per_s)
