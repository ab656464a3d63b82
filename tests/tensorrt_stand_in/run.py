"""Runs `latentsync-trt` with the stand-in: `python -m tests.tensorrt_stand_in.run sync --provider tensorrt …`.

The two small graphs that scale pictures for the VAE run on CUDA's own kernels, which do nothing where CUDA is stood in.
There the CPU provider computes them, in every process: `python/sitecustomize.py` sees to it.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REAL_CUDA = "STAND_IN_REAL_CUDA"


class HostSession:
    """A session on the CPU provider that takes bindings of device buffers, as `runtime.session.Session` does."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.ort = self
        self.free_memory = session.free_memory

    def io_binding(self) -> "HostBinding":
        """A binding that remembers."""
        return HostBinding()

    def run_bound(self, binding: "HostBinding") -> None:
        """Downloads, runs and uploads."""
        outputs = self._session.run({name: value.numpy() for name, value in binding.inputs.items()})
        names = [tensor.name for tensor in self._session.outputs]
        for name, array in zip(names, outputs, strict=True):
            binding.outputs[name].update_inplace(array)


class HostBinding:
    """What was bound."""

    def __init__(self) -> None:
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        """Remembers an input."""
        self.inputs[name] = value

    def bind_ortvalue_output(self, name: str, value: Any) -> None:
        """Remembers an output."""
        self.outputs[name] = value


def host_session(path: Any, settings: Any) -> HostSession:
    """What takes the place of `Session` in the image codec."""
    from latentsync_trt.runtime.sessions.session import CPU, Session, SessionSettings

    return HostSession(Session(path, SessionSettings(providers=CPU)))


def environment(folder: Any, settings: Mapping[str, str]) -> dict[str, str]:
    """Variables for a process that is to find the stand-in in `folder`."""
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


def rtx_environment(folder: Path) -> dict[str, str]:
    """Variables for a process that is to find what `build_for_rtx` made in `folder`, and no other CUDA."""
    from tests.tensorrt_stand_in.build import REPOSITORY

    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(folder),
        # The plug-in's package brings a CUDA runtime, which would be loaded otherwise.
        "LD_PRELOAD": f"{folder / 'sysfs.so'}:{folder / 'libcudart.so.13'}",
        "STAND_IN_DRM": str(folder / "drm"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")])),
    }


def _cuda_folders() -> list[str]:
    """Where pip has CUDA's libraries, if CUDA is real."""
    if not os.environ.get(REAL_CUDA):
        return []
    return [str(path) for root in sys.path for path in Path(root or ".").glob("nvidia/*/lib")]


def main() -> None:
    """Runs the command line."""
    from latentsync_trt.cli import main as command_line

    command_line(sys.argv[1:])


if __name__ == "__main__":
    main()
