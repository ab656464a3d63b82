"""The datasets that stages draw batches from, on the training device: speech, its audio features,
aligned faces.
"""

import numpy as np
import torch
from torch import Tensor

from latentsync_trt.audio.encoder import attended_positions
from latentsync_trt.export.networks import WhisperEncoder
from latentsync_trt.types import Float64Array
from scripts.train_demo.clips import Clips
from scripts.train_demo.loop import normal, to_device
from scripts.train_demo.speech import (
    LOWEST,
    MEL_PER_FRAME,
    RANGE_DECADES,
    STEPS_PER_DECADE,
    Int64Array,
    Speech,
)

SEGMENT_FRAMES = 750  # the audio encoder's input: 30 s
POSITIONS_PER_FRAME = 2
_NO_FRAME = -1

_GAIN_DECADES = (-1.5, 1.0)
_EQUALIZER_DECADES = 0.35
_EQUALIZER_POINTS = 6
_NOISE_BELOW_DECADES = (1.5, 6.0)
_NOISY_SHARE = 0.4
_RIPPLE_DECADES = 0.3


class SpeechDataset:
    """Speech on a device, as segments of 30 s that are filled with recordings in any order."""

    def __init__(self, speech: Speech, device: torch.device) -> None:
        self.speech = speech
        self.device = device
        self._power = torch.from_numpy(speech.power).to(device)
        self.track = torch.from_numpy(speech.track).to(device)
        self.shut = torch.from_numpy(speech.shut).to(device)
        self.silent = torch.from_numpy(speech.silent).to(device)

    def random_segments(self, generator: np.random.Generator, segments: int) -> Int64Array:
        """Speech frame indices of random segments, `(segments, 750)`; −1 is padding.

        One segment in four ends early, as the last segment of a recording does.
        """
        rows = []
        for _ in range(segments):
            row: list[Int64Array] = []
            while sum(map(len, row)) < SEGMENT_FRAMES:
                index = int(generator.integers(len(self.speech)))
                row.append(np.arange(self.speech.starts[index], self.speech.starts[index + 1]))
            full = np.concatenate(row)
            cut = int(generator.integers(len(full) - SEGMENT_FRAMES + 1))
            segment = full[cut : cut + SEGMENT_FRAMES].copy()
            if generator.random() < 0.25:
                segment[int(generator.integers(100, SEGMENT_FRAMES)) :] = _NO_FRAME
            rows.append(segment)
        return np.stack(rows)

    def concatenated(self, order: Int64Array) -> tuple[Int64Array, dict[int, int]]:
        """The recordings in `order`, concatenated and cut into segments `(s, 750)`, and the first
        frame of each.
        """
        frames = np.concatenate(
            [np.arange(self.speech.starts[i], self.speech.starts[i + 1]) for i in order]
        )
        firsts = np.cumsum([0, *(self.speech.frames(int(i)) for i in order)])
        count = -(-len(frames) // SEGMENT_FRAMES)
        padded = np.pad(
            frames, (0, count * SEGMENT_FRAMES - len(frames)), constant_values=_NO_FRAME
        )
        return padded.reshape(count, SEGMENT_FRAMES), {
            int(i): int(f) for i, f in zip(order, firsts, strict=False)
        }

    def mels(self, frames: Int64Array, generator: np.random.Generator) -> Tensor:
        """The audio encoder's input `(B, 80, 3000)` for frames `(B, 750)`, augmented."""
        index = to_device(frames, self.device)
        valid = (index >= 0).repeat_interleave(MEL_PER_FRAME, 1)
        columns = index.clamp_min(0)[..., None] * MEL_PER_FRAME + torch.arange(
            MEL_PER_FRAME, device=self.device
        )
        power = (
            self._power[:, columns.flatten(1)].transpose(0, 1).float() / STEPS_PER_DECADE + LOWEST
        )
        power = _augmented(power, generator)
        peak = power.masked_fill(~valid[:, None], LOWEST).amax((1, 2), keepdim=True)
        mel = (torch.maximum(power, peak - RANGE_DECADES) + 4) / 4
        return mel * valid[:, None]


def _augmented(power: Tensor, generator: np.random.Generator) -> Tensor:
    """Random gain, equalization and additive noise on log10 mel power `(B, 80, n)`."""
    count, bands, columns = power.shape
    position = np.linspace(0, _EQUALIZER_POINTS - 1, bands)

    def curves(spread: float) -> Float64Array:
        knots = generator.normal(0, spread, (count, _EQUALIZER_POINTS))
        return np.stack([np.interp(position, np.arange(_EQUALIZER_POINTS), row) for row in knots])

    color = curves(_EQUALIZER_DECADES) + generator.uniform(*_GAIN_DECADES, (count, 1))
    shifted = power + to_device(color.astype(np.float32), power.device)[..., None]
    below = generator.uniform(*_NOISE_BELOW_DECADES, (count, 1))
    below = np.where(generator.random((count, 1)) < _NOISY_SHARE, below, 12.0)
    level = (
        shifted.amax((1, 2), keepdim=True)
        + to_device((curves(0.6) - below).astype(np.float32), power.device)[..., None]
    )
    noise = level + _RIPPLE_DECADES * normal(generator, (1, bands, columns), power.device)
    return torch.logaddexp(shifted * np.log(10), noise * np.log(10)).clamp_min(
        LOWEST * np.log(10)
    ) / np.log(10)


class AudioFeatures:
    """The audio encoder's features of all recordings."""

    def __init__(
        self, speech_data: SpeechDataset, whisper: WhisperEncoder, generator: np.random.Generator
    ) -> None:
        """Recordings are shuffled and augmented before encoding."""
        segments, self._first = speech_data.concatenated(
            generator.permutation(len(speech_data.speech))
        )
        parts = []
        with torch.no_grad():
            for start in range(0, len(segments), 8):
                features = whisper(speech_data.mels(segments[start : start + 8], generator))
                parts.append(
                    features.to(
                        torch.float16 if speech_data.device.type == "cuda" else torch.float32
                    )
                )
        self._features = torch.cat(parts).flatten(0, 1)
        self._total = int((segments >= 0).sum()) * POSITIONS_PER_FRAME

    def tokens(self, recordings: Int64Array, frames: Int64Array) -> Tensor:
        """Audio features for `frames (B, F)` of `recordings (B,)`: `(B·F, 10·L, D)` float32."""
        firsts = np.array([self._first[int(recording)] for recording in recordings])
        positions = attended_positions(
            POSITIONS_PER_FRAME * (firsts[:, None] + frames).ravel(), self._total
        )
        return self._features[to_device(positions, self._features.device)].flatten(1, 2).float()


class FaceDataset:
    """Aligned faces on a device.

    `spoken (t, n, R, R, 3)` uint8: all takes of all scenes; `recording`, `first` `(t,)`: where
    their speech begins; `scene (t,)`: index into `source (c, n, R, R, 3)`.
    """

    def __init__(self, clips: Clips) -> None:
        if not len(clips.spoken):
            raise ValueError("the face tracker lost the face in every clip; nothing to train on")
        self.spoken = clips.spoken.flatten(0, 1)
        self.source = clips.source
        self.recording = clips.recording.ravel()
        self.first = clips.first.ravel()
        self.scene = np.repeat(np.arange(len(clips.spoken)), clips.spoken.shape[1])
        self.device = self.spoken.device

    def __len__(self) -> int:
        return len(self.recording)

    @property
    def frames(self) -> int:
        """Number of frames of a take."""
        return int(self.spoken.shape[1])


def as_images(faces: Tensor) -> Tensor:
    """uint8 `(..., H, W, 3)` → float32 `(N, 3, H, W)` in [−1, 1]."""
    return faces.flatten(0, -4).permute(0, 3, 1, 2).float() / 127.5 - 1
