"""Finds the parts of a VAE that overflow half precision, and keeps them in float32.

Some published VAEs, for example Stable Diffusion XL's, exceed float16's largest number in the decoder's upper blocks:
their pictures are black or NaN. ONNX Runtime on a CPU does not reveal it: it computes float16 graphs in float32 and
omits the roundings in between.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers.models.attention_processor import Attention
from torch import Tensor, nn

from latentsync_trt.errors import CheckpointError
from latentsync_trt.export.vae import ImageAttention, VaeDecoder, VaeEncoder, load_vae
from latentsync_trt.face.align import align, crop
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.media.demo_clip import portrait

LARGEST_HALF = torch.finfo(torch.float16).max

HEADROOM = 4.0
"""How far below float16's maximum the largest measured value must stay. Other faces may exceed the trial pictures, and
larger pictures do: in the built-in model's VAE by a factor of up to 1.4 from 128 to 256 px. A kernel may also sum up
in half precision, and partial sums can be larger than the whole."""

LIMIT = LARGEST_HALF / HEADROOM

_TRIAL_PX = 128
"""Largest side of the trial pictures: all of them take 20 s of a CPU core and 0.9 GB with the published VAE, at 512 px
sixteen times as much. The largest values depend little on the size, since convolutions see a few pixels and norms
divide by a picture's usual values; `HEADROOM` covers the difference."""

_POINTS_PX = np.array([(199, 88), (252, 90), (223, 127)], np.float32)
"""Left brow, right brow and nose in the portrait, as the tracker finds them."""

_SEED = 5


def load_half_vae(folder: Path, resolution_px: int) -> tuple[Any, dict[str, float]]:
    """The VAE in half precision, and its parts that stay in float32 with the largest values in them.

    Raises:
        CheckpointError: as `load_vae`, or values are not finite even in float32.
    """
    vae = load_vae(folder, torch.float32)
    found = largest_values(vae, trial_pictures(min(_TRIAL_PX, resolution_px)).values())
    wide = {name: value for name, value in found.items() if value > LIMIT}
    if not all(map(math.isfinite, wide.values())):
        raise CheckpointError(f"{folder}: gives values that are not finite, in float32; the weights are damaged")
    keep_wide(vae, wide)
    return vae, wide


def parts_of(vae: Any) -> dict[str, nn.Module]:
    """Modules whose precision is chosen separately, by name; together they hold all parameters."""
    found: dict[str, nn.Module] = {}
    for half, blocks in ((vae.encoder, "encoder.down_blocks"), (vae.decoder, "decoder.up_blocks")):
        name, _, list_name = blocks.partition(".")
        children = {f"{name}.{child}": module for child, module in half.named_children() if child != list_name}
        found |= children | {f"{blocks}.{index}": block for index, block in enumerate(getattr(half, list_name))}
    # Some VAEs have no convolution between the networks and the latent.
    found |= {name: getattr(vae, name) for name in ("quant_conv", "post_quant_conv") if getattr(vae, name) is not None}
    return {name: module for name, module in found.items() if any(True for _ in module.parameters())}


def largest_values(vae: Any, pictures: Iterable[Tensor]) -> dict[str, float]:
    """The largest magnitude in each part while the float32 `vae` encodes and decodes `pictures (N, 3, H, W)`.

    This covers all that a graph may store between two kernels: parameters, inputs and outputs of every module, and the
    logits of attention. It excludes sums within norms and products, which kernels compute in float32, and the softmax,
    which is float32 in the graph. A large value between two parts counts for both; a value that is not finite counts as
    infinite.
    """
    encoder, decoder = VaeEncoder(vae), VaeDecoder(vae)
    with _watched(parts_of(vae)) as largest, torch.inference_mode():
        for picture in pictures:
            decoder(encoder(picture))
    return largest


def keep_wide(vae: Any, wide: Collection[str]) -> None:
    """Converts the float32 `vae` to half precision, except the parts in `wide`.

    If there are such parts, every part casts its input to its own precision; names of modules and parameters stay.
    """
    for name, module in parts_of(vae).items():
        dtype = torch.float32 if name in wide else torch.float16
        module.to(dtype)
        if wide:
            module.register_forward_pre_hook(partial(_cast_input, dtype))


def wide_note(wide: Mapping[str, float]) -> str:
    """The sentence about parts in float32 and their largest values."""
    parts = ", ".join(f"{name} (values up to {value:,.0f})" for name, value in wide.items())
    return f"vae: in float32, as float16 ends at {LARGEST_HALF:,.0f}: {parts}"


def trial_pictures(side_px: int) -> dict[str, Tensor]:
    """Content → picture, float32 `(1, 3, H, W)` in [−1, 1].

    The built-in portrait's face as aligned for the networks, and the same with its mouth masked, both H = W =
    `side_px`; black, white, and noise of the extreme values of each color. The last three look the same at every size
    and have half the height and width.

    Raises:
        InputError: the package lacks its portrait.
    """
    matrix, _ = align(_POINTS_PX, None, side_px)
    image = torch.from_numpy(crop(portrait(), matrix, side_px).image)
    face = image.permute(2, 0, 1)[None].float() / 127.5 - 1
    white = torch.ones_like(face[..., ::2, ::2])
    noise = torch.randint(0, 2, white.shape, generator=torch.Generator().manual_seed(_SEED)) * 2.0 - 1
    masked = face * torch.from_numpy(mouth_mask(side_px).copy())
    return {"face": face, "masked face": masked, "black": -white, "white": white, "noise": noise}


def _cast_input(dtype: torch.dtype, _module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return inputs[0].to(dtype), *inputs[1:]


@contextmanager
def _watched(parts: Mapping[str, nn.Module]) -> Iterator[dict[str, float]]:
    """Yields the largest magnitude in each part, updated by every pass within the context."""
    largest = {name: max(map(_magnitude, module.parameters())) for name, module in parts.items()}

    def watch(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        seen = [_magnitude(tensor) for tensor in (*inputs, output) if isinstance(tensor, Tensor)]
        if isinstance(module, Attention):
            seen.append(_magnitude(_logits(module, inputs[0])))
        largest[name] = max(largest[name], *seen)

    with ExitStack() as stack:
        for name, part in parts.items():
            for module in part.modules():
                stack.enter_context(module.register_forward_hook(partial(watch, name)))
        yield largest


def _magnitude(tensor: Tensor) -> float:
    largest = float(tensor.abs().max())
    return largest if math.isfinite(largest) else math.inf


def _logits(attention: Any, image: Tensor) -> Tensor:
    """The input of the softmax, `(N, heads, T, T)`."""
    query, key, _ = ImageAttention.project(attention, image)
    return torch.matmul(query * query.shape[-1] ** -0.5, key.transpose(-1, -2))
