"""Sound as packets of an output: the source's own, or encoded samples."""

# PyAV's Packet is generic for type checkers only.
from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, cast

from av.audio.frame import AudioFrame
from av.audio.layout import AudioLayout
from av.audio.stream import AudioStream
from av.container import InputContainer, OutputContainer
from av.packet import Packet

from latentsync_trt.media.audio import first_sample_s
from latentsync_trt.media.files import open_input, reading
from latentsync_trt.media.joints import origins_of
from latentsync_trt.media.mixing import Samples
from latentsync_trt.media.timing import clock_of, nearest
from latentsync_trt.types import Float32Array

_PRE_ROLL_S = Fraction(1, 10)
"""What decoders need before the first sample that is heard: 80 ms for Opus, 93 ms for HE-AAC."""

AAC_BITS_PER_S = 192_000
"""Bit rate per pair of channels."""


class CopiedPackets:
    """Packets that are not encoded anew, each with its time in the output, in this order."""

    def __init__(self, timed: Iterator[tuple[Fraction, Packet[Any]]]) -> None:
        self._timed = timed
        self._held: tuple[Fraction, Packet[Any]] | None = None

    def packets(self, until_s: Fraction) -> Iterator[Packet[Any]]:
        """The next packets, up to output time `until_s`."""
        while (timed := self._held or next(self._timed, None)) is not None:
            self._held = timed if timed[0] >= until_s else None
            if self._held:
                return
            yield timed[1]

    def flush(self) -> Iterator[Packet[Any]]:
        """Nothing, as all packets are written already."""
        return iter(())


def copied_sound(
    path: Path,
    container: InputContainer,
    stream: AudioStream,
    output: OutputContainer,
    delay_s: Fraction,
    *,
    origin_s: Fraction | None = None,
) -> CopiedPackets:
    """Adds a copy of a stream to an open output: its own packets, at the times of the samples inside.

    Args:
        delay_s: time of the first sample of the file's first audio stream. origin_s: the stamp at time 0, if known.
    """
    copy = output.add_stream_from_template(stream)
    if origin_s is None:
        # Before the first sample come an encoder's delay, and silence that is not part of the recording.
        with open_input(path) as opened_again:
            first_s = first_sample_s(path, opened_again)
        origin_s = None if first_s is None else first_s - delay_s
    clock = clock_of(container, delay_s, origin_s=origin_s, origins=partial(origins_of, path, stream.index))
    packets, rate_hz = container.demux(stream), stream.codec_context.sample_rate
    time_base = stream.time_base or Fraction(1, rate_hz)

    def timed() -> Iterator[tuple[Fraction, Packet[Any]]]:
        last: int | None = None
        begun = False
        while True:
            with reading(path, "its audio cannot be read"):
                packet = next(packets, None)
            if packet is None:
                return
            begun |= not packet.is_discard
            if not packet.size or (begun and packet.is_discard):  # an edit list leaves it out
                continue
            duration_s = (packet.duration or 0) * time_base
            time_s = clock.advance(None if packet.pts is None else packet.pts * time_base, duration_s)
            # Edit lists hide what was cut off at the start, which not every container and player can.
            if time_s + duration_s <= delay_s - _PRE_ROLL_S:
                continue
            # Stamps that are off by some jitter may go back, which muxers refuse; .mp4 and .mov count samples.
            stamp = nearest(time_s, rate_hz)
            last = packet.pts = packet.dts = stamp if last is None else max(stamp, last + 1)
            packet.duration = nearest(duration_s, rate_hz)
            packet.stream, packet.time_base = copy, Fraction(1, rate_hz)
            yield time_s, packet

    return CopiedPackets(timed())


class EncodedSound:
    """Samples from output time 0 on, encoded.

    Args:
        blocks: float32 `(n, channels)` at `rate_hz`, in the order of `layout`. codec: FFmpeg's name of the encoder.
    """

    def __init__(
        self, blocks: Iterator[Float32Array], output: OutputContainer, codec: str, rate_hz: int, layout: str
    ) -> None:
        self._samples, self._rate_hz, self._layout = Samples(blocks), rate_hz, layout
        # PyAV's types know only some encoders by name.
        self._stream = cast(AudioStream, output.add_stream(codec, rate=rate_hz, layout=layout))
        if codec == "flac":
            self._stream.codec_context.format = "s32"  # 24 bits; else 16
        if codec == "aac":
            self._stream.bit_rate = AAC_BITS_PER_S * -(-AudioLayout(layout).nb_channels // 2)
        self._position = 0

    def packets(self, until_s: Fraction) -> Iterator[Packet[Any]]:
        """The next packets, from samples before output time `until_s`."""
        part = self._samples.take(max(int(until_s * self._rate_hz) - self._position, 0))
        if len(part):
            yield from self._stream.encode(self._frame(part))

    def _frame(self, samples: Float32Array) -> AudioFrame:
        # Packed: PyAV reads beyond the planes of a planar frame with eight channels.
        frame = AudioFrame.from_ndarray(samples.reshape(1, -1), format="flt", layout=self._layout)
        frame.sample_rate = self._rate_hz
        frame.pts, frame.time_base = self._position, Fraction(1, self._rate_hz)
        self._position += len(samples)
        return frame

    def flush(self) -> Iterator[Packet[Any]]:
        """The packets still inside the encoder."""
        yield from self._stream.encode(None)
