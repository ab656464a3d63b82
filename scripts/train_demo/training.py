"""The order of the stages, and what each hands to the next."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from latentsync_trt.export.whisper import WhisperEncoder
from scripts.train_demo.ahead import compile_ahead
from scripts.train_demo.banks import FaceBank, FeatureBank, SpeechBank
from scripts.train_demo.clips import Clips, FilmPlan, film_clips, load_clips, plan_clips
from scripts.train_demo.loop import Losses, Workshop, run_stage
from scripts.train_demo.networks import (
    CheckpointFiles,
    MouthReader,
    MouthSeer,
    TrainedUNet,
    initialize,
    make_unet,
    make_vae,
    make_whisper,
    save_checkpoints,
)
from scripts.train_demo.sampling import Examination, judged, show
from scripts.train_demo.settings import Settings
from scripts.train_demo.speech import Speech
from scripts.train_demo.stage_audio import AudioStage, heard_mouths
from scripts.train_demo.stage_faces import SeerStage, VaeStage, latent_spread
from scripts.train_demo.stage_unet import LatentBank, UNetStage
from scripts.train_demo.vae import Vae

_HELD_OUT_TAKES, _TRAINED_TAKES = 24, 8
_LOOK_EVERY_STEPS = 500
_FEATURES_FOR_STEPS = 1000
"""After so many steps the recordings are heard anew, in another order and other sound."""


@dataclass(frozen=True, slots=True)
class Material:
    """What is trained on, and what is not: speech, and where its clips are, or will be, filmed."""

    speech: Speech
    held_out: Speech
    folder: Path
    processes: int


def film(material: Material, settings: Settings) -> tuple[Clips, Clips]:
    """Films what is not there yet: clips to train on, and clips of held-out speech on held-out camera paths."""
    filmed = []
    data = settings.data
    for name, speech, count, takes, seed in (
        ("training", material.speech, data.clips, data.takes, settings.seed),
        ("held-out", material.held_out, data.held_out_clips, 1, settings.seed + 1),
    ):
        folder = material.folder / name
        found = load_clips(folder)
        if found is None:
            plans = plan_clips(speech, data.clip_frames, count, takes, seed)
            found = film_clips(speech, plans, FilmPlan(settings.resolution_px, data.mouths, material.processes), folder)
        filmed.append(found)
    return filmed[0], filmed[1]


def train(material: Material, settings: Settings, workshop: Workshop) -> CheckpointFiles:
    """Trains all networks, from the last checkpoint if there is one, and writes them as published ones are."""
    workshop.folder.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    bank, held = SpeechBank(material.speech, workshop.device), SpeechBank(material.held_out, workshop.device)
    compiling = compile_ahead(settings, workshop) if workshop.compiled else None
    with ThreadPoolExecutor(1) as crew:
        filming = crew.submit(film, material, settings)
        whisper, heard = _train_audio(bank, held, settings, workshop)
        clips, held_clips = filming.result()
    workshop.note(scenes=len(clips.found), lost=int((~clips.found).sum()), held_out=len(held_clips.found))
    faces = FaceBank(clips, workshop.device)
    vae, scale = _train_vae(faces, settings, workshop)
    torch.manual_seed(settings.seed)
    seer = MouthSeer().to(workshop.device)
    stage = SeerStage(seer, vae, faces, bank, workshop)
    run_stage("seer", stage, partial(stage.losses, batch=settings.seer.batch), settings.seer, workshop)
    latents = LatentBank(vae, faces, bank, scale, workshop)
    unet = make_unet(settings.sizes, settings.seed + 3).to(workshop.device)
    held_latents = LatentBank(vae, FaceBank(held_clips, workshop.device), held, scale, workshop)
    examiners = _Examiners(
        Examination(held_latents, heard, _HELD_OUT_TAKES),
        Examination(latents, FeatureBank(bank, whisper, None), _TRAINED_TAKES),
        vae,
        seer,
    )
    files = partial(save_checkpoints, workshop.folder / "checkpoints", unet, whisper, vae, scale)
    painter = UNetStage(unet, latents, workshop).to(workshop.device)
    listener = _Listener(bank, whisper, workshop)
    paint = partial(_paint, painter, listener, settings.unet.batch, examiners.held_out, workshop)
    if compiling is not None:
        compiling.join()
        workshop.note(stage="unet", compiled_ahead=compiling.exitcode == 0)
    run_stage("unet", painter, paint, settings.unet, workshop)
    files(step=settings.unet.steps)
    examiners.note("unet", unet, workshop)
    unet.requires_grad_(True)
    tuner = UNetStage(unet, latents, replace(workshop, compiled=False)).to(workshop.device)
    tune = partial(_tune, tuner, listener, settings.tune.batch, vae, seer)
    run_stage("tune", tuner, tune, settings.tune, workshop)
    examiners.note("tune", unet, workshop)
    return files(step=settings.unet.steps + settings.tune.steps)


def _train_audio(
    bank: SpeechBank, held: SpeechBank, settings: Settings, workshop: Workshop
) -> tuple[WhisperEncoder, FeatureBank]:
    """The audio encoder, and what it hears of the held-out speech."""
    whisper = make_whisper(settings.sizes, settings.seed).to(workshop.device)
    reader = MouthReader(settings.sizes.whisper.width)
    initialize(reader, settings.seed + 1)
    torch.manual_seed(settings.seed)
    stage = AudioStage(whisper, reader, bank, workshop).to(workshop.device)
    run_stage("audio", stage, partial(stage.losses, batch=settings.audio.batch), settings.audio, workshop)
    heard = FeatureBank(held, whisper, None)
    workshop.note(stage="audio", held_out=heard_mouths(reader, heard, held))
    return whisper, heard


def _train_vae(faces: FaceBank, settings: Settings, workshop: Workshop) -> tuple[Vae, float]:
    """The autoencoder, and the factor that gives its latents the spread of the noise."""
    vae = make_vae(settings.sizes, settings.seed + 2).to(workshop.device)
    stage = VaeStage(vae, faces, workshop)
    run_stage("vae", stage, partial(stage.losses, batch=settings.vae.batch), settings.vae, workshop)
    scale = 1 / latent_spread(vae, faces, workshop.generator("spread", 0))
    workshop.note(stage="vae", scaling_factor=scale)
    return vae, scale


class _Listener:
    """What is heard of the training speech, renewed now and then."""

    def __init__(self, bank: SpeechBank, whisper: WhisperEncoder, workshop: Workshop) -> None:
        self._bank, self._whisper, self._workshop = bank, whisper, workshop
        self._number, self._features = -1, None

    def features(self, step: int) -> FeatureBank:
        """The features for a step; the same after an interruption."""
        number = step // _FEATURES_FOR_STEPS
        if self._features is None or number != self._number:
            self._features = FeatureBank(self._bank, self._whisper, self._workshop.generator("hear", number))
            self._number = number
        return self._features


@dataclass(frozen=True, slots=True, eq=False)
class _Examiners:
    """Who look at what is painted into takes that were never trained on, and into some that were."""

    held_out: Examination
    trained_on: Examination
    vae: Vae
    seer: MouthSeer

    def note(self, stage: str, unet: TrainedUNet, workshop: Workshop) -> None:
        """Notes how well the U-Net paints, and shows it."""
        for name, examined in (("held_out", self.held_out), ("trained_on", self.trained_on)):
            report, pictures = judged(unet, self.vae, self.seer, examined)
            workshop.note(stage=stage, **{name: {key: round(value, 4) for key, value in report.items()}})
            show(workshop, f"{stage}-{name}", pictures)


def _paint(
    stage: UNetStage, listener: _Listener, batch: int, held_out: Examination, workshop: Workshop, step: int
) -> Losses:
    if step % _LOOK_EVERY_STEPS == 0:
        # Through the graph that trains, gradients and all: another one would have to be compiled.
        unknown = stage.losses(step, batch, held_out.heard, held_out.latents)
        workshop.note(stage="unet", step=step, unknown={name: float(value.detach()) for name, value in unknown.items()})
    return stage.losses(step, batch, listener.features(step))


def _tune(stage: UNetStage, listener: _Listener, batch: int, vae: Vae, seer: MouthSeer, step: int) -> Losses:
    return stage.tuned(step, batch, listener.features(step), vae, seer)
