"""The networks of a bundle, from published weight files: Whisper's encoder, the VAE's halves, and
the U-Net.
"""

import itertools
import logging
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn
from torch.nn import functional as F

from latentsync_trt.errors import CheckpointError, InputError
from latentsync_trt.export.export_options import ExportOptions, Sources
from latentsync_trt.export.layers import Linear, attend, join_heads, split_heads
from latentsync_trt.export.unet import LATENT_CHANNELS, UNet, UNetConfig
from latentsync_trt.paths import why_missing

WHISPER_PREFIX = "encoder."
WHISPER_DIMS = ("n_mels", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer")
_UNET_FILE = "a LatentSync U-Net"
_WHISPER_FILE = "one of OpenAI's Whisper models"

_VAE_SETTINGS = {
    "latent_channels": LATENT_CHANNELS,
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "act_fn": "silu",
    "mid_block_add_attention": True,
    "use_quant_conv": True,
    "use_post_quant_conv": True,
    "shift_factor": None,
}
"""Of the VAE of Stable Diffusion 1, where they decide which layers there are; latents are at an
eighth of the size.
"""

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class WhisperConfig:
    """The shape of an encoder: mel bands, positions (50 per second), width, attention heads,
    blocks.
    """

    mels: int
    positions: int
    width: int
    heads: int
    blocks: int

    @property
    def layers(self) -> int:
        """Number of hidden states in a feature: one before the first block and one after each."""
        return self.blocks + 1


class WhisperAttention(nn.Module):
    """Self-attention over the positions, `(N, T, D)` → the same. Keys have no bias."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv = Linear(width, 3 * width, sources=("query", "key", "value"), unbiased=("key",))
        self.out = Linear(width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        qkv = split_heads(self.qkv(x), 3, self.heads)
        return self.out(join_heads(attend(qkv[0], qkv[1], qkv[2])))


class WhisperBlock(nn.Module):
    """Attention and a feed-forward of four times the width, each with a norm before it and a
    residual.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attn = WhisperAttention(width, heads)
        self.attn_ln = nn.LayerNorm(width)
        self.mlp = nn.Sequential(Linear(width, 4 * width), nn.GELU(), Linear(4 * width, width))
        self.mlp_ln = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_ln(x))
        return x + self.mlp(self.mlp_ln(x))


