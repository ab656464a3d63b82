"""Writes checkpoints of the published architecture with seeded random weights: for compiling and
timing, not for faces.

    python scripts/make_random_checkpoints.py [--out checkpoints/random] [--seed 7] [--precision
    fp32]

Needs the `export` extra. Set $LATENTSYNC_TRT_CHECKPOINTS to the folder. It gets the U-Net (1.27
billion parameters, 5.1 GB in float32), Whisper tiny's encoder and the VAE, under the names and in
the formats of the published files. Weights are scaled so that activations stay near one, within the
range of half precision. The same seed gives the same weights with the same torch on the same kind
of CPU; elsewhere they may differ.
"""

import argparse
import json
import math
import shutil
import sys
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from diffusers import AutoencoderKL
from safetensors.torch import save_file
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from latentsync_trt.export.checkpoints import WHISPER_PREFIX, origins  # noqa: E402
from latentsync_trt.export.networks import WhisperConfig, WhisperEncoder  # noqa: E402
from latentsync_trt.export.unet import UNet, UNetConfig  # noqa: E402
from scripts.published import whisper_file  # noqa: E402

UNET = UNetConfig(
    widths=(320, 640, 1280, 1280),
    layers=2,
    audio_width=384,
    attention=(True, True, True, False),
    motion_down=(True,) * 4,
    motion_up=(True,) * 4,
    positions=24,
)
WHISPER_TINY = WhisperConfig(mels=80, positions=1500, width=384, heads=6, blocks=4)
VAE_CONFIG = {
    "_class_name": "AutoencoderKL",
    "act_fn": "silu",
    "block_out_channels": (128, 256, 512, 512),
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": 4,
    "layers_per_block": 2,
    "norm_num_groups": 32,
    "sample_size": 256,
    "scaling_factor": 0.18215,
}

DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
MARKER = "random_checkpoints.json"
SPARE_BYTES = 1_000_000_000
TABLES = ("pos_encoder.pe", "positional_embedding")
SMALL = 0.1
"""Size of biases, positions and the spread of norms about the identity."""

Shape = tuple[int, ...]
Shapes = dict[str, Shape]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("checkpoints") / "random", metavar="FOLDER"
    )
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--precision", choices=DTYPES, default="fp32", help="of the files; published ones are fp32"
    )
    arguments = parser.parse_args()
    folder: Path = arguments.out
    marker = {"seed": arguments.seed, "precision": arguments.precision, "torch": torch.__version__}
    if (folder / MARKER).is_file() and json.loads(
        (folder / MARKER).read_text(encoding="utf-8")
    ) == marker:
        print(f"{folder}: there already")
        return
    whisper = shapes_of(WhisperEncoder, WHISPER_TINY, WHISPER_PREFIX)
    unet = shapes_of(UNet, UNET)
    vae = vae_shapes()
    check_target(
        folder, [*unet.values(), *vae.values(), *whisper.values()], DTYPES[arguments.precision]
    )
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="unfinished-", dir=folder) as temporary:
        staged = Path(temporary)
        write_whisper(
            staged / "latentsync-1.6" / "whisper" / "tiny.pt", random_tensors(whisper, arguments)
        )
        write_vae(staged / "sd-vae-ft-mse", random_tensors(vae, arguments))
        content = {"global_step": 0, "state_dict": random_tensors(unet, arguments)}
        torch.save(content, staged / "latentsync-1.6" / "latentsync_unet.pt")
        (staged / MARKER).write_text(json.dumps(marker) + "\n", encoding="utf-8")
        for part in sorted(staged.iterdir()):
            part.rename(folder / part.name)
    print(
        f"{folder}: {sum(math.prod(shape) for shape in unet.values()) / 1e9:.2f} "
        "billion parameters in the U-Net"
    )


def check_target(folder: Path, shapes: list[Shape], dtype: torch.dtype) -> None:
    """Ends the program if `folder` has other files, or if the disk has too little space."""
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"{folder}: has other files; remove them, or choose another --out")
    needed_bytes = sum(math.prod(shape) for shape in shapes) * dtype.itemsize + SPARE_BYTES
    parent = folder.resolve()
    while not parent.exists():
        parent = parent.parent
    free_bytes = shutil.disk_usage(parent).free
    if free_bytes < needed_bytes:
        raise SystemExit(
            f"{parent}: {free_bytes / 1e9:.1f} GB free, {needed_bytes / 1e9:.1f} needed"
        )


def shapes_of(
    network: type[UNet | WhisperEncoder], config: UNetConfig | WhisperConfig, prefix: str = ""
) -> Shapes:
    """Names and shapes of the network's tensors in a published file."""
    with torch.device("meta"):
        table = origins(network(config), prefix)
    return {
        name: origin.shape for origin in table.values() for name in origin.names if name is not None
    }


def vae_shapes() -> Shapes:
    """Names and shapes of the published VAE's tensors, as diffusers names them today."""
    with torch.device("meta"):
        vae = AutoencoderKL.from_config(VAE_CONFIG)
    return {name: tuple(tensor.shape) for name, tensor in vae.state_dict().items()}


def random_tensors(shapes: Shapes, arguments: argparse.Namespace) -> dict[str, Tensor]:
    """Seeded values for every name; drawn in threads, each tensor from a generator of its own."""
    dtype = DTYPES[arguments.precision]
    with ThreadPoolExecutor() as pool:
        tensors = pool.map(
            lambda item: random_tensor(*item, arguments.seed).to(dtype), shapes.items()
        )
        return dict(zip(shapes, tensors, strict=True))


def random_tensor(name: str, shape: Shape, seed: int) -> Tensor:
    """Values that keep activations near one: norms near the identity, weights divided by the root
    of their inputs.
    """
    noise = torch.randn(
        shape, generator=torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    )
    if name.endswith("bias") or name.endswith(TABLES):
        return noise.mul_(SMALL)
    if len(shape) == 1:
        return noise.mul_(SMALL).add_(1)
    return noise.div_(math.sqrt(math.prod(shape[1:])))


def write_whisper(path: Path, tensors: dict[str, Tensor]) -> None:
    """One of OpenAI's `.pt` files, encoder only."""
    path.parent.mkdir(parents=True)
    torch.save(whisper_file(WHISPER_TINY, tensors), path)


def write_vae(folder: Path, tensors: dict[str, Tensor]) -> None:
    """A folder in diffusers' layout."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(VAE_CONFIG, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, folder / "diffusion_pytorch_model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
