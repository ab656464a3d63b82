"""Files of intermediate results, written completely or not at all."""

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
    """Writes named arrays to `path`; raises `OutputError` if it cannot be written."""
    with open_atomic(path) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def load_arrays(path: Path, read: Callable[[Arrays], T]) -> T:
    """The result of `read` on the arrays in `path`; raises `InputError` if the file is missing or damaged."""
    try:
        # NumPy does not close a file that it cannot read.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return read(arrays)
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise InputError(f"{path}: cannot be read ({error}); delete it and calibrate again") from error


@contextmanager
def open_atomic(path: Path) -> Iterator[IO[bytes]]:
    """A file that gets the name `path` when it is complete; raises `OutputError` if it cannot be written."""
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror or error})") from error
