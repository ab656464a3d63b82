"""The child process that builds engines in the background, for a provider "tensorrt" that runs on the CPU.

$HANG_IN_BUILD: an engine's build never ends, in a call that no signal interrupts. $WAIT_FOR: it waits for this file.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from latentsync_trt.child import Emit
from latentsync_trt.runtime.networks import background
from tests.cache_worker import until
from tests.compiling import CopyBuilder, compiling_provider
from tests.stopped_command import FOREVER_S, sleep_natively

HANG, WAIT = "HANG_IN_BUILD", "WAIT_FOR"

usual = CopyBuilder.build


def build(self: CopyBuilder, graph: Path, folder: Path) -> None:
    """Builds as the environment says."""
    if os.environ.get(HANG):
        (folder / "engine.onnx").write_bytes(b"half")
        sleep_natively(FOREVER_S)
    if file := os.environ.get(WAIT):
        until(Path(file).exists)
    usual(self, graph, folder)


def work(orders: Iterator[Any], emit: Emit) -> None:
    """In the place of `background.build`."""
    with pytest.MonkeyPatch.context() as patch:
        compiling_provider(patch)
        patch.setattr(CopyBuilder, "build", build)
        background.build(orders, emit)
