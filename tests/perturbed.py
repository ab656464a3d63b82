"""A bundle that is nearly another one: what a lower precision does to weights, without its machinery."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from latentsync_trt.bundle.manifest import Bundle, FileEntry, read_manifest, sha256_file, write_manifest

_SEED = 3
_LEAST, _MOST = 1e-6, 1e3
"""Sizes of weights; whole numbers, which lie in the same file, are far outside as floats."""


def perturbed_copy(source: Path, folder: Path, noise: float, name: str = "perturbed") -> Path:
    """Writes a copy of the bundle `source` whose U-Net's weights differ by `noise` of each one's size; its folder."""
    shutil.copytree(source, folder)
    weights = folder / "unet.weights"
    values = np.frombuffer(weights.read_bytes(), np.float32).copy()
    sizes = np.abs(values)
    known = np.isfinite(values) & (sizes > _LEAST) & (sizes < _MOST)
    factors = 1 + noise * np.random.default_rng(_SEED).standard_normal(len(values), np.float32)
    values[known] *= factors[known]
    weights.write_bytes(values.tobytes())
    manifest = read_manifest(folder)
    entry = FileEntry(sha256_file(weights), weights.stat().st_size)
    write_manifest(folder, replace(manifest, name=name, files={**manifest.files, weights.name: entry}))
    Bundle.load(folder)
    return folder
