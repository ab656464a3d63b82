"""What `calibrate` is asked for: options, and clips."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from latentsync_trt.errors import InputError
from latentsync_trt.option_fields import QUALITY, check_limits, option
from latentsync_trt.paths import AUDIO_SUFFIXES, VIDEO_SUFFIXES, files_in, path_exists, why_missing

TOOLS = ("onnx", "onnx-ir", "ml_dtypes")
"""Packages that make the graphs."""

EXTRA = "calibrate"
"""The extra that installs them."""

EightBit = Literal["int8", "fp8"]

RESIDUAL_LAYERS = ("conv_in", "conv_out", "conv_shortcut", "samplers")
"""Convolutions that read the residual stream without a norm before them, and the last one: they
cause nearly all of the 8-bit error."""

NO_LAYERS = "none"


_option = partial(option, group=QUALITY)


def parse_keep(names: str | tuple[str, ...]) -> tuple[str, ...]:
    """ "conv_in,conv_out" → ("conv_in", "conv_out"); "none" → (); a tuple as it is."""
    if isinstance(names, str):
        if names == NO_LAYERS:
            return ()
        return tuple(part.strip() for part in names.split(",") if part.strip())
    return names


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """How a bundle is calibrated and quantized; raises `InputError` on a value outside its
    limits.
    """

    precision: EightBit = _option("int8", "Precision of most layers of the U-Net.")
    windows: int = _option(
        32,
        "Windows to calibrate on, spread evenly over the clips; more take longer.",
        minimum=1,
        maximum=1024,
    )
    keep: tuple[str, ...] = _option(
        RESIDUAL_LAYERS,
        f"Layers to keep in the bundle's own precision: parts of their names, or {NO_LAYERS}.",
        parse=parse_keep,
        show=lambda names: ",".join(names) or NO_LAYERS,
        metavar="NAMES",
    )
    measure: bool = _option(
        True,
        "Measure the PSNR of generated faces on windows not calibrated on.",
        off="--no-measure",
    )
    percentile: float = _option(
        99.99,
        "Percentile of an activation's magnitudes that "
        "becomes the largest 8-bit number; 100 clips nothing.",
        advanced=True,
        minimum=90.0,
        maximum=100.0,
    )
    steps: int = _option(
        20, "Denoising steps of each window.", advanced=True, minimum=1, maximum=999
    )
    guidance: float = _option(
        1.5,
        "Classifier-free guidance scale of the denoising.",
        advanced=True,
        minimum=1.001,
        maximum=20.0,
    )

    def __post_init__(self) -> None:
        check_limits(self)

    def keeps(self, layer: str) -> bool:
        """Whether `keep` names the layer with these weights.

        A pattern is a whole name, some of its parts between dots ("resnets.0.conv1"), or the end of
        one such part ("samplers" for "downsamplers").
        """
        parts = layer.split(".")
        return any(
            f".{pattern}." in f".{layer}." or any(part.endswith(pattern) for part in parts)
            for pattern in self.keep
        )


@dataclass(frozen=True, slots=True)
class Clip:
    """A video and its speech, an audio file or the video itself."""

    video: Path
    audio: Path


def clips_in(folder: Path) -> tuple[Clip, ...]:
    """The videos in a folder, sorted by name, each with the audio file of the same name, else its
    own sound.

    Raises:
        InputError: no such folder, or no video in it.
    """
    if not path_exists(folder):
        raise InputError(why_missing(folder, "folder"))
    audio = {path.stem: path for path in files_in(folder, AUDIO_SUFFIXES)}
    videos = files_in(folder, VIDEO_SUFFIXES)
    clips = tuple(Clip(path, audio.get(path.stem, path)) for path in videos)
    if not clips:
        raise InputError(f"{folder}: no video in it (looked for {', '.join(VIDEO_SUFFIXES)})")
    return clips
