"""Training in miniature: losses fall, an interruption changes nothing, and what comes out runs."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.audio.windows import audio_windows
from scripts.train_demo import precompile, stage_unet
from scripts.train_demo.datasets import SEGMENT_FRAMES, FaceDataset, AudioFeatures, SpeechDataset, as_images
from scripts.train_demo.clips import Clips, RenderPlan, render_clips, load_clips, plan_clips
from scripts.train_demo.loop import Losses, TrainingContext, run_stage
from scripts.train_demo.networks import (
    TINY,
    WINDOW_FRAMES,
    AudioMouthPredictor,
    TrainedUNet,
    initialize,
    make_unet,
    make_vae,
    make_whisper,
)
from scripts.train_demo.sampling import sampled_latents
from scripts.train_demo.settings import MINIATURE, StagePlan
from scripts.train_demo.speech import LOWEST, STEPS_PER_DECADE, Speech
from scripts.train_demo.stage_audio import AudioStage, windows_of
from scripts.train_demo.stage_faces import VaeStage, mouth_region
from scripts.train_demo.stage_unet import LatentDataset, UNetStage
from scripts.train_demo.training import TrainingData, train
from scripts.train_demo.visemes import Phoneme, mouth_track
from tests.clips import write_face, write_sound

CPU = torch.device("cpu")
RESOLUTION_PX = 64
FRAMES = 100
CLIP_FRAMES = 20
SCENES, TAKES = 2, 2
FILM = RenderPlan(RESOLUTION_PX, mouths=(4, 3, 2), processes=1)
SOUNDS = "amiubosevalp"

STILL_LEVELS = 3.0
"""Brows and hair: the warp ends below them, and moves what is near its end by a tenth of a pixel."""

FALLS_TO = 0.8
"""What a loss must fall below, of its start, within the steps that a test has time for."""


@pytest.fixture(scope="module")
def speech() -> Speech:
    """Two recordings whose sound is a picture of their mouth: loud where it is open, in a band for its width."""
    generator = np.random.default_rng(0)
    tracks = []
    for _ in range(2):
        ends = 0.4 + np.cumsum(np.full(24, 0.14))
        said = [Phoneme(str(generator.choice(list(SOUNDS))), end - 0.14, end) for end in ends]
        tracks.append(mouth_track(said, FRAMES / 25))
    values = np.concatenate([track.values() for track in tracks])
    columns = np.repeat(values, 4, axis=0)
    bands = np.linspace(-1, 1, 80)[:, None]
    power = -6 + 4 * columns[:, 0] * np.exp(-(((bands - columns[:, 1]) / 0.3) ** 2)) + generator.normal(0, 0.1, (80, 1))
    steps = np.rint((power - LOWEST) * STEPS_PER_DECADE).astype(np.uint8)
    return Speech(
        steps,
        np.full(2, power.max(), np.float32),
        values,
        np.concatenate([track.shut for track in tracks]),
        np.concatenate([track.silent for track in tracks]),
        np.array([0, FRAMES, 2 * FRAMES]),
    )


@pytest.fixture(scope="module")
def clips(speech: Speech, tmp_path_factory: pytest.TempPathFactory) -> Clips:
    plans = plan_clips(speech, CLIP_FRAMES, SCENES, TAKES, seed=3)
    return render_clips(speech, plans, FILM, tmp_path_factory.mktemp("clips"))


@pytest.fixture
def context(tmp_path: Path) -> TrainingContext:
    return TrainingContext(tmp_path, CPU, seed=5, budget_s=600.0)


def journal(context: TrainingContext) -> list[dict[str, float]]:
    lines = (context.folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def first_and_last(network: nn.Module, losses: Callable[[int], Losses], plan: StagePlan, context: TrainingContext) -> float:
    """The loss of a trained network over that of the untrained one, both on the first step's batch."""
    with torch.no_grad():
        before = float(losses(0)["loss"])
    run_stage("stage", network, losses, plan, context)
    with torch.no_grad():
        return float(losses(0)["loss"]) / before


