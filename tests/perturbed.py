"""Copies of bundles with slightly different weights, as a lower precision would make them."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from latentsync_trt.bundle.manifest import (
    Bundle,
    FileEntry,
    read_manifest,
    sha256_file,
    write_manifest,
)

_SEED = 3
_LEAST = 1e-6
_MOST = 1e3
"""Magnitudes of weights; integers in the same file are far outside this range when read as
floats.
"""


def perturbed_copy(source: Path, folder: Path, noise: float, name: str = "perturbed") -> Path:
    """Writes a copy of the bundle `source` with relative noise on the weights of the U-Net; returns
    `folder`.
    """
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
    write_manifest(
        folder, replace(manifest, name=name, files={**manifest.files, weights.name: entry})
    )
    Bundle.load(folder)
    return folder
