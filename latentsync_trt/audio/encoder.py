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
from latentsync_trt.types import Float32Array, SpanSeconds

FEATURES_PER_S = 50

SEGMENT_FEATURES = 30 * FEATURES_PER_S
"""The features that the encoder returns at once."""

_SEGMENT_MARGIN = 1 * FEATURES_PER_S
"""The least sound that the encoder sees on both sides of what is used of a segment, except at the
recording's ends.
"""

_SEGMENT_OVERLAP = 10 * FEATURES_PER_S
"""The least that consecutive segments have in common."""

FEATURES_PER_FRAME = FEATURES_PER_S // MODEL_FPS

_ATTENDED = np.arange(-4, 6)
"""The features that a frame attends to, from its own position (200 ms)."""

_MEL_FRAMES_PER_FEATURE = MEL_FRAMES_PER_S // FEATURES_PER_S

SEGMENT_FRAMES = SEGMENT_FEATURES * _MEL_FRAMES_PER_FEATURE
"""Mel frames per input of the encoder: 30 s."""

OpenPieces = Callable[[], Iterable[Float32Array]]
"""Opens a recording: float32 `(samples,)` pieces, mono, 16 kHz, full scale ±1."""

EncodeMel = Callable[[Float32Array], Float32Array]
"""The audio encoder: `mel (1, 80, 3000)` → `features (1, 1500, L, D)`, float32."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a recording, of `SEGMENT_FEATURES`, that the encoder sees at once."""

    start: int
    """The feature of the recording with which it begins."""
    used: range
    """The features of the recording that are taken from it."""


FindSpans = Callable[[], Iterable[SpanSeconds]]
"""Returns starts and ends of speech in seconds, ascending."""

Plan = Callable[[int], Sequence[Segment]]
"""Segments for a recording of so many features; what they use is the whole recording, in order."""


def public_segments(total: int) -> list[Segment]:
    """Cuts `total` features as the public release does: every 30 s, without overlap."""
    segments = []
    for start in range(0, total, SEGMENT_FEATURES):
        end = min(start + SEGMENT_FEATURES, total)
        segments.append(Segment(start, range(start, end)))
    return segments


def joined_segments(total: int, speech_s: FindSpans) -> list[Segment]:
    """Cuts `total` features into segments of 30 s that overlap by at least 10 s, joined in the
    longest pause of each overlap, else in its middle.

    A `total` of up to 30 s makes one segment.

    Args:
        speech_s: called only where there is something to cut.
    """
    if total <= SEGMENT_FEATURES:
        return public_segments(total)
    pauses = _pauses(total, speech_s())
    starts = _segment_starts(total)
    joints = [0]
    for before, after in pairwise(starts):
        first = max(after + _SEGMENT_MARGIN, joints[-1])
        last = before + SEGMENT_FEATURES - _SEGMENT_MARGIN
        joints.append(_joint(range(first, last), pauses))
    joints.append(total)
    segments = []
    for start, (first, end) in zip(starts, pairwise(joints), strict=True):
        segments.append(Segment(start, range(first, end)))
    return segments


