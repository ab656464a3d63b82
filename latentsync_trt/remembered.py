"""Facts that took time to find and hold until something named in their key changes, kept between runs.

    <cache>/.facts/<kind>.json      digests of the keys of one kind, the newest last

Only success is remembered. A file that cannot be read or written means that nothing is, so the caller checks again.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from latentsync_trt.errors import InputError
from latentsync_trt.files import whole_file
from latentsync_trt.paths import below_home, user_folder
from latentsync_trt.version import __version__

CACHE_VARIABLE = "LATENTSYNC_TRT_CACHE_DIR"

FOLDER = ".facts"

_MOST_KEYS = 200

# FAT stores times in steps of two seconds, so a file that was written since then may change unnoticed.
_SETTLED_S = 2.0

_lock = threading.Lock()


Key = Mapping[str, Any]
"""Everything on which a fact depends, as JSON can hold it."""


def known(kind: str, key: Key | None) -> bool:
    """Whether the fact was remembered for exactly this `key` by this version of the package; never for None."""
    return key is not None and _digest(key) in _digests(kind)


def remember(kind: str, key: Key | None) -> None:
    """Keeps the fact for `key`, and drops the oldest. Thread-safe; of two processes at once, one may be lost."""
    if key is not None:
        with _lock:
            kept = [digest for digest in _digests(kind) if digest != _digest(key)]
            _write(kind, [*kept, _digest(key)][-_MOST_KEYS:])


def forget(kind: str = "*") -> None:
    """Drops all facts of a kind, as one of them proved wrong; by default, of all kinds."""
    with _lock, suppress(OSError, InputError):
        for path in _folder().glob(f"{kind}.json"):
            path.unlink(missing_ok=True)


def files_key(expected: Mapping[Path, str]) -> Key | None:
    """The key for "these files have the `expected` contents": what changes in each when its content does.

    Returns None where that cannot be relied on: a file is missing, or was written only just now.
    """
    facts = []
    for path, content in expected.items():
        try:
            state, place = path.stat(), str(path.resolve())
        except OSError:
            return None
        # On POSIX, the second time cannot be set; on Windows it is that of creation.
        if max(state.st_mtime, state.st_ctime) > time.time() - _SETTLED_S:
            return None
        facts.append([content, place, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino])
    return {"files": facts}


def checked(kind: str, expected: Mapping[Path, str], check: Callable[..., str | None], *, again: bool = False) -> str:
    """What `check` finds wrong with files that should have the `expected` contents; empty for nothing.

    It is called with `hashes`, whether to read the contents: not if nothing was wrong when they
    were read since the files changed, unless `again`. Raises as `check`.
    """
    key = files_key(expected)
    hashes = again or not known(kind, key)
    problem = check(hashes=hashes) or ""
    if hashes and not problem and key == files_key(expected):  # not changed meanwhile
        remember(kind, key)
    return problem


def _digest(key: Key) -> str:
    return sha256(json.dumps([__version__, key], sort_keys=True).encode()).hexdigest()


def _folder() -> Path:
    named = os.environ.get(CACHE_VARIABLE)
    place = below_home(named, "") if named else user_folder("cache")
    return place / FOLDER


def _digests(kind: str) -> list[str]:
    with suppress(OSError, ValueError, RecursionError, InputError):
        content = json.loads((_folder() / f"{kind}.json").read_text(encoding="utf-8"))
        return content if isinstance(content, list) else []
    return []


def _write(kind: str, digests: list[str]) -> None:
    with suppress(OSError, InputError):
        _folder().mkdir(parents=True, exist_ok=True)
        with whole_file(_folder() / f"{kind}.json") as part:
            part.write_text(json.dumps(digests), encoding="utf-8")
