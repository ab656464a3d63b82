"""The sound of an output: copied packets where player and container permit it, else encoded."""

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from itertools import pairwise
from math import log10
from pathlib import Path
from typing import Self

import numpy as np
from av.audio.codeccontext import AudioCodecContext
from av.audio.layout import AudioLayout
from av.container import OutputContainer

from latentsync_trt.config import Codec
from latentsync_trt.errors import MediaError
from latentsync_trt.media.audio import audio_stream, decoded_audio, format_of, sound_blocks
from latentsync_trt.media.files import check_file, open_input, reading
from latentsync_trt.media.mixing import Track, cut_out, lead_in, mixed
from latentsync_trt.media.sound_streams import CopiedPackets, EncodedSound, copied_sound
from latentsync_trt.media.timing import nearest
from latentsync_trt.types import Float32Array

COPIED_CODECS: dict[str, tuple[str, ...]] = {
    ".mp4": ("aac", "mp3", "ac3", "eac3", "alac"),
    ".mov": ("aac", "mp3", "ac3", "eac3", "alac", "pcm_s16le", "pcm_s16be", "pcm_s24le", "pcm_s24be", "pcm_f32le"),
    ".mkv": (
        *("aac", "mp3", "ac3", "eac3", "alac", "opus", "flac", "vorbis", "dts", "truehd"),
        *("pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_u8"),
    ),
}
"""Codecs that common players support in each container. FFmpeg would write more, such as Opus and FLAC into .mp4, which
QuickTime and many televisions play without sound."""

_GAPS_IN = ".mkv"
"""The container that gives each packet a time. Others give it a duration, which players take for what it decodes to."""

LOSSLESS_WITH: tuple[Codec, ...] = ("prores", "ffv1")
"""Codecs of pictures for further editing, whose sound must not lose anything, either: see `SoundPlan.lossless`."""

_LOSSLESS_CODECS = {".mkv": "flac", ".mov": "pcm_s24le"}
"""Encoders of a `SoundPlan.lossless`; others would only play in few programs."""

_SUFFIXES = {"matroska": ".mkv", "mov": ".mov", "mp4": ".mp4"}
"""Of outputs, by FFmpeg's name of their format."""

_AAC_RATES_HZ = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000)
_FALLBACK_RATE_HZ = 48000
_LAYOUTS = {1: "mono", 2: "stereo", 3: "3.0", 4: "4.0", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}
_MOST_CHANNELS = max(_LAYOUTS)
"""Of AAC and FLAC."""

Soundtrack = CopiedPackets | EncodedSound


@dataclass(frozen=True, slots=True)
class SoundPiece:
    """The first audio stream of a file from its time `from_s` to `to_s` (None = its end), heard from `at_s` on.

    Times of the file count from its first sample. `at_s` is a time of the output; what is before 0 is not heard.
    """

    path: Path
    at_s: Fraction = Fraction(0)
    from_s: Fraction = Fraction(0)
    to_s: Fraction | None = None

    @property
    def end_s(self) -> Fraction | None:
        """When it ends in the output; None if that is the end of the file."""
        return None if self.to_s is None else self.at_s + self.to_s - self.from_s

    def within(self, start_s: Fraction, end_s: Fraction | None) -> Self | None:
        """What of it is heard from `start_s` to `end_s` (None = the end) of the output; None if that is nothing."""
        at_s, shift_s = max(self.at_s, start_s), self.from_s - self.at_s
        ends_s = [end for end in (self.end_s, end_s) if end is not None]
        if ends_s and min(ends_s) <= at_s:
            return None
        return replace(self, at_s=at_s, from_s=at_s + shift_s, to_s=min(ends_s) + shift_s if ends_s else None)


@dataclass(frozen=True, slots=True)
class SoundPlan:
    """What is heard: the sum of `pieces`, at least one; gaps are silent.

    `lossless`: sound that must be encoded becomes FLAC in .mkv and PCM in .mov instead of AAC.
    """

    pieces: tuple[SoundPiece, ...]
    lossless: bool = False


@dataclass(frozen=True, slots=True)
class _Findings:
    """Why a sound is not copied (None: it is), and the factor that keeps the sum of its pieces within full scale."""

    problem: str | None
    gain: float = 1.0


def spliced(
    own: SoundPiece | None, speech: Iterable[SoundPiece], start_s: Fraction, end_s: Fraction | None
) -> tuple[SoundPiece, ...]:
    """`speech` from `start_s` to `end_s` (None = the end) of the output, around it the video's `own` sound, if any."""
    around = [own.within(Fraction(0), start_s), own.within(end_s, None) if end_s is not None else None] if own else []
    return tuple(piece for piece in (*around, *(each.within(start_s, end_s) for each in speech)) if piece is not None)


@contextmanager
def open_soundtrack(plan: SoundPlan, output: OutputContainer) -> Iterator[Soundtrack]:
    """Adds the sound of `plan` to an open output: copied, or encoded as `why_encoded` says.

    Pieces are mixed in the layout with the most channels and at the highest rate among them. Where they together
    exceed full scale, the whole sound is softer by as much.

    Raises:
        MediaError: a source cannot be read, has no audio stream, or breaks off. InputError: it has samples that are not
        numbers.
    """
    suffix = _SUFFIXES[output.format.name]
    found = _examined(plan, suffix)
    if found.problem is None:
        piece = plan.pieces[0]
        with open_input(piece.path) as container:
            yield copied_sound(piece.path, container, audio_stream(piece.path, container), output, piece.at_s)
        return
    codec = _codec(plan, suffix)
    rate_hz, layout = _format(plan, codec)
    with closing(_mixed(plan, rate_hz, layout)) as blocks:
        scaled = (block * np.float32(found.gain) for block in blocks)
        yield EncodedSound(scaled, output, codec, rate_hz, layout)


