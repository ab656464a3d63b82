"""How a bundle is quantized."""

from dataclasses import asdict, dataclass

from latentsync_trt.errors import InputError
from latentsync_trt.quantize.cast import EIGHT_BIT, EightBit
from latentsync_trt.quantize.ranges import METHODS, PERCENTILE, Method

RESIDUAL_READERS = ("conv_in", "conv_out", "conv_shortcut", "samplers")
"""Convolutions that read the residual stream as it is, not normalized, and the last one. On the built-in model they did
nearly all the damage: 70.6 dB with them kept, 42.4 dB with every layer in eight bits."""

PUBLISHED = ("time_emb_proj", "time_embedding", "conv_in", "conv_out", "conv_shortcut", "proj_out", "norm_out")
"""What NVIDIA's recipes for diffusion U-Nets leave out."""


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """What becomes of the layers.

    `kept`: those that stay as they are: names of weights, or parts of names ("conv_in" is meant wherever it is one of
    the parts between dots, "samplers" also where it ends one). `method`, `percentile`: as in `LayerInput.amax`.
    `smooth_alpha`: how much of the inputs' range goes over to the weights of linear layers, 0 to 1; None leaves
    SmoothQuant out.

    Raises:
        InputError: a value is outside its limits.
    """

    precision: EightBit = "int8"
    kept: tuple[str, ...] = RESIDUAL_READERS
    method: Method = "max"
    percentile: float = PERCENTILE
    smooth_alpha: float | None = None

    def __post_init__(self) -> None:
        if self.precision not in EIGHT_BIT:
            raise InputError(f"precision {self.precision}: not one of {', '.join(EIGHT_BIT)}")
        if self.method not in METHODS:
            raise InputError(f"method {self.method}: not one of {', '.join(METHODS)}")
        if self.smooth_alpha is not None and not 0 <= self.smooth_alpha <= 1:
            raise InputError(f"smooth alpha {self.smooth_alpha:g}: give one of 0 to 1")

    def keeps(self, weight: str) -> bool:
        """Whether the layer with these weights stays as it is."""
        return any(_names(pattern, weight) for pattern in self.kept)

    def settings(self) -> dict[str, str | float | None]:
        """All but `kept`, for the manifest, which names the layers themselves."""
        return {name: value for name, value in asdict(self).items() if name != "kept"}


def _names(pattern: str, weight: str) -> bool:
    parts = weight.split(".")
    return pattern == weight or any(part.endswith(pattern) for part in parts) or f".{pattern}." in f".{weight}."
