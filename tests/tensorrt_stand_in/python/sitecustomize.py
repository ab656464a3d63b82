"""Loaded by each process with the stand-in: has the small graphs around the networks run on the
CPU, unless CUDA is real.
"""

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_NETWORKS = {"latentsync_trt.runtime.denoiser", "latentsync_trt.runtime.vae"}


class _Finder(MetaPathFinder):
    """Finds `_NETWORKS` in the usual way, and replaces their `small_session` once loaded."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """As `MetaPathFinder.find_spec`."""
        if name not in _NETWORKS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        usual = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            from tests.tensorrt_stand_in.run import host_session

            usual(module)
            module.small_session = host_session  # type: ignore[attr-defined]

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if "STAND_IN_ONNXRUNTIME" in os.environ and not os.environ.get("STAND_IN_REAL_CUDA"):
    sys.meta_path.insert(0, _Finder())
