"""Speech features on demand: the recording is encoded in 30 s segments, each when the first frame needs it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from math import ceil

import numpy as np

from latentsync_trt.audio.mel import MEL_BANDS, SAMPLE_RATE_HZ, log_power_blocks, scaled
from latentsync_trt.audio.windows import window_positions
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import InputError
from latentsync_trt.runtime.session import Session
from latentsync_trt.types import AudioFeatures, Float32Array

SEGMENT_FRAMES = 3000  # 30 s of spectrogram, what Whisper takes at once
SEGMENT_POSITIONS = SEGMENT_FRAMES // 2

# A window of frames hears across at most one border between segments.
_SEGMENTS_KEPT = 2

OpenBlocks = Callable[[], Iterable[Float32Array]]


class SpeechStream:
    """What the network hears of a recording, frame by frame, in memory that does not grow with its length.

    Args:
        open_blocks: opens the recording: 16 kHz mono float32 in [−1, 1], in pieces. Called twice, since Whisper's scale
            depends on the loudest moment of the whole recording.
        session: the `audio_encoder` graph.

    Raises:
        InputError: the recording holds no samples.
    """

    def __init__(self, open_blocks: OpenBlocks, session: Session) -> None:
        counter = _Counter(open_blocks())
        peaks, frames = [], 0
        for block in log_power_blocks(counter):
            peaks.append(float(block.max()))
            frames += block.shape[1]
        if counter.samples == 0:
            raise InputError("the recording holds no sound (0 samples)")
        self.duration_s = Fraction(counter.samples, SAMPLE_RATE_HZ)
        self.positions = frames // SEGMENT_FRAMES * SEGMENT_POSITIONS + frames % SEGMENT_FRAMES // 2
        self._session = session
        blocks = (scaled(block, max(peaks)) for block in log_power_blocks(open_blocks()))
        self._segments = _segments(blocks)
        self._features: dict[int, Float32Array] = {}
        self._next = 0

    @property
    def frame_count(self) -> int:
        """Video frames the recording lasts: ceil(duration × 25)."""
        return ceil(self.duration_s * MODEL_FPS)

    def windows(self, frames: Sequence[int]) -> Float32Array:
        """What the video frames hear: float32 `(len(frames), S, D)`. Frames may step back by less than a segment."""
        return np.stack([self._window(frame) for frame in frames])

    def all_features(self) -> Iterator[Float32Array]:
        """The features of the whole recording in order, float32 `(t, L, D)` a segment."""
        left = self.positions
        for segment in range(-(-self.positions // SEGMENT_POSITIONS)):
            yield self._segment(segment)[:left]
            left -= SEGMENT_POSITIONS

    def _window(self, frame: int) -> Float32Array:
        positions = window_positions(frame, self.positions)
        taken = [self._segment(p // SEGMENT_POSITIONS)[p % SEGMENT_POSITIONS] for p in positions.tolist()]
        return np.concatenate(taken)

    def _segment(self, index: int) -> Float32Array:
        while index >= self._next:
            mel = next(self._segments)
            self._features[self._next] = self._session.run({"mel": mel[None]})[0][0]
            self._features.pop(self._next - _SEGMENTS_KEPT, None)
            self._next += 1
        return self._features[index]


def encode_speech(open_blocks: OpenBlocks, session: Session) -> AudioFeatures:
    """The features and windows of a whole recording at once; arguments and errors as `SpeechStream`."""
    stream = SpeechStream(open_blocks, session)
    features = np.concatenate(list(stream.all_features()))
    positions = np.stack([window_positions(frame, len(features)) for frame in range(stream.frame_count)])
    windows = features[positions].reshape(stream.frame_count, -1, features.shape[-1])
    return AudioFeatures(features, windows, stream.duration_s)


class _Counter:
    """Passes pieces on and counts their samples."""

    def __init__(self, pieces: Iterable[Float32Array]) -> None:
        self._pieces = pieces
        self.samples = 0

    def __iter__(self) -> Iterator[Float32Array]:
        for piece in self._pieces:
            self.samples += len(piece)
            yield piece


def _segments(blocks: Iterable[Float32Array]) -> Iterator[Float32Array]:
    """Regroups spectrogram blocks `(80, k)` into segments `(80, 3000)`, the last filled up with zeros."""
    held = np.zeros((MEL_BANDS, 0), np.float32)
    for block in blocks:
        held = np.concatenate([held, block], axis=1)
        while held.shape[1] >= SEGMENT_FRAMES:
            yield np.ascontiguousarray(held[:, :SEGMENT_FRAMES])
            held = held[:, SEGMENT_FRAMES:]
    if held.shape[1]:
        yield np.pad(held, ((0, 0), (0, SEGMENT_FRAMES - held.shape[1])))
