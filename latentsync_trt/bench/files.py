"""Files that bench and compare write: complete or not at all, and numbers as JSON can hold them."""

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from latentsync_trt.errors import OutputError

_DIGITS = 6


def make_folder(folder: Path) -> None:
    """Makes `folder` where it is missing; raises `OutputError` if no file can be written in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()  # permissions alone do not show it
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written ({error.strerror})") from error


def write_file(path: Path, content: str | bytes) -> None:
    """Writes a file, text as UTF-8, and makes its folder; raises `OutputError` if it cannot be written."""
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        staged.replace(path)
    except OSError as error:
        with suppress(OSError):
            staged.unlink()
        raise OutputError(f"{path}: cannot be written ({error.strerror})") from error


def plain(value: Any) -> Any:
    """A value of nested mappings, sequences and arrays for JSON: six significant digits; null for NaN and infinity."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value
