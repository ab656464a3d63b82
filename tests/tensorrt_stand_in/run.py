"""Runs `latentsync-trt` with the stand-in: `python -m tests.tensorrt_stand_in.run sync --provider
tensorrt …`.

The two small graphs that scale pictures for the VAE run on CUDA's own kernels, which do nothing in
the stand-in for CUDA. There the CPU provider computes them; `python/sitecustomize.py` arranges that
in every process.
"""

import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

REAL_CUDA = "STAND_IN_REAL_CUDA"


class HostSession:
    """A session on the CPU provider that takes bindings of device buffers, as
    `runtime.session.Session` does.
    """

    def __init__(self, session: Any) -> None:
        self._session = session

    def bound(self, known: Mapping[str, Any]) -> Mapping[str, Any]:
        """What is bound, as its own binding."""
        return known

    def run_bound(self, known: Mapping[str, Any]) -> None:
        """Downloads, runs and uploads."""
        outputs = self._session.run(
            {tensor.name: known[tensor.name].numpy() for tensor in self._session.inputs}
        )
        for tensor, array in zip(self._session.outputs, outputs, strict=True):
            known[tensor.name].update_inplace(array)


@cache
def host_session(path: Any, _: Any) -> HostSession:
    """Replaces `small_session` in the image codec."""
    from latentsync_trt.runtime.engines.session import CPU_ONLY, Session, SessionSettings

    return HostSession(Session(path, SessionSettings(providers=CPU_ONLY)))


def environment(folder: Any, settings: Mapping[str, str]) -> dict[str, str]:
    """Environment of a process that loads the stand-in from `folder`."""
    from tests.tensorrt_stand_in.build import HERE, PROVIDERS, REPOSITORY

    (onnxruntime,) = PROVIDERS.glob("libonnxruntime.so.*")
    libraries = [str(folder), *_cuda_folders(), os.environ.get("LD_LIBRARY_PATH", "")]
    paths = [str(HERE / "python"), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "STAND_IN_ONNXRUNTIME": str(onnxruntime),
        **settings,
    }


def _cuda_folders() -> list[str]:
    """Folders of CUDA's libraries installed by pip, if CUDA is real."""
    if not os.environ.get(REAL_CUDA):
        return []
    return [str(path) for root in sys.path for path in Path(root or ".").glob("nvidia/*/lib")]


def main() -> None:
    """Runs the command line."""
    from latentsync_trt.__main__ import main as command_line

    command_line()


if __name__ == "__main__":
    main()
