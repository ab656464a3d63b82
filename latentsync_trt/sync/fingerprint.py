"""What the pictures of a run depend on: an interrupted run goes on only where all of it is the
same.
"""

import os
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import numpy as np

from latentsync_trt.bundle.manifest import MANIFEST_NAME
from latentsync_trt.media.encoders import VideoEncoder
from latentsync_trt.media.recipe import Ingredients
from latentsync_trt.option_fields import flag_name, texts_by_flag
from latentsync_trt.sync.inputs import Helpers, Inputs
from latentsync_trt.version import __version__, distribution_version

_NOT_IN_PICTURES = (
    *("overwrite", "resume", "redo", "keep_source", "backup"),
    *("report", "strict", "mark", "c2pa"),
)
"""Options that change no picture."""
_FILE_OPTIONS = ("mix", "turns", "faces", "keep_mask")
"""Options that name files, which count by their name, size and time."""
_FREE_OPTIONS = (
    *("seed", "preset", "steps", "guidance", "face", "faces", "turns", "speaker"),
    *("occluders", "keep_mask", "finish"),
)
"""Options in which a part that is done again may differ from the rest."""
_LIBRARIES = ("av", "onnxruntime", "onnxruntime-gpu")
"""Libraries whose versions change pictures."""
_DIGITS = 12
"""Digits of a hash that are kept."""


def fingerprint(inputs: Inputs, bundle: Path, provider: str) -> dict[str, str]:
    """Returns, by name, all that the pictures of a run depend on, as text that people can compare.

    Files count by their name, size and time, so that a folder may be moved; of `inputs.helpers`,
    arrays by their content, and objects by their type.

    Args:
        bundle: the folder of the bundle.
    """
    manifest = (bundle / MANIFEST_NAME).read_bytes()
    left_out: tuple[str, ...] = (*_NOT_IN_PICTURES, *_FILE_OPTIONS)
    if not inputs.options.turns:  # speakers are files then
        left_out += ("speaker",)
    return {
        **_file_stamps(inputs),
        **_texts_of_options(inputs, left_out),
        **_helpers(inputs.helpers),
        "encoder": _encoder(inputs.encoder),
        "bundle": sha256(manifest).hexdigest()[:_DIGITS],
        "provider": provider,
        "cores": str(os.cpu_count()),  # FFV1 divides a picture by them, the same way in all parts
        "versions": _versions(),
    }


def ingredients_of(inputs: Inputs, bundle: Path) -> Ingredients:
    """Returns what a result is made of, which its file tells everybody: files count by a hash of
    their names, sizes and times, the recordings together, whoever speaks them. Provider and cores
    may be others where a part is done again.
    """
    stamps = _file_stamps(inputs)
    free_flags = {flag_name(name) for name in _FREE_OPTIONS}
    left_out = {*stamps, *free_flags, "provider", "cores", "noise", "detector"}
    everything = fingerprint(inputs, bundle, provider="")
    fixed = {name: text for name, text in everything.items() if name not in left_out}
    for name in ("--video", "--mix"):
        if name in stamps:
            fixed[name] = _hashed(stamps[name])
    recordings = {_stamp(piece.path) for piece in inputs.sound.recordings}
    fixed["recordings"] = _hashed("; ".join(sorted(recordings)))
    free = _texts_of_options(inputs, (*_FILE_OPTIONS, "speaker"))
    free = {name: text for name, text in free.items() if name in free_flags}
    free |= {name: _hashed(stamps[name]) for name in free_flags & stamps.keys()}
    if inputs.options.speaker:
        free["--speaker"] = " ".join(str(speaker.face) for speaker in inputs.options.speaker)
    return Ingredients(fixed, free)


def _texts_of_options(inputs: Inputs, left_out: tuple[str, ...]) -> dict[str, str]:
    """Returns the options that are not at their defaults, by flag."""
    texts = texts_by_flag(inputs.options, leave_out=left_out)
    return {flag: " ".join(values) or "given" for flag, values in texts.items()}


def _hashed(stamp: str) -> str:
    """Returns what stands for a file whose name is not to be told."""
    return f"file {sha256(stamp.encode()).hexdigest()[:_DIGITS]}"


def _file_stamps(inputs: Inputs) -> dict[str, str]:
    options = inputs.options
    files = {"--video": inputs.video}
    recordings = [piece.path for piece in inputs.sound.recordings]
    if options.speaker and options.turns is None:
        for speaker, path in zip(options.speaker, recordings, strict=True):
            files[f"--speaker {speaker.face}"] = path
    else:
        files["--audio"] = recordings[0]
    for name in _FILE_OPTIONS:
        path = getattr(options, name)
        if path is not None:
            files[flag_name(name)] = Path(path)
    return {name: _stamp(path) for name, path in files.items()}


def _stamp(path: Path) -> str:
    status = path.stat()
    changed = datetime.fromtimestamp(status.st_mtime_ns / 1e9, UTC).isoformat()
    return f"{path.name}, {status.st_size} bytes, {changed}"


def _helpers(helpers: Helpers) -> dict[str, str]:
    texts = {}
    if helpers.noise is not None:
        noise = np.asarray(helpers.noise)
        texts["noise"] = sha256(noise.tobytes()).hexdigest()[:_DIGITS]
    for name in ("detector", "enhancer"):
        helper = getattr(helpers, name)
        if helper is not None:
            texts[name] = f"{type(helper).__module__}.{type(helper).__qualname__}"
    return texts


def _encoder(encoder: VideoEncoder) -> str:
    settings = [f"{name}={value}" for name, value in encoder.options]
    return " ".join([encoder.ffmpeg, encoder.pixel_format, *settings])


def _versions() -> str:
    texts = [f"latentsync-trt {__version__}"]
    for name in _LIBRARIES:
        version = distribution_version(name)
        if version:
            texts.append(f"{name} {version}")
    return ", ".join(texts)
