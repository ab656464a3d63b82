"""Makes the small model that the package ships. Needs the extra `train`.

    python -m scripts.train_demo --work FOLDER --processes 16

On an H100 with 16 cores training took 23 minutes with torch.compile, which is not used any more.
The same seed on the same kind of machine gives the same model. `FOLDER/bundle` is what
latentsync_trt/assets has.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from latentsync_trt.bundle.manifest import MANIFEST_NAME, read_manifest, write_manifest
from latentsync_trt.export.export_options import ExportOptions
from latentsync_trt.export.exporter import export_bundle
from latentsync_trt.types import Progress
from scripts.train_demo.clips import ClipPlan, render_clips
from scripts.train_demo.datasets import FaceDataset, SpeechDataset
from scripts.train_demo.loop import StagePlan, TrainingContext
from scripts.train_demo.networks import (
    RESOLUTION_PX,
    WINDOW_FRAMES,
    Sizes,
    make_unet,
    save_checkpoints,
)
from scripts.train_demo.speech import Speech, synthesize
from scripts.train_demo.stage_audio import train_audio
from scripts.train_demo.stage_faces import train_mouth_predictor, train_vae
from scripts.train_demo.stage_unet import LatentDataset, train_unet

NAME = "demo"
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
    recordings=520,
    clips=ClipPlan(scenes=400, takes=6, frames=96, resolution_px=RESOLUTION_PX, mouths=(33, 9, 5)),
    audio=StagePlan(steps=6000, batch=16, learning_rate=1e-3),
    vae=StagePlan(steps=6000, batch=64, learning_rate=1e-3),
    mouth=StagePlan(steps=1500, batch=128, learning_rate=1e-3),
    unet=StagePlan(steps=4400, batch=32, learning_rate=6e-4),
    tune=StagePlan(steps=2750, batch=8, learning_rate=1e-4),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="a new one")
    parser.add_argument(
        "--processes", type=int, default=2, help="processes that synthesize speech and render clips"
    )
    parser.add_argument("--device", default="cuda", help="PyTorch device for training")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True)
    speech = synthesize(range(FULL.seed, FULL.seed + FULL.recordings), arguments.processes)
    train(
        speech,
        FULL,
        TrainingContext(arguments.work, torch.device(arguments.device), FULL.seed),
        arguments.processes,
    )
    print(make_bundle(arguments.work / "checkpoints", arguments.work / "bundle", RESOLUTION_PX))


def train(recorded: Speech, settings: Settings, context: TrainingContext, processes: int) -> None:
    """Trains all networks and writes their checkpoints; clips are rendered while the audio encoder
    trains.
    """
    torch.set_float32_matmul_precision("high")
    sizes = settings.sizes
    speech = SpeechDataset(recorded, context.device)
    with ThreadPoolExecutor(1) as executor:
        where = context.folder / "clips"
        rendering = executor.submit(
            render_clips, recorded, settings.clips, settings.seed, processes, where
        )
        whisper = train_audio(sizes, speech, settings.audio, context)
        clips = rendering.result()
    context.log(scenes=len(clips.tracked), lost=int((~clips.tracked).sum()))
    faces = FaceDataset(clips, context.device)
    vae, scale = train_vae(sizes, faces, settings.vae, context)
    mouth_predictor = train_mouth_predictor(vae, faces, speech, settings.mouth, context)
    latents = LatentDataset(vae, faces, speech, scale, context)
    unet = make_unet(sizes, settings.seed + 3).to(context.device)
    train_unet(
        unet, latents, (whisper, vae, mouth_predictor), (settings.unet, settings.tune), context
    )
    save_checkpoints(context.folder / "checkpoints", unet, whisper, vae, scale)


def print_progress(progress: Progress) -> None:
    print(f"{progress.done:3} % {progress.stage}", flush=True)


def make_bundle(checkpoints: Path, out: Path, resolution_px: int) -> Path:
    """Exports the networks in the folder `checkpoints` in float16, and adds their limits to the
    manifest.
    """
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
    bundle = export_bundle(options, print_progress)
    manifest = read_manifest(bundle)
    (bundle / MANIFEST_NAME).unlink()
    write_manifest(
        bundle, replace(manifest, name=NAME, model=NAME, notes=(*manifest.notes, LIMITS))
    )
    return bundle


if __name__ == "__main__":
    main()
