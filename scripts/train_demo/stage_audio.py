"""Trains the audio encoder: mouths are predicted from its features through the U-Net's kind of
cross-attention.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latentsync_trt.audio.encoder import attended_positions
from latentsync_trt.export.networks import WhisperConfig, WhisperEncoder
from scripts.train_demo.datasets import POSITIONS_PER_FRAME, SEGMENT_FRAMES, SpeechDataset
from scripts.train_demo.loop import (
    Losses,
    StagePlan,
    TrainingContext,
    graphed,
    run_stage,
    to_device,
)
from scripts.train_demo.networks import (
    TRACK_VALUES,
    AudioMouthPredictor,
    Sizes,
    initialize,
    mouth_errors,
)
from scripts.train_demo.speech import Int64Array

_FRAMES_PER_SEGMENT = 128  # consecutive frames of each segment whose mouths are predicted in a step
_WEIGHTS = (3.0, 1.0, 1.0, 1.0, 0.5)
_SHUT_WEIGHT = 0.1
_SILENT_WEIGHT = 0.05


def train_audio(
    sizes: Sizes, speech: SpeechDataset, plan: StagePlan, context: TrainingContext
) -> WhisperEncoder:
    """The audio encoder, trained together with a predictor of mouths.

    A linear head also predicts the mouth from the last state of every position. That trains the
    encoder on all frames at once, before the predictor has learned which of its tokens belong to
    its frame.
    """
    whisper = WhisperEncoder(
        WhisperConfig(80, 1500, sizes.audio_width, heads=4, blocks=sizes.audio_blocks)
    )
    predictor = AudioMouthPredictor(sizes.audio_width)
    initialize(whisper, context.seed)
    whisper.positional_embedding.requires_grad_(False)
    initialize(predictor, context.seed + 1)
    torch.manual_seed(context.seed)
    head = nn.Linear(sizes.audio_width, TRACK_VALUES + 2)
    stage = nn.ModuleList([whisper, predictor, head]).to(context.device)
    weights = torch.tensor(_WEIGHTS, device=context.device)

    calls: list[Callable[..., Any]] = []

    def mouth_losses(predicted: Tensor, frames: Int64Array) -> Losses:
        """Losses of predictions `(N, 7)` for `frames (N,)` of the speech; −1 is padding and is
        ignored.
        """
        target = to_device(frames[frames >= 0], context.device)
        predicted = predicted[to_device(frames >= 0, context.device)].float()
        shape = mouth_errors(predicted[:, :TRACK_VALUES], speech.track[target], weights).mean()
        shut = F.binary_cross_entropy_with_logits(
            predicted[:, TRACK_VALUES], speech.shut[target].float()
        )
        silent = F.binary_cross_entropy_with_logits(
            predicted[:, TRACK_VALUES + 1], speech.silent[target].float()
        )
        loss = shape + _SHUT_WEIGHT * shut + _SILENT_WEIGHT * silent
        return {"loss": loss, "shape": shape, "shut": shut, "silent": silent}

    def losses(step: int) -> Losses:
        """Errors of the mouths predicted from audio."""
        generator = context.generator("audio", step)
        frames = speech.random_segments(generator, plan.batch)
        mels = speech.mels(frames, generator)
        if not calls:
            calls.append(graphed(whisper, (mels,)))
        features = calls[0](mels)
        auxiliary = mouth_losses(
            head(features[:, ::POSITIONS_PER_FRAME, -1]).flatten(0, 1), frames.ravel()
        )
        first = generator.integers(0, SEGMENT_FRAMES - _FRAMES_PER_SEGMENT, plan.batch)
        chosen = first[:, None] + np.arange(_FRAMES_PER_SEGMENT)
        main = mouth_losses(
            predictor(_windows_of(features, chosen)), np.take_along_axis(frames, chosen, 1).ravel()
        )
        return {
            **main,
            "position_head": auxiliary["shape"],
            "loss": main["loss"] + auxiliary["loss"],
        }

    run_stage("audio", stage, losses, plan, context)
    return whisper


def _windows_of(features: Tensor, frames: Int64Array) -> Tensor:
    """The audio tokens for `frames (B, F)` of segments with `features (B, 1500, L, D)`: `(B·F,
    10·L, D)`.
    """
    count, total = features.shape[:2]
    positions = attended_positions(POSITIONS_PER_FRAME * frames.ravel(), total).reshape(
        *frames.shape, -1
    )
    index = to_device(positions + np.arange(count)[:, None, None] * total, features.device)
    return features.flatten(0, 1)[index.flatten(0, 1)].flatten(1, 2)
