"""Trains the audio encoder: mouths are predicted from its features through the U-Net's kind of cross-attention."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from latentsync_trt.audio.encoder import attended_positions
from latentsync_trt.export.networks import WhisperEncoder
from scripts.train_demo.datasets import POSITIONS_PER_FRAME, SEGMENT_FRAMES, AudioFeatures, SpeechDataset
from scripts.train_demo.loop import Losses, TrainingContext, to_device
from scripts.train_demo.networks import TRACK_VALUES, AudioMouthPredictor, mouth_errors
from scripts.train_demo.speech import Speech

_FRAMES_PER_SEGMENT = 128
"""Consecutive frames of each segment whose mouths are predicted in a step."""

_WEIGHTS = (3.0, 1.0, 1.0)
_SHUT_WEIGHT, _SILENT_WEIGHT = 0.1, 0.05
_SHUT_BELOW = 0.06


class AudioStage(nn.Module):
    """Encoder and predictor, trained together.

    A linear head also predicts the mouth from the last state of every position. That trains the encoder on all frames
    at once, before the predictor has learned which of its tokens belong to its frame.
    """

    def __init__(
        self,
        whisper: WhisperEncoder,
        predictor: AudioMouthPredictor,
        speech_data: SpeechDataset,
        context: TrainingContext,
    ) -> None:
        super().__init__()
        self.whisper, self.predictor = whisper, predictor
        self.position_head = nn.Linear(whisper.config.width, TRACK_VALUES + 2)
        self._speech_data, self._context = speech_data, context
        self._weights = torch.tensor(_WEIGHTS, device=context.device)

    def losses(self, step: int, batch: int) -> Losses:
        """Errors of the mouths predicted from audio."""
        generator = self._context.generator("audio", step)
        frames = self._speech_data.random_segments(generator, batch)
        features = self.whisper(self._speech_data.mels(frames, generator))
        by_position = self.position_head(features[:, ::POSITIONS_PER_FRAME, -1]).flatten(0, 1)
        auxiliary = self._mouth_losses(by_position, frames.ravel())
        first = generator.integers(0, SEGMENT_FRAMES - _FRAMES_PER_SEGMENT, batch)
        chosen = first[:, None] + np.arange(_FRAMES_PER_SEGMENT)
        predicted = self.predictor(windows_of(features, chosen))
        main = self._mouth_losses(predicted, np.take_along_axis(frames, chosen, 1).ravel())
        return {**main, "position_head": auxiliary["shape"], "loss": main["loss"] + auxiliary["loss"]}

    def _mouth_losses(self, predicted: Tensor, frames: NDArray[np.int64]) -> Losses:
        """Losses of predictions `(N, 5)` for `frames (N,)` of the speech; −1 is padding and is ignored."""
        valid = to_device(frames >= 0, self._context.device)
        target = to_device(frames[frames >= 0], self._context.device)
        predicted = predicted[valid].float()
        data = self._speech_data
        shape = mouth_errors(predicted[:, :TRACK_VALUES], data.track[target], self._weights).mean()
        shut = F.binary_cross_entropy_with_logits(predicted[:, TRACK_VALUES], data.shut[target].float())
        silent = F.binary_cross_entropy_with_logits(predicted[:, TRACK_VALUES + 1], data.silent[target].float())
        loss = shape + _SHUT_WEIGHT * shut + _SILENT_WEIGHT * silent
        return {"loss": loss, "shape": shape, "shut": shut, "silent": silent}


def windows_of(features: Tensor, frames: NDArray[np.int64]) -> Tensor:
    """The audio tokens for `frames (B, F)` of segments with `features (B, 1500, L, D)`: `(B·F, 10·L, D)`."""
    count, total = features.shape[:2]
    positions = attended_positions(POSITIONS_PER_FRAME * frames.ravel(), total).reshape(*frames.shape, -1)
    index = to_device(positions + np.arange(count)[:, None, None] * total, features.device)
    return features.flatten(0, 1)[index.flatten(0, 1)].flatten(1, 2)


def audio_mouth_scores(predictor: AudioMouthPredictor, features: AudioFeatures, speech: Speech) -> dict[str, float]:
    """Quality of the mouths predicted from all of `speech`: correlations, and shares of frames predicted as shut."""
    predicted = []
    with torch.no_grad():
        for index in range(len(speech)):
            frames = np.arange(speech.frames(index))
            predicted.append(predictor(features.tokens(np.array([index]), frames[None])).float())
    values, shut, silent = torch.cat(predicted).cpu().numpy(), speech.shut, speech.silent
    correlations = [float(np.corrcoef(values[:, i], speech.track[:, i])[0, 1]) for i in range(TRACK_VALUES)]
    return {
        **dict(zip(("opening", "width", "rounding"), correlations, strict=True)),
        "shut_frames": float((values[shut, 0] < _SHUT_BELOW).mean()) if shut.any() else float("nan"),
        "silent_frames": float((values[silent, 0] < _SHUT_BELOW).mean()) if silent.any() else float("nan"),
    }
