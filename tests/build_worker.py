"""The command line with a provider "rtx" that runs on the CPU: `python -m tests.build_worker build ...`."""

import pytest

from latentsync_trt.cli import main
from latentsync_trt.runtime.providers import select
from tests.compiling import COMPILING, compiling_provider

if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        compiling_provider(patch)
        patch.setattr(select, "select_provider", lambda name, device: COMPILING)
        main(prog_name="latentsync-trt")
