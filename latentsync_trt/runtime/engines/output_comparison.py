"""Runs graphs on seeded random numbers, to compare the values of two providers or two variants, and
to time them.
"""

from collections.abc import Iterable

import numpy as np

from latentsync_trt.bundle.manifest import Manifest, TensorEntry
from latentsync_trt.runtime.engines.buffers import DeviceBuffers
from latentsync_trt.runtime.engines.session import Array, Session
from latentsync_trt.runtime.engines.shapes import DimensionRanges, usual_shape
from latentsync_trt.runtime.providers.selection import Selection

SEED = 11

_USUAL_VALUES = {"timestep": 501, "guidance": 1.5, "coefficients": (1.02, -0.31, 0.12, 1.4, -0.9)}
"""Values, as in a usual run, of inputs that random numbers would not suit."""

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

    def __init__(self, session: Session, ranges: DimensionRanges, selection: Selection) -> None:
        self._session = session
        # Kept alive here: the binding only has their addresses.
        self._buffers = DeviceBuffers(selection)
        values = {}
        for name, array in random_inputs(session.inputs, ranges).items():
            values[name] = self._buffers.upload(name, array)
        for output in session.outputs:
            sizes = tuple(size for size in output.shape if isinstance(size, int))
            if len(sizes) == len(output.shape):
                # A recorded CUDA graph writes to the addresses it was recorded with.
                values[output.name] = self._buffers.empty(output.name, sizes, output.dtype)
        self._binding = session.bound(values, selection.device, selection.device_id)

    def __call__(self) -> None:
        """Runs once; returns when the outputs are complete. Raises as `Session.run`."""
        self._binding.synchronize_inputs()
        self._session.run_bound(self._binding)
        self._binding.synchronize_outputs()

    def outputs(self) -> tuple[Array, ...]:
        return tuple(self._binding.copy_outputs_to_cpu())


def random_inputs(tensors: Iterable[TensorEntry], ranges: DimensionRanges) -> dict[str, Array]:
    """Returns seeded random inputs of a graph, never zeros; variable dimensions have their usual
    size in `ranges`.
    """
    generator = np.random.default_rng(SEED)
    inputs: dict[str, Array] = {}
    for tensor in tensors:
        if tensor.name in _USUAL_VALUES:
            values = np.asarray(_USUAL_VALUES[tensor.name])
        else:
            values = generator.standard_normal(usual_shape(tensor.shape, ranges), np.float32)
        inputs[tensor.name] = values.astype(tensor.dtype)
    return inputs


def difference(outputs: Iterable[Array], reference: Iterable[Array]) -> float:
    """Returns the largest difference of an output, divided by the largest value of its reference;
    infinite if a value is not finite.
    """
    largest = 0.0
    for output, expected in zip(outputs, reference, strict=True):
        expected = expected.astype(np.float32)
        with np.errstate(invalid="ignore"):  # of infinities
            # NaN where any value is
            distance = float(np.abs(output.astype(np.float32) - expected).max())
            scale = float(np.abs(expected).max())
        if not np.isfinite([distance, scale]).all():
            return np.inf
        smallest_scale = float(np.finfo(np.float32).tiny)
        largest = max(largest, distance / max(scale, smallest_scale))
    return largest


def provider_limit(manifest: Manifest, graph: str) -> float:
    """Returns the largest `difference` between two providers with which a graph counts as computed
    correctly: more than usual where it was far from PyTorch itself when it was verified.
    """
    least = _LIMIT if manifest.quantization is None else _EIGHT_BIT_LIMIT
    return max(least, _VERIFICATION_FACTOR * manifest.verification.get(graph, 0.0))
