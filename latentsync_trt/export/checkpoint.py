"""Loads published weight files: checks their kind, shapes and completeness, and gathers the networks' parameters."""

import math
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from latentsync_trt.errors import CheckpointError
from latentsync_trt.export.layers import Linear
from latentsync_trt.export.unet import UNet
from latentsync_trt.export.unet_blocks import UNetConfig
from latentsync_trt.export.whisper import WhisperConfig, WhisperEncoder
from latentsync_trt.paths import why_missing

WHISPER_PREFIX = "encoder."
WHISPER_DIMS = ("n_mels", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer")
_POSITIONS_WITHOUT_MOTION = 24

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Origin:
    """How a checkpoint stores one parameter.

    `names`: the tensors that are stacked along its outputs; None stands for zeros. `shape`: of each
    of them. `transposed`: the checkpoint stores `(out, in)`, the network `(in, out)`.
    """

    names: tuple[str | None, ...]
    shape: tuple[int, ...]
    transposed: bool = False

    def gather(self, tensors: Tensors, dtype: torch.dtype) -> Tensor:
        """Builds the network's parameter from the checkpoint's tensors."""
        parts = [torch.zeros(self.shape) if name is None else tensors[name] for name in self.names]
        parts = [part.to(dtype) for part in parts]
        if self.transposed:
            return torch.cat([part.flatten(1).t() for part in parts], 1)
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def origins(network: nn.Module, prefix: str = "") -> dict[str, Origin]:
    """Parameter and buffer names of `network` → their origins; `prefix` precedes every name in the checkpoint."""
    found = {name: Origin((prefix + name,), tuple(tensor.shape)) for name, tensor in network.state_dict().items()}
    for path, module in network.named_modules():
        if isinstance(module, Linear):
            found.update(_linear_origins(path, module, prefix))
    return found


def _linear_origins(path: str, module: Linear, prefix: str) -> Iterator[tuple[str, Origin]]:
    parent, dot, own = path.rpartition(".")
    stems = module.sources or (own,)
    inputs, outputs = module.weight.shape
    place, width = prefix + parent + dot, outputs // len(stems)
    weights = tuple(f"{place}{stem}.weight" for stem in stems)
    yield f"{path}.weight", Origin(weights, (width, inputs, *[1] * module.kernel_dims), transposed=True)
    if module.bias is not None:
        biases = tuple(None if stem in module.unbiased else f"{place}{stem}.bias" for stem in stems)
        yield f"{path}.bias", Origin(biases, (width,))


def load_unet(path: Path, dtype: torch.dtype) -> UNet:
    """Reads `latentsync_unet.pt`; a tensor is copied only where its type or layout changes.

    Raises:
        CheckpointError: the file is missing, damaged or no LatentSync U-Net, or tensors are missing or of wrong shape.
    """
    content = _read_file(path)
    tensors = content.get("state_dict") if isinstance(content, dict) else None
    if not isinstance(tensors, dict) or "conv_in.weight" not in tensors:
        kind = "but a Whisper model; give it as --whisper" if _is_whisper(content) else "no conv_in.weight"
        raise CheckpointError(f"{path}: not a LatentSync U-Net, {kind}")
    try:
        with torch.device("meta"):
            network = UNet(_infer_config(tensors))
    except (AttributeError, IndexError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path}: not a LatentSync U-Net (its tensors are no weights of one)") from error
    _fill(path, network, origins(network), tensors, dtype)
    return network


def load_whisper(path: Path, dtype: torch.dtype) -> WhisperEncoder:
    """Reads the encoder from one of OpenAI's Whisper files.

    Raises:
        CheckpointError: the file is missing, damaged or not a Whisper file, or tensors are missing or of wrong shape.
    """
    content = _read_file(path)
    if not _is_whisper(content):
        kind = "a LatentSync U-Net" if isinstance(content, dict) and "state_dict" in content else "another file"
        raise CheckpointError(f"{path}: {kind}, not one of OpenAI's Whisper models (no `dims`); give it as --whisper")
    try:
        with torch.device("meta"):
            network = WhisperEncoder(WhisperConfig(*(content["dims"][name] for name in WHISPER_DIMS)))
    except (KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{path}: no Whisper encoder has its `dims`, {content['dims']}") from error
    _fill(path, network, origins(network, WHISPER_PREFIX), content["model_state_dict"], dtype)
    return network


def _read_file(path: Path) -> Any:
    """Unpickles tensors and plain containers only; large files are memory-mapped."""
    if not path.is_file():
        raise CheckpointError(f"{path}: is a folder" if path.is_dir() else why_missing(path), usage=True)
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: damaged, or not a PyTorch weight file") from error


def _is_whisper(content: Any) -> bool:
    return isinstance(content, dict) and "dims" in content and isinstance(content.get("model_state_dict"), dict)


def _infer_config(tensors: Tensors) -> UNetConfig:
    """The configuration that the tensors' names and shapes show; errors where they are no U-Net's."""
    levels = _count(tensors, "down_blocks.{}.resnets.0.conv1.weight")
    widths = tuple(tensors[f"down_blocks.{i}.resnets.0.conv1.weight"].shape[0] for i in range(levels))
    spatial = "transformer_blocks.0.attn2.to_k.weight"
    attention = tuple(f"down_blocks.{i}.attentions.0.{spatial}" in tensors for i in range(levels))
    tables = [tensor for name, tensor in tensors.items() if str(name).endswith("pos_encoder.pe")]
    return UNetConfig(
        widths=widths,
        layers=_count(tensors, "down_blocks.0.resnets.{}.conv1.weight"),
        audio_width=tensors[f"down_blocks.0.attentions.0.{spatial}"].shape[1],
        attention=attention,
        motion_down=_motion(tensors, "down_blocks", levels),
        motion_up=_motion(tensors, "up_blocks", levels),
        positions=tables[0].shape[1] if tables else _POSITIONS_WITHOUT_MOTION,
    )


def _count(tensors: Tensors, pattern: str) -> int:
    count = 0
    while pattern.format(count) in tensors:
        count += 1
    return count


def _motion(tensors: Tensors, blocks: str, levels: int) -> tuple[bool, ...]:
    stem = "motion_modules.0.temporal_transformer.proj_in.weight"
    return tuple(f"{blocks}.{i}.{stem}" in tensors for i in range(levels))


def _fill(path: Path, network: nn.Module, table: Mapping[str, Origin], tensors: Tensors, dtype: torch.dtype) -> None:
    """Loads weights in `dtype` into `network`, which is on the meta device, and prepares it for inference.

    Raises:
        CheckpointError: tensors are missing, of wrong shape or type, or have values that are not
            finite in `dtype`; the message names the first.
    """
    wanted = {name: origin.shape for origin in table.values() for name in origin.names if name is not None}
    missing = [name for name in wanted if not isinstance(tensors.get(name), Tensor)]
    if missing:
        raise CheckpointError(f"{path}: {len(missing)} of {len(wanted)} tensors missing, first {missing[0]}")
    wrong = [name for name, shape in wanted.items() if tuple(tensors[name].shape) != shape]
    if wrong:
        name = wrong[0]
        found, expected = tuple(tensors[name].shape), wanted[name]
        raise CheckpointError(f"{path}: {len(wrong)} tensors of another shape, first {name}: {found}, not {expected}")
    for name in wanted:
        largest = max(abs(float(extreme)) for extreme in tensors[name].aminmax())
        if not largest <= torch.finfo(dtype).max:
            cure = "export with --precision fp32" if math.isfinite(largest) else "the file is damaged"
            raise CheckpointError(f"{path}: {name} has values up to {largest:g}, too large for {dtype}; {cure}")
    network.load_state_dict({key: origin.gather(tensors, dtype) for key, origin in table.items()}, assign=True)
    network.eval().requires_grad_(False)
