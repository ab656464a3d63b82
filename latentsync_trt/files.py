"""Folders that appear complete or not at all, and JSON that holds its own SHA-256."""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from latentsync_trt.errors import LatentSyncError, OutputError
from latentsync_trt.temporary import temporary_folder

_SEAL = "sha256"

# Windows refuses to rename a folder while a virus scanner reads a file in it.
_RENAME_TRIES, _PAUSE_S = 20, 0.1


@contextmanager
def published_folder(target: Path) -> Iterator[Path]:
    """Yields an empty folder that becomes `target`, in place of what is there, when the block ends without an error.

    Raises:
        OutputError: a file cannot be written, in the block or at its end.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(target.parent) as temporary:
            staged = temporary / "staged"
            staged.mkdir()
            yield staged
            publish(staged, target, temporary / "replaced")
    except LatentSyncError:
        raise
    except OSError as error:
        raise OutputError(f"{target}: cannot be written ({error.strerror or error})") from error


def publish(staged: Path, target: Path, replaced: Path) -> None:
    """Renames `staged` to `target`, and what is there to `replaced`; if that fails or is interrupted, back again."""
    try:
        if target.exists():
            target.rename(replaced)
        for _ in range(_RENAME_TRIES - 1):
            with suppress(PermissionError):
                staged.rename(target)
                return
            time.sleep(_PAUSE_S)
        staged.rename(target)
    finally:
        if replaced.exists() and not target.exists():
            replaced.rename(target)


def sealed_text(content: Mapping[str, Any]) -> str:
    """`content` as JSON with its SHA-256."""
    return json.dumps({**content, _SEAL: _sha256(content)}, indent=2) + "\n"


def opened(content: dict[str, Any]) -> dict[str, Any] | None:
    """Parsed JSON without its SHA-256; None if that is missing or wrong."""
    rest = {key: value for key, value in content.items() if key != _SEAL}
    return rest if content.get(_SEAL) == _sha256(rest) else None


def _sha256(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
