"""Training of the built-in model in miniature: speech, clips, all stages with a pause, the export,
then lip sync of a clip.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from latentsync_trt import LipSync, SyncOptions
from tests.clips import write_face, write_sound

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_the_trained_networks_run_in_the_pipeline(tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader")
    from scripts.train_demo.__main__ import LIMITS, Settings, make_bundle, prepare, train
    from scripts.train_demo.clips import ClipPlan
    from scripts.train_demo.loop import PausedError, StagePlan, TrainingContext
    from scripts.train_demo.networks import Sizes
    from scripts.train_demo.speech import synthesize

    settings = Settings(
        Sizes((32, 32), 32, 2, (8, 8, 16, 16), 8),
        recordings=2,
        clips=ClipPlan(scenes=2, cameras=1, takes=1, frames=18, resolution_px=64),
        audio=StagePlan(steps=2, batch=1, learning_rate=2e-3),
        vae=StagePlan(steps=2, batch=4, learning_rate=2e-3),
        mouth=StagePlan(steps=2, batch=8, learning_rate=2e-3),
        unet=StagePlan(steps=2, batch=2, learning_rate=1e-3),
        tune=StagePlan(steps=2, batch=1, learning_rate=1e-4),
    )
    speech = synthesize(range(7, 9), 1)
    assert len(speech) == settings.recordings and speech.shut.any() and speech.silent.any()
    prepare(speech, settings, tmp_path, 1)
    context = TrainingContext(tmp_path, torch.device("cpu"), settings.seed)
    with pytest.raises(PausedError):
        train(speech, settings, replace(context, until_s=0.0))
    train(speech, settings, context)
    entries = list(
        map(json.loads, (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines())
    )
    assert [entry["stage"] for entry in entries if "loss" in entry] == [
        "audio",
        "vae",
        "mouth",
        "unet",
        "tune",
    ]
    assert [(entry["scenes"], entry["lost"]) for entry in entries if "lost" in entry] == [(2, 0)]
    bundle = make_bundle(
        tmp_path / "checkpoints", tmp_path / "bundle", settings.clips.resolution_px
    )
    assert LIMITS in json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))["notes"]
    clip = write_face(tmp_path / "face.mp4", 18)
    sound = write_sound(tmp_path / "speech.wav", 0.72, clicks_s=(0.2,))
    with LipSync.from_bundle(bundle, "cpu") as lip_sync:
        report = lip_sync.sync(
            clip, sound, tmp_path / "out.mp4", SyncOptions(steps=2, cache_interval=2)
        )
    assert (report.frames, report.frames_with_face, report.bundle) == (18, 18, "demo")
