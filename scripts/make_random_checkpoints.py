"""Writes checkpoints of the published architecture with seeded random weights: for compiling and timing, not for faces.

    python scripts/make_random_checkpoints.py [--out checkpoints/random] [--seed 7] [--precision fp32]

Needs torch and safetensors (not diffusers). FOLDER becomes what $LATENTSYNC_TRT_CHECKPOINTS points at: the U-Net
(1.27 billion parameters, 5.1 GB in float32), Whisper tiny's encoder and the VAE, under the names and in the formats of
the published files. Weights are scaled so that activations stay near one, which half precision holds. The same seed
gives the same weights with the same torch on the same kind of CPU; elsewhere they may differ.
"""

import argparse
import json
import math
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from latentsync_trt.export.checkpoint import WHISPER_PREFIX  # noqa: E402
from latentsync_trt.export.naming import origins  # noqa: E402
from latentsync_trt.export.unet import UNet, UNetConfig  # noqa: E402
from latentsync_trt.export.whisper import WhisperConfig, WhisperEncoder  # noqa: E402

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
VAE_WIDTHS = (128, 256, 512, 512)
VAE_LAYERS = 2
VAE_LATENT_CHANNELS = 4
VAE_CONFIG = {
    "_class_name": "AutoencoderKL",
    "act_fn": "silu",
    "block_out_channels": VAE_WIDTHS,
    "down_block_types": ["DownEncoderBlock2D"] * len(VAE_WIDTHS),
    "up_block_types": ["UpDecoderBlock2D"] * len(VAE_WIDTHS),
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": VAE_LATENT_CHANNELS,
    "layers_per_block": VAE_LAYERS,
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
    parser.add_argument("--out", type=Path, default=Path("checkpoints") / "random", metavar="FOLDER")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--precision", choices=DTYPES, default="fp32", help="of the files; published ones are fp32")
    arguments = parser.parse_args()
    folder: Path = arguments.out
    made = {"seed": arguments.seed, "precision": arguments.precision, "torch": torch.__version__}
    if (folder / MARKER).is_file() and json.loads((folder / MARKER).read_text(encoding="utf-8")) == made:
        print(f"{folder}: there already")
        return
    whisper = shapes_of(WhisperEncoder, WHISPER_TINY, WHISPER_PREFIX)
    unet, vae = shapes_of(UNet, UNET), dict(vae_shapes())
    check_place(folder, [*unet.values(), *vae.values(), *whisper.values()], DTYPES[arguments.precision])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="unfinished-", dir=folder) as temporary:
        staged = Path(temporary)
        write_whisper(staged / "latentsync-1.6" / "whisper" / "tiny.pt", random_tensors(whisper, arguments))
        write_vae(staged / "sd-vae-ft-mse", random_tensors(vae, arguments))
        content = {"global_step": 0, "state_dict": random_tensors(unet, arguments)}
        torch.save(content, staged / "latentsync-1.6" / "latentsync_unet.pt")
        (staged / MARKER).write_text(json.dumps(made) + "\n", encoding="utf-8")
        for part in sorted(staged.iterdir()):
            part.rename(folder / part.name)
    print(f"{folder}: {sum(math.prod(shape) for shape in unet.values()) / 1e9:.2f} billion parameters in the U-Net")


def check_place(folder: Path, shapes: list[Shape], dtype: torch.dtype) -> None:
    """Ends the program if something else lies at `folder`, which it would replace, or if the disk is too full."""
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"{folder}: holds other files; remove them, or choose another --out")
    needed_bytes = sum(math.prod(shape) for shape in shapes) * dtype.itemsize + SPARE_BYTES
    place = folder.resolve()
    while not place.exists():
        place = place.parent
    free_bytes = shutil.disk_usage(place).free
    if free_bytes < needed_bytes:
        raise SystemExit(f"{place}: {free_bytes / 1e9:.1f} GB free, {needed_bytes / 1e9:.1f} needed")


def shapes_of(network: type[UNet | WhisperEncoder], config: UNetConfig | WhisperConfig, prefix: str = "") -> Shapes:
    """Names and shapes of the network's tensors in a published file."""
    with torch.device("meta"):
        table = origins(network(config), prefix)
    return {name: origin.shape for origin in table.values() for name in origin.names if name is not None}


def random_tensors(shapes: Shapes, arguments: argparse.Namespace) -> dict[str, Tensor]:
    """Seeded values for every name; drawn in threads, each tensor from a generator of its own."""
    dtype = DTYPES[arguments.precision]
    with ThreadPoolExecutor() as pool:
        tensors = pool.map(lambda item: random_tensor(*item, arguments.seed).to(dtype), shapes.items())
        return dict(zip(shapes, tensors, strict=True))


