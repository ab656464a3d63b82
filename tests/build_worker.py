"""The child process that builds engines in the background, for a provider "tensorrt" that runs on
the CPU.

Files beside the cache decide: with `HANG`, a build never ends; with `WAIT`, it waits for `GO`.
"""

import time
from pathlib import Path

import pytest

from latentsync_trt.child_main import OnProgress
from latentsync_trt.runtime.engines import session_factory
from tests.cache_worker import until
from tests.compiling import CopyBuilder, compiling_provider
from tests.stopped_command import FOREVER_S

HANG = "hang"
WAIT = "wait"
GO = "go"

usual_build = CopyBuilder.build
usual_work = session_factory.build_in_child


def build(self: CopyBuilder, graph: str, folder: Path) -> None:
    beside = folder.parents[2]
    if (beside / HANG).exists():
        (folder / "engine.onnx").write_bytes(b"half")
        time.sleep(FOREVER_S)
    if (beside / WAIT).exists():
        until((beside / GO).exists)
    usual_build(self, graph, folder)


def work(order: session_factory.BuildOrder, on_progress: OnProgress) -> None:
    """In the place of `session_factory.build_in_child`."""
    with pytest.MonkeyPatch.context() as patch:
        compiling_provider(patch)
        patch.setattr(CopyBuilder, "build", build)
        usual_work(order, on_progress)
