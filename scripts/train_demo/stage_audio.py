"""The audio encoder learns to hear mouths: read from its features as the U-Net will read them."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from latentsync_trt.audio.windows import attended_positions
from latentsync_trt.export.whisper import WhisperEncoder
from scripts.train_demo.datasets import SEGMENT_FRAMES, AudioFeatures, SpeechDataset
from scripts.train_demo.loop import Losses, TrainingContext, to_device
from scripts.train_demo.networks import TRACK_VALUES, AudioMouthPredictor, mouth_errors

_POSITIONS_PER_FRAME = 2
_FRAMES_READ = 128
"""Consecutive frames of each segment that are read in a step."""

_WEIGHTS = (3.0, 1.0, 1.0)
_SHUT_WEIGHT, _SILENT_WEIGHT = 0.1, 0.05
_SHUT_BELOW = 0.06


class AudioStage(nn.Module):
    """Encoder and predictor, trained together.

    A mouth is also asked of every position's own last state. That teaches the encoder in every frame at once, before
    the reader has found out which of the tokens it is given are its frame's.
    """

    def __init__(self, whisper: WhisperEncoder, predictor: AudioMouthPredictor, speech_data: SpeechDataset, context: TrainingContext) -> None:
        super().__init__()
        self.whisper, self.predictor = whisper, reader
        self.own = nn.Linear(whisper.config.width, TRACK_VALUES + 2)
        self._speech_data, self._context = speech_data, context
        self._weights = torch.tensor(_WEIGHTS, device=context.device)

    def losses(self, step: int, batch: int) -> Losses:
        """How far the mouths that are read lie from those that spoke."""
        generator = self._context.generator("audio", step)
        frames = self._speech_data.random_segments(generator, batch)
        features = self.whisper(self._speech_data.mels(frames, generator))
        own = self._compared(self.own(features[:, ::_POSITIONS_PER_FRAME, -1]).flatten(0, 1), frames.ravel())
        first = generator.integers(0, SEGMENT_FRAMES - _FRAMES_READ, batch)
        chosen = first[:, None] + np.arange(_FRAMES_READ)
        read = self._compared(self.predictor(windows_of(features, chosen)), np.take_along_axis(frames, chosen, 1).ravel())
        return {**read, "own": own["shape"], "loss": read["loss"] + own["loss"]}

    def _compared(self, read: Tensor, frames: NDArray[np.int64]) -> Losses:
        """Losses of what was read for `frames (N,)` of the speech; −1 is nobody's frame, and does not count."""
        known = to_device(frames >= 0, self._context.device)
        said = to_device(frames[frames >= 0], self._context.device)
        read = read[known].float()
        track = self._speech_data.track[said]
        shape = mouth_errors(read[:, :TRACK_VALUES], track, self._weights).mean()
        shut = F.binary_cross_entropy_with_logits(read[:, TRACK_VALUES], self._speech_data.shut[said].float())
        silent = F.binary_cross_entropy_with_logits(read[:, TRACK_VALUES + 1], self._speech_data.silent[said].float())
        loss = shape + _SHUT_WEIGHT * shut + _SILENT_WEIGHT * silent
        return {"loss": loss, "shape": shape, "shut": shut, "silent": silent}


def windows_of(features: Tensor, frames: NDArray[np.int64]) -> Tensor:
    """What `frames (B, F)` of segments hear of `features (B, 1500, L, D)`: `(B·F, 10·L, D)`."""
    count, total = features.shape[:2]
    positions = attended_positions(frames.ravel(), total).reshape(*frames.shape, -1)
    index = to_device(positions + np.arange(count)[:, None, None] * total, features.device)
    return features.flatten(0, 1)[index.flatten(0, 1)].flatten(1, 2)


def audio_mouth_scores(predictor: AudioMouthPredictor, features: AudioFeatures, speech_data: SpeechDataset) -> dict[str, float]:
    """How well mouths are read from recordings that were not trained on: correlations, closures, silence."""
    read, said = [], []
    with torch.no_grad():
        for index in range(len(speech_data.speech)):
            frames = np.arange(speech_data.speech.frames(index))
            read.append(predictor(features.tokens(np.array([index]), frames[None])).float())
            said.append(torch.arange(speech_data.speech.starts[index], speech_data.speech.starts[index + 1]))
    values, place = torch.cat(read).cpu().numpy(), torch.cat(said).numpy()
    track, shut, silent = speech_data.speech.track[place], speech_data.speech.shut[place], speech_data.speech.silent[place]
    correlations = [float(np.corrcoef(values[:, i], track[:, i])[0, 1]) for i in range(TRACK_VALUES)]
    return {
        **dict(zip(("opening", "width", "rounding"), correlations, strict=True)),
        "shut_frames": float((values[shut, 0] < _SHUT_BELOW).mean()) if shut.any() else float("nan"),
        "silent_frames": float((values[silent, 0] < _SHUT_BELOW).mean()) if silent.any() else float("nan"),
    }