def _segment_starts(total: int) -> list[int]:
    """Returns the evenly spread starts of overlapping segments of a recording."""
    last = total - SEGMENT_FEATURES
    count = ceil(last / (SEGMENT_FEATURES - _SEGMENT_OVERLAP))
    return [number * last // count for number in range(count + 1)]


def _pauses(total: int, speech_s: Iterable[SpanSeconds]) -> list[range]:
    """Returns what lies between spans of speech, also before the first and after the last."""
    pauses = []
    pause_start = 0
    for start_s, end_s in speech_s:
        pauses.append(range(pause_start, round(start_s * FEATURES_PER_S)))
        pause_start = round(end_s * FEATURES_PER_S)
    pauses.append(range(pause_start, total))
    return pauses


def _joint(overlap: range, pauses: Iterable[range]) -> int:
    """Returns the middle of the longest pause in an overlap, else the middle of the overlap."""
    longest = range(0)
    for pause in pauses:
        start = max(pause.start, overlap.start)
        end = min(pause.stop, overlap.stop)
        within = range(start, end)
        if len(within) > len(longest):
            longest = within
    chosen = longest or overlap
    return (chosen.start + chosen.stop) // 2


def segment_plan(segments: AudioSegments, speech_s: FindSpans) -> Plan:
    """Returns how recordings are cut."""
    if segments == "public":
        return public_segments
    return partial(joined_segments, speech_s=speech_s)


class SpeechStream:
    """The audio windows of video frames; each segment is encoded when the first frame needs it.

    Memory does not grow with the length of the recording, which is read twice instead of kept, and
    is open until `close`. Its features are in `encoded`, in pieces `(n, L, D)`; take either these
    or `windows`.

    Args:
        open_pieces: called twice.
        filters: the mel bands, float32 `(80, 201)`, from `filters_of`.
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
            mel_frames += block.shape[1]
        if not samples:
            raise InputError("the recording has no samples", usage=False)
        self.duration_s = Fraction(samples, SAMPLE_RATE_HZ)
        self._count = mel_frames // _MEL_FRAMES_PER_FEATURE
        blocks = (scaled(block, peak) for block in log_power_blocks(open_pieces(), filters))
        self.encoded = _encode_segments(blocks, plan(self._count), encode_mel)
        self.close = self.encoded.close
        self._features = np.zeros((0, 0, 0), np.float32)
        self._first = 0
        self._silence = cache(partial(silent_window, encode_mel, peak))

    def windows(self, times_s: Sequence[Fraction]) -> Float32Array:
        """Returns the audio windows of video frames at these times in the recording, float32 `(n,
        10·L, D)`.

        The last features repeat within the last frames of the recording; frames before its start
        and after its end get silence. Times may go back by at most 30 s. Raises `InferenceError` if
        the graph fails.
        """
        silent = np.array([not 0 <= time_s < self.duration_s for time_s in times_s], np.bool_)
        half = Fraction(1, 2)
        centers = [floor(time_s * FEATURES_PER_S + half) for time_s in times_s]
        positions = attended_positions(np.array(centers, np.int64), self._count)
        while self._first + len(self._features) <= positions.max():
            self._encode_next()
        features = self._features[positions - self._first]
        windows: Float32Array = features.reshape(len(positions), -1, features.shape[-1])
        if silent.any():
            windows[silent] = self._silence()
        return windows

    def _encode_next(self) -> None:
        newest = next(self.encoded)
        if len(self._features):
            earlier = self._features[-SEGMENT_FEATURES:]
        else:
            earlier = newest[:0]
        self._first += len(self._features) - len(earlier)
        self._features = np.concatenate([earlier, newest])


def silent_window(encode_mel: EncodeMel, peak: float) -> Float32Array:
    """Returns what a frame in silence attends to, float32 `(10·L, D)`, as quiet as the quietest
    moment of a recording with the maximum `peak` could be.
    """
    power = np.full((1, MEL_BANDS, SEGMENT_FRAMES), SILENT_LOG_POWER, np.float32)
    features = encode_mel(scaled(power, peak))[0]
    middle = len(features) // 2
    attended = features[middle : middle + len(_ATTENDED)]
    return attended.reshape(-1, features.shape[-1]).copy()


@dataclass(frozen=True, slots=True, eq=False)
class AudioFeatures:
    """Encoded speech."""

    features: Float32Array
    """Hidden states of the audio encoder, 50 per second, float32 `(T, L, D)`."""
    windows: Float32Array
    """What each video frame attends to, float32 `(n, S, D)`: n = ceil(duration × 25), S = 10·L
    tokens.
    """
    duration_s: Fraction
    """The length of the recording."""


def encode_audio(
    open_pieces: OpenPieces,
    encode_mel: EncodeMel,
    filters: Float32Array,
    plan: Plan = public_segments,
) -> AudioFeatures:
    """Returns features and windows of a whole recording; arguments and errors are those of
    `SpeechStream`.
    """
    with closing(SpeechStream(open_pieces, encode_mel, filters, plan)) as stream:
        features = np.concatenate(list(stream.encoded), dtype=np.float32)
    frames = np.arange(ceil(stream.duration_s * MODEL_FPS))
    positions = attended_positions(FEATURES_PER_FRAME * frames, len(features))
    attended = features[positions]
    windows = attended.reshape(len(frames), -1, features.shape[2])
    return AudioFeatures(features, windows, stream.duration_s)


def attended_positions(centers: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Returns the indices of the features around `centers (n,)`, `(n, 10)`: 4 before to 5 after
    each, clipped to the `total`.
    """
    return np.clip(centers[:, None] + _ATTENDED, 0, total - 1)


def _encode_segments(
    blocks: Iterator[Float32Array], segments: Sequence[Segment], encode_mel: EncodeMel
) -> Generator[Float32Array, None, None]:
    """Yields what is used of each segment, `(n, L, D)`; its spectrogram `(80, k)` is padded with
    zeros to 3000 frames.
    """
    held = np.zeros((MEL_BANDS, 0), np.float32)
    first = 0
    for segment in segments:
        start = segment.start * _MEL_FRAMES_PER_FEATURE
        held = held[:, start - first :]
        first = start
        while held.shape[1] < SEGMENT_FRAMES:
            block = next(blocks, None)
            if block is None:
                break
            held = np.concatenate([held, block], axis=1)
        mel = held[:, :SEGMENT_FRAMES]
        padded = np.zeros((1, MEL_BANDS, SEGMENT_FRAMES), np.float32)
        padded[0, :, : mel.shape[1]] = mel
        features = encode_mel(padded)[0]
        begin = segment.used.start - segment.start
        end = segment.used.stop - segment.start
        yield features[begin:end]