class WhisperEncoder(nn.Module):
    """Log-mel segments → stacked hidden states; without the final normalization."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.config = config
        self.conv1 = nn.Conv1d(config.mels, config.width, 3, padding=1)
        self.conv2 = nn.Conv1d(config.width, config.width, 3, stride=2, padding=1)
        self.positional_embedding = nn.Parameter(torch.empty(config.positions, config.width))
        self.blocks = nn.ModuleList(
            [WhisperBlock(config.width, config.heads) for _ in range(config.blocks)]
        )

    def forward(self, mel: Tensor) -> Tensor:
        """`mel (N, 80, 3000)` → `features (N, 1500, L, D)`, both float32 in every precision."""
        x = F.gelu(self.conv1(mel.to(self.conv1.weight.dtype)))
        x = F.gelu(self.conv2(x)).transpose(1, 2) + self.positional_embedding
        states = [x]
        for block in self.blocks:
            states.append(block(states[-1]))
        return torch.stack(states, 2).float()


class ImageAttention:
    """Attention in the VAE's middle block, `(N, C, h, w)` → the same, as a processor for diffusers'
    `Attention`.
    """

    def __call__(self, attention: Any, hidden_states: Tensor, *_: object, **__: object) -> Tensor:
        count, width = hidden_states.shape[:2]
        tokens = attention.group_norm(hidden_states.flatten(2)).transpose(1, 2)
        head_dim = width // attention.heads
        projected = [
            projection(tokens) for projection in (attention.to_q, attention.to_k, attention.to_v)
        ]
        query, key, value = (
            part.reshape(count, -1, attention.heads, head_dim).transpose(1, 2) for part in projected
        )
        joined = attend(query, key, value).transpose(1, 2).flatten(2)
        return hidden_states + attention.to_out[0](joined).transpose(1, 2).reshape(
            hidden_states.shape
        )


class VaeEncoder(nn.Module):
    """`image (N, 3, H, W)` in [−1, 1] → `latent (N, 4, H/8, W/8)`: posterior mode × scaling factor.
    Both float32.
    """

    def __init__(self, vae: Any) -> None:
        super().__init__()
        self.encoder = vae.encoder
        self.quant_conv = vae.quant_conv
        self.scale = float(vae.config.scaling_factor)

    def forward(self, image: Tensor) -> Tensor:
        moments = self.quant_conv(self.encoder(image.to(self.encoder.conv_in.weight.dtype)))
        mode: Tensor = moments[:, :LATENT_CHANNELS].float()
        return mode * self.scale


class VaeDecoder(nn.Module):
    """Scaled `latent (N, 4, h, w)` → `image (N, 3, 8h, 8w)`, not clamped. Both float32."""

    def __init__(self, vae: Any) -> None:
        super().__init__()
        self.decoder = vae.decoder
        self.post_quant_conv = vae.post_quant_conv
        self.scale = float(vae.config.scaling_factor)

    def forward(self, latent: Tensor) -> Tensor:
        unscaled = (latent / self.scale).to(self.decoder.conv_in.weight.dtype)
        return self.decoder(self.post_quant_conv(unscaled)).float()


@dataclass(frozen=True, slots=True)
class Networks:
    unet: UNet
    vae: Any
    whisper: WhisperEncoder


def load_networks(sources: Sources, options: ExportOptions, dtype: torch.dtype) -> Networks:
    """Reads all checkpoints, small ones first, and checks that they fit together.

    Raises:
        CheckpointError: one is missing, damaged, of another kind, incomplete or not finite in
            `dtype`, or the audio encoder's width is not the U-Net's.
        InputError: there are more frames than the U-Net has positions.
    """
    whisper = load_whisper(sources.whisper, dtype)
    vae = load_vae(sources.vae, dtype)
    unet = load_unet(sources.unet, dtype)
    config = unet.config
    if config.audio_width != whisper.config.width:
        raise CheckpointError(
            f"{sources.whisper}: gives features {whisper.config.width} "
            f"wide, but {sources.unet} was trained for "
            f"{config.audio_width} (384 goes with Whisper tiny, 768 with small)"
        )
    if options.frames > config.positions:
        raise InputError(
            f"--frames {options.frames}: {sources.unet} "
            f"knows windows of up to {config.positions} frames"
        )
    return Networks(unet, vae, whisper)


def load_vae(folder: Path, dtype: torch.dtype) -> Any:
    """diffusers' AutoencoderKL from `folder` (config.json and weights, old or new parameter
    names).
    """
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder}: not a VAE folder in diffusers' layout (no config.json)")
    # Its loader warns about the published VAE's old parameter names, but converts them; and it logs
    # what it raises.
    logging.getLogger("diffusers").setLevel(logging.CRITICAL)
    try:
        vae, report = AutoencoderKL.from_pretrained(
            folder,
            torch_dtype=dtype,
            local_files_only=True,
            low_cpu_mem_usage=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, TypeError, LookupError, ArithmeticError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(
            f"{folder}: cannot be loaded as an AutoencoderKL ({reason})"
        ) from error
    missing = report["missing_keys"]
    if missing:
        raise CheckpointError(f"{folder}: {len(missing)} tensors missing, first {missing[0]}")
    for setting, needed in _VAE_SETTINGS.items():
        given = vae.config[setting]
        if (tuple(given) if isinstance(given, list) else given) != needed:
            raise CheckpointError(f"{folder}: its {setting} is {given}; LatentSync needs {needed}")
    for name, tensor in vae.state_dict().items():
        if not tensor.isfinite().all():
            raise CheckpointError(
                f"{folder}: {name} has values that are not finite; the weights are damaged"
            )
    vae.set_attn_processor(ImageAttention())
    return vae.eval().requires_grad_(False)


def load_unet(path: Path, dtype: torch.dtype) -> UNet:
    """Reads `latentsync_unet.pt`; a tensor is copied only where its type or layout changes."""
    _, tensors = _read_file(path, "state_dict", _UNET_FILE)
    try:
        with torch.device("meta"):
            network = UNet(_infer_config(tensors))
    except (AttributeError, IndexError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{path}: not {_UNET_FILE} (its tensors are no weights of one)"
        ) from error
    _fill(path, network, origins(network), tensors, dtype)
    return network


def load_whisper(path: Path, dtype: torch.dtype) -> WhisperEncoder:
    """Reads the encoder from one of OpenAI's Whisper files."""
    content, tensors = _read_file(path, "model_state_dict", _WHISPER_FILE)
    try:
        with torch.device("meta"):
            network = WhisperEncoder(
                WhisperConfig(*(content["dims"][name] for name in WHISPER_DIMS))
            )
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path}: not {_WHISPER_FILE} (no encoder has its `dims`)") from error
    _fill(path, network, origins(network, WHISPER_PREFIX), tensors, dtype)
    return network


