"""The sound of an output: copied where players and container permit it, else mixed and encoded."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from io import BytesIO
from itertools import pairwise, zip_longest
from math import log10
from pathlib import Path
from typing import Self, cast

import av
import numpy as np
from av import AudioCodecContext, AudioFrame, AudioLayout, AudioStream, FFmpegError
from av.container import InputContainer, OutputContainer

from latentsync_trt.config import Codec
from latentsync_trt.errors import MediaError
from latentsync_trt.media.audio import (
    audio_frames,
    first_sample_s,
    is_same_format,
    open_audio,
    regrouped,
    silent_blocks,
    sound_blocks,
)
from latentsync_trt.media.files import TimedPackets, codec_name, guarded, reason_of
from latentsync_trt.media.mixer import Mixer, standard_layout, usual_layout
from latentsync_trt.media.timing import clock_of, nearest
from latentsync_trt.types import Float32Array

COPIED_CODECS: dict[str, tuple[str, ...]] = {
    ".mp4": ("aac", "mp3", "ac3", "eac3", "alac"),
    ".mov": (
        "aac",
        "mp3",
        "ac3",
        "eac3",
        "alac",
        "pcm_s16le",
        "pcm_s16be",
        "pcm_s24le",
        "pcm_s24be",
        "pcm_f32le",
    ),
    ".mkv": (
        *("aac", "mp3", "ac3", "eac3", "alac", "opus", "flac", "vorbis", "dts", "truehd"),
        *("pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_u8"),
    ),
}
"""Codecs that common players support in each container. FFmpeg would write more, such as
Opus and FLAC into .mp4, which QuickTime and many televisions play without sound."""

# Codecs for further editing, whose sound must not lose anything, either, and their encoders for
# sound; others would only play in few programs.
LOSSLESS_WITH: tuple[Codec, ...] = ("prores", "ffv1")
_LOSSLESS_CODECS = {".mkv": "flac", ".mov": "pcm_s24le"}

_AAC_RATES_HZ = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000)
_AAC_BITS_PER_S = 192_000  # per pair of channels

# What decoders need before the first sample that is heard: 80 ms for Opus, 93 ms for HE-AAC.
_PRE_ROLL_S = Fraction(1, 10)
# Length of the ramp around a cut, half of it on each side: a step of the wave would be heard as a
# click, a longer ramp as two sounds at once. Ramps of adjacent pieces sum to 1, so that a cut
# through one sound changes nothing.
FADE_S = Fraction(8, 1000)
_BLOCK_S = Fraction(1, 4)
# Decoders of lossy codecs overshoot full scale by less than 3 dB, which is not told: FFmpeg's
# encoder of AAC makes single blocks softer. Far beyond, the loudest ones would be as soft as all
# others.
_MOST_PEAK = 10 ** (3 / 20)


@dataclass(frozen=True, slots=True)
class SoundPiece:
    """The first audio stream of a file from `from_s` to `to_s` (None = its end), heard from `at_s`
    on. Times of the file count from its first sample. `at_s` is a time of the output; what is
    before 0 is not heard.
    """

    path: Path
    at_s: Fraction = Fraction(0)
    from_s: Fraction = Fraction(0)
    to_s: Fraction | None = None

    @property
    def end_s(self) -> Fraction | None:
        """When it ends in the output; None if that is the end of the file."""
        if self.to_s is None:
            return None
        return self.at_s + self.to_s - self.from_s

    def within(self, start_s: Fraction, end_s: Fraction | None) -> Self | None:
        """What of it is heard from `start_s` to `end_s` (None = the end) of the output, if any."""
        at_s = max(self.at_s, start_s)
        shift_s = self.from_s - self.at_s
        ends_s = [end for end in (self.end_s, end_s) if end is not None]
        if ends_s and min(ends_s) <= at_s:
            return None
        return replace(
            self, at_s=at_s, from_s=at_s + shift_s, to_s=min(ends_s) + shift_s if ends_s else None
        )


@dataclass(frozen=True, slots=True)
class ChosenSound:
    """How pieces become the sound of an output. `codec`: FFmpeg's name of the encoder; None if the
    packets of the only piece are copied. `rate_hz`, `layout`: of the encoded sound. `gain`: keeps
    it within full scale. `notices`: what is missing, why it is encoded, or softer.
    """

    pieces: tuple[SoundPiece, ...]
    codec: str | None = None
    rate_hz: int = 0
    layout: str = ""
    gain: float = 1.0
    notices: tuple[str, ...] = ()


def spliced(
    own: SoundPiece | None, speech: Iterable[SoundPiece], start_s: Fraction, end_s: Fraction | None
) -> tuple[SoundPiece, ...]:
    """`speech` from `start_s` to `end_s` (None = the end), around it the video's `own` sound."""
    if own:
        around = [
            own.within(Fraction(0), start_s),
            own.within(end_s, None) if end_s is not None else None,
        ]
    else:
        around = []
    return tuple(
        piece
        for piece in (*around, *(each.within(start_s, end_s) for each in speech))
        if piece is not None
    )


