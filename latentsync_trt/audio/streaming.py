"""What each frame hears: speech that grows is encoded again and again, from the start of its
segment.

The encoder depends on all of a segment, so that moving its start changes features as much as half a
second of delay does: a segment grows up to 30 s, and the next one begins in a pause. The
recording's maximum, by which Whisper scales its input, is not known: the highest so far takes its
place. Not thread-safe.
"""

import numpy as np

from latentsync_trt.audio.encoder import (
    FEATURES_PER_FRAME,
    FEATURES_PER_S,
    SEGMENT_FRAMES,
    EncodeMel,
    attended_positions,
    silent_window,
)
from latentsync_trt.audio.mel import (
    HALF_FFT,
    HOP,
    MEL_BANDS,
    MEL_FRAMES_PER_S,
    SAMPLE_RATE_HZ,
    log_power,
    scaled,
)
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.types import Float32Array

FRAME_SAMPLES = SAMPLE_RATE_HZ // MODEL_FPS
"""Samples of a video frame."""

AHEAD = 16 * FRAME_SAMPLES
"""Samples after a window that are used where there are so many: 640 ms; more changes nothing."""

_REFLECTED = MEL_FRAMES_PER_S
"""Mel frames that take the place of what is not known yet: the last second, backwards. With nothing
there, features of the built-in encoder are 9 % farther from those of the whole recording (hop 16
and 8, 160 ms of look-ahead).
"""

_FIRST_PEAK = 1.0
"""Decades: the maximum of loud speech is 1 to 2 higher; one that is too low until then does little
harm.
"""

_LONG = 15 * MODEL_FPS
"""Video frames after which a segment ends in the next pause."""

_MOST = SEGMENT_FRAMES * HOP // FRAME_SAMPLES - AHEAD // FRAME_SAMPLES - 1
"""The most video frames of a segment."""

_GAP = 1 * MODEL_FPS
"""Video frames of silence that a segment may have; after a longer one a new segment begins."""

_PAUSE = 5
"""Video frames of silence in which a long segment may end."""

_LEAST_KEPT = 10 * MODEL_FPS
"""The fewest video frames that are kept of a segment that is cut because it is full: features
change least far from its start.
"""

PAUSE_DB = -40.0
"""How much softer than the loudest video frame one is in a pause."""

_LEAST_LOUDEST = 1e-10
"""The power that the loudest frame has before one was heard: above that of silence."""


class StreamingAudioEncoder:
    """Encodes the speech of a session, into the audio windows of its frames.

    Args:
        filters: the mel bands, float32 `(80, 201)`, from `filters_of`.
        frames: F, those of a window.
    """

    def __init__(self, encode_mel: EncodeMel, filters: Float32Array, frames: int) -> None:
        self._encode_mel = encode_mel
        self._filters = filters
        self._frames = frames
        self._silence = silent_window(encode_mel, _FIRST_PEAK)
        self._peak = _FIRST_PEAK
        self._loudest = _LEAST_LOUDEST
        self._past: dict[int, Float32Array] = {}
        self.segments = 0
        self._begin(0, np.zeros(0, np.float32))

    def _begin(self, at: int, samples: Float32Array) -> None:
        self._first = at
        self._samples = samples
        self._mel = np.zeros((MEL_BANDS, 0), np.float32)
        self.segments += 1

    @property
    def _held(self) -> int:
        return len(self._samples) // FRAME_SAMPLES

    def windows(self, at: int, heard: Float32Array, ahead: Float32Array) -> Float32Array:
        """Returns the audio windows of the F frames that end with the newest, float32 `(F, S, D)`.

        Args:
            at: the number of the first new frame; frames between the last call's and this are
                silent.
            heard: samples of the new frames, 640 each.
            ahead: samples that follow, any number.
        """
        gap = at - (self._first + self._held)
        ends_in_gap = gap > 0 and self._held > _LONG
        if ends_in_gap or not 0 <= gap <= _GAP or not self._held:
            self._begin(at, self._samples[:0])
            gap = 0
        silence = np.zeros(gap * FRAME_SAMPLES, np.float32)
        self._samples = np.concatenate([self._samples, silence, heard])
        self._make_room(at)
        features = self._features(ahead)
        end = at + len(heard) // FRAME_SAMPLES
        frames = np.arange(end - self._frames, end)
        centers = FEATURES_PER_FRAME * np.maximum(frames - self._first, 0)
        attended = features[attended_positions(centers, len(features))]
        windows = attended.reshape(len(frames), *self._silence.shape)
        numbers = frames.tolist()
        for index, frame in enumerate(numbers):
            if frame < self._first:
                windows[index] = self._past.get(frame, self._silence)
        self._past = dict(zip(numbers, windows, strict=True))
        return windows

    def _features(self, ahead: Float32Array) -> Float32Array:
        """Returns the features of the segment so far and of what follows, float32 `(T, L, D)`."""
        mel = self._spectrogram(np.concatenate([self._samples, ahead[:AHEAD]]))
        length = mel.shape[1]
        final = (len(self._samples) - HALF_FFT) // HOP + 1  # others depend on what follows
        self._mel = mel[:, :final]
        reflected = min(_REFLECTED, length - 1)
        continued = np.pad(mel, ((0, 0), (0, reflected)), "reflect")[:, :SEGMENT_FRAMES]
        padded = np.zeros((1, MEL_BANDS, SEGMENT_FRAMES), np.float32)
        padded[0, :, : continued.shape[1]] = scaled(continued, self._peak)
        features = self._encode_mel(padded)[0]
        return features[: length * FEATURES_PER_S // MEL_FRAMES_PER_S]

    def _spectrogram(self, samples: Float32Array) -> Float32Array:
        """Returns the log power of a segment's samples, of which the first frames are there
        already.
        """
        start = self._mel.shape[1]
        padded = np.pad(samples, (HALF_FFT, 0), "reflect")
        new = log_power(padded[start * HOP :], self._filters)
        self._peak = max(self._peak, float(new.max()))
        return np.concatenate([self._mel, new], axis=1)[:, :SEGMENT_FRAMES]

    def _make_room(self, at: int) -> None:
        """Begins a new segment in the pause before frame `at`, or in the quietest one if this one
        is full.
        """
        by_frame = self._samples.reshape(-1, FRAME_SAMPLES)
        powers = np.square(by_frame, dtype=np.float64).mean(axis=1)
        self._loudest = max(self._loudest, float(powers.max()))
        before = at - self._first
        quiet = self._loudest * 10 ** (PAUSE_DB / 10)
        if before > _LONG and powers[before - _PAUSE : before].max() < quiet:
            cut = before - _PAUSE
        elif self._held > _MOST:
            start = self._held - 2 * _LEAST_KEPT
            end = self._held - _LEAST_KEPT
            sums = np.convolve(powers[start:end], np.ones(_PAUSE), "valid")
            cut = start + int(sums.argmin())
        else:
            cut = 0
        if cut:
            self._begin(self._first + cut, self._samples[cut * FRAME_SAMPLES :])
