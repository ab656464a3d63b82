"""Arrays on disk between two starts of a calibration: a file is whole, or it is not there."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from latentsync_trt.errors import InputError, OutputError

Arrays = Mapping[str, NDArray[Any]]
T = TypeVar("T")


def save_arrays(path: Path, arrays: Arrays) -> None:
    """Writes named arrays to `path`; raises `OutputError` if that cannot be done."""
    with written_whole(path) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def load_arrays(path: Path, read: Callable[[Arrays], T]) -> T:
    """What `read` makes of the arrays in `path`; raises `InputError` if `save_arrays` did not write them."""
    try:
        # NumPy leaves a file open that it cannot read.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return read(arrays)
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise InputError(
            f"{path}: not of a calibration, or damaged ({error}); delete it and calibrate again"
        ) from error


@contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, which takes the name `path` when it is complete; raises `OutputError` if that fails."""
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror or error})") from error
