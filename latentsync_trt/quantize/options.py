"""Options of `calibrate`."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from latentsync_trt.option_fields import QUALITY, check_limits, option

EightBit = Literal["int8", "fp8"]

RESIDUAL_LAYERS = ("conv_in", "conv_out", "conv_shortcut", "samplers")
"""Convolutions that read the residual stream without a norm before them, and the last one: they cause nearly all of the
8-bit error."""

NO_LAYERS = "none"

_option = partial(option, group=QUALITY)


def parse_keep(text: str) -> tuple[str, ...]:
    """ "conv_in,conv_out" → ("conv_in", "conv_out"); "none" → ()."""
    return () if text == NO_LAYERS else tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """How a bundle is calibrated and quantized; raises `InputError` on a value outside its limits.

    Only `samples`, `steps` and `guidance` affect what is observed; changing others needs no new calibration.
    """

    precision: EightBit = _option("int8", "Precision of most layers of the U-Net.")
    samples: int = _option(
        32, "Windows to calibrate on, spread evenly over the clips; more take longer.", minimum=1, maximum=4096
    )
    target_psnr: float | None = _option(
        None,
        "Mixed precision search: keep the fewest layers in the bundle's own precision so that generated faces reach "
        "this PSNR in dB.  [default: no search]",
        minimum=1.0,
        maximum=100.0,
    )
    keep: tuple[str, ...] = _option(
        RESIDUAL_LAYERS,
        f"Layers to keep in the bundle's own precision: parts of their names, or {NO_LAYERS}. With --target-psnr, the "
        "choice that is tried first.",
        parse=parse_keep,
        metavar="NAMES",
    )
    measure: bool = _option(
        True, "Measure the PSNR of generated faces on windows not calibrated on.", off="--no-measure"
    )
    percentile: float = _option(
        99.99,
        "Percentile of an activation's magnitudes that becomes the largest 8-bit number; 100 clips nothing.",
        advanced=True,
        minimum=90.0,
        maximum=100.0,
    )
    smooth: float | None = _option(
        None,
        "SmoothQuant: share of the range that moves from the inputs of linear layers to their weights, such as 0.5.  "
        "[default: off]",
        advanced=True,
        minimum=0.0,
        maximum=1.0,
    )
    steps: int = _option(20, "Denoising steps of each window.", advanced=True, minimum=1, maximum=999)
    guidance: float = _option(
        1.5, "Classifier-free guidance scale of the denoising.", advanced=True, minimum=1.001, maximum=20.0
    )

    def __post_init__(self) -> None:
        check_limits(self)

    def keeps(self, layer: str) -> bool:
        """Whether `keep` names the layer with these weights.

        A pattern is a whole name, some of its parts between dots ("resnets.0.conv1"), or the end of one such part
        ("samplers" for "downsamplers").
        """
        parts = layer.split(".")
        return any(
            f".{pattern}." in f".{layer}." or any(part.endswith(pattern) for part in parts) for pattern in self.keep
        )
