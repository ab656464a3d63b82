"""Runs graphs on seeded random numbers, to compare the values of two providers or two variants, and
to time them.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from latentsync_trt.bundle.manifest import DimensionRange, Manifest, TensorEntry
from latentsync_trt.runtime.engines.builders import usual_shape
from latentsync_trt.runtime.engines.session import Array, DeviceBuffers, Session
from latentsync_trt.runtime.providers.selection import Selection

Ranges = Mapping[str, DimensionRange]

SEED = 11
_KNOWN_INPUTS = {"timestep": 501, "guidance": 1.5, "coefficients": (1.02, -0.31, 0.12, 1.4, -0.9)}
"""Values as in a usual run."""

_LIMIT = 1e-2
"""Measured between the CUDA variant of a graph and the portable one on an H200, all graphs at 256
and 512 px in float16: 0.0004 to 0.0022.
"""

_EIGHT_BIT_LIMIT = 5e-2
"""In 8 bits, a sum that is rounded the other way is off by a whole quantization step."""

_VERIFICATION_FACTOR = 4.0
"""Two providers that are each as exact as the verified export differ by twice its error at most."""


class BoundRun:
    """Runs `session`, of the provider `selection`, on the same `random_inputs`; all stay on its
    device.
    """

    def __init__(self, session: Session, ranges: Ranges, selection: Selection) -> None:
        self._session = session
        # Kept alive here: the binding only has their addresses.
        self._buffers = DeviceBuffers(selection)
        inputs = random_inputs(session.inputs, ranges)
        known = {name: self._buffers.upload(name, array) for name, array in inputs.items()}
        for output in session.outputs:
            sizes = tuple(size for size in output.shape if isinstance(size, int))
            if len(sizes) == len(output.shape):
                # A recorded CUDA graph writes to the addresses it was recorded with.
                known[output.name] = self._buffers.empty(output.name, sizes, output.dtype)
        self._binding = session.bound(known, selection.device, selection.device_id)

    def __call__(self) -> None:
        """One run; returns when the outputs are complete. Raises as `Session.run`."""
        self._binding.synchronize_inputs()
        self._session.run_bound(self._binding)
        self._binding.synchronize_outputs()

    def outputs(self) -> tuple[Array, ...]:
        return tuple(self._binding.copy_outputs_to_cpu())


def random_inputs(tensors: Iterable[TensorEntry], ranges: Ranges) -> dict[str, Array]:
    """Seeded random inputs of a graph, never zeros; variable dimensions at their usual size in
    `ranges`.
    """
    rng = np.random.default_rng(SEED)
    inputs: dict[str, Array] = {}
    for tensor in tensors:
        values = _KNOWN_INPUTS.get(tensor.name)
        if values is None:
            values = rng.standard_normal(usual_shape(tensor.shape, ranges), np.float32)
        inputs[tensor.name] = np.asarray(values).astype(tensor.dtype)
    return inputs


def difference(ours: Iterable[Array], theirs: Iterable[Array]) -> float:
    """The largest difference of an output, divided by the largest of `theirs`; infinite if a value
    is not finite.
    """
    largest = 0.0
    for pair in zip(ours, theirs, strict=True):
        one, other = (array.astype(np.float32) for array in pair)
        with np.errstate(invalid="ignore"):  # of infinities
            # NaN where any value is
            apart, scale = (float(np.abs(values).max()) for values in (one - other, other))
        if not np.isfinite([apart, scale]).all():
            return np.inf
        largest = max(largest, apart / max(scale, float(np.finfo(np.float32).tiny)))
    return largest


def provider_limit(manifest: Manifest, graph: str) -> float:
    """The largest `difference` between two providers with which a graph counts as computed
    correctly: more than usual where it was far from PyTorch itself when it was verified.
    """
    least = _LIMIT if manifest.quantization is None else _EIGHT_BIT_LIMIT
    return max(least, _VERIFICATION_FACTOR * manifest.verification.get(graph, 0.0))
