"""Training of the built-in model in miniature: all stages, the export, then lip sync of a clip."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from latentsync_trt import LipSync, SyncOptions
from scripts.train_demo.clips import RenderPlan, plan_clips, render_clips
from scripts.train_demo.loop import TrainingContext
from scripts.train_demo.settings import MINIATURE
from scripts.train_demo.speech import LOWEST, STEPS_PER_DECADE, Speech
from scripts.train_demo.training import TrainingData, train
from scripts.train_demo.visemes import Phoneme, mouth_track
from tests.clips import write_face, write_sound

RESOLUTION_PX = 64
FRAMES, CLIP_FRAMES = 100, 20
RENDERING = RenderPlan(RESOLUTION_PX, mouths=(4, 3, 2), processes=1)
SOUNDS = "amiubosevalp"


@pytest.fixture
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
    shut, silent = (np.concatenate([getattr(track, name) for track in tracks]) for name in ("shut", "silent"))
    return Speech(steps, np.full(2, power.max(), np.float32), values, shut, silent, np.array([0, FRAMES, 2 * FRAMES]))


@pytest.mark.slow
def test_the_trained_networks_run_in_the_pipeline(speech: Speech, tmp_path: Path) -> None:
    from scripts.train_demo.release import LIMITS, release

    plans = plan_clips(speech, CLIP_FRAMES, 2, 2, seed=3)
    for name in ("training", "held-out"):
        render_clips(speech, plans, RENDERING, tmp_path / "clips" / name)
    settings = replace(MINIATURE, resolution_px=RESOLUTION_PX)
    context = TrainingContext(tmp_path / "work", torch.device("cpu"), 5, 600.0)
    train(TrainingData(speech, speech, tmp_path / "clips", 1), settings, context)
    entries = map(json.loads, (context.folder / "log.jsonl").read_text(encoding="utf-8").splitlines())
    assert {"audio", "vae", "mouth", "unet", "tune"} <= {str(entry.get("stage")) for entry in entries}
    assert (context.folder / "tune-held_out.png").stat().st_size > 0
    bundle = release(context.folder / "checkpoints", tmp_path / "bundle", RESOLUTION_PX, "fp32")
    clip = write_face(tmp_path / "face.mp4", 18)
    sound = write_sound(tmp_path / "speech.wav", 0.72, clicks_s=(0.2,))
    with LipSync.from_bundle(bundle, "cpu") as lip_sync:
        report = lip_sync.sync(clip, sound, tmp_path / "out.mp4", SyncOptions(steps=2, cache_interval=2))
    assert (report.frames, report.frames_with_face, report.bundle) == (18, 18, "demo")
    assert LIMITS in json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))["notes"]
