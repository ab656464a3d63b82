"""The sound of an output: copied where players and container permit it, else mixed and encoded."""

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from io import BytesIO
from itertools import pairwise
from math import log10
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
from av import AudioCodecContext, AudioFrame, AudioLayout, AudioStream, FFmpegError, Packet
from av.container import InputContainer, OutputContainer

from latentsync_trt.config import Codec
from latentsync_trt.errors import MediaError
from latentsync_trt.media.audio import (
    audio_frames,
    first_sample_s,
    is_same_format,
    open_audio,
    sound_blocks,
)
from latentsync_trt.media.files import (
    FFMPEG_FORMATS,
    TimedPackets,
    codec_name,
    guarded,
    reason_of,
)
from latentsync_trt.media.mixer import Mixer, standard_layout, usual_layout
from latentsync_trt.media.sound_pieces import SoundPiece, mix_tracks, place_piece
from latentsync_trt.media.timing import clock_of, nearest, stamp_packet
from latentsync_trt.types import Float32Array

_EVERYWHERE = ("aac", "mp3", "ac3", "eac3", "alac")
_PCM = ("pcm_s16le", "pcm_s24le", "pcm_f32le")
_ONLY_IN_MKV = ("opus", "flac", "vorbis", "dts", "truehd", "pcm_s32le", "pcm_u8")
COPIED_CODECS: dict[str, tuple[str, ...]] = {
    ".mp4": _EVERYWHERE,
    ".mov": (*_EVERYWHERE, *_PCM, "pcm_s16be", "pcm_s24be"),
    ".mkv": (*_EVERYWHERE, *_PCM, *_ONLY_IN_MKV),
}
"""Codecs that common players support in each container. FFmpeg would write more, such as
Opus and FLAC into .mp4, which QuickTime and many televisions play without sound."""

LOSSLESS_WITH: tuple[Codec, ...] = ("prores", "ffv1")
"""Codecs of pictures for further editing, whose sound must not lose anything, either."""
_LOSSLESS_CODECS = {".mkv": "flac", ".mov": "pcm_s24le"}
"""Encoders of such sound; others would only play in few programs."""

_AAC_RATES_HZ = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000)
_AAC_BITS_PER_S = 192_000
"""The rate of encoded sound, for each pair of channels."""

_PRE_ROLL_S = Fraction(1, 10)
"""What decoders need before the first sample that is heard: 80 ms for Opus, 93 ms for HE-AAC."""
_NEGATIVE = 2**31
"""Units from which on a duration is a negative one that has wrapped around 32 bits.

In Ogg, FFmpeg takes the padding at the end of Vorbis off the last packet, and it may be longer than
that: in an output, the sound would last 27 hours.
"""
_MOST_PEAK = 10 ** (3 / 20)
"""The highest peak that is not made softer.

Decoders of lossy codecs overshoot full scale by less than 3 dB, which no notice tells: FFmpeg's
encoder of AAC makes single blocks softer. Far beyond, the loudest ones would be as soft as all
others.
"""


@dataclass(frozen=True, slots=True)
class ChosenSound:
    """How pieces become the sound of an output."""

    pieces: tuple[SoundPiece, ...]
    codec: str | None = None
    """FFmpeg's name of the encoder; None if the packets of the only piece are copied."""
    rate_hz: int = 0
    """The rate of the encoded sound."""
    layout: str = ""
    """FFmpeg's name of the encoded sound's channel layout."""
    gain: float = 1.0
    """What the samples are multiplied with, to keep within full scale."""
    is_lossy: bool = False
    """Whether a piece has lost something by its codec."""
    notices: tuple[str, ...] = ()
    """What is missing, why the sound is encoded, or softer."""


