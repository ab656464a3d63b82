"""Folders and JSON of bench and compare."""

import errno
import math
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from latentsync_trt.errors import OutputError

_DIGITS = 6


def make_folder(folder: Path) -> None:
    """Makes `folder` if it is missing; raises `OutputError` if no file can be written in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()  # permissions alone do not show whether this works
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EIO)
        raise OutputError(f"{folder}: cannot be written ({error.strerror})", usage=not full) from error


def plain(value: Any) -> Any:
    """Converts nested mappings, sequences and arrays for JSON: six significant digits; null for NaN and infinity."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value
