"""Atomic writing of a bundle: it appears complete or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from latentsync_trt.bundle.manifest import MANIFEST_NAME
from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.paths import check_folder_to_write
from latentsync_trt.temporary import temporary_folder


def check_target(target: Path) -> None:
    """Raises `InputError` if `target` is a file, cannot be written, or is a folder with anything but a bundle."""
    check_folder_to_write(target, "--out")
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
        with temporary_folder(target.parent) as temporary:
            staged = temporary / "bundle"
            staged.mkdir()
            yield staged
            _publish(staged, target, temporary / "replaced")
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{target}: cannot be written ({error.strerror or error})") from error


def _publish(staged: Path, target: Path, replaced: Path) -> None:
    """Moves `staged` to `target`, and what is there to `replaced`; if that fails or is interrupted, moves it back."""
    try:
        if target.exists():
            target.rename(replaced)
        staged.rename(target)
    finally:
        if replaced.exists() and not target.exists():
            replaced.rename(target)
