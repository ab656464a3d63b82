"""The order of the stages, and what each hands to the next."""

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
from scripts.train_demo.sampling import ValidationSet, judged, save_preview
from scripts.train_demo.settings import Settings
from scripts.train_demo.speech import Speech
from scripts.train_demo.stage_audio import AudioStage, audio_mouth_scores
from scripts.train_demo.stage_faces import ImageMouthStage, VaeStage, latent_spread
from scripts.train_demo.stage_unet import LatentDataset, UNetStage
from scripts.train_demo.vae import Vae

_HELD_OUT_TAKES, _TRAINED_TAKES = 24, 8
_VALIDATE_EVERY_STEPS = 500
_FEATURES_FOR_STEPS = 1000
"""After so many steps the recordings are heard anew, in another order and other sound."""


@dataclass(frozen=True, slots=True)
class TrainingData:
    """What is trained on, and what is not: speech, and where its clips are, or will be, filmed."""

    speech: Speech
    held_out: Speech
    folder: Path
    processes: int


def film(data: TrainingData, settings: Settings) -> tuple[Clips, Clips]:
    """Films what is not there yet: clips to train on, and clips of held-out speech on held-out camera paths."""
    filmed = []
    data = settings.data
    for name, speech, count, takes, seed in (
        ("training", data.speech, data.clips, data.takes, settings.seed),
        ("held-out", data.held_out, data.held_out_clips, 1, settings.seed + 1),
    ):
        folder = data.folder / name
        found = load_clips(folder)
        if found is None:
            plans = plan_clips(speech, data.clip_frames, count, takes, seed)
            found = render_clips(speech, plans, RenderPlan(settings.resolution_px, data.mouths, data.processes), folder)
        filmed.append(found)
    return filmed[0], filmed[1]


def train(data: TrainingData, settings: Settings, context: TrainingContext) -> CheckpointFiles:
    """Trains all networks, from the last checkpoint if there is one, and writes them as published ones are."""
    context.folder.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    speech_data, held = SpeechDataset(data.speech, context.device), SpeechDataset(data.held_out, context.device)
    compiling = start_precompile(settings, context) if context.compiled else None
    with ThreadPoolExecutor(1) as pool:
        filming = pool.submit(film, data, settings)
        whisper, heard = _train_audio(speech_data, held_out_data, settings, context)
        clips, held_clips = filming.result()
    context.note(scenes=len(clips.found), lost=int((~clips.found).sum()), held_out=len(held_clips.found))
    faces = FaceDataset(clips, context.device)
    vae, scale = _train_vae(faces, settings, context)
    torch.manual_seed(settings.seed)
    mouth_predictor = ImageMouthPredictor().to(context.device)
    stage = ImageMouthStage(mouth_predictor, vae, faces, speech_data, context)
    run_stage("mouth_predictor", stage, partial(stage.losses, batch=settings.mouth_predictor.batch), settings.mouth_predictor, context)
    latents = LatentDataset(vae, faces, speech_data, scale, context)
    unet = make_unet(settings.sizes, settings.seed + 3).to(context.device)
    held_latents = LatentDataset(vae, FaceDataset(held_clips, context.device), held_out_data, scale, context)
    validation = _Validation(
        ValidationSet(held_latents, heard, _HELD_OUT_TAKES),
        ValidationSet(latents, AudioFeatures(speech_data, whisper, None), _TRAINED_TAKES),
        vae,
        mouth_predictor,
    )
    files = partial(save_checkpoints, context.folder / "checkpoints", unet, whisper, vae, scale)
    painter = UNetStage(unet, latents, context).to(context.device)
    features = _RefreshedFeatures(speech_data, whisper, context)
    paint = partial(_paint, painter, features, settings.unet.batch, validation.held_out, context)
    if compiling is not None:
        compiling.join()
        context.note(stage="unet", compiled_ahead=compiling.exitcode == 0)
    run_stage("unet", painter, paint, settings.unet, context)
    files(step=settings.unet.steps)
    validation.log("unet", unet, context)
    unet.requires_grad_(True)
    tuner = UNetStage(unet, latents, replace(context, compiled=False)).to(context.device)
    tune = partial(_tune, tuner, features, settings.tune.batch, vae, mouth_predictor)
    run_stage("tune", tuner, tune, settings.tune, context)
    validation.log("tune", unet, context)
    return files(step=settings.unet.steps + settings.tune.steps)


