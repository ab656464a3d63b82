"""What `calibrate` is asked for: options, and clips."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from latentsync_trt.errors import InputError
from latentsync_trt.option_fields import QUALITY, check_limits, option
from latentsync_trt.paths import AUDIO_SUFFIXES, VIDEO_SUFFIXES, files_in, path_exists, why_missing

CALIBRATE_TOOLS = ("onnx", "onnx-ir", "ml_dtypes")
"""Packages that make the graphs."""

CALIBRATE_EXTRA = "calibrate"
"""The extra that installs them."""

EightBit = Literal["int8", "fp8"]

RESIDUAL_LAYERS = ("conv_in", "conv_out", "conv_shortcut", "samplers")
"""Convolutions that read the residual stream without a norm before them, and the last one: they
cause nearly all of the 8-bit error."""

NO_LAYERS = "none"
"""The value of --keep that keeps no layer."""

_option = partial(option, group=QUALITY)


def parse_keep(names: str | tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names in a list such as "conv_in,conv_out"; a tuple as it is."""
    if not isinstance(names, str):
        return names
    if names == NO_LAYERS:
        return ()
    return tuple(filter(None, map(str.strip, names.split(","))))


def _show_keep(names: tuple[str, ...]) -> str:
    return ",".join(names) or NO_LAYERS


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
        show=_show_keep,
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
        """Returns whether `keep` names the layer with these weights.

        A pattern is a whole name, some of its parts between dots ("resnets.0.conv1"), or the end of
        one such part ("samplers" for "downsamplers").
        """
        for pattern in self.keep:
            if f".{pattern}." in f".{layer}.":
                return True
            if any(part.endswith(pattern) for part in layer.split(".")):
                return True
        return False


@dataclass(frozen=True, slots=True)
class CalibrationClip:
    """A video and its speech."""

    video: Path
    audio: Path
    """A sound file, or the video itself."""


def clips_in(folder: Path) -> list[CalibrationClip]:
    """Returns the videos in a folder, sorted by name, each with the sound file of the same name,
    else its own sound.

    Raises:
        InputError: no such folder, or no video in it.
    """
    if not path_exists(folder):
        raise InputError(why_missing(folder, "folder"))
    audio = {path.stem: path for path in files_in(folder, AUDIO_SUFFIXES)}
    videos = files_in(folder, VIDEO_SUFFIXES)
    if not videos:
        raise InputError(f"{folder}: no video in it (looked for {', '.join(VIDEO_SUFFIXES)})")
    return [CalibrationClip(path, audio.get(path.stem, path)) for path in videos]