def random_tensor(name: str, shape: Shape, seed: int) -> Tensor:
    """Values that keep activations near one: norms near the identity, weights divided by the root of their inputs."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode())))
    if name.endswith("bias") or name.endswith(TABLES):
        return noise.mul_(SMALL)
    if len(shape) == 1:
        return noise.mul_(SMALL).add_(1)
    return noise.div_(math.sqrt(math.prod(shape[1:])))


def write_whisper(path: Path, tensors: dict[str, Tensor]) -> None:
    """One of OpenAI's `.pt` files, encoder only."""
    dims = {
        "n_mels": WHISPER_TINY.mels,
        "n_audio_ctx": WHISPER_TINY.positions,
        "n_audio_state": WHISPER_TINY.width,
        "n_audio_head": WHISPER_TINY.heads,
        "n_audio_layer": WHISPER_TINY.blocks,
    }
    path.parent.mkdir(parents=True)
    torch.save({"dims": dims, "model_state_dict": tensors}, path)


def write_vae(folder: Path, tensors: dict[str, Tensor]) -> None:
    """A folder in diffusers' layout."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(VAE_CONFIG, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, folder / "diffusion_pytorch_model.safetensors", metadata={"format": "pt"})


def vae_shapes() -> Iterator[tuple[str, Shape]]:
    """Names and shapes of the published VAE's tensors, as diffusers names them today."""
    top, bottom = VAE_WIDTHS[0], VAE_WIDTHS[-1]
    moments = 2 * VAE_LATENT_CHANNELS
    yield from conv("encoder.conv_in", 3, top, 3)
    previous = top
    for level, width in enumerate(VAE_WIDTHS):
        yield from resnets(f"encoder.down_blocks.{level}", previous, width, VAE_LAYERS)
        if level < len(VAE_WIDTHS) - 1:
            yield from conv(f"encoder.down_blocks.{level}.downsamplers.0.conv", width, width, 3)
        previous = width
    yield from middle("encoder", bottom)
    yield from vector("encoder.conv_norm_out", bottom)
    yield from conv("encoder.conv_out", bottom, moments, 3)
    yield from conv("quant_conv", moments, moments, 1)
    yield from conv("post_quant_conv", VAE_LATENT_CHANNELS, VAE_LATENT_CHANNELS, 1)
    yield from conv("decoder.conv_in", VAE_LATENT_CHANNELS, bottom, 3)
    yield from middle("decoder", bottom)
    for index, width in enumerate(reversed(VAE_WIDTHS)):
        yield from resnets(f"decoder.up_blocks.{index}", previous, width, VAE_LAYERS + 1)
        if index < len(VAE_WIDTHS) - 1:
            yield from conv(f"decoder.up_blocks.{index}.upsamplers.0.conv", width, width, 3)
        previous = width
    yield from vector("decoder.conv_norm_out", top)
    yield from conv("decoder.conv_out", top, 3, 3)


def middle(side: str, width: int) -> Iterator[tuple[str, Shape]]:
    yield from resnets(f"{side}.mid_block", width, width, 2)
    attention = f"{side}.mid_block.attentions.0"
    yield from vector(f"{attention}.group_norm", width)
    for projection in ("to_q", "to_k", "to_v", "to_out.0"):
        yield f"{attention}.{projection}.weight", (width, width)
        yield f"{attention}.{projection}.bias", (width,)


def resnets(block: str, inputs: int, outputs: int, layers: int) -> Iterator[tuple[str, Shape]]:
    for index, entering in enumerate((inputs, *[outputs] * (layers - 1))):
        stem = f"{block}.resnets.{index}"
        yield from vector(f"{stem}.norm1", entering)
        yield from conv(f"{stem}.conv1", entering, outputs, 3)
        yield from vector(f"{stem}.norm2", outputs)
        yield from conv(f"{stem}.conv2", outputs, outputs, 3)
        if entering != outputs:
            yield from conv(f"{stem}.conv_shortcut", entering, outputs, 1)


def conv(stem: str, inputs: int, outputs: int, kernel: int) -> Iterator[tuple[str, Shape]]:
    yield f"{stem}.weight", (outputs, inputs, kernel, kernel)
    yield f"{stem}.bias", (outputs,)


def vector(stem: str, width: int) -> Iterator[tuple[str, Shape]]:
    yield f"{stem}.weight", (width,)
    yield f"{stem}.bias", (width,)


if __name__ == "__main__":
    main()
