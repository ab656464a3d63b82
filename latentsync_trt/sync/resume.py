"""What the pictures of a run depend on: an interrupted run goes on only where that would give the same ones."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import numpy as np

from latentsync_trt import __version__
from latentsync_trt.bundle.manifest import MANIFEST_NAME
from latentsync_trt.config import SyncOptions
from latentsync_trt.media.codecs import library_versions
from latentsync_trt.media.files import reading
from latentsync_trt.option_fields import flag_name
from latentsync_trt.sync.inputs import Inputs
from latentsync_trt.version import distribution_version

_NOT_IN_PICTURES = ("resume", "report", "mark", "c2pa")
_FILES = ("mix", "turns", "faces")
_RUNTIMES = ("onnxruntime", "onnxruntime-gpu")
_DIGITS = 12


def made_of(
    inputs: Inputs, options: SyncOptions, bundle: Path, provider: str, brought: Mapping[str, object]
) -> dict[str, str]:
    """By name, all that decides about the pictures, as text that people can compare.

    Files count by their name, size and time, so that a folder may be moved.

    Args:
        bundle: its folder. brought: arrays, and objects that count by their type; None is nothing.

    Raises:
        MediaError: an input has disappeared.
    """
    runtimes = {name: version for name in _RUNTIMES if (version := distribution_version(name))}
    versions = {"latentsync-trt": __version__, **library_versions(), **runtimes}
    encoder = inputs.encoder
    return {
        **{name: _stamp(path) for name, path in _files(inputs, options)},
        **_given(options),
        **{name: _identity(value) for name, value in brought.items() if value is not None},
        "encoder": " ".join([encoder.ffmpeg, encoder.pixel_format, *(f"{k}={v}" for k, v in encoder.options.items())]),
        "bundle": sha256((bundle / MANIFEST_NAME).read_bytes()).hexdigest()[:_DIGITS],
        "provider": provider,
        "cores": str(os.cpu_count()),  # FFV1 divides a picture by them, the same way in all parts
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def _files(inputs: Inputs, options: SyncOptions) -> Iterator[tuple[str, Path]]:
    yield "--video", inputs.video
    separate = options.turns is None and options.speaker
    names = [f"--speaker {speaker.face}" for speaker in options.speaker] if separate else ["--audio"]
    yield from zip(names, (piece.path for piece in inputs.voices.recordings), strict=True)
    given = ((name, getattr(options, name)) for name in _FILES)
    yield from ((flag_name(name), Path(path)) for name, path in given if path is not None)


def _given(options: SyncOptions) -> dict[str, str]:
    """The options that are not at their defaults, without files."""
    left_out = (*_NOT_IN_PICTURES, *_FILES, *(() if options.turns else ("speaker",)))
    return {
        flag_name(spec.name): str(value)
        for spec in fields(options)
        if spec.name not in left_out and (value := getattr(options, spec.name)) != spec.default
    }


def _identity(value: object) -> str:
    if isinstance(value, np.ndarray):
        return sha256(value.tobytes()).hexdigest()[:_DIGITS]
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _stamp(path: Path) -> str:
    """Name, size and time of a file; of a pattern, size and time of all files that may match."""
    with reading(path):
        found = [path] if path.is_file() else sorted(path.parent.glob(f"*{path.suffix}"))
        status = [file.stat() for file in found]
    newest_s = max((each.st_mtime_ns for each in status), default=0) / 1e9
    size = f"{sum(each.st_size for each in status)} bytes"
    return f"{path.name}, {size}, {datetime.fromtimestamp(newest_s, UTC).isoformat()}"
