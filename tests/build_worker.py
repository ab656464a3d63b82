"""The command line with a provider "rtx" that runs on the CPU: `python -m tests.build_worker build ...`.

$HANG_IN_BUILD: an engine's build never ends, in a call that no signal interrupts.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from latentsync_trt.__main__ import main
from latentsync_trt.runtime.networks import background
from latentsync_trt.runtime.providers import select
from latentsync_trt.runtime.sessions.builders import GraphSource
from latentsync_trt.runtime.sessions.engines import Engines
from tests.compiling import COMPILING, CopyBuilder, compiling_provider
from tests.stopped_command import FOREVER_S, sleep_natively

HANG = "HANG_IN_BUILD"


def hang(self: CopyBuilder, source: GraphSource, folder: Path) -> None:
    """Writes half of an engine."""
    (folder / "engine.onnx").write_bytes(b"half")
    sleep_natively(FOREVER_S)


if __name__ == "__main__":
    usual_command = background.build_command

    def command(engines: Engines, graphs: Sequence[str], *, force: bool = False) -> list[str]:
        """The command that builds, with this module in place of the package."""
        return [sys.executable, "-m", "tests.build_worker", *usual_command(engines, graphs, force=force)[3:]]

    with pytest.MonkeyPatch.context() as patch:
        compiling_provider(patch)
        patch.setattr(select, "select_provider", lambda name, device: COMPILING)
        patch.setattr(background, "build_command", command)
        if os.environ.get(HANG):
            patch.setattr(CopyBuilder, "build", hang)
        main()
