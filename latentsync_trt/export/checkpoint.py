"""Loads published weight files and checks their kind, shapes and completeness."""

import math
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from latentsync_trt.errors import CheckpointError
from latentsync_trt.export.attention import HEADS
from latentsync_trt.export.layers import NORM_GROUPS
from latentsync_trt.export.naming import Origin, origins
from latentsync_trt.export.unet import INPUT_CHANNELS, UNet, UNetConfig
from latentsync_trt.export.whisper import WhisperConfig, WhisperEncoder
from latentsync_trt.paths import why_missing

WHISPER_PREFIX = "encoder."
_POSITIONS_WITHOUT_MOTION = 24
_NAMED_AT_MOST = 3
_LARGEST_DIM = 10_000
WHISPER_DIMS = ("n_mels", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer")

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class LoadedUNet:
    """A U-Net with its weights, and the number of unused tensors in the file."""

    network: UNet
    unused_tensors: int


def load_unet(path: Path, dtype: torch.dtype) -> LoadedUNet:
    """Reads `latentsync_unet.pt`; a tensor is copied only where its type or layout changes.

    Raises:
        CheckpointError: the file is missing, damaged or no LatentSync U-Net, or tensors are missing or of wrong shape.
    """
    content = read_file(path)
    if _is_whisper(content):
        raise CheckpointError(f"{path}: a Whisper model, not a LatentSync U-Net; give it as --whisper")
    tensors = content.get("state_dict") if isinstance(content, dict) else None
    if not isinstance(tensors, dict) or "conv_in.weight" not in tensors:
        raise CheckpointError(f"{path}: not a LatentSync U-Net (no `state_dict` with conv_in.weight)")
    try:
        config = infer_unet_config(path, tensors)
    except (AttributeError, IndexError) as error:
        raise CheckpointError(f"{path}: not a LatentSync U-Net (its tensors are no weights of one)") from error
    with torch.device("meta"):
        network = UNet(config)
    table = origins(network)
    fill(path, network, table, tensors, dtype)
    used = {name for origin in table.values() for name in origin.names}
    return LoadedUNet(network, len(tensors.keys() - used))


def load_whisper(path: Path, dtype: torch.dtype) -> WhisperEncoder:
    """Reads the encoder from one of OpenAI's Whisper files.

    Raises:
        CheckpointError: the file is missing, damaged or not a Whisper file, or tensors are missing or of wrong shape.
    """
    content = read_file(path)
    if not _is_whisper(content):
        kind = "a LatentSync U-Net" if isinstance(content, dict) and "state_dict" in content else "another file"
        raise CheckpointError(f"{path}: {kind}, not one of OpenAI's Whisper models (no `dims`); give it as --whisper")
    dims = content["dims"]
    if not isinstance(dims, dict) or not all(isinstance(dims.get(name), int) for name in WHISPER_DIMS):
        raise CheckpointError(f"{path}: its `dims` lack one of {', '.join(WHISPER_DIMS)}")
    config = WhisperConfig(*(dims[name] for name in WHISPER_DIMS))
    if min(astuple(config)) < 1 or max(astuple(config)) > _LARGEST_DIM or config.width % config.heads:
        raise CheckpointError(f"{path}: no Whisper encoder has its `dims`, {config}")
    with torch.device("meta"):
        network = WhisperEncoder(config)
    fill(path, network, origins(network, WHISPER_PREFIX), content["model_state_dict"], dtype)
    return network


def read_file(path: Path) -> Any:
    """Unpickles tensors and plain containers only; large files are memory-mapped.

    Raises:
        CheckpointError: the file is missing, not a file or damaged, or its pickle contains anything else.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: is a folder" if path.is_dir() else why_missing(path), usage=True)
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: damaged, or not a PyTorch weight file") from error


def infer_unet_config(path: Path, tensors: Tensors) -> UNetConfig:
    """Infers the configuration from the tensors; `path` is for messages.

    Raises:
        CheckpointError: a tensor has a shape that LatentSync's U-Net cannot have.
    """
    levels = _count(tensors, "down_blocks.{}.resnets.0.conv1.weight")
    widths = tuple(tensors[f"down_blocks.{i}.resnets.0.conv1.weight"].shape[0] for i in range(levels))
    spatial = "transformer_blocks.0.attn2.to_k.weight"
    attention = tuple(f"down_blocks.{i}.attentions.0.{spatial}" in tensors for i in range(levels))
    if levels == 0 or not attention[0]:
        raise CheckpointError(f"{path}: not a LatentSync U-Net (no audio attention in its first block)")
    tables = [tensor for name, tensor in tensors.items() if str(name).endswith("pos_encoder.pe")]
    config = UNetConfig(
        widths=widths,
        layers=_count(tensors, "down_blocks.0.resnets.{}.conv1.weight"),
        audio_width=tensors[f"down_blocks.0.attentions.0.{spatial}"].shape[1],
        attention=attention,
        motion_down=_motion(tensors, "down_blocks", levels),
        motion_up=_motion(tensors, "up_blocks", levels),
        positions=tables[0].shape[1] if tables else _POSITIONS_WITHOUT_MOTION,
    )
    for width in widths:
        if width % NORM_GROUPS or width % HEADS:
            raise CheckpointError(f"{path}: {width} channels do not divide into {NORM_GROUPS} groups and {HEADS} heads")
    if tensors["conv_in.weight"].shape[1] != INPUT_CHANNELS:
        channels = tensors["conv_in.weight"].shape[1]
        raise CheckpointError(f"{path}: takes {channels} input channels, LatentSync {INPUT_CHANNELS}: another U-Net")
    return config


def fill(path: Path, network: nn.Module, table: Mapping[str, Origin], tensors: Tensors, dtype: torch.dtype) -> None:
    """Loads weights in `dtype` into `network`, which is on the meta device, and prepares it for inference.

    Raises:
        CheckpointError: tensors are missing, of wrong shape or type, or have values that are not finite in `dtype`; the
            message names the first.
    """
    wanted = {name: origin.shape for origin in table.values() for name in origin.names if name is not None}
    missing = [name for name in wanted if not isinstance(tensors.get(name), Tensor)]
    if missing:
        named = ", ".join(missing[:_NAMED_AT_MOST]) + (", …" if len(missing) > _NAMED_AT_MOST else "")
        raise CheckpointError(f"{path}: {len(missing)} of {len(wanted)} tensors missing: {named}")
    wrong = [name for name, shape in wanted.items() if tuple(tensors[name].shape) != shape]
    if wrong:
        name = wrong[0]
        found, expected = tuple(tensors[name].shape), wanted[name]
        raise CheckpointError(f"{path}: {len(wrong)} tensors of another shape, first {name}: {found}, not {expected}")
    for name in wanted:
        _check_values(path, name, tensors[name], dtype)
    network.load_state_dict({key: origin.gather(tensors, dtype) for key, origin in table.items()}, assign=True)
    network.eval().requires_grad_(False)


def _check_values(path: Path, name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    if not tensor.is_floating_point() or tensor.layout != torch.strided or tensor.is_meta:
        kind = "without values" if tensor.is_meta else f"{tensor.dtype}, {tensor.layout}"
        raise CheckpointError(f"{path}: {name} is {kind}, not a dense tensor of floating-point numbers")
    largest = max(abs(float(extreme)) for extreme in tensor.aminmax())
    if not math.isfinite(largest):
        raise CheckpointError(f"{path}: {name} has values that are not finite; the file is damaged, download it again")
    if largest > torch.finfo(dtype).max:
        raise CheckpointError(
            f"{path}: {name} has values up to {largest:.0f}, too large for half precision; export with --precision fp32"
        )


def _is_whisper(content: Any) -> bool:
    return isinstance(content, dict) and "dims" in content and isinstance(content.get("model_state_dict"), dict)


def _count(tensors: Tensors, pattern: str) -> int:
    count = 0
    while pattern.format(count) in tensors:
        count += 1
    return count


def _motion(tensors: Tensors, blocks: str, levels: int) -> tuple[bool, ...]:
    stem = "motion_modules.0.temporal_transformer.proj_in.weight"
    return tuple(f"{blocks}.{i}.{stem}" in tensors for i in range(levels))