def choose_sound(pieces: tuple[SoundPiece, ...], suffix: str, *, lossless: bool) -> ChosenSound:
    """Returns how the sum of `pieces`, at least one, becomes the sound of an output with this
    suffix: copied where possible.

    Decodes the whole sound, 4 s per hour of AAC: packets alone show no change of format, and in
    Matroska their durations are rounded. What must be encoded is also resampled and mixed, 9 s per
    hour: in the layout with the most channels and at the highest rate among the pieces; `lossless`,
    as FLAC in .mkv and PCM in .mov instead of AAC. Raises `MediaError` where a source cannot be
    read or has no sound, `InputError` for samples that are not numbers.
    """
    problem = _why_encoded(pieces, suffix)
    if problem is None:
        return ChosenSound(pieces)
    codec = _LOSSLESS_CODECS.get(suffix, "aac") if lossless else "aac"
    sound = _encoded_sum(pieces, codec)
    refusal = _why_not_written(sound, suffix)
    if refusal is not None:
        raise MediaError(
            f"{pieces[0].path}: its sound ({sound.layout}) cannot be encoded as {codec}: "
            f"{refusal}; "
            'convert it: ffmpeg -i FILE -af "pan=stereo|c0=c0|c1=c1" -ar 48000 NEW.wav'
        )
    gain = _gain(sound)
    softer = ""
    if gain < 1:
        softer = f"; all of it is {-20 * log10(gain):.1f} dB softer, as it exceeds full scale"
    notices = list[str]()
    if softer or sound.is_lossy:  # what was never compressed is encoded once, as in any such file
        name = {"aac": "AAC", "flac": "FLAC"}.get(codec, "PCM")
        notices.append(f"the sound is encoded as {name}: {problem}{softer}")
    return replace(sound, gain=gain, notices=tuple(notices))


@contextmanager
def open_soundtrack(
    sound: ChosenSound, output: OutputContainer, end_s: Fraction
) -> Iterator[TimedPackets]:
    """Adds a sound to an open output that ends at `end_s`; raises as `choose_sound`."""
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
    with closing(_mixed_pieces(sound)) as blocks:
        louder = (block * np.float32(sound.gain) for block in blocks)
        yield _encoded_blocks(louder, added, end_s)


def _encoded_sum(pieces: tuple[SoundPiece, ...], codec: str) -> ChosenSound:
    """Returns the sum of `pieces` with the most channels and the highest rate that the codec
    takes.
    """
    rates_hz = list[int]()
    layouts = dict[int, str]()
    is_lossy = False
    for path in dict.fromkeys(piece.path for piece in pieces):
        with open_audio(path) as stream:
            source: AudioCodecContext = stream.codec_context
            rates_hz.append(source.sample_rate)
            layouts.setdefault(source.channels, usual_layout(source.layout))
            is_lossy |= source.codec.lossy or not source.codec.lossless
    rate_hz = max(rates_hz)
    layout = layouts[max(layouts)]
    if codec == "aac":
        layout = standard_layout(layout)
        if rate_hz not in _AAC_RATES_HZ:
            rate_hz = 48000
    return ChosenSound(pieces, codec, rate_hz, layout, is_lossy=is_lossy)


def _gain(sound: ChosenSound) -> float:
    """Returns the gain that keeps a sound within full scale."""
    # reads all, so that a damaged recording is found before anything is painted
    peak = _peak(sound)
    most = _MOST_PEAK
    if sound.codec != "aac" or _overlap(sound.pieces):
        most = 1.0
    return 1 / peak if peak > most else 1.0


def _overlap(pieces: Iterable[SoundPiece]) -> bool:
    ordered = sorted(pieces, key=lambda piece: piece.at_s)
    return any(
        piece.end_s is None or piece.end_s > later.at_s for piece, later in pairwise(ordered)
    )


def _peak(sound: ChosenSound) -> float:
    """Returns the largest sample of the sum; full scale is 1."""
    blocks = _mixed_pieces(sound)
    return max((float(np.abs(block).max()) for block in blocks), default=0.0)


def _why_encoded(pieces: tuple[SoundPiece, ...], suffix: str) -> str | None:
    """Returns why a sound must be encoded; None if it can be copied."""
    piece = pieces[0]
    if len(pieces) > 1:
        return f"it is put together from {len(pieces)} pieces"
    if piece.from_s or piece.to_s is not None or piece.at_s < 0:
        return "a part of it is cut off"
    return (
        _why_not_copied(piece.path, suffix)
        or _why_not_written(ChosenSound(pieces), suffix)
        or _why_too_loud(piece)
    )


def _why_not_written(sound: ChosenSound, suffix: str) -> str | None:
    """Returns why a sound cannot be written, as tried in memory; None if it can."""
    try:
        with (
            av.open(BytesIO(), "w", format=FFMPEG_FORMATS[suffix]) as output,
            open_soundtrack(sound, output, Fraction(0)),
        ):
            output.start_encoding()
    except (FFmpegError, ValueError) as error:
        return reason_of(error)
    return None


def _why_too_loud(piece: SoundPiece) -> str | None:
    """Returns why a recording of floats cannot be heard as it is; others cannot exceed full
    scale.
    """
    with open_audio(piece.path) as stream:
        codec = codec_name(stream)
    if not codec.startswith("pcm_f"):
        return None
    if _peak(_encoded_sum((piece,), codec)) > _MOST_PEAK:
        return "it is far above full scale"
    return None


