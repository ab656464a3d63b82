"""What the graphs look like that ONNX Runtime's CUDA provider runs fastest, and where its kernels end. Pure.

The portable graphs are what every provider takes. Of them the CUDA provider spends more than half its time on what
computes nothing: layouts change around every convolution, norms have no kernel of their own and become a dozen passes
in float32, biases and residual sums are passes, too. In the CUDA form activations are channels-last throughout, and
kernels of the domain com.microsoft do such passes along with what comes before or after. It is made from the same
modules and reads the same weights.
"""

from dataclasses import dataclass
from typing import Literal

DOMAIN = "com.microsoft"

AttentionOp = Literal["Attention", "MultiHeadAttention"]


@dataclass(frozen=True, slots=True)
class CudaForm:
    """What is emitted; the defaults are what is expected to be fastest (docs/performance.md).

    Args:
        geglu: bias, split, GELU and product of a gated projection as one BiasSplitGelu.
        skip_layer_norm: bias, residual sum and layer norm as one SkipLayerNormalization.
        skip_group_norm: residual sum and group norm as one SkipGroupNorm.
        bias_add: bias and residual sum as one BiasAdd.
        nhwc_conv: convolutions as NhwcConv; else as Conv between two Transposes, which the provider takes away if
            given the option `prefer_nhwc`.
        attention: the op of attention among pixels and to audio tokens; for MultiHeadAttention the provider can use
            cuDNN.
        temporal_attention: the op of attention among frames.
        packed_pixels: so many pixels' frames make one sequence of the attention among frames, with a mask between
            them: it fills the tile of the kernel, which 16 frames leave mostly empty.
    """

    geglu: bool = True
    skip_layer_norm: bool = True
    skip_group_norm: bool = True
    bias_add: bool = True
    nhwc_conv: bool = True
    attention: AttentionOp = "MultiHeadAttention"
    temporal_attention: AttentionOp = "Attention"
    packed_pixels: int = 4


SPLIT_GELU_WIDTHS = frozenset({2560, 5120, 6144, 10240, 12288})
"""Widths, before the split, for which BiasSplitGelu is compiled."""

BIAS_ADD_WIDTHS = frozenset({320, 640, 1280})
"""Widths for which BiasAdd is compiled."""

_CHANNELS_PER_THREAD = 2


def group_norm_obstacle(channels: int, groups: int) -> str | None:
    """Why GroupNorm's kernel refuses a norm; None if it does not."""
    if channels % groups or channels // groups % _CHANNELS_PER_THREAD:
        return f"GroupNorm's kernel takes groups of an even number of channels, not {channels} channels in {groups}"
    return None