def choose_sound(
    pieces: tuple[SoundPiece, ...], suffix: str, *, lossless: bool = False
) -> ChosenSound:
    """How the sum of `pieces`, at least one, becomes the sound of an output with this suffix:
    copied where possible. Decodes the whole sound, 4 s per hour of AAC: packets alone show no
    change of format, and in Matroska their durations are rounded. What must be encoded is also
    resampled and mixed, 9 s per hour: in the layout with the most channels and at the highest rate
    among the pieces; `lossless`, as FLAC in .mkv and PCM in .mov instead of AAC. Raises
    `MediaError` where a source cannot be read or has no sound, `InputError` for samples that are
    not numbers.
    """
    piece = pieces[0]
    if len(pieces) > 1:
        problem: str | None = f"it is put together from {len(pieces)} pieces"
    elif piece.from_s or piece.to_s is not None or piece.at_s < 0:
        problem = "a part of it is cut off"
    else:
        problem = (
            _why_not_copied(piece.path, suffix)
            or _refusal(ChosenSound(pieces), suffix)
            or _why_too_loud(piece)
        )
    if problem is None:
        return ChosenSound(pieces)
    codec = _LOSSLESS_CODECS.get(suffix, "aac") if lossless else "aac"
    form, is_lossless = _format(pieces, codec)
    if refusal := _refusal(ChosenSound(pieces, codec, *form), suffix):
        cure = 'convert it: ffmpeg -i FILE -af "pan=stereo|c0=c0|c1=c1" -ar 48000 NEW.wav'
        raise MediaError(
            f"{piece.path}: its sound ({form[1]}) cannot be encoded as {codec}: {refusal}; {cure}"
        )
    # reads all, so that a damaged recording is found before anything is painted
    peak = _peak(pieces, *form)
    ordered = sorted(pieces, key=lambda piece: piece.at_s)
    overlap = any(
        piece.end_s is None or piece.end_s > later.at_s for piece, later in pairwise(ordered)
    )
    most = 1.0 if overlap or codec != "aac" else _MOST_PEAK
    gain = 1 / peak if peak > most else 1.0
    if gain < 1:
        softer = f"; all of it is {-20 * log10(gain):.1f} dB softer, as it exceeds full scale"
    else:
        softer = ""
    notices = list[str]()
    if softer or not is_lossless:  # what was never compressed is encoded once, as in any such file
        name = {"aac": "AAC", "flac": "FLAC"}.get(codec, "PCM")
        notices.append(f"the sound is encoded as {name}: {problem}{softer}")
    return ChosenSound(pieces, codec, *form, gain, tuple(notices))


