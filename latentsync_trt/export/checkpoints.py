"""Published weight files, read into the networks of a bundle."""

import itertools
import logging
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from latentsync_trt.diffusion import LATENT_CHANNELS
from latentsync_trt.errors import CheckpointError, InputError
from latentsync_trt.export.export_options import ExportOptions, Sources
from latentsync_trt.export.layers import Linear
from latentsync_trt.export.networks import ImageAttention, WhisperConfig, WhisperEncoder
from latentsync_trt.export.unet import UNet, UNetConfig
from latentsync_trt.paths import why_missing

WHISPER_PREFIX = "encoder."
"""What precedes the names of the encoder's tensors in Whisper's files."""

WHISPER_DIMS = ("n_mels", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer")
"""What Whisper's files call the fields of `WhisperConfig`."""

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
"""Settings of Stable Diffusion 1's VAE that decide which layers there are. With four blocks,
latents have an eighth of the picture's size.
"""


@dataclass(frozen=True, slots=True)
class Networks:
    unet: UNet
    vae: Any
    """diffusers' `AutoencoderKL`."""
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
    """Returns diffusers' AutoencoderKL from `folder`: config.json and weights, of old or new
    parameter names.
    """
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder}: not a VAE folder in diffusers' layout (no config.json)")
    from diffusers import AutoencoderKL  # takes seconds

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
        value = vae.config[setting]
        if isinstance(value, list):
            value = tuple(value)
        if value != needed:
            raise CheckpointError(f"{folder}: its {setting} is {value}; LatentSync needs {needed}")
    for name, tensor in vae.state_dict().items():
        if not tensor.isfinite().all():
            raise CheckpointError(
                f"{folder}: {name} has values that are not finite; the weights are damaged"
            )
    vae.set_attn_processor(ImageAttention())
    return vae.eval().requires_grad_(False)


def load_unet(path: Path, dtype: torch.dtype) -> UNet:
    """Reads `latentsync_unet.pt`; a tensor is copied only where its type or layout changes."""
    content = read_weights(path)
    tensors = _tensors_of(content, "state_dict", path, _UNET_FILE)
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
    content = read_weights(path)
    tensors = _tensors_of(content, "model_state_dict", path, _WHISPER_FILE)
    try:
        config = WhisperConfig(*[content["dims"][name] for name in WHISPER_DIMS])
        with torch.device("meta"):
            network = WhisperEncoder(config)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path}: not {_WHISPER_FILE} (no encoder has its `dims`)") from error
    _fill(path, network, origins(network, WHISPER_PREFIX), tensors, dtype)
    return network


def read_weights(path: Path) -> Any:
    """Returns what a PyTorch file holds; large files are memory-mapped.

    Only tensors and plain containers are unpickled.

    Raises:
        CheckpointError: the file is missing, damaged or of another kind.
    """
    if not path.is_file():
        reason = "is a folder" if path.is_dir() else why_missing(path)
        raise CheckpointError(f"{path}: {reason}", usage=True)
    try:
        return torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except Exception as error:  # PyTorch raises anything for files of others
        raise CheckpointError(f"{path}: damaged, or not a PyTorch weight file") from error


def _tensors_of(content: Any, key: str, path: Path, kind: str) -> dict[str, Any]:
    tensors = content.get(key) if isinstance(content, dict) else None
    if not isinstance(tensors, dict):
        raise CheckpointError(f"{path}: not {kind} (no `{key}`)")
    return tensors


def _infer_config(tensors: Mapping[str, Tensor]) -> UNetConfig:
    """Returns the configuration that the tensors' names and shapes show; raises any error where
    they are no U-Net's.
    """

    def count(pattern: str) -> int:
        numbers = itertools.count()
        return next(number for number in numbers if pattern.format(number) not in tensors)

    def present(pattern: str) -> tuple[bool, ...]:
        return tuple(pattern.format(level) in tensors for level in levels)

    first_layer = "down_blocks.{}.resnets.0.conv1.weight"
    levels = range(count(first_layer))
    spatial = "down_blocks.{}.attentions.0.transformer_blocks.0.attn2.to_k.weight"
    temporal = "blocks.{}.motion_modules.0.temporal_transformer.proj_in.weight"
    positions = 24  # any: without temporal transformers, it is not used
    for name, tensor in tensors.items():
        if str(name).endswith("pos_encoder.pe"):
            positions = tensor.shape[1]
    return UNetConfig(
        widths=tuple(tensors[first_layer.format(level)].shape[0] for level in levels),
        layers=count("down_blocks.0.resnets.{}.conv1.weight"),
        audio_width=tensors[spatial.format(0)].shape[1],
        attention=present(spatial),
        motion_down=present(f"down_{temporal}"),
        motion_up=present(f"up_{temporal}"),
        positions=positions,
    )


