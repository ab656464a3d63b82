"""Whether this machine can still use an engine that lies in the cache."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from latentsync_trt.runtime.cache.key import EngineKey


@dataclass(frozen=True, slots=True)
class Machine:
    """What engines run with here. Whatever is not known makes no engine foreign.

    `versions`: of the libraries that keys name; empty for one that is not installed. `gpus`: names of the devices,
    None where the driver cannot be asked or hides some.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    gpus: frozenset[str] | None = None

    def foreign(self, key: EngineKey) -> str:
        """Why no run on this machine looks for an engine of `key`; empty if one may."""
        for name, version in key.versions.items():
            here = self.versions.get(name, version)
            if here != version:
                return f"made with {name} {version}, and here is {here or 'none'}"
        if key.compute_capability and self.gpus is not None and key.gpu not in self.gpus:
            return f"made for {key.gpu}, which is not in this machine"
        return ""


def this_machine() -> Machine:
    """The libraries of this environment and the GPUs of this machine. Loads onnxruntime and the driver."""
    from latentsync_trt.runtime.providers.gpu import driver_problem, gpus
    from latentsync_trt.runtime.providers.libraries import UNKNOWN, onnxruntime_version, rtx_version, tensorrt_version

    versions = {
        "onnxruntime": onnxruntime_version(),
        "tensorrt": tensorrt_version(),
        "onnxruntime-ep-nv-tensorrt-rtx": rtx_version(),
    }
    all_seen = driver_problem() is None and "CUDA_VISIBLE_DEVICES" not in os.environ
    return Machine(
        {name: "" if version in (None, UNKNOWN) else str(version) for name, version in versions.items()},
        frozenset(gpu.name for gpu in gpus()) if all_seen else None,
    )