def why_encoded(plan: SoundPlan, suffix: str) -> str | None:
    """A notice of why the sound of an output with this suffix is encoded; None if the packets of its only piece fit.

    Decodes the whole sound, 4 s per hour of AAC: packets alone show no change of format, and in Matroska their
    durations are rounded. What must be encoded is also resampled and mixed, 9 s per hour.

    Raises:
        MediaError, InputError: as `open_soundtrack`.
    """
    found = _examined(plan, suffix)
    if found.problem is None:
        return None
    codec = {"aac": "AAC", "flac": "FLAC"}.get(_codec(plan, suffix), "PCM")
    gain_db = -20 * log10(found.gain)
    softer = f"; it is {gain_db:.1f} dB softer, as its pieces together exceed full scale" if found.gain < 1 else ""
    return f"the sound is encoded as {codec}: {found.problem}{softer}"


def _examined(plan: SoundPlan, suffix: str) -> _Findings:
    stamps = []
    for path in dict.fromkeys(piece.path for piece in plan.pieces):
        check_file(path)
        with reading(path):
            status = path.stat()
        stamps.append((status.st_mtime_ns, status.st_size))
    return _findings(plan, suffix, tuple(stamps))


@lru_cache(maxsize=4)
def _findings(plan: SoundPlan, suffix: str, _stamps: tuple[tuple[int, int], ...]) -> _Findings:
    """Kept, as a notice comes before the output; times and sizes tell changed files."""
    piece = plan.pieces[0]
    if len(plan.pieces) > 1:
        problem: str | None = f"it is put together from {len(plan.pieces)} pieces"
    elif piece.from_s or piece.to_s is not None or piece.at_s < 0:
        problem = "a part of it is cut off"
    else:
        problem = _why_not_copied(piece.path, suffix)
    if problem is None:
        return _Findings(None)
    peaks = (float(np.abs(block).max()) for block in _mixed(plan, *_format(plan, _codec(plan, suffix))))
    peak = max(peaks, default=0.0)  # reads all, so that a damaged recording is found before anything is painted
    return _Findings(problem, 1 / max(peak, 1.0) if _overlap(plan) else 1.0)


def _overlap(plan: SoundPlan) -> bool:
    pieces = sorted(plan.pieces, key=lambda piece: piece.at_s)
    return any(piece.end_s is None or piece.end_s > later.at_s for piece, later in pairwise(pieces))


def _codec(plan: SoundPlan, suffix: str) -> str:
    return _LOSSLESS_CODECS.get(suffix, "aac") if plan.lossless else "aac"


def _format(plan: SoundPlan, codec: str) -> tuple[int, str]:
    """Sample rate and layout in which the pieces are mixed."""
    rates_hz, layouts = [], dict[int, str]()
    for path in dict.fromkeys(piece.path for piece in plan.pieces):
        with open_input(path) as container:
            source: AudioCodecContext = audio_stream(path, container).codec_context
            if source.channels > _MOST_CHANNELS:
                raise MediaError(
                    f"{path}: its sound has {source.channels} channels, AAC supports {_MOST_CHANNELS}; "
                    "mix it down, or choose an output that can hold its codec (.mkv, .mov)"
                )
            rates_hz.append(source.sample_rate)
            given = not source.layout.name.endswith(" channels")  # else the file gives only their number
            layouts.setdefault(source.channels, source.layout.name if given else _LAYOUTS[source.channels])
    rate_hz = max(rates_hz)
    return rate_hz if codec != "aac" or rate_hz in _AAC_RATES_HZ else _FALLBACK_RATE_HZ, layouts[max(layouts)]


def _mixed(plan: SoundPlan, rate_hz: int, layout: str) -> Generator[Float32Array, None, None]:
    tracks = [
        Track(nearest(piece.at_s, rate_hz) - lead_in(piece.from_s, rate_hz), partial(_samples, piece, rate_hz, layout))
        for piece in plan.pieces
    ]
    return mixed(tracks, AudioLayout(layout).nb_channels, rate_hz)


def _samples(piece: SoundPiece, rate_hz: int, layout: str) -> Generator[Float32Array, None, None]:
    with open_input(piece.path) as container:
        stream = audio_stream(piece.path, container)
        # swresample would make it 3 dB softer, other than players do that play mono on two speakers.
        doubled = layout == "stereo" and stream.codec_context.channels == 1
        frames = decoded_audio(piece.path, container, stream)
        blocks = sound_blocks(piece.path, frames, "mono" if doubled else layout, rate_hz)
        for block in cut_out(blocks, piece.from_s, piece.to_s, rate_hz):
            yield np.repeat(block, 2, axis=1) if doubled else block


def _why_not_copied(source: Path, suffix: str) -> str | None:
    with open_input(source) as container:
        stream = audio_stream(source, container)
        # The decoder's name can differ from the codec's, as in mp3float.
        codec = stream.codec_context.codec.canonical_name
        if codec not in COPIED_CODECS[suffix]:
            others = " or ".join(other for other, codecs in COPIED_CODECS.items() if codec in codecs)
            cure = f"; an output in {others} keeps it" if others else ""
            return f"{suffix} does not support its codec ({codec}){cure}"
        before = None
        for timed in decoded_audio(source, container, stream):
            if before is not None:
                if format_of(before.item) != format_of(timed.item):
                    return f"it changes its format after {float(timed.time_s):.2f} s"
                if timed.time_s < before.end_s:
                    return f"it overlaps itself after {float(timed.time_s):.2f} s"
                if timed.time_s > before.end_s and suffix != _GAPS_IN:
                    return f"it has a gap after {float(before.end_s):.2f} s, which {suffix} cannot hold"
            before = timed
    return None
