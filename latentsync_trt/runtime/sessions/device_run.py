"""One graph on inputs that stay on the device: the time of a run without copies from and to the host."""

from collections.abc import Mapping

import onnxruntime as ort

from latentsync_trt.runtime.sessions.memory import device_value
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
        # The binding keeps addresses only; the arrays and buffers must live as long as it does.
        self._held = [device_value(array, device, device_id) for array in inputs.values()]
        for name, value in zip(inputs, self._held, strict=True):
            self._binding.bind_ortvalue_input(name, value)
        for output in session.outputs:
            if all(isinstance(size, int) for size in output.shape):
                # A recorded CUDA graph writes to the addresses it was recorded with.
                value = ort.OrtValue.ortvalue_from_shape_and_type(output.shape, output.dtype, device, device_id)
                self._held.append(value)
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
