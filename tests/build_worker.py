"""The child process that builds engines in the background, for a provider "tensorrt" that runs on the CPU.

$HANG_IN_BUILD: an engine's build never ends. $WAIT_FOR: it waits for this file.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from latentsync_trt.child import Emit
from latentsync_trt.runtime import background_build
from tests.cache_worker import until
from tests.compiling import CopyBuilder, compiling_provider
from tests.stopped_command import FOREVER_S

HANG, WAIT = "HANG_IN_BUILD", "WAIT_FOR"

usual = CopyBuilder.build


def build(self: CopyBuilder, graph: Path, folder: Path) -> None:
    """Builds as the environment says."""
    if os.environ.get(HANG):
        (folder / "engine.onnx").write_bytes(b"half")
        time.sleep(FOREVER_S)
    if file := os.environ.get(WAIT):
        until(Path(file).exists)
    usual(self, graph, folder)


def work(orders: Iterator[Any], emit: Emit) -> None:
    """In the place of `background_build.build`."""
    with pytest.MonkeyPatch.context() as patch:
        compiling_provider(patch)
        patch.setattr(CopyBuilder, "build", build)
        background_build.build(orders, emit)