@dataclass(frozen=True, slots=True)
class Origin:
    """How a checkpoint stores one parameter."""

    names: tuple[str | None, ...]
    """The tensors that are stacked along its outputs; None stands for zeros."""
    shape: tuple[int, ...]
    """The shape of each of them."""
    transposed: bool = False
    """Whether the checkpoint stores `(out, in)`, and the network `(in, out)`."""


def origins(network: nn.Module, prefix: str = "") -> dict[str, Origin]:
    """Returns where the parameters and buffers of `network` come from, by their names; `prefix`
    precedes every name in the checkpoint.
    """
    table = {}
    for name, tensor in network.state_dict().items():
        table[name] = Origin((prefix + name,), tuple(tensor.shape))
    for path, module in network.named_modules():
        if not isinstance(module, Linear):
            continue
        parent, dot, name = path.rpartition(".")
        stems = [f"{prefix}{parent}{dot}{source}" for source in module.sources or (name,)]
        table[f"{path}.weight"] = _origin_of_weight(module, stems)
        if module.bias is not None:
            table[f"{path}.bias"] = _origin_of_bias(module, stems)
    return table


def _origin_of_weight(linear: Linear, stems: Sequence[str]) -> Origin:
    inputs, outputs = linear.weight.shape
    names = tuple(f"{stem}.weight" for stem in stems)
    shape = (outputs // len(stems), inputs, *[1] * linear.kernel_dims)
    return Origin(names, shape, transposed=True)


def _origin_of_bias(linear: Linear, stems: Sequence[str]) -> Origin:
    names: list[str | None] = []
    for stem in stems:
        is_biased = stem.rpartition(".")[2] not in linear.unbiased
        names.append(f"{stem}.bias" if is_biased else None)
    outputs = linear.weight.shape[1]
    return Origin(tuple(names), (outputs // len(stems),))


def _fill(
    path: Path,
    network: nn.Module,
    table: Mapping[str, Origin],
    tensors: Mapping[str, Any],
    dtype: torch.dtype,
) -> None:
    """Loads weights in `dtype` into `network`, which is on the meta device, and prepares it for
    inference.

    Raises:
        CheckpointError: tensors are missing, of wrong shape or type, or have values that are not
            finite in `dtype`; the message names the first.
    """
    _check_tensors(path, table, tensors, dtype)
    state: dict[str, Tensor] = {}
    for key, origin in table.items():
        parts = []
        for name in origin.names:
            if name is None:
                part = torch.zeros(origin.shape, dtype=dtype)
            else:
                part = tensors[name].to(dtype)
            if origin.transposed:
                part = part.flatten(1).t()
            parts.append(part)
        state[key] = parts[0]
        if origin.transposed:
            state[key] = torch.cat(parts, 1)
        elif len(parts) > 1:
            state[key] = torch.cat(parts)
    network.load_state_dict(state, assign=True)
    network.eval().requires_grad_(False)


def _check_tensors(
    path: Path, table: Mapping[str, Origin], tensors: Mapping[str, Any], dtype: torch.dtype
) -> None:
    """Raises `CheckpointError` as `_fill`."""
    wanted = {}
    for origin in table.values():
        for name in origin.names:
            if name is not None:
                wanted[name] = origin.shape
    wrong = []
    for name, shape in wanted.items():
        tensor = tensors.get(name)
        actual = tuple(tensor.shape) if isinstance(tensor, Tensor) else "missing"
        if actual != shape:
            wrong.append(f"{name}: {actual}, not {shape}")
    if wrong:
        raise CheckpointError(
            f"{path}: {len(wrong)} of {len(wanted)} tensors missing or of another shape, "
            f"first {wrong[0]}"
        )
    for name in wanted:
        least, most = tensors[name].aminmax()
        largest = max(abs(float(least)), abs(float(most)))
        if not largest <= torch.finfo(dtype).max:
            if math.isfinite(largest):
                cure = "export with --precision fp32"
            else:
                cure = "the file is damaged"
            raise CheckpointError(
                f"{path}: {name} has values up to {largest:g}, too large for {dtype}; {cure}"
            )
