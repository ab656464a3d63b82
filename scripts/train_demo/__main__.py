"""Makes the small model that the package ships: speaks, films, trains, exports, measures. Needs the extra `train`.

    python -m scripts.train_demo all                     # everything; training takes 23 minutes on an H100
    python -m scripts.train_demo speak|film|train|export|evaluate

The steps hand files to each other in one folder (--work), so each can run on another machine: only `speak` and
`evaluate` need espeak-ng, only `train` a GPU. What was interrupted goes on where it stopped; the same seed gives the
same model on the same kind of machine.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.train_demo.settings import FULL, MINIATURE, Settings, shortened

if TYPE_CHECKING:
    from scripts.train_demo.training import TrainingData

STEPS = ("speak", "film", "train", "export", "evaluate")
SPEECH, HELD_OUT_SPEECH, CLIPS, CHECKPOINTS, BUNDLE = "speech.npz", "held-out.npz", "clips", "checkpoints", "bundle"


def main() -> None:
    """Parses the command line and takes the steps that it names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=("all", *STEPS))
    parser.add_argument("--work", type=Path, default=Path("build") / "train_demo", metavar="FOLDER")
    parser.add_argument("--minutes", type=float, help="most time that training may take")
    parser.add_argument("--processes", type=int, default=2, help="that speak and film")
    parser.add_argument("--device", default="cuda", help="of torch")
    parser.add_argument("--compile", action="store_true", help="train through torch.compile")
    parser.add_argument("--seed", type=int, default=FULL.seed)
    parser.add_argument("--precision", choices=("fp32", "fp16"), default="fp16", help="of the bundle")
    parser.add_argument("--miniature", action="store_true", help="too small to learn: tries the way of the data")
    arguments = parser.parse_args()
    settings = replace(MINIATURE if arguments.miniature else FULL, seed=arguments.seed)
    settings = shortened(settings, arguments.minutes or settings.minutes)
    arguments.work.mkdir(parents=True, exist_ok=True)
    for step in STEPS if arguments.step == "all" else (arguments.step,):
        print(f"--- {step}", flush=True)
        _TAKE[step](arguments, settings)


def _speak(arguments: argparse.Namespace, settings: Settings) -> None:
    from scripts.train_demo.synthesis import synthesize

    for name, split, count in (
        (SPEECH, "train", settings.data.recordings),
        (HELD_OUT_SPEECH, "held-out", settings.data.held_out_recordings),
    ):
        path = arguments.work / name
        if not path.exists():
            speech = synthesize(range(settings.seed, settings.seed + count), split, arguments.processes)
            speech.save(path)
            print(f"{path}: {speech.starts[-1] / 25 / 60:.1f} minutes, {path.stat().st_size / 1e6:.1f} MB")


def _data(arguments: argparse.Namespace) -> "TrainingData":
    from scripts.train_demo.speech import load_speech
    from scripts.train_demo.training import TrainingData

    speech, held_out = (load_speech(arguments.work / name) for name in (SPEECH, HELD_OUT_SPEECH))
    return TrainingData(speech, held_out, arguments.work / CLIPS, arguments.processes)


def _film(arguments: argparse.Namespace, settings: Settings) -> None:
    from scripts.train_demo.training import film

    for clips in film(_data(arguments), settings):
        print(
            f"{clips.found.sum()} of {len(clips.found)} scenes of {clips.source.shape[1]} frames show a face throughout"
        )


def _train(arguments: argparse.Namespace, settings: Settings) -> None:
    import torch

    from scripts.train_demo.loop import TrainingContext
    from scripts.train_demo.training import train

    device = torch.device(arguments.device)
    context = TrainingContext(arguments.work, device, settings.seed, settings.minutes * 60, arguments.compile)
    print(train(_data(arguments), settings, context).folder)


def _export(arguments: argparse.Namespace, settings: Settings) -> None:
    from scripts.train_demo.release import release

    out = release(arguments.work / CHECKPOINTS, arguments.work / BUNDLE, settings.resolution_px, arguments.precision)
    print(f"{out}: {sum(path.stat().st_size for path in out.iterdir()) / 1e6:.1f} MB")


def _evaluate(arguments: argparse.Namespace, settings: Settings) -> None:
    from latentsync_trt.config import SyncOptions
    from scripts.train_demo.evaluation import evaluate, mean_scores

    options = SyncOptions(seed=1240 + settings.seed, lossless=True)
    scores = evaluate(arguments.work / BUNDLE, arguments.work / "evaluation", options)
    for score in scores:
        print(score)
    print(json.dumps(mean_scores(scores)))


_TAKE = {"speak": _speak, "film": _film, "train": _train, "export": _export, "evaluate": _evaluate}

if __name__ == "__main__":
    main()
