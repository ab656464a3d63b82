"""Results of self-tests that later runs follow.

    <cache>/.facts/tested.json      the newest result by digest of its key

A file that cannot be read or written means that nothing is remembered, so the caller tests again.
"""

import json
import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from latentsync_trt.errors import InputError
from latentsync_trt.files import whole_file
from latentsync_trt.paths import CACHE_VARIABLE, below_home, user_folder
from latentsync_trt.runtime.providers import devices, libraries
from latentsync_trt.runtime.providers.devices import Gpu
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.runtime.providers.table import TENSORRT
from latentsync_trt.version import __version__

TestResult = Literal["passed", "failed", "slower"]
"""The result of a self-test; "slower" passed, but its steps took longer than with the reference."""

FOLDER = ".facts"
"""The folder of the file, below the user's cache folder."""


def tested(selection: Selection, bundle_sha256: str) -> str | None:
    """Returns the newest `TestResult` of a bundle, by the SHA-256 of its manifest, on such a GPU
    with this version and these libraries; None without one, and on the CPU.
    """
    if selection.gpu is None:
        return None
    result = _read_results().get(_test_key(selection, selection.gpu, bundle_sha256))
    if isinstance(result, str):
        return result
    return None


def remember_test(selection: Selection, bundle_sha256: str, result: TestResult) -> None:
    """Keeps what `tested` returns from now on; nothing on the CPU. Of two
    processes at once, one may be lost.
    """
    if selection.gpu is None:
        return
    key = _test_key(selection, selection.gpu, bundle_sha256)
    results = _read_results()
    results[key] = result
    with suppress(OSError, InputError):
        path = _results_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as part:
            part.write_text(json.dumps(results), encoding="utf-8")


def _test_key(selection: Selection, gpu: Gpu, bundle_sha256: str) -> str:
    """Returns a digest of everything on which the result depends."""
    versions = [libraries.onnxruntime_version(), devices.driver_version()]
    if selection.provider is TENSORRT:
        versions.append(libraries.tensorrt_version())
    else:
        versions += [libraries.cuda_version(), libraries.cudnn_version()]
    kind = [gpu.name, gpu.compute_capability]  # not which of several
    key = [__version__, selection.name, bundle_sha256, kind, versions]
    return sha256(json.dumps(key).encode()).hexdigest()


def _results_file() -> Path:
    named = os.environ.get(CACHE_VARIABLE)
    folder = below_home(named, "") if named else user_folder("cache")
    return folder / FOLDER / "tested.json"


def _read_results() -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError, InputError):
        content = json.loads(_results_file().read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
    return {}
