"""What the pictures of a run depend on: an interrupted run goes on only where that would give the same ones."""

import os
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from latentsync_trt import __version__
from latentsync_trt.bundle.manifest import MANIFEST_NAME
from latentsync_trt.config import SyncOptions, flag_name
from latentsync_trt.media.codecs import library_versions
from latentsync_trt.media.files import reading
from latentsync_trt.sync.inputs import Inputs
from latentsync_trt.version import distribution_version

_NOT_IN_PICTURES = ("resume", "report", "mark", "c2pa_cert", "c2pa_key")
_RUNTIMES = ("onnxruntime", "onnxruntime-gpu")
_DIGITS = 12


def made_of(inputs: Inputs, options: SyncOptions, bundle: Path, provider: str) -> dict[str, str]:
    """By name, all that decides about the pictures, as text that people can compare.

    Args:
        bundle: its folder.

    Raises:
        MediaError: an input has disappeared.
    """
    given = {
        flag_name(spec.name): str(value)
        for spec in fields(options)
        if spec.name not in _NOT_IN_PICTURES and (value := getattr(options, spec.name)) != spec.default
    }
    runtimes = {name: version for name in _RUNTIMES if (version := distribution_version(name))}
    versions = {"latentsync-trt": __version__, **library_versions(), **runtimes}
    encoder = inputs.encoder
    return {
        **{str(path): _stamp(path) for path in dict.fromkeys(_files(inputs, options))},
        **given,
        "encoder": " ".join([encoder.ffmpeg, encoder.pixel_format, *(f"{k}={v}" for k, v in encoder.options.items())]),
        "bundle": sha256((bundle / MANIFEST_NAME).read_bytes()).hexdigest()[:_DIGITS],
        "provider": provider,
        "cores": str(os.cpu_count()),  # FFV1 divides a picture by them, the same way in all parts
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def _files(inputs: Inputs, options: SyncOptions) -> Iterator[Path]:
    yield from (path.absolute() for path in (inputs.video, *(piece.path for piece in inputs.voices.recordings)))
    given = (None if inputs.mix is None else inputs.mix.path, options.turns, options.faces)
    yield from (Path(path).absolute() for path in given if path is not None)


def _stamp(path: Path) -> str:
    """Size and time of a file; of a pattern, those of all files that may match."""
    with reading(path):
        found = [path] if path.is_file() else sorted(path.parent.glob(f"*{path.suffix}"))
        status = [file.stat() for file in found]
    newest_s = max((each.st_mtime_ns for each in status), default=0) / 1e9
    size = f"{sum(each.st_size for each in status)} bytes"
    return f"{size}, {datetime.fromtimestamp(newest_s, UTC).isoformat()}"
