"""Facts that took time to find and hold until something named in their key changes, kept between runs.

    <cache>/.facts/<kind>.json      digests of the keys of one kind, the newest last

Only success is remembered. A file that cannot be read or written means that nothing is, so the caller checks again.
"""

import json
import os
from collections.abc import Mapping
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

Key = Mapping[str, Any]
"""Everything on which a fact depends, as JSON can hold it."""


def known(kind: str, key: Key | None) -> bool:
    """Whether the fact was remembered for exactly this `key` by this version of the package; never for None."""
    return key is not None and _digest(key) in _digests(kind)


def remember(kind: str, key: Key | None) -> None:
    """Keeps the fact for `key`, and drops the oldest. Of two processes at once, one may be lost."""
    if key is None:
        return
    kept = [digest for digest in _digests(kind) if digest != _digest(key)]
    with suppress(OSError, InputError):
        _folder().mkdir(parents=True, exist_ok=True)
        with whole_file(_folder() / f"{kind}.json") as part:
            part.write_text(json.dumps([*kept, _digest(key)][-_MOST_KEYS:]), encoding="utf-8")


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
