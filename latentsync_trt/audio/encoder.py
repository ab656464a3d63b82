"""Audio features from samples, computed by the audio encoder's graph in segments of 30 s, and which
of them each video frame attends to. Pure.

Next to a cut between segments the encoder misses half of the sound around it. They therefore
overlap, and features change from one to the next in a pause, if there is one. Positions count
features, 50 per second.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from itertools import pairwise
from math import ceil, floor

import numpy as np
from numpy.typing import NDArray

from latentsync_trt.audio.mel import (
    MEL_BANDS,
    MEL_FRAMES_PER_S,
    SAMPLE_RATE_HZ,
    SILENT_LOG_POWER,
    log_power_blocks,
    scaled,
)
from latentsync_trt.config import MODEL_FPS, AudioSegments
from latentsync_trt.errors import InputError
from latentsync_trt.types import Float32Array

FEATURES_PER_S = 50
SEGMENT_FEATURES = 30 * FEATURES_PER_S

_MARGIN = 1 * FEATURES_PER_S
"""Of sound that the encoder sees on both sides of all that is used, except at the recording's
ends.
"""

_OVERLAP = 10 * FEATURES_PER_S

FEATURES_PER_FRAME = FEATURES_PER_S // MODEL_FPS
_BEFORE = 4
_AFTER = 6
"""A frame attends to 10 features (200 ms): from 4 before its own position to 5 after it."""

_MEL_FRAMES_PER_FEATURE = MEL_FRAMES_PER_S // FEATURES_PER_S

SEGMENT_FRAMES = SEGMENT_FEATURES * _MEL_FRAMES_PER_FEATURE
"""Mel frames per input of the encoder: 30 s."""

OpenPieces = Callable[[], Iterable[Float32Array]]
EncodeMel = Callable[[Float32Array], Float32Array]


@dataclass(frozen=True, slots=True)
class Segment:
    """The encoder sees `encoded` of the recording, up to `SEGMENT_FEATURES`; `used` are the
    features taken of it.
    """

    encoded: range
    used: range


Plan = Callable[[int], Sequence[Segment]]
"""Segments for a recording of so many features; what they use is the whole recording, in order."""


def public_segments(total: int) -> list[Segment]:
    """As the public release cuts `total` features: every 30 s, without overlap."""
    cuts = [range(start, start + SEGMENT_FEATURES) for start in range(0, total, SEGMENT_FEATURES)]
    return [Segment(cut, range(cut.start, min(cut.stop, total))) for cut in cuts]


def joined_segments(total: int, speech_s: Iterable[tuple[float, float]]) -> list[Segment]:
    """Segments of 30 s that overlap by at least 10 s, joined in the longest pause of each overlap,
    else in its middle.

    A `total` of up to 30 s makes one segment.

    Args:
        speech_s: starts and ends of speech in seconds, ascending.
    """
    length = SEGMENT_FEATURES
    if total <= length:
        return public_segments(total)
    steps = ceil((total - length) / (length - _OVERLAP))
    starts = [step * (total - length) // steps for step in range(steps + 1)]
    silent = [0, *(round(edge_s * FEATURES_PER_S) for span in speech_s for edge_s in span), total]
    pauses = list(zip(silent[::2], silent[1::2], strict=True))
    joints = [0]
    for before, after in pairwise(starts):
        first = max(after + _MARGIN, joints[-1])
        last = before + length - _MARGIN
        within = [(max(start, first), min(end, last)) for start, end in pauses]
        start, end = max(within, key=lambda pause: pause[1] - pause[0])
        joints.append((start + end) // 2 if start < end else (first + last) // 2)
    return [
        Segment(range(start, start + length), range(*used))
        for start, used in zip(starts, pairwise([*joints, total]), strict=True)
    ]


def plan_of(segments: AudioSegments, speech_s: Callable[[], Iterable[tuple[float, float]]]) -> Plan:
    """How recordings are cut; `speech_s`, as for `joined_segments`, is called only if there is
    something to cut.
    """
    if segments == "public":
        return public_segments
    return lambda total: joined_segments(total, speech_s() if total > SEGMENT_FEATURES else ())


class SpeechStream:
    """The audio windows of video frames; each segment is encoded when the first frame needs it.

    Memory does not grow with the length of the recording, which is read twice instead of kept, and
    is open until `close`. `encoded`: its features in pieces `(n, L, D)`; take either these or
    `windows`.

    Args:
        open_pieces: opens the recording: float32 `(samples,)` pieces, mono, 16 kHz, full scale ±1.
            Called twice.
        encode_mel: the audio encoder: `mel (1, 80, 3000)` → `features (1, 1500, L, D)`, float32.
        filters: as for `log_power_blocks`.
        plan: how the recording is cut.

    Raises:
        InputError: the recording has no samples.
    """

    def __init__(
        self,
        open_pieces: OpenPieces,
        encode_mel: EncodeMel,
        filters: Float32Array,
        plan: Plan = public_segments,
    ) -> None:
        samples = 0
        mel_frames = 0
        peak = float("-inf")

        def counted() -> Iterator[Float32Array]:
            nonlocal samples
            for piece in open_pieces():
                samples += piece.size
                yield piece

        for block in log_power_blocks(counted(), filters):
            peak = max(peak, float(block.max()))
            mel_frames = mel_frames + block.shape[1]
        if not samples:
            raise InputError("the recording has no samples", usage=False)
        self.duration_s = Fraction(samples, SAMPLE_RATE_HZ)
        self._count = mel_frames // _MEL_FRAMES_PER_FEATURE
        blocks = (scaled(block, peak) for block in log_power_blocks(open_pieces(), filters))
        self.encoded = _encoded(blocks, plan(self._count), encode_mel)
        self.close = self.encoded.close
        self._features = np.zeros((0, 0, 0), np.float32)
        self._first = 0
        self._silence = cache(partial(silent_window, encode_mel, peak))

    def windows(self, times_s: Sequence[Fraction]) -> Float32Array:
        """Audio windows of video frames at these times in the recording, float32 `(n, 10·L, D)`.

        The last features repeat within the last frames of the recording; frames before its start
        and after its end get silence. Times may go back by at most 30 s. Raises `InferenceError` if
        the graph fails.
        """
        silent = np.array([not 0 <= time_s < self.duration_s for time_s in times_s], np.bool_)
        centers = np.array(
            [floor(time_s * FEATURES_PER_S + Fraction(1, 2)) for time_s in times_s], np.int64
        )
        positions = attended_positions(centers, self._count)
        while self._first + len(self._features) <= positions.max():
            newest = next(self.encoded)
            if len(self._features):
                kept = self._features[-SEGMENT_FEATURES:]
            else:
                kept = newest[:0]
            self._first += len(self._features) - len(kept)
            self._features = np.concatenate([kept, newest])
        features = self._features[positions - self._first]
        windows: Float32Array = features.reshape(len(positions), -1, features.shape[-1])
        if silent.any():
            windows[silent] = self._silence()
        return windows


def silent_window(encode_mel: EncodeMel, peak: float) -> Float32Array:
    """What a frame in silence attends to, float32 `(10·L, D)`, as quiet as the quietest moment of a
    recording with the maximum `peak` could be.
    """
    power = np.full((1, MEL_BANDS, SEGMENT_FRAMES), SILENT_LOG_POWER, np.float32)
    features = encode_mel(scaled(power, peak))[0]
    middle = len(features) // 2
    return features[middle : middle + _BEFORE + _AFTER].reshape(-1, features.shape[-1]).copy()


@dataclass(frozen=True, slots=True, eq=False)
class AudioFeatures:
    """Encoded speech.

    `features (T, L, D)` float32: hidden states of the audio encoder, 50 per second. `windows (n, S,
    D)` float32: what video frame i attends to, n = ceil(duration × 25), S = 10·L tokens.
    `duration_s`: length of the recording.
    """

    features: Float32Array
    windows: Float32Array
    duration_s: Fraction


def encode_audio(
    open_pieces: OpenPieces,
    encode_mel: EncodeMel,
    filters: Float32Array,
    plan: Plan = public_segments,
) -> AudioFeatures:
    """Features and windows of a whole recording; arguments and errors as `SpeechStream`."""
    with closing(SpeechStream(open_pieces, encode_mel, filters, plan)) as stream:
        features = np.concatenate(list(stream.encoded), dtype=np.float32)
    frames = np.arange(ceil(stream.duration_s * MODEL_FPS))
    attended = features[attended_positions(FEATURES_PER_FRAME * frames, len(features))]
    return AudioFeatures(
        features, attended.reshape(len(frames), -1, features.shape[2]), stream.duration_s
    )


def attended_positions(centers: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Indices of the features around `centers (n,)`, `(n, 10)`: 4 before to 5 after each, clipped
    to the `total`.
    """
    return np.clip(centers[:, None] + np.arange(-_BEFORE, _AFTER), 0, total - 1)


def _encoded(
    blocks: Iterator[Float32Array], segments: Sequence[Segment], encode_mel: EncodeMel
) -> Generator[Float32Array, None, None]:
    """What is used of each segment, `(n, L, D)`; their spectrogram `(80, k)` is padded with zeros
    to 3000 frames.
    """
    held = np.zeros((MEL_BANDS, 0), np.float32)
    first = 0
    for segment in segments:
        start = segment.encoded.start
        size = len(segment.encoded) * _MEL_FRAMES_PER_FEATURE
        held = held[:, start * _MEL_FRAMES_PER_FEATURE - first :]
        first = start * _MEL_FRAMES_PER_FEATURE
        while held.shape[1] < size and (block := next(blocks, None)) is not None:
            held = np.concatenate([held, block], axis=1)
        mel = held[:, :size]
        features = encode_mel(np.pad(mel, ((0, 0), (0, SEGMENT_FRAMES - mel.shape[1])))[None])[0]
        yield features[segment.used.start - start : segment.used.stop - start]
