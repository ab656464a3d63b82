"""Makes the small model that the package ships. Needs the extra `train`.

    python -m scripts.train_demo all                     # everything; training takes 23 minutes on an H100
    python -m scripts.train_demo speech|clips|train|export|evaluate

The steps exchange files in one folder (--work), so each can run on another machine: only `speech` and `evaluate` need
espeak-ng, only `train` a GPU. Training resumes after an interruption. The same seed on the same kind of machine gives
the same model.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from latentsync_trt.config import MODEL_FPS, SyncOptions
from scripts.train_demo.settings import FULL, MINIATURE, Settings

if TYPE_CHECKING:
    from scripts.train_demo.training import TrainingData

SPEECH, HELD_OUT_SPEECH, CLIPS, CHECKPOINTS, BUNDLE = "speech.npz", "held-out.npz", "clips", "checkpoints", "bundle"


def main() -> None:
    """Parses the command line and runs the chosen steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=("all", *_STEPS))
    parser.add_argument("--work", type=Path, default=Path("build") / "train_demo", metavar="FOLDER")
    parser.add_argument("--minutes", type=float, help="time limit of training")
    parser.add_argument("--processes", type=int, default=2, help="processes that synthesize speech and render clips")
    parser.add_argument("--device", default="cuda", help="PyTorch device for training")
    parser.add_argument("--compile", action="store_true", help="train with torch.compile")
    parser.add_argument("--seed", type=int, default=FULL.seed)
    parser.add_argument("--precision", choices=("fp32", "fp16"), default="fp16", help="of the bundle")
    parser.add_argument("--miniature", action="store_true", help="tiny data and networks, to try the steps")
    arguments = parser.parse_args()
    settings = replace(MINIATURE if arguments.miniature else FULL, seed=arguments.seed)
    settings = replace(settings, minutes=arguments.minutes or settings.minutes)
    arguments.work.mkdir(parents=True, exist_ok=True)
    for step in _STEPS if arguments.step == "all" else (arguments.step,):
        print(f"--- {step}", flush=True)
        _STEPS[step](arguments, settings)


def _speech(arguments: argparse.Namespace, settings: Settings) -> None:
    from scripts.train_demo.synthesis import synthesize

    for name, split, count in (
        (SPEECH, "train", settings.data.recordings),
        (HELD_OUT_SPEECH, "held-out", settings.data.held_out_recordings),
    ):
        path = arguments.work / name
        if not path.exists():
            speech = synthesize(range(settings.seed, settings.seed + count), split, arguments.processes)
            speech.save(path)
            minutes = speech.starts[-1] / MODEL_FPS / 60
            print(f"{path}: {minutes:.1f} minutes, {path.stat().st_size / 1e6:.1f} MB")


def _load_data(arguments: argparse.Namespace) -> "TrainingData":
    from scripts.train_demo.speech import load_speech
    from scripts.train_demo.training import TrainingData

    speech, held_out = (load_speech(arguments.work / name) for name in (SPEECH, HELD_OUT_SPEECH))
    return TrainingData(speech, held_out, arguments.work / CLIPS, arguments.processes)


def _clips(arguments: argparse.Namespace, settings: Settings) -> None:
    from scripts.train_demo.training import render

    for clips in render(_load_data(arguments), settings):
        frames = clips.source.shape[1]
        print(f"face tracked in all {frames} frames of {clips.tracked.sum()} of {len(clips.tracked)} scenes")


def _train(arguments: argparse.Namespace, settings: Settings) -> None:
    import torch

    from scripts.train_demo.loop import TrainingContext
    from scripts.train_demo.training import train

    device = torch.device(arguments.device)
    context = TrainingContext(arguments.work, device, settings.seed, settings.minutes * 60, arguments.compile)
    print(train(_load_data(arguments), settings, context).folder)


def _export(arguments: argparse.Namespace, settings: Settings) -> None:
    from scripts.train_demo.release import release

    out = release(arguments.work / CHECKPOINTS, arguments.work / BUNDLE, settings.resolution_px, arguments.precision)
    print(f"{out}: {sum(path.stat().st_size for path in out.iterdir()) / 1e6:.1f} MB")


def _evaluate(arguments: argparse.Namespace, settings: Settings) -> None:
    from scripts.train_demo.evaluation import evaluate, mean_scores

    options = SyncOptions(seed=1240 + settings.seed, codec="ffv1")
    scores = evaluate(arguments.work / BUNDLE, arguments.work / "evaluation", options)
    for score in scores:
        print(score)
    print(json.dumps(mean_scores(scores)))


_STEPS = {"speech": _speech, "clips": _clips, "train": _train, "export": _export, "evaluate": _evaluate}

if __name__ == "__main__":
    main()
