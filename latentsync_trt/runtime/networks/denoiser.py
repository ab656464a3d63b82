"""The denoising step on device buffers: inputs go up once a window, latents come back once, nothing in between."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort

from latentsync_trt.errors import InferenceError
from latentsync_trt.runtime.sessions.memory import COPY_GRAPH, device_value
from latentsync_trt.runtime.sessions.session import Array, Session, SessionSettings
from latentsync_trt.types import Float32Array, WindowBatch

_STATE = ("latents", "history")


def step_graph(*, guided: bool, cached: bool) -> str:
    """The name of the graph of a step."""
    return f"denoise_step{'' if guided else '_unguided'}{'_cached' if cached else ''}"


class GraphDenoiser:
    """Runs the full and the cached step graphs, guided and unguided ones, by I/O binding.

    Two pairs of state buffers are swapped between steps. A recorded CUDA graph knows only the addresses it was recorded
    with, so there the new state is copied back on the device instead. Guided and unguided graphs take turns on the same
    buffers, but for `hidden`, which has two halves in one and one in the other.

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
        self._guidance = False
        self._kinds = {True, False}
        self._hidden: dict[bool, Any] = {}
        self._reusable: bool | None = None
        self._bindings: dict[tuple[str, int], tuple[Session, Any]] = {}
        self._replayed = cuda_graph
        self._copier: _Copier | None = None

    def begin(self, batch: WindowBatch) -> None:
        """Uploads a batch of windows; at a guidance of 1 or below only unguided graphs will run."""
        self._guidance = batch.guidance > 1.0
        self._kinds = {self._guidance, False} if batch.unguided_too else {self._guidance}
        session = self._open(step_graph(guided=self._guidance, cached=False))
        session.with_relief(lambda: self._take(batch))
        self._reusable = None
        self._current = 0

    def _take(self, batch: WindowBatch) -> None:
        """Puts a batch into the buffers; makes new ones where these are of other sizes."""
        fixed: dict[str, Array] = {
            "conditioning": batch.conditioning,
            "audio": batch.audio,
            "timestep": np.array(0, np.int64),
            "guidance": np.array(batch.guidance, np.float32),
            "coefficients": np.zeros(5, np.float32),
        }
        shapes = {name: value.shape for name, value in fixed.items()}
        if shapes == {name: tuple(v.shape()) for name, v in self._values.items()}:
            for name, array in fixed.items():
                self._values[name].update_inplace(np.asarray(array, order="C"))
        else:
            self.release()
            self._values, self._states = {}, []
            values = {name: self._upload(array) for name, array in fixed.items()}
            nothing = np.zeros_like(batch.latents)
            self._states = [{name: self._upload(nothing) for name in _STATE} for _ in range(2)]
            self._values = values
        self._states[0]["latents"].update_inplace(np.asarray(batch.latents, order="C"))
        self._states[0]["history"].update_inplace(np.zeros_like(batch.latents))

    def step(self, timestep: int, coefficients: Float32Array, *, cached: bool, guided: bool = True) -> None:
        """One denoising step in place. `cached` reuses the inner features of the last full step.

        Args:
            guided: False leaves the unconditional half out of this step, as a scale at 1 or below does out of all.

        Raises:
            InferenceError: the provider failed, a cached step came before a full one of its kind, or `begin` was not
                told of unguided steps.
            OutOfMemory: the device's memory is short.
        """
        guided = guided and self._guidance
        if guided not in self._kinds:
            raise InferenceError("an unguided step, but the batch of windows was begun for guided steps alone")
        if cached and self._reusable is not guided:
            kind = "guided" if guided else "unguided"
            raise InferenceError(f"a cached step needs a full step before it: here {kind} as it is")
        graph = step_graph(guided=guided, cached=cached)
        session = self._open(graph)
        # Copying takes a stream, and the first one memory.
        session.with_relief(lambda: self._values["timestep"].update_inplace(np.array(timestep, np.int64)))
        session.with_relief(lambda: self._values["coefficients"].update_inplace(coefficients))
        binding = self._binding(graph, session, guided=guided)
        session.run_bound(binding)
        if not cached:
            self._reusable = guided
            if guided not in self._hidden:
                # The first full step let the provider allocate `hidden`, whose shape only the graph knows.
                self._hidden[guided] = binding.get_outputs()[_names(session.outputs).index("hidden")]
                self._bindings.clear()
        if not self._replayed:
            self._current = 1 - self._current
            return
        if self._copier is None:
            self._copier = session.with_relief(lambda: _Copier(self._device_id))
        self._copier.copy(self._states[1], self._states[0])

    def latents(self) -> Float32Array:
        """Downloads the current latents, float32 `(B, 4, F, h, w)`."""
        # A copy: on the CPU the array is a view of a buffer that goes with this object.
        return np.array(self._states[self._current]["latents"].numpy(), np.float32)

    def release(self) -> None:
        """Lets go of the sessions and of what lies in their memory, so that it can be freed; `begin` comes next."""
        self._bindings.clear()
        self._hidden.clear()
        self._reusable = None

    def _upload(self, array: Array) -> Any:
        return device_value(array, self._device, self._device_id)

    def _binding(self, graph: str, session: Session, *, guided: bool) -> Any:
        key = (graph, self._current)
        bound_to, binding = self._bindings.get(key, (None, None))
        if bound_to is not session:
            if guided not in self._hidden:
                session.with_relief(lambda: self._allocate_hidden(session, guided=guided))
            binding = self._bind(session, self._hidden.get(guided))
            self._bindings[key] = session, binding
        return binding

    def _bind(self, session: Session, hidden: Any) -> Any:
        source, target = self._states[self._current], self._states[1 - self._current]
        binding = session.ort.io_binding()
        available = self._values | source | ({} if hidden is None else {"hidden": hidden})
        for name in _names(session.inputs):
            binding.bind_ortvalue_input(name, available[name])
        # Outputs in the graph's own order: the binding returns them in the order they were bound.
        for name in _names(session.outputs):
            if name != "hidden":
                binding.bind_ortvalue_output(name, target[name.removeprefix("next_")])
            elif hidden is None:
                binding.bind_output(name, self._device, self._device_id)
            else:
                binding.bind_ortvalue_output(name, hidden)
        return binding

    def _allocate_hidden(self, session: Session, *, guided: bool) -> None:
        """Makes the buffer for `hidden` where the graph says its shape; elsewhere only a run can tell."""
        info = next((tensor for tensor in session.outputs if tensor.name == "hidden"), None)
        if info is not None and all(isinstance(size, int) for size in info.shape):
            self._hidden[guided] = ort.OrtValue.ortvalue_from_shape_and_type(
                info.shape, info.dtype, self._device, self._device_id
            )


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