def test_clips_are_aligned_faces_of_both_mouths(speech: Speech, clips: Clips) -> None:
    picture = (RESOLUTION_PX, RESOLUTION_PX, 3)
    assert clips.spoken.shape == (SCENES, TAKES, CLIP_FRAMES, *picture)
    assert clips.source.shape == (SCENES, CLIP_FRAMES, *picture)
    assert clips.found.all()
    apart = np.abs(clips.spoken.astype(int) - clips.source[:, None]).mean(axis=(0, 1, 2, 5))
    mouth = mouth_region(RESOLUTION_PX, CPU).numpy() > 0
    assert apart[mouth].mean() > 3 * apart[~mouth].mean()
    assert apart[: RESOLUTION_PX // 4].max() < STILL_LEVELS
    assert ((clips.first >= 0) & (clips.first <= FRAMES - CLIP_FRAMES)).all()
    assert len({tuple(said) for said in np.stack([clips.recording, clips.first], 2).reshape(-1, 2)}) == SCENES * TAKES


def test_filming_is_repeatable_and_complete_or_absent(speech: Speech, clips: Clips, tmp_path: Path) -> None:
    assert load_clips(tmp_path) is None
    again = render_clips(speech, plan_clips(speech, CLIP_FRAMES, SCENES, TAKES, seed=3)[:1], FILM, tmp_path)
    np.testing.assert_array_equal(again.spoken[0], clips.spoken[0])
    assert load_clips(tmp_path) is not None


@pytest.mark.slow
def test_hearing_is_learnt(speech: Speech, context: TrainingContext) -> None:
    speech_data = SpeechDataset(speech, CPU)
    predictor = AudioMouthPredictor(TINY.whisper.width, blocks=2)
    initialize(predictor, 1)
    stage = AudioStage(make_whisper(TINY, 0), predictor, speech_data, context)
    losses = partial(stage.losses, batch=1)
    assert first_and_last(stage, losses, StagePlan(25, 1, 3e-3, 1.0), context) < FALLS_TO


@pytest.mark.slow
def test_faces_are_learnt(clips: Clips, context: TrainingContext) -> None:
    stage = VaeStage(make_vae(TINY, 0), FaceDataset(clips, CPU), context)
    losses = partial(stage.losses, batch=4)
    assert first_and_last(stage, losses, StagePlan(60, 4, 3e-3, 1.0), context) < FALLS_TO


def painter(speech: Speech, clips: Clips, context: TrainingContext) -> tuple[UNetStage, AudioFeatures]:
    speech_data, faces = SpeechDataset(speech, CPU), FaceDataset(clips, CPU)
    latents = LatentDataset(make_vae(TINY, 0).eval().requires_grad_(False), faces, speech_data, 3.0, context)
    return UNetStage(make_unet(TINY, 0), latents, context), AudioFeatures(speech_data, make_whisper(TINY, 0), None)


@pytest.mark.slow
def test_painting_is_learnt(speech: Speech, clips: Clips, context: TrainingContext) -> None:
    stage, features = painter(speech, clips, context)
    losses = partial(stage.losses, batch=2, features=features)
    assert first_and_last(stage, losses, StagePlan(40, 2, 3e-3, 1.0), context) < FALLS_TO


def test_an_interruption_changes_nothing(speech: Speech, clips: Clips, tmp_path: Path) -> None:
    """Four steps at once, and two and two: the rate of learning follows the plan, so the plan's length is kept."""
    states = []
    for name, stops in (("whole", (4,)), ("halves", (2, 4))):
        context = TrainingContext(tmp_path / name, CPU, seed=5, budget_s=600.0)
        context.folder.mkdir()
        for stop in stops:
            stage, features = painter(speech, clips, context)
            run_until_interrupted(stage, partial(stage.losses, batch=1, features=features), context, stop)
        states.append(torch.load(context.folder / "unet.pt", weights_only=True))
    whole, halves = states
    assert whole["step"] == halves["step"] == 4
    for key in ("network", "average"):
        for name, tensor in whole[key].items():
            torch.testing.assert_close(halves[key][name], tensor, atol=0, rtol=0)


def run_until_interrupted(stage: nn.Module, losses: Callable[[int], Losses], context: TrainingContext, stop: int) -> None:
    """As if checkpoints were written after every step and the machine failed after `stop`."""

    def failing(step: int) -> Losses:
        if step == stop:
            raise KeyboardInterrupt
        return losses(step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scripts.train_demo.loop.CHECKPOINT_EVERY_S", 0.0)
        with pytest.raises(KeyboardInterrupt):
            run_stage("unet", stage, failing, StagePlan(8, 1, 1e-3, 1.0), context)


def test_a_stage_ends_when_its_time_is_up(speech: Speech, tmp_path: Path) -> None:
    context = TrainingContext(tmp_path, CPU, seed=5, budget_s=1e-6)
    weight = nn.Linear(2, 1)
    run_stage("short", weight, lambda step: {"loss": weight(torch.ones(2)).sum()}, StagePlan(1000, 1, 1e-3, 0.1), context)
    assert journal(context)[-1]["step"] == 1
    assert not any(parameter.requires_grad for parameter in weight.parameters())


def test_sound_in_padding_is_not_learnt_from(speech: Speech) -> None:
    speech_data = SpeechDataset(speech, CPU)
    frames = np.full((1, SEGMENT_FRAMES), -1)
    frames[0, :50] = np.arange(50)
    mel = speech_data.mels(frames, None)
    assert mel.shape == (1, 80, 3000)
    assert (mel[..., 200:] == 0).all()
    np.testing.assert_allclose(mel[0, :, :200], speech.mel(0)[:, :200], atol=1e-6)


def test_frames_hear_what_the_pipeline_lets_them_hear(speech: Speech) -> None:
    speech_data, whisper = SpeechDataset(speech, CPU), make_whisper(TINY, 0)
    bank_features = AudioFeatures(speech_data, whisper, None)
    mel = torch.zeros(1, 80, 3000)
    mel[0, :, : 8 * FRAMES] = torch.from_numpy(np.concatenate([speech.mel(0), speech.mel(1)], 1))
    with torch.no_grad():
        features = whisper(mel)[0, : 4 * FRAMES].numpy()
    expected = audio_windows(features, Fraction(2 * FRAMES, 25))
    found = bank_features.tokens(np.array([1]), np.arange(10, 20)[None])
    np.testing.assert_allclose(found.numpy(), expected[FRAMES + 10 : FRAMES + 20], atol=1e-5)
    read = windows_of(torch.from_numpy(features)[None], np.arange(50, 60)[None])
    np.testing.assert_allclose(read.numpy(), expected[50:60], atol=1e-5)


def test_references_are_the_users_frames_or_other_ones_but_never_the_answer(
    speech: Speech, clips: Clips, context: TrainingContext
) -> None:
    speech_data, faces = SpeechDataset(speech, CPU), FaceDataset(clips, CPU)
    latents = LatentDataset(make_vae(TINY, 0).eval().requires_grad_(False), faces, speech_data, 2.0, context)
    features = AudioFeatures(speech_data, make_whisper(TINY, 0), None)
    take, frames = np.array([TAKES, 1]), np.tile(np.arange(WINDOW_FRAMES), (2, 1))
    unconditional = np.array([False, True]).reshape(2, 1, 1, 1)
    batch = latents.windows(take, frames, features, np.array([4, 4]), np.array([False, True]), unconditional)
    torch.testing.assert_close(batch.reference[:WINDOW_FRAMES], latents.source[1, :WINDOW_FRAMES])
    torch.testing.assert_close(batch.reference[WINDOW_FRAMES:], latents.spoken[1, 4 : 4 + WINDOW_FRAMES])
    torch.testing.assert_close(batch.target, latents.spoken[take, :WINDOW_FRAMES].flatten(0, 1))
    assert (batch.audio[:WINDOW_FRAMES] != 0).any()
    assert (batch.audio[WINDOW_FRAMES:] == 0).all()


def test_pictures_are_painted_by_the_pipelines_schedule(speech: Speech, clips: Clips, context: TrainingContext) -> None:
    """A network that knows the noise gives the clean picture; one that predicts nothing gives scaled noise."""
    stage, features = painter(speech, clips, context)
    batch = stage._latents.draw(np.random.default_rng(0), 1, features)
    made = sampled_latents(stage.unet, batch, steps=4)
    assert made.shape == batch.target.shape
    torch.testing.assert_close(made[0], made[-1])  # all frames start from one noise
    assert as_images(torch.zeros(2, 3, 4, 4, 3, dtype=torch.uint8)).shape == (6, 3, 4, 4)


@pytest.mark.slow
def test_what_was_trained_runs_in_the_pipeline(speech: Speech, clips: Clips, tmp_path: Path) -> None:
    """All stages, then the export, then a clip; the result says little, but its parts fit."""
    from scripts.train_demo.release import LIMITS, release

    film = tmp_path / "film"
    for name in ("training", "held-out"):
        shutil.copytree(Path(clips.spoken.filename).parent, film / name)  # type: ignore[attr-defined]
    settings = replace(MINIATURE, resolution_px=RESOLUTION_PX)
    context = TrainingContext(tmp_path / "work", CPU, 5, 600.0)
    train(TrainingData(speech, speech, film, 1), settings, context)
    entries = journal(context)
    assert {"audio", "vae", "mouth_predictor", "unet", "tune"} <= {str(entry.get("stage")) for entry in entries}
    assert (context.folder / "tune-held_out.png").stat().st_size > 0
    bundle = release(context.folder / "checkpoints", tmp_path / "bundle", RESOLUTION_PX, "fp32")
    clip = write_face(tmp_path / "face.mp4", 18)
    sound = write_sound(tmp_path / "speech.wav", 0.72, clicks_s=(0.2,))
    with LipSync.from_bundle(bundle, "cpu") as lip_sync:
        report = lip_sync.sync(clip, sound, tmp_path / "out.mp4", SyncOptions(steps=2, cache_interval=2))
    assert (report.frames, report.frames_with_face, report.bundle) == (18, 18, "demo")
    assert LIMITS in json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))["notes"]


def test_what_is_compiled_ahead_takes_what_the_stage_gives(
    speech: Speech, clips: Clips, context: TrainingContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[tuple[torch.Size, torch.dtype]]] = []
    usual = stage_unet.accelerated

    def noted(
        unet: TrainedUNet, inputs: tuple[Tensor, Tensor, Tensor], context: TrainingContext
    ) -> Callable[..., tuple[Tensor, Tensor]]:
        seen.append([(part.shape, part.dtype) for part in inputs])
        return usual(unet, inputs, context)

    monkeypatch.setattr(precompile, "accelerated", noted)
    monkeypatch.setattr(stage_unet, "accelerated", noted)
    precompile.compile_training_step(MINIATURE, context)
    faces, speech_data = FaceDataset(clips, CPU), SpeechDataset(speech, CPU)
    latents = LatentDataset(make_vae(TINY, 0), faces, speech_data, 1.0, context)
    features = AudioFeatures(speech_data, make_whisper(TINY, 0), None)
    stage = UNetStage(make_unet(TINY, 0), latents, context)
    stage.losses(0, MINIATURE.unet.batch, features)
    assert seen[0] == seen[1]