def _read_file(path: Path, key: str, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a file holds, and its tensors, which are under `key`; large files are memory-mapped.

    Only tensors and plain containers are unpickled.
    """
    if not path.is_file():
        raise CheckpointError(
            f"{path}: is a folder" if path.is_dir() else why_missing(path), usage=True
        )
    try:
        content = torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except Exception as error:  # PyTorch raises anything for files of others
        raise CheckpointError(f"{path}: damaged, or not a PyTorch weight file") from error
    tensors = content.get(key) if isinstance(content, dict) else None
    if not isinstance(tensors, dict):
        raise CheckpointError(f"{path}: not {kind} (no `{key}`)")
    return content, tensors


def _infer_config(tensors: Tensors) -> UNetConfig:
    """The configuration that the tensors' names and shapes show; errors where they are no
    U-Net's.
    """

    def count(pattern: str) -> int:
        return next(number for number in itertools.count() if pattern.format(number) not in tensors)

    def present(pattern: str) -> tuple[bool, ...]:
        return tuple(pattern.format(level) in tensors for level in range(len(widths)))

    levels = count("down_blocks.{}.resnets.0.conv1.weight")
    widths = tuple(
        tensors[f"down_blocks.{level}.resnets.0.conv1.weight"].shape[0] for level in range(levels)
    )
    spatial = "down_blocks.{}.attentions.0.transformer_blocks.0.attn2.to_k.weight"
    temporal = "blocks.{}.motion_modules.0.temporal_transformer.proj_in.weight"
    tables = [tensor for name, tensor in tensors.items() if str(name).endswith("pos_encoder.pe")]
    return UNetConfig(
        widths=widths,
        layers=count("down_blocks.0.resnets.{}.conv1.weight"),
        audio_width=tensors[spatial.format(0)].shape[1],
        attention=present(spatial),
        motion_down=present(f"down_{temporal}"),
        motion_up=present(f"up_{temporal}"),
        positions=tables[0].shape[1] if tables else 24,  # without motion, none is used
    )


class Origin(NamedTuple):
    """How a checkpoint stores one parameter.

    `names`: the tensors that are stacked along its outputs; None stands for zeros. `shape`: of each
    of them. `transposed`: the checkpoint stores `(out, in)`, the network `(in, out)`.
    """

    names: tuple[str | None, ...]
    shape: tuple[int, ...]
    transposed: bool = False


def origins(network: nn.Module, prefix: str = "") -> dict[str, Origin]:
    """Parameter and buffer names of `network` → their origins; `prefix` precedes every name in the
    checkpoint.
    """
    found = {
        name: Origin((prefix + name,), tuple(tensor.shape))
        for name, tensor in network.state_dict().items()
    }
    for path, module in network.named_modules():
        if not isinstance(module, Linear):
            continue
        parent, dot, own = path.rpartition(".")
        stems = module.sources or (own,)
        inputs, outputs = module.weight.shape
        place = prefix + parent + dot
        width = outputs // len(stems)
        weights = tuple(f"{place}{stem}.weight" for stem in stems)
        found[f"{path}.weight"] = Origin(
            weights, (width, inputs, *[1] * module.kernel_dims), transposed=True
        )
        if module.bias is not None:
            biases = tuple(
                None if stem in module.unbiased else f"{place}{stem}.bias" for stem in stems
            )
            found[f"{path}.bias"] = Origin(biases, (width,))
    return found


def _fill(
    path: Path,
    network: nn.Module,
    table: Mapping[str, Origin],
    tensors: Tensors,
    dtype: torch.dtype,
) -> None:
    """Loads weights in `dtype` into `network`, which is on the meta device, and prepares it for
    inference.

    Raises:
        CheckpointError: tensors are missing, of wrong shape or type, or have values that are not
            finite in `dtype`; the message names the first.
    """
    wanted = {
        name: origin.shape for origin in table.values() for name in origin.names if name is not None
    }
    found = {
        name: tuple(tensor.shape) for name, tensor in tensors.items() if isinstance(tensor, Tensor)
    }
    wrong = [name for name, shape in wanted.items() if found.get(name) != shape]
    if wrong:
        first = f"first {wrong[0]}: {found.get(wrong[0], 'missing')}, not {wanted[wrong[0]]}"
        raise CheckpointError(
            f"{path}: {len(wrong)} of {len(wanted)} tensors missing or of another shape, {first}"
        )
    for name in wanted:
        largest = max(abs(float(extreme)) for extreme in tensors[name].aminmax())
        if not largest <= torch.finfo(dtype).max:
            if math.isfinite(largest):
                cure = "export with --precision fp32"
            else:
                cure = "the file is damaged"
            raise CheckpointError(
                f"{path}: {name} has values up to {largest:g}, too large for {dtype}; {cure}"
            )
    state: dict[str, Tensor] = {}
    for key, (names, shape, transposed) in table.items():
        parts = [
            torch.zeros(shape, dtype=dtype) if name is None else tensors[name].to(dtype)
            for name in names
        ]
        if transposed:
            state[key] = torch.cat([part.flatten(1).t() for part in parts], 1)
        else:
            state[key] = parts[0] if len(parts) == 1 else torch.cat(parts)
    network.load_state_dict(state, assign=True)
    network.eval().requires_grad_(False)
