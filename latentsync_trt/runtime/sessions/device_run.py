"""Runs a graph on inputs that stay on the device, to time it without host copies."""

from collections.abc import Mapping

from latentsync_trt.runtime.sessions.memory import DeviceBuffers
from latentsync_trt.runtime.sessions.session import Array, Session


class BoundRun:
    """Runs `session` repeatedly on the same inputs; outputs stay on the device, too.

    Args:
        inputs: an array for every input of the graph, uploaded once.
        device, device_id: where the session's provider keeps its buffers, as in `Selection`.
    """

    def __init__(self, session: Session, inputs: Mapping[str, Array], device: str, device_id: int) -> None:
        self._session = session
        self._binding = session.ort.io_binding()
        self._buffers = DeviceBuffers(device, device_id)  # kept alive here: the binding only has their addresses
        for name, array in inputs.items():
            self._binding.bind_ortvalue_input(name, self._buffers.upload(name, array))
        for output in session.outputs:
            sizes = tuple(size for size in output.shape if isinstance(size, int))
            if len(sizes) == len(output.shape):
                # A recorded CUDA graph writes to the addresses it was recorded with.
                value = self._buffers.empty(output.name, sizes, output.dtype.type)
                self._binding.bind_ortvalue_output(output.name, value)
            else:
                self._binding.bind_output(output.name, device, device_id)

    def __call__(self) -> None:
        """One run; returns when the outputs are complete.

        Raises:
            InferenceError: the provider failed. OutOfMemory: there is too little memory.
        """
        self._binding.synchronize_inputs()
        self._session.run_bound(self._binding)
        self._binding.synchronize_outputs()

    def outputs(self) -> tuple[Array, ...]:
        """The outputs of the last run, copied to the host."""
        return tuple(self._binding.copy_outputs_to_cpu())
