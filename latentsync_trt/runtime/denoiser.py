"""The denoising step on device buffers: inputs go up once a window, latents come back once, nothing in between."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort

from latentsync_trt.errors import InferenceError
from latentsync_trt.runtime.session import Array, Session, last_line
from latentsync_trt.types import Float32Array

_FIXED_INPUTS = ("conditioning", "audio", "timestep", "guidance", "coefficients")


class GraphDenoiser:
    """Runs the full and the cached step graph by I/O binding; two pairs of state buffers are swapped between steps.

    Args:
        open_session: gives the session of a graph by name; asked only for graphs that are needed.
        device: "cpu" or "cuda", where the sessions' provider keeps its buffers.
        device_id: which GPU.
    """

    def __init__(self, open_session: Callable[[str], Session], device: str = "cpu", device_id: int = 0) -> None:
        self._open = open_session
        self._device = device
        self._device_id = device_id
        self._values: dict[str, Any] = {}
        self._states: list[dict[str, Any]] = []
        self._current = 0
        self._hidden: Any = None
        self._suffix = ""
        self._bindings: dict[tuple[str, int], Any] = {}

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
            self._values = {name: self._upload(array) for name, array in fixed.items()}
            self._states = [
                {"latents": self._upload(np.zeros_like(latents)), "history": self._upload(np.zeros_like(latents))}
                for _ in range(2)
            ]
            self._bindings.clear()
            self._hidden, self._suffix = None, suffix
        self._current = 0
        self._states[0]["latents"].update_inplace(np.ascontiguousarray(latents))
        self._states[0]["history"].update_inplace(np.zeros_like(latents))

    def step(self, timestep: int, coefficients: Float32Array, *, cached: bool) -> None:
        """One denoising step in place. `cached` reuses the inner features of the last full step.

        Raises:
            InferenceError: the provider failed, or a cached step came before a full one.
        """
        if cached and self._hidden is None:
            raise InferenceError("a cached step needs a full step before it")
        graph = f"denoise_step{self._suffix}{'_cached' if cached else ''}"
        session = self._open(graph)
        self._values["timestep"].update_inplace(np.array(timestep, np.int64))
        self._values["coefficients"].update_inplace(coefficients)
        binding = self._binding(graph, session)
        try:
            session.ort.run_with_iobinding(binding)
        except Exception as error:
            raise InferenceError(f"{session.path.name} on {session.provider}: {last_line(error)}") from error
        if not cached and self._hidden is None:
            # The first full step let the provider allocate `hidden`, whose shape may be known only to the graph.
            self._hidden = binding.get_outputs()[self._output_index(session, "hidden")]
            self._bindings.clear()
        self._current = 1 - self._current

    def latents(self) -> Float32Array:
        """Downloads the current latents, float32 `(B, 4, F, h, w)`."""
        # A copy: on the CPU the array is a view of a buffer that goes with this object.
        return np.array(self._states[self._current]["latents"].numpy(), np.float32)

    def _upload(self, array: Array) -> Any:
        # `.copy()`: on the CPU an OrtValue is a view of the array it is made from, and would change the caller's data.
        return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array).copy(), self._device, self._device_id)

    def _binding(self, graph: str, session: Session) -> Any:
        key = (graph, self._current)
        if key not in self._bindings:
            self._bindings[key] = self._bind(session)
        return self._bindings[key]

    def _bind(self, session: Session) -> Any:
        source, target = self._states[self._current], self._states[1 - self._current]
        binding = session.ort.io_binding()
        names = {tensor.name for tensor in session.inputs}
        available = self._values | source | ({} if self._hidden is None else {"hidden": self._hidden})
        for name in names:
            binding.bind_ortvalue_input(name, available[name])
        # Outputs in the graph's own order: the binding returns them in the order they were bound.
        for tensor in session.outputs:
            if tensor.name == "hidden":
                if self._hidden is None:
                    binding.bind_output("hidden", self._device, self._device_id)
                else:
                    binding.bind_ortvalue_output("hidden", self._hidden)
            else:
                binding.bind_ortvalue_output(tensor.name, target[tensor.name.removeprefix("next_")])
        return binding

    @staticmethod
    def _output_index(session: Session, name: str) -> int:
        return [tensor.name for tensor in session.outputs].index(name)
