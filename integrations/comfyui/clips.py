"""ComfyUI's pictures, sound and texts to files and options, and back; imports nothing of ComfyUI."""

from collections.abc import Mapping
from dataclasses import fields
from fractions import Fraction
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

T = TypeVar("T", RuntimeOptions, SyncOptions)

_LARGEST_DENOMINATOR = 1001  # of usual frame rates, as in 30000/1001


def write_images(path: Path, images: torch.Tensor, fps: float) -> Path:
    """Writes IMAGE, float `(N, H, W, 3)` in 0 to 1, rounded to 8 bits, without further loss. Returns `path`.

    Raises:
        InputError: the pictures have other channels than red, green and blue.
    """
    if images.shape[-1] != 3:
        raise InputError(f"images: have {images.shape[-1]} channels instead of 3; convert them to RGB")
    pictures = ((image * 255).round().clamp(0, 255).to("cpu", torch.uint8).numpy() for image in images)
    write_pictures(path, pictures, fps=Fraction(fps).limit_denominator(_LARGEST_DENOMINATOR), lossless=True)
    return path


def read_images(path: Path, frames: int) -> torch.Tensor:
    """All `frames` pictures of a video as IMAGE, float32 `(N, H, W, 3)` in 0 to 1."""
    info = probe(path)
    images = torch.empty((frames, info.height_px, info.width_px, 3))
    for frame in read_frames(path):
        images[frame.index] = torch.tensor(frame.rgb) / 255
    return images


def write_sound(path: Path, audio: Mapping[str, Any]) -> Path:
    """Writes AUDIO, whose `waveform` is float `(1, C, T)`, as it is. Returns `path`.

    Raises:
        InputError: it holds no sample, or several recordings.
    """
    waveform = audio["waveform"]
    if waveform.shape[0] != 1 or not waveform.shape[-1]:
        raise InputError(f"audio: {waveform.shape[0]} recordings of {waveform.shape[-1]} samples; give one with sound")
    wavfile.write(path, int(audio["sample_rate"]), np.ascontiguousarray(waveform[0].T.cpu().numpy(), np.float32))
    return path


def available(cls: type[Any]) -> list[str]:
    """The options of `cls` that a node may set: none that names files, as anyone with ComfyUI's page could."""
    refused = {*file_fields(cls), "engine_cache", "overwrite", "resume", "speaker"}
    return [spec.name for spec in fields(cls) if spec.name not in refused]


def options_of(cls: type[T], widgets: Mapping[str, Any], text: str) -> T:
    """Options from a node's widgets, and from a text with a line `name = value` for each, which overrides them.

    Raises:
        InputError: there is no such option, its value cannot be used, or it names a file.
    """
    given: dict[str, Any] = {}
    for line in filter(str.strip, text.splitlines()):
        name, equals, value = line.partition("=")
        if not equals:
            raise InputError(f"options: {line.strip()} has no value; write a line `name = value` for each option")
        given[field_name(name)] = value
    for name in given.keys() & {spec.name for spec in fields(cls)} - set(available(cls)):
        raise InputError(f"options: {name} is not available in ComfyUI; use the command line")
    return from_texts(cls, {**widgets, **given})
