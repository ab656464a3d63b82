"""Atomic writing of a bundle: it appears complete or not at all."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from latentsync_trt.bundle.manifest import MANIFEST_NAME
from latentsync_trt.errors import InputError, OutputError


def check_target(target: Path) -> None:
    """Raises `InputError` if `target` is a file, or a folder with anything but a bundle."""
    if target.is_file():
        raise InputError(f"{target}: is a file; --out takes a folder")
    if target.is_dir() and any(target.iterdir()) and not (target / MANIFEST_NAME).is_file():
        raise InputError(f"{target}: contains files but no bundle; choose another folder for --out")


@contextmanager
def staged_bundle(target: Path) -> Iterator[Path]:
    """Yields an empty folder beside `target`, and renames it to `target` at the end; an error removes it.

    Raises:
        InputError: as `check_target`.
        OutputError: a file cannot be written, within the context or at its end.
    """
    check_target(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as temporary:
            staged = Path(temporary) / "bundle"
            staged.mkdir()
            yield staged
            if target.exists():
                target.rename(Path(temporary) / "replaced")
            staged.rename(target)
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{target}: cannot be written ({error.strerror or error})") from error
