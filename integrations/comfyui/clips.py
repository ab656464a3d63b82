"""ComfyUI's pictures, sound and texts to files and options, and back; imports nothing of
ComfyUI.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from fractions import Fraction
from math import nan
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from scipy.io import wavfile

from latentsync_trt import RuntimeOptions, SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.media.writer import write_pictures
from latentsync_trt.option_fields import field_name, file_fields, from_texts
from latentsync_trt.types import Float32Array, UInt8Array

T = TypeVar("T", RuntimeOptions, SyncOptions)

FPS_LIMITS = (1, 240)
_RATE_LIMITS_HZ = (1_000, 4_000_000)
_LARGEST_DENOMINATOR = 1001  # of usual frame rates, as in 30000/1001


def write_images(path: Path, images: Any, fps: Any) -> Path:
    """Writes IMAGE, floats `(N, H, W, 3)` in 0 to 1, rounded to 8 bits, without further loss.
    Returns `path`.

    Raises:
        InputError: there are no pictures, they have other channels than red, green and blue or
            values that are no numbers, or `fps` is no frame rate.
    """
    _check_floats("images", images, "(pictures, height, width, 3)")
    if images.shape[-1] != 3:
        raise InputError(
            f"images: have {images.shape[-1]} channels instead of 3; convert them to RGB"
        )
    rate = Fraction(_number("fps", fps, FPS_LIMITS)).limit_denominator(_LARGEST_DENOMINATOR)
    write_pictures(path, _bytes_of(images), fps=rate, lossless=True)
    return path


def _bytes_of(images: torch.Tensor) -> Iterator[UInt8Array]:
    """The pictures one after another, uint8 `(H, W, 3)`."""
    for image in images:
        levels = _array_of("images", image) * np.float32(255)
        yield np.rint(levels).clip(0, 255).astype(np.uint8)


def read_images(path: Path, frames: int) -> torch.Tensor:
    """All `frames` pictures of a video as IMAGE, float32 `(N, H, W, 3)` in 0 to 1."""
    info = probe(path)
    images = torch.empty((frames, info.height_px, info.width_px, 3))
    for frame in read_frames(path):
        images[frame.index] = torch.tensor(frame.rgb) / 255
    return images


def write_sound(path: Path, audio: Any) -> Path:
    """Writes AUDIO, whose `waveform` is floats `(1, C, T)`, as it is. Returns `path`.

    Raises:
        InputError: there is no sound, as of a video without any, or there are several recordings,
            values that are no numbers, or no sample rate.
    """
    if not isinstance(audio, Mapping) or not {"waveform", "sample_rate"} <= audio.keys():
        raise InputError("audio: there is none, as of a video without sound; give a recording")
    waveform = audio["waveform"]
    _check_floats("audio", waveform, "(1, channels, samples)")
    if waveform.shape[0] != 1:
        raise InputError(f"audio: is a batch of {waveform.shape[0]} recordings; give one")
    rate_hz = _number("audio: sample_rate", audio["sample_rate"], _RATE_LIMITS_HZ)
    if not rate_hz.is_integer():
        raise InputError(
            f"audio: sample_rate {rate_hz}: is not a whole number; resample the recording"
        )
    wavfile.write(path, int(rate_hz), np.ascontiguousarray(_array_of("audio", waveform[0]).T))
    return path


def _check_floats(name: str, tensor: Any, axes: str) -> None:
    """Raises `InputError` unless `tensor` is one of floating-point numbers with these `axes`, and
    not empty.
    """
    if not isinstance(tensor, torch.Tensor):
        raise InputError(
            f"{name}: there is no tensor, but "
            f"{type(tensor).__name__}; connect an output that has one"
        )
    shape = tuple(tensor.shape)
    if len(shape) != axes.count(",") + 1 or not tensor.is_floating_point():
        raise InputError(
            f"{name}: {tensor.dtype} of shape {shape}; give floating-point numbers of shape {axes}"
        )
    if not tensor.numel():
        raise InputError(f"{name}: nothing is in a tensor of shape {shape}; give one with content")


def _array_of(name: str, tensor: torch.Tensor) -> Float32Array:
    """The values of a tensor of any device and precision, with a gradient or without."""
    array: Float32Array = tensor.detach().to("cpu", torch.float32).numpy()
    if not np.isfinite(array).all():
        raise InputError(
            f"{name}: has values that are NaN or infinite; look at the node that makes it"
        )
    return array


def _number(name: str, value: Any, limits: tuple[int, int]) -> float:
    """`value` as a number; raises `InputError` if it is none, or outside of `limits`."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = nan
    least, most = limits
    if not least <= number <= most:
        raise InputError(f"{name} {value}: is not a number from {least} to {most}")
    return number


def available(cls: type[Any]) -> list[str]:
    """The options of `cls` that a node may set: none that names files, as anyone with ComfyUI's
    page could.
    """
    refused = {*file_fields(cls), "engine_cache", "overwrite", "resume", "speaker"}
    refused |= {"redo", "keep_source", "backup"}
    return [spec.name for spec in fields(cls) if spec.name not in refused]


def options_of(cls: type[T], widgets: Mapping[str, Any], text: str | None) -> T:
    """Options from a node's widgets, and from a text with a line `name = value` for each, which
    overrides them.

    Raises:
        InputError: there is no such option, its value cannot be used, or it names a file.
    """
    given: dict[str, Any] = {}
    for line in filter(str.strip, (text or "").splitlines()):
        name, equals, value = line.partition("=")
        if not equals:
            raise InputError(
                f"options: {line.strip()} has no value; write a line `name = value` for each option"
            )
        given[field_name(name)] = value
    for name in given.keys() & {spec.name for spec in fields(cls)} - set(available(cls)):
        raise InputError(f"options: {name} is not available in ComfyUI; use the command line")
    return from_texts(cls, {**widgets, **given})