@contextmanager
def open_soundtrack(
    sound: ChosenSound, output: OutputContainer, end_s: Fraction
) -> Iterator[TimedPackets]:
    """Adds a sound to an open output that ends at `end_s`; errors as `choose_sound`."""
    if sound.codec is None:
        piece = sound.pieces[0]
        with open_audio(piece.path) as stream:
            copy = output.add_stream_from_template(stream)
            yield copied_sound(piece.path, stream, copy, piece.at_s)
        return
    # PyAV's types know only some encoders by name.
    added = cast(
        AudioStream, output.add_stream(sound.codec, rate=sound.rate_hz, layout=sound.layout)
    )
    if sound.codec == "flac":
        added.codec_context.format = "s32"  # 24 bits; else 16
    if sound.codec == "aac":
        added.bit_rate = _AAC_BITS_PER_S * -(-AudioLayout(sound.layout).nb_channels // 2)
    with closing(_mixed_pieces(sound.pieces, sound.rate_hz, sound.layout)) as blocks:
        yield _encoded((block * np.float32(sound.gain) for block in blocks), added, end_s)


def _format(pieces: Iterable[SoundPiece], codec: str) -> tuple[tuple[int, str], bool]:
    """Rate and layout of the sum; whether no piece has lost anything by its codec."""
    rates_hz = []
    layouts = dict[int, str]()
    is_lossless = True
    for path in dict.fromkeys(piece.path for piece in pieces):
        with open_audio(path) as stream:
            source: AudioCodecContext = stream.codec_context
            rates_hz.append(source.sample_rate)
            layouts.setdefault(source.channels, usual_layout(source.layout))
            is_lossless &= source.codec.lossless and not source.codec.lossy
    rate_hz = max(rates_hz)
    layout = layouts[max(layouts)]
    if codec == "aac":
        rate_hz = rate_hz if rate_hz in _AAC_RATES_HZ else 48000
        layout = standard_layout(layout)
    return (rate_hz, layout), is_lossless


def _refusal(sound: ChosenSound, suffix: str) -> str | None:
    """Why a sound cannot be written, as tried in memory; None if it can."""
    output = av.open(BytesIO(), "w", format="matroska" if suffix == ".mkv" else suffix[1:])
    try:
        with open_soundtrack(sound, output, Fraction(0)):
            output.start_encoding()
    except (FFmpegError, ValueError) as error:
        return reason_of(error)
    return None


def _peak(pieces: Sequence[SoundPiece], rate_hz: int, layout: str) -> float:
    """The largest sample of the sum; full scale is 1."""
    return max(
        (float(np.abs(block).max()) for block in _mixed_pieces(pieces, rate_hz, layout)),
        default=0.0,
    )


def _why_too_loud(piece: SoundPiece) -> str | None:
    """Why a recording of floats cannot be heard as it is; others have no samples beyond full
    scale.
    """
    with open_audio(piece.path) as stream:
        if not codec_name(stream).startswith("pcm_f"):
            return None
        form, _ = _format([piece], codec_name(stream))
    if _peak([piece], *form) > _MOST_PEAK:
        return "it is far above full scale"
    return None


def _why_not_copied(source: Path, suffix: str) -> str | None:
    with open_audio(source) as stream:
        codec = codec_name(stream)  # the decoder's name can differ, as in mp3float
    if codec not in COPIED_CODECS[suffix]:
        others = " or ".join(other for other, codecs in COPIED_CODECS.items() if codec in codecs)
        cure = f"; an output in {others} keeps it" if others else ""
        return f"{suffix} does not support its codec ({codec}){cure}"
    for before, timed in pairwise(audio_frames(source)):
        if not is_same_format(before.item, timed.item):
            return f"it changes its format after {float(timed.time_s):.2f} s"
        if timed.time_s < before.end_s:
            return f"it overlaps itself after {float(timed.time_s):.2f} s"
        # .mkv gives each packet a time; others a duration, which players take as it decodes.
        if timed.time_s > before.end_s and suffix != ".mkv":
            return f"it has a gap after {float(before.end_s):.2f} s, which {suffix} cannot hold"
    return None


def copied_sound(
    path: Path,
    stream: AudioStream,
    copy: AudioStream,
    delay_s: Fraction,
    *,
    origin_s: Fraction | None = None,
) -> TimedPackets:
    """A stream's packets for its `copy` in an output, at the times of the samples inside;
    `delay_s`: time of the first sample of the file's first audio stream; `origin_s`: the stamp at
    time 0, if known.
    """
    if origin_s is None:
        # Before the first sample come an encoder's delay, and silence that is no recording.
        first_s = first_sample_s(path)
        origin_s = None if first_s is None else first_s - delay_s
    clock = clock_of(path, stream, next_s=delay_s, origin_s=origin_s)
    rate_hz = stream.codec_context.sample_rate
    time_base = stream.time_base or Fraction(1, rate_hz)
    last: int | None = None
    begun = False
    for packet in guarded(path, stream, cast(InputContainer, stream.container).demux(stream)):
        begun |= not packet.is_discard
        if not packet.size or (begun and packet.is_discard):  # an edit list leaves it out
            continue
        duration_s = (packet.duration or 0) * time_base
        time_s = clock.advance(None if packet.pts is None else packet.pts * time_base, duration_s)
        # Edit lists hide what was cut off at the start, which not every container and player can.
        if time_s + duration_s <= delay_s - _PRE_ROLL_S:
            continue
        # Stamps with jitter may go back, which muxers refuse; .mp4 and .mov count samples.
        stamp = nearest(time_s, rate_hz)
        last = packet.pts = packet.dts = stamp if last is None else max(stamp, last + 1)
        packet.duration = nearest(duration_s, rate_hz)
        packet.stream = copy
        packet.time_base = Fraction(1, rate_hz)
        yield time_s, packet


def _encoded(blocks: Iterator[Float32Array], stream: AudioStream, end_s: Fraction) -> TimedPackets:
    """Encodes samples from time 0 to `end_s`: float32 `(n, channels)` at the rate of `stream`."""
    rate_hz = stream.codec_context.sample_rate
    position = 0
    for block in blocks:
        part = block[: max(int(end_s * rate_hz) - position, 0)]
        if not len(part):
            break
        # Packed: PyAV reads beyond the planes of a planar frame with eight channels.
        frame = AudioFrame.from_ndarray(
            part.reshape(1, -1), format="flt", layout=stream.codec_context.layout.name
        )
        frame.sample_rate = rate_hz
        frame.pts = position
        frame.time_base = Fraction(1, rate_hz)
        for packet in stream.encode(frame):
            yield Fraction(position, rate_hz), packet
        position += len(part)
    for packet in stream.encode(None):
        yield Fraction(max(position - 1, 0), rate_hz), packet  # before `end_s`


def _mixed_pieces(
    pieces: Sequence[SoundPiece], rate_hz: int, layout: str
) -> Generator[Float32Array, None, None]:
    channels = AudioLayout(layout).nb_channels
    recordings = (
        sound_blocks(piece.path, audio_frames(piece.path), Mixer(layout, rate_hz))
        for piece in pieces
    )
    tracks = [
        placed(recording, piece, channels, rate_hz)
        for recording, piece in zip(recordings, pieces, strict=True)
    ]
    return mixed(tracks, channels, rate_hz)


def placed(
    recording: Generator[Float32Array, None, None], piece: SoundPiece, channels: int, rate_hz: int
) -> Generator[Float32Array, None, None]:
    """`piece` of its recording, in blocks `(n, channels)` from sample 0 of the output on, with
    ramps at cuts. The recording's own start and end have no ramp. It is open only while it is
    heard.
    """
    first = nearest(piece.from_s, rate_hz)
    half = nearest(FADE_S / 2, rate_hz)
    last = None if piece.to_s is None else nearest(piece.to_s, rate_hz)
    shift = nearest(piece.at_s, rate_hz) - first
    start = max(first - half, 0, -shift)
    end = None if last is None else last + half
    yield from silent_blocks(start + shift, channels, rate_hz)
    at = 0
    with closing(recording):
        for block in recording:
            if end is not None and at >= end:
                return
            kept = block[max(start - at, 0) : None if end is None else end - at]
            positions = np.arange(len(kept)) + max(start, at)
            at += len(block)
            gain = np.ones(len(kept), np.float32)
            if first:
                gain *= _ramp(positions - first, half)
            if last is not None:
                gain *= 1 - _ramp(positions - last, half)
            if len(kept):
                yield kept * gain[:, None]


def _ramp(offsets: np.ndarray[tuple[int], np.dtype[np.int64]], half: int) -> Float32Array:
    """0 to 1 from `-half` to `half` samples around a cut."""
    return np.clip((offsets + half + 0.5) / (2 * half), 0, 1).astype(np.float32)


def mixed(
    tracks: Sequence[Generator[Float32Array, None, None]], channels: int, rate_hz: int
) -> Generator[Float32Array, None, None]:
    """The sum of `tracks` from sample 0 to the end of the last, in blocks `(n, channels)`."""
    with ExitStack() as opened:
        count = nearest(_BLOCK_S, rate_hz)
        none = np.zeros((0, channels), np.float32)
        players = [regrouped(opened.enter_context(closing(track)), count) for track in tracks]
        for parts in zip_longest(*players, fillvalue=none):
            total = np.zeros((max(map(len, parts)), channels), np.float32)
            for part in parts:
                total[: len(part)] += part
            yield total