def _why_not_copied(source: Path, suffix: str) -> str | None:
    """Returns why the packets of a recording cannot be copied; None if they can."""
    with open_audio(source) as stream:
        codec = codec_name(stream)  # the decoder's name can differ, as in mp3float
    if codec not in COPIED_CODECS[suffix]:
        others = [other for other, codecs in COPIED_CODECS.items() if codec in codecs]
        cure = ""
        if others:
            cure = f"; an output in {' or '.join(others)} keeps it"
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
    delay_s: Fraction = Fraction(0),
    *,
    origin_s: Fraction | None = None,
) -> TimedPackets:
    """Yields a stream's packets for its `copy` in an output, at the times of the samples inside.

    Args:
        delay_s: the time of the first sample of the file's main audio stream.
        origin_s: the stamp at time 0, if that is known.
    """
    if origin_s is None:
        # Before the first sample come an encoder's delay, and silence that is no recording.
        first_s = first_sample_s(path)
        origin_s = None if first_s is None else first_s - delay_s
    clock = replace(clock_of(path, stream), next_s=delay_s, origin_s=origin_s)
    rate_hz = stream.codec_context.sample_rate
    time_base = stream.time_base or Fraction(1, rate_hz)
    least_stamp: int | None = None
    for packet in _heard_packets(path, stream):
        stamp_s = None if packet.pts is None else packet.pts * time_base
        duration_s = _duration_of(packet) * time_base
        time_s = clock.advance(stamp_s, duration_s)
        # Edit lists hide what was cut off at the start, which not every container and player can.
        if time_s + duration_s <= delay_s - _PRE_ROLL_S:
            continue
        # Stamps with jitter may go back, which muxers refuse; .mp4 and .mov count samples.
        stamp = nearest(time_s, rate_hz)
        if least_stamp is not None:
            stamp = max(stamp, least_stamp)
        least_stamp = stamp + 1
        packet.duration = nearest(duration_s, rate_hz)
        stamp_packet(packet, copy, stamp, rate_hz)
        yield time_s, packet


def _duration_of(packet: "Packet[Any]") -> int:
    """Returns how long a packet lasts, in its units; 0 where that is not stated."""
    duration = packet.duration or 0
    return 0 if duration >= _NEGATIVE else duration


def _heard_packets(path: Path, stream: AudioStream) -> Iterator["Packet[Any]"]:
    """Yields the packets of a stream without those that an edit list leaves out at its end."""
    has_begun = False
    for packet in guarded(path, stream, cast(InputContainer, stream.container).demux(stream)):
        has_begun |= not packet.is_discard
        if packet.size and not (has_begun and packet.is_discard):
            yield packet


def _encoded_blocks(
    blocks: Iterator[Float32Array], stream: AudioStream, end_s: Fraction
) -> TimedPackets:
    """Encodes samples from time 0 to `end_s`: float32 `(n, channels)` at the rate of `stream`."""
    rate_hz = stream.codec_context.sample_rate
    position = 0
    for block in blocks:
        samples = block[: max(int(end_s * rate_hz) - position, 0)]
        if not len(samples):
            break
        # Packed: PyAV reads beyond the planes of a planar frame with eight channels.
        frame = AudioFrame.from_ndarray(
            samples.reshape(1, -1), format="flt", layout=stream.codec_context.layout.name
        )
        frame.sample_rate = rate_hz
        frame.pts = position
        frame.time_base = Fraction(1, rate_hz)
        for packet in stream.encode(frame):
            yield Fraction(position, rate_hz), packet
        position += len(samples)
    for packet in stream.encode(None):
        yield Fraction(max(position - 1, 0), rate_hz), packet  # before `end_s`


def _mixed_pieces(sound: ChosenSound) -> Generator[Float32Array]:
    """Yields the sum of all pieces, in blocks `(n, channels)`."""
    layout = sound.layout
    rate_hz = sound.rate_hz
    channels = AudioLayout(layout).nb_channels
    tracks = list[Generator[Float32Array]]()
    for piece in sound.pieces:
        frames = audio_frames(piece.path)
        recording = sound_blocks(piece.path, frames, Mixer(layout, rate_hz))
        tracks.append(place_piece(recording, piece, channels, rate_hz))
    return mix_tracks(tracks, channels, rate_hz)
