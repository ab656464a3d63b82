"""What the pictures of a run depend on: an interrupted run goes on only where that is the same."""

import os
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import numpy as np

from latentsync_trt.bundle.manifest import MANIFEST_NAME
from latentsync_trt.media.files import reading
from latentsync_trt.option_fields import command_line, flag_name
from latentsync_trt.sync.inputs import Inputs
from latentsync_trt.version import __version__, distribution_version

_NOT_IN_PICTURES = ("overwrite", "resume", "report", "strict", "mark", "c2pa")
_FILES = ("mix", "turns", "faces")
_LIBRARIES = ("av", "onnxruntime", "onnxruntime-gpu")
_DIGITS = 12


def fingerprint(inputs: Inputs, bundle: Path, provider: str) -> dict[str, str]:
    """By name, all that the pictures of a run depend on, as text that people can compare; `bundle`: its folder.

    Files count by their name, size and time, so that a folder may be moved; of `inputs.helpers`, arrays by their
    content, and objects by their type. Raises `MediaError` if an input has disappeared.
    """
    options, encoder, helpers = inputs.options, inputs.encoder, inputs.helpers
    recordings = [piece.path for piece in inputs.sound.recordings]
    separate = options.turns is None and bool(options.speaker)  # files, then
    names = [f"--speaker {speaker.face}" for speaker in options.speaker] if separate else ["--audio"]
    files = {"--video": inputs.video, **dict(zip(names, recordings, strict=False))}
    files |= {flag_name(name): Path(path) for name in _FILES if (path := getattr(options, name)) is not None}
    left_out = (*_NOT_IN_PICTURES, *_FILES, *(["speaker"] if not options.turns else []))
    libraries = {name: version for name in _LIBRARIES if (version := distribution_version(name))}
    versions = {"latentsync-trt": __version__, **libraries}
    brought = {"detector": helpers.detector, "enhancer": helpers.enhancer, "noise": helpers.noise}
    return {
        **{name: _stamp(path) for name, path in files.items()},
        "options": " ".join(command_line(options, leave_out=left_out)),
        **{name: _identity(value) for name, value in brought.items() if value is not None},
        "encoder": " ".join([encoder.ffmpeg, encoder.pixel_format, *(f"{k}={v}" for k, v in encoder.options)]),
        "bundle": sha256((bundle / MANIFEST_NAME).read_bytes()).hexdigest()[:_DIGITS],
        "provider": provider,
        "cores": str(os.cpu_count()),  # FFV1 divides a picture by them, the same way in all parts
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def _identity(value: object) -> str:
    if isinstance(value, np.ndarray):
        return sha256(value.tobytes()).hexdigest()[:_DIGITS]
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _stamp(path: Path) -> str:
    with reading(path):
        status = path.stat()
    changed = datetime.fromtimestamp(status.st_mtime_ns / 1e9, UTC).isoformat()
    return f"{path.name}, {status.st_size} bytes, {changed}"
