"""Makes the small model that the package ships, in three steps. Needs the extra `train`.

    python -m scripts.train_demo prepare --work FOLDER --processes 16
    python -m scripts.train_demo train --work FOLDER --minutes 9
    python -m scripts.train_demo export --work FOLDER

`prepare` follows the face through every scene, on the CPU. `train` synthesizes speech, renders all
scenes and trains; after `--minutes` it pauses, and the same command goes on from the checkpoints in
FOLDER. `FOLDER/bundle`, which `export` writes, is what latentsync_trt/assets has.
"""

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from latentsync_trt.config import MODEL_FPS
from scripts.train_demo.clips import Alignment, ClipPlan, Clips, plan_clips, render_clips
from scripts.train_demo.datasets import FaceDataset, SpeechDataset
from scripts.train_demo.loop import PausedError, StagePlan, TrainingContext
from scripts.train_demo.networks import (
    RESOLUTION_PX,
    WINDOW_FRAMES,
    Sizes,
    make_unet,
    save_checkpoints,
)
from scripts.train_demo.scene import Portrait, PortraitRenderer
from scripts.train_demo.speech import Speech, synthesize
from scripts.train_demo.stage_audio import train_audio
from scripts.train_demo.stage_faces import train_mouth_predictor, train_vae
from scripts.train_demo.stage_unet import LatentDataset, train_unet

NAME = "demo"
FACES_FILE = "faces.npz"
LIMITS = (
    "a small model trained on synthetic speech and one animated portrait: "
    "it shows that lips follow speech, and is not made for other faces"
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that determines the trained networks, except for the machine.

    `recordings`: of speech. `audio` to `tune`: the stages in order.
    """

    sizes: Sizes
    recordings: int
    clips: ClipPlan
    audio: StagePlan
    vae: StagePlan
    mouth: StagePlan
    unet: StagePlan
    tune: StagePlan
    seed: int = 7


FULL = Settings(
    Sizes(),
    recordings=420,
    clips=ClipPlan(scenes=256, cameras=128, takes=6, frames=48, resolution_px=RESOLUTION_PX),
    audio=StagePlan(steps=7000, batch=32, learning_rate=1e-3),
    vae=StagePlan(steps=2700, batch=64, learning_rate=1e-3),
    mouth=StagePlan(steps=600, batch=128, learning_rate=1e-3),
    unet=StagePlan(steps=13000, batch=16, learning_rate=6e-4),
    tune=StagePlan(steps=4000, batch=8, learning_rate=1e-4),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("step", choices=("prepare", "train", "export"))
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER")
    parser.add_argument(
        "--processes", type=int, default=2, help="processes that synthesize speech and track faces"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="then training pauses")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=device, help="PyTorch device for training")
    arguments = parser.parse_args()
    folder = arguments.work
    if arguments.step == "export":
        print(make_bundle(folder / "checkpoints", folder / "bundle", RESOLUTION_PX))
        return
    until_s = time.monotonic() + 60 * arguments.minutes
    speech = synthesize(range(FULL.seed, FULL.seed + FULL.recordings), arguments.processes)
    print(f"{len(speech)} recordings, {speech.starts[-1] / MODEL_FPS / 60:.0f} min", flush=True)
    if arguments.step == "prepare":
        folder.mkdir(parents=True, exist_ok=True)
        prepare(speech, FULL, folder, arguments.processes)
        return
    context = TrainingContext(folder, torch.device(arguments.device), FULL.seed, until_s)
    try:
        train(speech, FULL, context)
    except PausedError as paused:
        print(paused)


def prepare(speech: Speech, settings: Settings, folder: Path, processes: int) -> None:
    """Writes what training needs of the face: the portrait, and where it is in every scene."""
    # Only this needs the package's detector.
    from scripts.train_demo.tracking import find_portrait, track_faces

    found = find_portrait()
    planned = plan_clips(speech, settings.clips, settings.seed)
    alignment = track_faces(speech, settings.clips, planned, found, processes)
    np.savez_compressed(
        folder / FACES_FILE,
        photograph=found.photograph,
        mesh=found.mesh,
        pinned=found.pinned,
        matrices=alignment.matrices,
        tracked=alignment.tracked,
    )


def train(recorded: Speech, settings: Settings, context: TrainingContext) -> None:
    """Trains all networks, as far as that was not done before, and writes their checkpoints. Raises
    `PausedError` when the time is up.
    """
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    sizes = settings.sizes
    speech = SpeechDataset(recorded, context.device)
    whisper = train_audio(sizes, speech, settings.audio, context)
    faces = FaceDataset(_rendered(recorded, settings, context))
    vae, scale = train_vae(sizes, faces, settings.vae, context)
    mouth_predictor = train_mouth_predictor(vae, faces, speech, settings.mouth, context)
    latents = LatentDataset(vae, faces, speech, scale, context)
    unet = make_unet(sizes, settings.seed + 3).to(context.device)
    plans = (settings.unet, settings.tune)
    train_unet(unet, latents, (whisper, vae, mouth_predictor), plans, context)
    save_checkpoints(context.folder / "checkpoints", unet, whisper, vae, scale)


def _rendered(recorded: Speech, settings: Settings, context: TrainingContext) -> Clips:
    with np.load(context.folder / FACES_FILE) as stored:
        found = Portrait(stored["photograph"], stored["mesh"], stored["pinned"])
        alignment = Alignment(stored["matrices"], stored["tracked"])
    planned = plan_clips(recorded, settings.clips, settings.seed)
    started_s = time.monotonic()
    renderer = PortraitRenderer(found, context.device)
    clips = render_clips(recorded, settings.clips, planned, alignment, renderer)
    lost = int((~alignment.tracked).sum())
    seconds = round(time.monotonic() - started_s, 1)
    context.log(scenes=len(clips.spoken), lost=lost, seconds=seconds)
    return clips


def make_bundle(checkpoints: Path, out: Path, resolution_px: int) -> Path:
    """Exports the networks in the folder `checkpoints` in float16, and adds their limits to the
    manifest.
    """
    # Training runs without what only this needs.
    from latentsync_trt.bundle.manifest import MANIFEST_NAME, read_manifest, write_manifest
    from latentsync_trt.export.export_options import ExportOptions
    from latentsync_trt.export.exporter import export_bundle

    options = ExportOptions(
        unet=checkpoints / "unet.pt",
        vae=checkpoints / "vae",
        whisper=checkpoints / "whisper.pt",
        output=out,
        resolution=resolution_px,
        frames=WINDOW_FRAMES,
        precision="fp16",
        cuda_form=False,  # its kernels do not support groups of three channels
    )
    bundle = export_bundle(options, lambda done: print(f"{done.done:3} % {done.stage}", flush=True))
    manifest = read_manifest(bundle)
    (bundle / MANIFEST_NAME).unlink()
    write_manifest(
        bundle, replace(manifest, name=NAME, model=NAME, notes=(*manifest.notes, LIMITS))
    )
    return bundle


if __name__ == "__main__":
    main()