def _train_audio(
    speech_data: SpeechDataset, held_out_data: SpeechDataset, settings: Settings, context: TrainingContext
) -> tuple[WhisperEncoder, AudioFeatures]:
    """The audio encoder, and what it hears of the held-out speech."""
    whisper = make_whisper(settings.sizes, settings.seed).to(context.device)
    predictor = AudioMouthPredictor(settings.sizes.whisper.width)
    initialize(predictor, settings.seed + 1)
    torch.manual_seed(settings.seed)
    stage = AudioStage(whisper, predictor, speech_data, context).to(context.device)
    run_stage("audio", stage, partial(stage.losses, batch=settings.audio.batch), settings.audio, context)
    heard = AudioFeatures(held_out_data, whisper, None)
    context.note(stage="audio", held_out=audio_mouth_scores(predictor, heard, held_out_data))
    return whisper, heard


def _train_vae(faces: FaceDataset, settings: Settings, context: TrainingContext) -> tuple[Vae, float]:
    """The autoencoder, and the factor that gives its latents the spread of the noise."""
    vae = make_vae(settings.sizes, settings.seed + 2).to(context.device)
    stage = VaeStage(vae, faces, context)
    run_stage("vae", stage, partial(stage.losses, batch=settings.vae.batch), settings.vae, context)
    scale = 1 / latent_spread(vae, faces, context.generator("spread", 0))
    context.note(stage="vae", scaling_factor=scale)
    return vae, scale


class _RefreshedFeatures:
    """What is heard of the training speech, renewed now and then."""

    def __init__(self, speech_data: SpeechDataset, whisper: WhisperEncoder, context: TrainingContext) -> None:
        self._speech_data, self._whisper, self._context = speech_data, whisper, context
        self._number, self._features = -1, None

    def features(self, step: int) -> AudioFeatures:
        """The features for a step; the same after an interruption."""
        number = step // _FEATURES_FOR_STEPS
        if self._features is None or number != self._number:
            self._features = AudioFeatures(self._speech_data, self._whisper, self._context.generator("hear", number))
            self._number = number
        return self._features


@dataclass(frozen=True, slots=True, eq=False)
class _Validation:
    """Who look at what is painted into takes that were never trained on, and into some that were."""

    held_out: ValidationSet
    trained_on: ValidationSet
    vae: Vae
    mouth_predictor: ImageMouthPredictor

    def log(self, stage: str, unet: TrainedUNet, context: TrainingContext) -> None:
        """Notes how well the U-Net paints, and shows it."""
        for name, examined in (("held_out", self.held_out), ("trained_on", self.trained_on)):
            report, pictures = validate(unet, self.vae, self.mouth_predictor, examined)
            context.note(stage=stage, **{name: {key: round(value, 4) for key, value in report.items()}})
            save_preview(context, f"{stage}-{name}", pictures)


def _paint(
    stage: UNetStage, features: _RefreshedFeatures, batch: int, held_out: ValidationSet, context: TrainingContext, step: int
) -> Losses:
    if step % _VALIDATE_EVERY_STEPS == 0:
        # Through the graph that trains, gradients and all: another one would have to be compiled.
        unknown = stage.losses(step, batch, held_out.heard, held_out.latents)
        context.note(stage="unet", step=step, unknown={name: float(value.detach()) for name, value in unknown.items()})
    return stage.losses(step, batch, features.features(step))


def _tune(stage: UNetStage, features: _RefreshedFeatures, batch: int, vae: Vae, mouth_predictor: ImageMouthPredictor, step: int) -> Losses:
    return stage.tuned(step, batch, features.features(step), vae, mouth_predictor)
