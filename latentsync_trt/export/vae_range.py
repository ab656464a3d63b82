"""Which parts of a VAE half precision cannot hold, and the VAE with those parts in float32.

Some published VAEs, Stable Diffusion XL's for one, reach beyond float16's largest number in the decoder's upper blocks:
their pictures are black or not a number. Comparing an exported graph with PyTorch does not show it, as ONNX Runtime
computes float16 graphs in float32 on a CPU and leaves out the roundings in between.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from diffusers.models.attention_processor import Attention
from torch import Tensor, nn

from latentsync_trt.export.vae import ImageAttention, VaeDecoder, VaeEncoder

LARGEST_HALF = torch.finfo(torch.float16).max

HEADROOM = 4.0
"""How far below float16's end the largest value seen must stay. Other faces may reach further than the few pictures
that are tried, and larger pictures do: in the built-in model's VAE by up to 1.4 from 128 to 256 px. A kernel may also
sum up in half precision, and parts of a sum can be larger than the whole."""

LIMIT = LARGEST_HALF / HEADROOM

Parts = Mapping[str, tuple[nn.Module, ...]]


def parts_of(vae: Any) -> Parts:
    """What is kept in one precision or another: its modules, all in the order that data takes.

    Together they hold all parameters. They are named after the module whose parameters they hold; `conv_out` includes
    the norm before it.
    """
    encoder, decoder = vae.encoder, vae.decoder
    found: dict[str, tuple[Any, ...]] = {
        "encoder.conv_in": (encoder.conv_in,),
        **{f"encoder.down_blocks.{index}": (block,) for index, block in enumerate(encoder.down_blocks)},
        "encoder.mid_block": (encoder.mid_block,),
        "encoder.conv_out": (encoder.conv_norm_out, encoder.conv_act, encoder.conv_out),
        "quant_conv": (vae.quant_conv,),
        "post_quant_conv": (vae.post_quant_conv,),
        "decoder.conv_in": (decoder.conv_in,),
        "decoder.mid_block": (decoder.mid_block,),
        **{f"decoder.up_blocks.{index}": (block,) for index, block in enumerate(decoder.up_blocks)},
        "decoder.conv_out": (decoder.conv_norm_out, decoder.conv_act, decoder.conv_out),
    }
    # Some VAEs have no convolution between the networks and the latent.
    return {name: modules for name, modules in found.items() if modules[0] is not None}


def largest_values(vae: Any, pictures: Collection[Tensor]) -> dict[str, float]:
    """The largest magnitude in each part while the float32 `vae` encodes and decodes `pictures (N, 3, H, W)`.

    Counted are parameters, what every module takes and gives, and the logits of attention: all that a graph may store
    between two kernels. What is summed up inside of norms and of products is not, since kernels do that in float32; nor
    is a softmax, which is float32 in the graph. A part takes what the one before it gives, so that a large value that
    passes from one to the other counts for both. A value that is not finite counts as infinite.
    """
    encoder, decoder = VaeEncoder(vae), VaeDecoder(vae)
    with _watched(parts_of(vae)) as largest, torch.inference_mode():
        for picture in pictures:
            decoder(encoder(picture))
    return largest


def keep_wide(vae: Any, wide: Collection[str]) -> None:
    """Turns the float32 `vae` to half precision, but for the parts named in `wide`. Each part takes its input in its
    own precision; names of modules and parameters stay as they are."""
    for name, modules in parts_of(vae).items():
        dtype = torch.float32 if name in wide else torch.float16
        for module in modules:
            module.to(dtype)
        modules[0].register_forward_pre_hook(partial(_take_as, dtype))


def wide_note(wide: Mapping[str, float]) -> str:
    """The sentence about parts in float32 and their largest values."""
    parts = ", ".join(f"{name} (values up to {value:,.0f})" for name, value in wide.items())
    return f"vae: in float32, as float16 ends at {LARGEST_HALF:,.0f}: {parts}"


def _take_as(dtype: torch.dtype, _module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return inputs[0].to(dtype), *inputs[1:]


@contextmanager
def _watched(parts: Parts) -> Iterator[dict[str, float]]:
    """Yields what is the largest magnitude in each part so far, as long as the context lasts."""
    largest = {name: max(map(_magnitude, _parameters(modules))) for name, modules in parts.items()}

    def watch(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        seen = [_magnitude(tensor) for tensor in (*inputs, output) if isinstance(tensor, Tensor)]
        if isinstance(module, Attention):
            seen.append(_magnitude(_logits(module, inputs[0])))
        largest[name] = max(largest[name], *seen)

    with ExitStack() as stack:
        for name, modules in parts.items():
            for module in modules:
                for inner in module.modules():
                    stack.enter_context(inner.register_forward_hook(partial(watch, name)))
        yield largest


def _parameters(modules: tuple[nn.Module, ...]) -> Iterator[Tensor]:
    return (parameter for module in modules for parameter in module.parameters())


def _magnitude(tensor: Tensor) -> float:
    largest = float(tensor.abs().max())
    return largest if math.isfinite(largest) else math.inf


def _logits(attention: Any, image: Tensor) -> Tensor:
    """What the softmax is given, `(N, heads, T, T)`."""
    query, key, _ = ImageAttention.project(attention, image)
    return torch.matmul(query * query.shape[-1] ** -0.5, key.transpose(-1, -2))
