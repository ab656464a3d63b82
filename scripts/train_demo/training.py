"""Runs all stages of training in order."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from latentsync_trt.export.networks import WhisperEncoder
from scripts.train_demo.clips import Clips, RenderPlan, load_clips, plan_clips, render_clips
from scripts.train_demo.datasets import AudioFeatures, FaceDataset, SpeechDataset
from scripts.train_demo.loop import Losses, TrainingContext, run_stage
from scripts.train_demo.networks import (
    AudioMouthPredictor,
    CheckpointFiles,
    ImageMouthPredictor,
    TrainedUNet,
    initialize,
    make_unet,
    make_vae,
    make_whisper,
    save_checkpoints,
)
from scripts.train_demo.precompile import start_precompile
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


def _train_audio(
    speech: SpeechDataset, held_out: SpeechDataset, settings: Settings, context: TrainingContext
) -> tuple[WhisperEncoder, AudioFeatures]:
    """The audio encoder, and its features of the held-out speech."""
    whisper = make_whisper(settings.sizes, settings.seed).to(context.device)
    predictor = AudioMouthPredictor(settings.sizes.whisper.width)
    initialize(predictor, settings.seed + 1)
    torch.manual_seed(settings.seed)
    stage = AudioStage(whisper, predictor, speech, context).to(context.device)
    run_stage("audio", stage, partial(stage.losses, batch=settings.audio.batch), settings.audio, context)
    features = AudioFeatures(held_out, whisper, None)
    context.log(stage="audio", held_out=audio_mouth_scores(predictor, features, held_out.speech))
    return whisper, features


def _train_vae(faces: FaceDataset, settings: Settings, context: TrainingContext) -> tuple[Vae, float]:
    """The autoencoder, and the scaling factor that gives its latents a standard deviation of 1."""
    vae = make_vae(settings.sizes, settings.seed + 2).to(context.device)
    stage = VaeStage(vae, faces, context)
    run_stage("vae", stage, partial(stage.losses, batch=settings.vae.batch), settings.vae, context)
    scale = 1 / latent_spread(vae, faces, context.generator("latent_spread", 0))
    context.log(stage="vae", scaling_factor=scale)
    return vae, scale


def _train_mouth_predictor(
    vae: Vae, faces: FaceDataset, speech: SpeechDataset, settings: Settings, context: TrainingContext
) -> ImageMouthPredictor:
    torch.manual_seed(settings.seed)
    mouth_predictor = ImageMouthPredictor().to(context.device)
    stage = ImageMouthStage(mouth_predictor, vae, faces, speech, context)
    run_stage("mouth", stage, partial(stage.losses, batch=settings.mouth.batch), settings.mouth, context)
    return mouth_predictor


class _RefreshedFeatures:
    """Audio features of the training speech, computed again at an interval with other augmentation."""

    def __init__(self, speech: SpeechDataset, whisper: WhisperEncoder, context: TrainingContext) -> None:
        self._speech, self._whisper, self._context = speech, whisper, context
        self._number, self._features = -1, None

    def at(self, step: int) -> AudioFeatures:
        """The features for a step; the same after an interruption."""
        number = step // _REFRESH_FEATURES_STEPS
        if self._features is None or number != self._number:
            generator = self._context.generator("features", number)
            self._features = AudioFeatures(self._speech, self._whisper, generator)
            self._number = number
        return self._features


@dataclass(frozen=True, slots=True, eq=False)
class _Validation:
    """Validates on takes that were not trained on, and on some that were."""

    held_out: ValidationSet
    trained_on: ValidationSet
    vae: Vae
    mouth_predictor: ImageMouthPredictor

    def log(self, stage: str, unet: TrainedUNet, context: TrainingContext) -> None:
        """Logs scores and saves previews."""
        for name, validation_set in (("held_out", self.held_out), ("trained_on", self.trained_on)):
            report, images = validate(unet, self.vae, self.mouth_predictor, validation_set)
            context.log(stage=stage, **{name: {key: round(value, 4) for key, value in report.items()}})
            save_preview(context, f"{stage}-{name}", images)


def _train_unet(
    unet: TrainedUNet,
    latents: LatentDataset,
    features: _RefreshedFeatures,
    validation: _Validation,
    settings: Settings,
    context: TrainingContext,
    save: Callable[..., CheckpointFiles],
) -> None:
    """Both stages of the U-Net; checkpoints are also saved between them."""
    stage = UNetStage(unet, latents, context).to(context.device)
    held_out, batch = validation.held_out, settings.unet.batch

    def losses(step: int) -> Losses:
        if step % _VALIDATE_EVERY_STEPS == 0:
            # With gradients, as in training: without them another graph would have to be compiled.
            values = stage.losses(step, batch, held_out.features, held_out.latents)
            context.log(stage="unet", step=step, held_out={name: float(loss.detach()) for name, loss in values.items()})
        return stage.losses(step, batch, features.at(step))

    run_stage("unet", stage, losses, settings.unet, context)
    save(step=settings.unet.steps)
    validation.log("unet", unet, context)
    unet.requires_grad_(True)
    tuning = UNetStage(unet, latents, replace(context, compiled=False)).to(context.device)

    def tuning_losses(step: int) -> Losses:
        vae, mouth_predictor = validation.vae, validation.mouth_predictor
        return tuning.tuning_losses(step, settings.tune.batch, features.at(step), vae, mouth_predictor)

    run_stage("tune", tuning, tuning_losses, settings.tune, context)
    validation.log("tune", unet, context)
