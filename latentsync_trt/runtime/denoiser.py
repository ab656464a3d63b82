"""The denoising step on device buffers: inputs go up once a window, latents come back once, nothing in between."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort

from latentsync_trt.errors import InferenceError
from latentsync_trt.runtime.memory import COPY_GRAPH
from latentsync_trt.runtime.session import Array, Session, SessionSettings
from latentsync_trt.types import Float32Array

_STATE = ("latents", "history")


class GraphDenoiser:
    """Runs the full and the cached step graph by I/O binding.

    Two pairs of state buffers are swapped between steps. A recorded CUDA graph knows only the addresses it was recorded
    with, so there the new state is copied back on the device instead.

    Args:
        open_session: gives the session of a graph by name; asked only for graphs that are needed.
        device: "cpu" or "cuda", where the sessions' provider keeps its buffers.
        device_id: which GPU.
        cuda_graph: the sessions replay CUDA graphs.
    """

    def __init__(
        self,
        open_session: Callable[[str], Session],
        device: str = "cpu",
        device_id: int = 0,
        *,
        cuda_graph: bool = False,
    ) -> None:
        self._open = open_session
        self._device = device
        self._device_id = device_id
        self._values: dict[str, Any] = {}
        self._states: list[dict[str, Any]] = []
        self._current = 0
        self._hidden: Any = None
        self._suffix = ""
        self._bindings: dict[tuple[str, int], tuple[Session, Any]] = {}
        self._copier = _Copier(device_id) if cuda_graph else None

    def begin(self, latents: Float32Array, conditioning: Float32Array, audio: Float32Array, guidance: float) -> None:
        """Uploads a batch of windows.

        Args:
            latents: `(B, 4, F, h, w)` noise. conditioning: `(B, 9, F, h, w)`. audio: `(B, F, S, D)`.
            guidance: scale; at 1 or below the unguided graphs run, without the unconditional half.
        """
        suffix = "" if guidance > 1.0 else "_unguided"
        fixed: dict[str, Array] = {
            "conditioning": conditioning,
            "audio": audio,
            "timestep": np.array(0, np.int64),
            "guidance": np.array(guidance, np.float32),
            "coefficients": np.zeros(5, np.float32),
        }
        shapes = {name: value.shape for name, value in fixed.items()}
        if suffix == self._suffix and shapes == {name: tuple(v.shape()) for name, v in self._values.items()}:
            for name, array in fixed.items():
                self._values[name].update_inplace(np.ascontiguousarray(array))
        else:
            self.release()
            self._values = {name: self._upload(array) for name, array in fixed.items()}
            self._states = [{name: self._upload(np.zeros_like(latents)) for name in _STATE} for _ in range(2)]
            self._suffix = suffix
        self._current = 0
        self._states[0]["latents"].update_inplace(np.ascontiguousarray(latents))
        self._states[0]["history"].update_inplace(np.zeros_like(latents))

    def step(self, timestep: int, coefficients: Float32Array, *, cached: bool) -> None:
        """One denoising step in place. `cached` reuses the inner features of the last full step.

        Raises:
            InferenceError: the provider failed, or a cached step came before a full one.
            OutOfMemory: the device's memory is short.
        """
        if cached and self._hidden is None:
            raise InferenceError("a cached step needs a full step before it")
        graph = f"denoise_step{self._suffix}{'_cached' if cached else ''}"
        session = self._open(graph)
        self._values["timestep"].update_inplace(np.array(timestep, np.int64))
        self._values["coefficients"].update_inplace(coefficients)
        binding = self._binding(graph, session)
        session.run_bound(binding)
        if not cached and self._hidden is None:
            # The first full step let the provider allocate `hidden`, whose shape only the graph knows.
            self._hidden = binding.get_outputs()[_names(session.outputs).index("hidden")]
            self._bindings.clear()
        if self._copier is None:
            self._current = 1 - self._current
        else:
            self._copier.copy(self._states[1], self._states[0])

    def latents(self) -> Float32Array:
        """Downloads the current latents, float32 `(B, 4, F, h, w)`."""
        # A copy: on the CPU the array is a view of a buffer that goes with this object.
        return np.array(self._states[self._current]["latents"].numpy(), np.float32)

    def release(self) -> None:
        """Lets go of the sessions and of what lies in their memory, so that it can be freed; `begin` comes next."""
        self._bindings.clear()
        self._hidden = None

    def _upload(self, array: Array) -> Any:
        # `.copy()`: on the CPU an OrtValue is a view of the array it is made from, and would change the caller's data.
        return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array).copy(), self._device, self._device_id)

    def _binding(self, graph: str, session: Session) -> Any:
        key = (graph, self._current)
        bound_to, binding = self._bindings.get(key, (None, None))
        if bound_to is not session:
            binding = self._bind(session)
            self._bindings[key] = session, binding
        return binding

    def _bind(self, session: Session) -> Any:
        source, target = self._states[self._current], self._states[1 - self._current]
        if self._hidden is None:
            self._hidden = self._allocate_hidden(session)
        binding = session.ort.io_binding()
        available = self._values | source | ({} if self._hidden is None else {"hidden": self._hidden})
        for name in _names(session.inputs):
            binding.bind_ortvalue_input(name, available[name])
        # Outputs in the graph's own order: the binding returns them in the order they were bound.
        for name in _names(session.outputs):
            if name != "hidden":
                binding.bind_ortvalue_output(name, target[name.removeprefix("next_")])
            elif self._hidden is None:
                binding.bind_output(name, self._device, self._device_id)
            else:
                binding.bind_ortvalue_output(name, self._hidden)
        return binding

    def _allocate_hidden(self, session: Session) -> Any:
        """A buffer for `hidden` where the graph says its shape; None where only a run can tell."""
        info = next((tensor for tensor in session.outputs if tensor.name == "hidden"), None)
        if info is None or not all(isinstance(size, int) for size in info.shape):
            return None
        return ort.OrtValue.ortvalue_from_shape_and_type(info.shape, info.dtype, self._device, self._device_id)


class _Copier:
    """Copies state buffers on the GPU, for ONNX Runtime's Python interface has no such call for CUDA."""

    def __init__(self, device_id: int) -> None:
        cuda = ("CUDAExecutionProvider", {"device_id": str(device_id)})
        self._session = Session(COPY_GRAPH, SessionSettings(providers=(cuda, ("CPUExecutionProvider", {}))))
        self._binding: Any = None
        self._bound: tuple[int, ...] = ()

    def copy(self, source: dict[str, Any], target: dict[str, Any]) -> None:
        """Copies `source`'s tensors over `target`'s."""
        addresses = tuple(value.data_ptr() for state in (source, target) for value in state.values())
        if addresses != self._bound:
            self._binding = self._session.ort.io_binding()
            for name in _STATE:
                self._binding.bind_ortvalue_input(name, source[name])
                self._binding.bind_ortvalue_output(f"{name}_copy", target[name])
            self._bound = addresses
        self._session.run_bound(self._binding)


def _names(tensors: Any) -> list[str]:
    return [tensor.name for tensor in tensors]
