"""Results of tests that take minutes and hold until something named in their key changes, kept between runs.

    <cache>/.facts/tested.json      the newest result by digest of its key, the newest last

A file that cannot be read or written means that nothing is remembered, so the caller tests again.
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
"""Everything on which a result depends, as JSON can hold it."""


def recall(key: Key) -> str | None:
    """The newest result for exactly this `key` and this version of the package, None without one."""
    result = _results().get(_digest(key))
    return result if isinstance(result, str) else None


def remember(key: Key, result: str) -> None:
    """Keeps a result in place of an earlier one, and drops the oldest. Of two processes at once, one may be lost."""
    kept = _results()
    kept.pop(_digest(key), None)
    kept[_digest(key)] = result  # the last
    with suppress(OSError, InputError):
        _file().parent.mkdir(parents=True, exist_ok=True)
        with whole_file(_file()) as part:
            part.write_text(json.dumps(dict([*kept.items()][-_MOST_KEYS:])), encoding="utf-8")


def _digest(key: Key) -> str:
    return sha256(json.dumps([__version__, key], sort_keys=True).encode()).hexdigest()


def _file() -> Path:
    named = os.environ.get(CACHE_VARIABLE)
    return (below_home(named, "") if named else user_folder("cache")) / FOLDER / "tested.json"


def _results() -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError, InputError):
        content = json.loads(_file().read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else {}
    return {}
