"""Training in miniature: losses decrease, training resumes exactly, and the exported result runs."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.audio.windows import audio_windows
from scripts.train_demo.clips import Clips, RenderPlan, load_clips, plan_clips, render_clips
from scripts.train_demo.datasets import SEGMENT_FRAMES, AudioFeatures, FaceDataset, SpeechDataset
from scripts.train_demo.loop import Losses, TrainingContext, run_stage
from scripts.train_demo.networks import (
    TINY,
    WINDOW_FRAMES,
    make_unet,
    make_vae,
    make_whisper,
)
from scripts.train_demo.sampling import sampled_latents
from scripts.train_demo.settings import MINIATURE, StagePlan
from scripts.train_demo.speech import LOWEST, STEPS_PER_DECADE, Speech
from scripts.train_demo.stage_audio import windows_of
from scripts.train_demo.stage_faces import mouth_region
from scripts.train_demo.stage_unet import LatentDataset, UNetStage
from scripts.train_demo.training import TrainingData, train
from scripts.train_demo.visemes import Phoneme, mouth_track
from tests.clips import write_face, write_sound

CPU = torch.device("cpu")
RESOLUTION_PX = 64
FRAMES = 100
CLIP_FRAMES = 20
SCENES, TAKES = 2, 2
RENDERING = RenderPlan(RESOLUTION_PX, mouths=(4, 3, 2), processes=1)
SOUNDS = "amiubosevalp"

STILL_LEVELS = 3.0
"""Largest change of brows and hair: the warp ends below them, and moves pixels near its end by a tenth of a pixel."""


@pytest.fixture(scope="module")
def speech() -> Speech:
    """Two recordings whose spectrogram shows the mouth: power is its opening, the frequency band its width."""
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
    return render_clips(speech, plans, RENDERING, tmp_path_factory.mktemp("clips"))


@pytest.fixture
def context(tmp_path: Path) -> TrainingContext:
    return TrainingContext(tmp_path, CPU, seed=5, budget_s=600.0)


def read_log(context: TrainingContext) -> list[dict[str, float]]:
    lines = (context.folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_clips_are_aligned_faces_that_differ_in_the_mouth(speech: Speech, clips: Clips) -> None:
    picture = (RESOLUTION_PX, RESOLUTION_PX, 3)
    assert clips.spoken.shape == (SCENES, TAKES, CLIP_FRAMES, *picture)
    assert clips.source.shape == (SCENES, CLIP_FRAMES, *picture)
    assert clips.tracked.all()
    difference = np.abs(clips.spoken.astype(int) - clips.source[:, None]).mean(axis=(0, 1, 2, 5))
    mouth = mouth_region(RESOLUTION_PX, CPU).numpy() > 0
    assert difference[mouth].mean() > 3 * difference[~mouth].mean()
    assert difference[: RESOLUTION_PX // 4].max() < STILL_LEVELS
    assert ((clips.first >= 0) & (clips.first <= FRAMES - CLIP_FRAMES)).all()
    segments = np.stack([clips.recording, clips.first], 2).reshape(-1, 2)
    assert len(np.unique(segments, axis=0)) == SCENES * TAKES


def test_clips_load_only_if_complete(clips: Clips, tmp_path: Path) -> None:
    assert load_clips(tmp_path) is None
    shutil.copy(clip_folder(clips) / "spoken.npy", tmp_path)
    assert load_clips(tmp_path) is None
    loaded = load_clips(clip_folder(clips))
    assert loaded is not None
    np.testing.assert_array_equal(loaded.spoken, clips.spoken)
    np.testing.assert_array_equal(loaded.first, clips.first)


def clip_folder(clips: Clips) -> Path:
    return Path(clips.spoken.filename).parent  # type: ignore[attr-defined]


def unet_stage(speech: Speech, clips: Clips, context: TrainingContext) -> tuple[UNetStage, AudioFeatures]:
    speech_data, faces = SpeechDataset(speech, CPU), FaceDataset(clips, CPU)
    latents = LatentDataset(make_vae(TINY, 0).eval().requires_grad_(False), faces, speech_data, 3.0, context)
    return UNetStage(make_unet(TINY, 0), latents, context), AudioFeatures(speech_data, make_whisper(TINY, 0), None)


def test_an_interruption_does_not_change_the_result(tmp_path: Path) -> None:
    def make_stage(context: TrainingContext) -> tuple[nn.Module, Callable[[int], Losses]]:
        torch.manual_seed(1)
        layer = nn.Linear(3, 1)

        def losses(step: int) -> Losses:
            inputs = torch.from_numpy(context.generator("unet", step).normal(size=(4, 3))).float()
            return {"loss": (layer(inputs) ** 2).mean()}

        return layer, losses

    assert_resumes_exactly(make_stage, tmp_path)


def assert_resumes_exactly(
    make_stage: Callable[[TrainingContext], tuple[nn.Module, Callable[[int], Losses]]], folder: Path
) -> None:
    """Four steps in one run give the same state as two runs of two steps."""
    states = []
    for name, stops in (("whole", (4,)), ("halves", (2, 4))):
        context = TrainingContext(folder / name, CPU, seed=5, budget_s=600.0)
        context.folder.mkdir()
        for stop in stops:
            run_until_interrupted(*make_stage(context), context, stop)
        states.append(torch.load(context.folder / "unet.pt", weights_only=True))
    whole, halves = states
    assert whole["step"] == halves["step"] == 4
    for key in ("network", "average"):
        for name, tensor in whole[key].items():
            torch.testing.assert_close(halves[key][name], tensor, atol=0, rtol=0)


def run_until_interrupted(
    stage: nn.Module, losses: Callable[[int], Losses], context: TrainingContext, stop: int
) -> None:
    """Writes a checkpoint after every step and fails after `stop`, under the same plan and learning rates."""

    def failing(step: int) -> Losses:
        if step == stop:
            raise KeyboardInterrupt
        return losses(step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scripts.train_demo.loop.CHECKPOINT_EVERY_S", 0.0)
        with pytest.raises(KeyboardInterrupt):
            run_stage("unet", stage, failing, StagePlan(8, 1, 1e-3, 1.0), context)


def test_a_stage_ends_when_its_time_is_up(tmp_path: Path) -> None:
    context = TrainingContext(tmp_path, CPU, seed=5, budget_s=1e-6)
    layer = nn.Linear(2, 1)
    run_stage("short", layer, lambda step: {"loss": layer(torch.ones(2)).sum()}, StagePlan(1000, 1, 1e-3, 0.1), context)
    assert read_log(context)[-1]["step"] == 1
    assert not any(parameter.requires_grad for parameter in layer.parameters())


def test_padding_is_silent(speech: Speech) -> None:
    speech_data = SpeechDataset(speech, CPU)
    frames = np.full((1, SEGMENT_FRAMES), -1)
    frames[0, :50] = np.arange(50)
    mel = speech_data.mels(frames, None)
    assert mel.shape == (1, 80, 3000)
    assert (mel[..., 200:] == 0).all()
    np.testing.assert_allclose(mel[0, :, :200], speech.mel(0)[:, :200], atol=1e-6)


def test_audio_tokens_equal_the_pipelines(speech: Speech) -> None:
    speech_data, whisper = SpeechDataset(speech, CPU), make_whisper(TINY, 0)
    audio_features = AudioFeatures(speech_data, whisper, None)
    mel = torch.zeros(1, 80, 3000)
    mel[0, :, : 8 * FRAMES] = torch.from_numpy(np.concatenate([speech.mel(0), speech.mel(1)], 1))
    with torch.no_grad():
        features = whisper(mel)[0, : 4 * FRAMES].numpy()
    expected = audio_windows(features, Fraction(2 * FRAMES, 25))
    tokens = audio_features.tokens(np.array([1]), np.arange(10, 20)[None])
    np.testing.assert_allclose(tokens.numpy(), expected[FRAMES + 10 : FRAMES + 20], atol=1e-5)
    tokens = windows_of(torch.from_numpy(features)[None], np.arange(50, 60)[None])
    np.testing.assert_allclose(tokens.numpy(), expected[50:60], atol=1e-5)


def test_references_are_source_frames_or_other_frames_of_the_take(
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


def test_sampling_starts_from_the_same_noise_in_all_frames(
    speech: Speech, clips: Clips, context: TrainingContext
) -> None:
    """An untrained U-Net predicts 0, which leaves scaled noise."""
    stage, features = unet_stage(speech, clips, context)
    batch = stage._latents.draw(np.random.default_rng(0), 1, features)
    sampled = sampled_latents(stage.unet, batch, steps=4)
    assert sampled.shape == batch.target.shape
    assert sampled.std() > 0
    torch.testing.assert_close(sampled[0], sampled[-1])


@pytest.mark.slow
def test_the_trained_networks_run_in_the_pipeline(speech: Speech, clips: Clips, tmp_path: Path) -> None:
    """All stages, the export, then lip sync of a clip; only that it runs, not how good it is."""
    from scripts.train_demo.release import LIMITS, release

    for name in ("training", "held-out"):
        shutil.copytree(clip_folder(clips), tmp_path / "clips" / name)
    settings = replace(MINIATURE, resolution_px=RESOLUTION_PX)
    context = TrainingContext(tmp_path / "work", CPU, 5, 600.0)
    train(TrainingData(speech, speech, tmp_path / "clips", 1), settings, context)
    entries = read_log(context)
    assert {"audio", "vae", "mouth", "unet", "tune"} <= {str(entry.get("stage")) for entry in entries}
    assert (context.folder / "tune-held_out.png").stat().st_size > 0
    bundle = release(context.folder / "checkpoints", tmp_path / "bundle", RESOLUTION_PX, "fp32")
    clip = write_face(tmp_path / "face.mp4", 18)
    sound = write_sound(tmp_path / "speech.wav", 0.72, clicks_s=(0.2,))
    with LipSync.from_bundle(bundle, "cpu") as lip_sync:
        report = lip_sync.sync(clip, sound, tmp_path / "out.mp4", SyncOptions(steps=2, cache_interval=2))
    assert (report.frames, report.frames_with_face, report.bundle) == (18, 18, "demo")
    assert LIMITS in json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))["notes"]
