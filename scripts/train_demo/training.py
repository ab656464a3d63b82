"""Runs all stages of training in order."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from latentsync_trt.export.whisper import WhisperEncoder
from scripts.train_demo.precompile import start_precompile
from scripts.train_demo.datasets import FaceDataset, AudioFeatures, SpeechDataset
from scripts.train_demo.clips import Clips, RenderPlan, render_clips, load_clips, plan_clips
from scripts.train_demo.loop import Losses, TrainingContext, run_stage
from scripts.train_demo.networks import (
    CheckpointFiles,
    AudioMouthPredictor,
    ImageMouthPredictor,
    TrainedUNet,
    initialize,
    make_unet,
    make_vae,
    make_whisper,
    save_checkpoints,
)
from scripts.train_demo.sampling import ValidationSet, save_preview, validate
from scripts.train_demo.settings import Settings
from scripts.train_demo.speech import Speech
from scripts.train_demo.stage_audio import AudioStage, audio_mouth_scores
from scripts.train_demo.stage_faces import ImageMouthStage, VaeStage, latent_spread
from scripts.train_demo.stage_unet import LatentDataset, UNetStage
from scripts.train_demo.vae import Vae

_HELD_OUT_TAKES, _TRAINED_TAKES = 24, 8
_VALIDATE_EVERY_STEPS = 500
_REFRESH_FEATURES_STEPS = 1000
"""Interval at which audio features are computed again, with other augmentation."""


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Speech to train on and held-out speech, the folder of their rendered clips, and processes for rendering."""

    speech: Speech
    held_out: Speech
    folder: Path
    processes: int


def render(data: TrainingData, settings: Settings) -> tuple[Clips, Clips]:
    """Renders clips to train on, and clips of held-out speech and camera paths, or loads them if they exist."""
    rendered = []
    plan = settings.data
    for name, speech, count, takes, seed in (
        ("training", data.speech, plan.clips, plan.takes, settings.seed),
        ("held-out", data.held_out, plan.held_out_clips, 1, settings.seed + 1),
    ):
        folder = data.folder / name
        clips = load_clips(folder)
        if clips is None:
            plans = plan_clips(speech, plan.clip_frames, count, takes, seed)
            clips = render_clips(speech, plans, RenderPlan(settings.resolution_px, plan.mouths, data.processes), folder)
        rendered.append(clips)
    return rendered[0], rendered[1]


def train(data: TrainingData, settings: Settings, context: TrainingContext) -> CheckpointFiles:
    """Trains all networks, resuming from checkpoints in the context's folder, and writes their final checkpoints."""
    context.folder.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    speech = SpeechDataset(data.speech, context.device)
    held_out_speech = SpeechDataset(data.held_out, context.device)
    compiling = start_precompile(settings, context) if context.compiled else None
    with ThreadPoolExecutor(1) as executor:
        rendering = executor.submit(render, data, settings)
        whisper, held_out_features = _train_audio(speech, held_out_speech, settings, context)
        clips, held_out_clips = rendering.result()
    context.log(scenes=len(clips.tracked), lost=int((~clips.tracked).sum()), held_out=len(held_out_clips.tracked))
    faces = FaceDataset(clips, context.device)
    vae, scale = _train_vae(faces, settings, context)
    mouth_predictor = _train_mouth_predictor(vae, faces, speech, settings, context)
    latents = LatentDataset(vae, faces, speech, scale, context)
    held_out_faces = FaceDataset(held_out_clips, context.device)
    validation = _Validation(
        ValidationSet(
            LatentDataset(vae, held_out_faces, held_out_speech, scale, context), held_out_features, _HELD_OUT_TAKES
        ),
        ValidationSet(latents, AudioFeatures(speech, whisper, None), _TRAINED_TAKES),
        vae,
        mouth_predictor,
    )
    if compiling is not None:
        compiling.join()
        context.log(stage="unet", precompiled=compiling.exitcode == 0)
    unet = make_unet(settings.sizes, settings.seed + 3).to(context.device)
    save = partial(save_checkpoints, context.folder / "checkpoints", unet, whisper, vae, scale)
    _train_unet(unet, latents, _RefreshedFeatures(speech, whisper, context), validation, settings, context, save)
    return save(step=settings.unet.steps + settings.tune.steps)
