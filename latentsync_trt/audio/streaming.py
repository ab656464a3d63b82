"""What each frame hears: speech that grows is encoded again and again, from the start of its
segment.

The encoder depends on all of a segment, so that moving its start changes features as much as half a
second of delay does: a segment grows up to 30 s, and the next one begins in a pause. The
recording's maximum, by which Whisper scales its input, is not known: the highest so far takes its
place. Not thread-safe.
"""

from collections import deque

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
    FFT,
    HOP,
    MEL_BANDS,
    MEL_FRAMES_PER_S,
    SAMPLE_RATE_HZ,
    log_power,
    scaled,
)
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.types import Float32Array

HEARD = SAMPLE_RATE_HZ // MODEL_FPS
"""Samples of a video frame."""

AHEAD = 16 * HEARD
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
_MOST = SEGMENT_FRAMES * HOP // HEARD - AHEAD // HEARD - 1
_GAP = 1 * MODEL_FPS
"""After a longer silence a new segment begins."""

_PAUSE = 5
"""Frames of silence in which a long segment may end."""

_KEPT = 10 * MODEL_FPS
"""Least of a segment that is cut because it is full: features change least far from its start."""

QUIET_DB = -40.0
"""A frame so much softer than the loudest one is a pause."""

_HALF = FFT // 2
_NOTHING = 1e-10


class StreamingAudioEncoder:
    """Audio windows of the frames of a session.

    Args:
        encode_mel: the audio encoder: `mel (1, 80, 3000)` → `features (1, 1500, L, D)`, float32.
        filters: as for `log_power`. frames: F, those of a window.
    """

    def __init__(self, encode_mel: EncodeMel, filters: Float32Array, frames: int) -> None:
        self._encode_mel = encode_mel
        self._filters = filters
        self._frames = frames
        self._silence = silent_window(encode_mel, _FIRST_PEAK)
        self._peak = _FIRST_PEAK
        self._loudest = _NOTHING
        self._past: deque[tuple[int, Float32Array]] = deque(maxlen=frames)
        self.segments = 0
        self._begin(0, np.zeros(0, np.float32))

    def _begin(self, at: int, samples: Float32Array) -> None:
        self._first = at
        self._samples = samples
        self._mel = np.zeros((MEL_BANDS, 0), np.float32)
        self.segments += 1

    @property
    def _held(self) -> int:
        return len(self._samples) // HEARD

    def windows(self, at: int, heard: Float32Array, ahead: Float32Array) -> Float32Array:
        """Audio windows of the F frames that end with the newest, float32 `(F, S, D)`.

        Args:
            at: number of the first new frame; frames between the last call's and this are silent.
            heard: samples of the new ones, 640 each. ahead: what follows, of any length.
        """
        gap = at - (self._first + self._held)
        if gap < 0 or gap > _GAP or not self._held or (gap and self._held > _LONG):
            self._begin(at, self._samples[:0])
            gap = 0
        self._samples = np.concatenate([self._samples, np.zeros(gap * HEARD, np.float32), heard])
        self._make_room(at)
        features = self._features(ahead)
        end = at + len(heard) // HEARD
        past = dict(self._past)
        frames = range(end - self._frames, end)
        centers = np.array(
            [FEATURES_PER_FRAME * max(frame - self._first, 0) for frame in frames], np.int64
        )
        attended = features[attended_positions(centers, len(features))].reshape(
            len(frames), *self._silence.shape
        )
        for place, frame in enumerate(frames):
            if frame < self._first:
                attended[place] = past.get(frame, self._silence)
        self._past = deque(zip(frames, attended, strict=True), maxlen=self._frames)
        return attended

    def _features(self, ahead: Float32Array) -> Float32Array:
        """Of the segment so far and what follows, float32 `(T, L, D)`."""
        start = self._mel.shape[1]
        samples = np.concatenate([self._samples, ahead[:AHEAD]])
        padded = np.pad(samples, (_HALF, 0), "reflect")[start * HOP :]
        new = log_power(padded, self._filters)
        self._peak = max(self._peak, float(new.max()))
        mel = np.concatenate([self._mel, new], axis=1)[:, :SEGMENT_FRAMES]
        self._mel = mel[:, : (len(self._samples) - _HALF) // HOP + 1]
        reflected = np.pad(mel, ((0, 0), (0, min(_REFLECTED, mel.shape[1] - 1))), "reflect")[
            :, :SEGMENT_FRAMES
        ]
        shown = np.pad(
            scaled(reflected, self._peak), ((0, 0), (0, SEGMENT_FRAMES - reflected.shape[1]))
        )
        return self._encode_mel(shown[None])[0][: mel.shape[1] * FEATURES_PER_S // MEL_FRAMES_PER_S]

    def _make_room(self, at: int) -> None:
        """Begins a new segment in the pause before frame `at`, or in the quietest one if this one
        is full.
        """
        powers = np.square(self._samples.reshape(-1, HEARD), dtype=np.float64).mean(axis=1)
        self._loudest = max(self._loudest, float(powers.max()))
        before = at - self._first
        cut = 0
        if (
            before > _LONG
            and (powers[before - _PAUSE : before] < self._loudest * 10 ** (QUIET_DB / 10)).all()
        ):
            cut = before - _PAUSE
        elif self._held > _MOST:
            means = np.convolve(powers[: self._held - _KEPT], np.ones(_PAUSE), "valid")
            start = self._held - 2 * _KEPT
            cut = start + int(means[start:].argmin())
        if cut:
            self._begin(self._first + cut, self._samples[cut * HEARD :])
