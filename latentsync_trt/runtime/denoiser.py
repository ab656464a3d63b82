"""Denoising steps on device buffers, with one upload and one download per window."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from latentsync_trt.bundle.manifest import HIDDEN, LATENT_HEIGHT, LATENT_WIDTH, step_graph
from latentsync_trt.errors import InferenceError
from latentsync_trt.runtime.engines.session import COPY_GRAPH, DeviceBuffers, Session, small_session
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.types import Float32Array

_STATE = ("latents", "history")


class GraphDenoiser:
    """A `types.Denoiser` that runs the graphs of all kinds of steps by I/O binding.

    Two pairs of state buffers are swapped between steps. A recorded CUDA graph always uses the addresses it was
    recorded with, so with CUDA graphs the new state is copied back on the device instead. Guided and unguided graphs
    share all buffers except `hidden`, which guided graphs hold for both halves, conditional and unconditional.

    `open_session` returns the session of a graph, which with `cuda_graph` replays CUDA graphs. `check_sizes`: called
    with the sizes of a window by name, as in `frames=16`; raises `InputError` for those that engines do not take.
    """

    def __init__(
        self,
        open_session: Callable[[str], Session],
        selection: Selection,
        *,
        cuda_graph: bool = False,
        check_sizes: Callable[..., None] = lambda **_: None,
    ) -> None:
        self._open, self._selection, self._cuda_graph = open_session, selection, cuda_graph
        self._check_sizes = check_sizes
        self._buffers = DeviceBuffers(selection)
        self._sizes: dict[str, int] = {}
        self._values: dict[str, Any] = {}
        self._states: list[dict[str, Any]] = []
        self._current = 0
        self._guided = self._reusable = False

    def begin(self, latents: Float32Array, conditioning: Float32Array, audio: Float32Array, guidance: float) -> None:
        """Uploads a window, as `types.Denoiser.begin`.

        Raises `InputError` if the sessions do not support its sizes; others as `Session.run`.
        """
        _, frames, height, width = latents.shape
        sizes = {"frames": frames, LATENT_HEIGHT: height, LATENT_WIDTH: width}
        self._check_sizes(**sizes)
        self._sizes, self._guided, self._reusable, self._current = {"windows": 1} | sizes, guidance > 1.0, False, 0
        session, upload = self._open(step_graph(guided=self._guided, cached=False)), self._buffers.upload

        def upload_all() -> None:
            self._values = {
                "conditioning": upload("conditioning", conditioning[None]),
                "audio": upload("audio", audio[None]),
                "timestep": upload("timestep", np.array(0, np.int64)),
                "guidance": upload("guidance", np.array(guidance, np.float32)),
                "coefficients": upload("coefficients", np.zeros(5, np.float32)),
            }
            first = {"latents": latents[None], "history": np.zeros_like(latents[None])}
            self._states = [
                {name: upload(name, first[name]) for name in _STATE},
                {name: self._buffers.empty(f"next {name}", (1, *latents.shape), np.float32) for name in _STATE},
            ]

        session.explained(upload_all)

    def step(self, timestep: int, coefficients: Float32Array, *, cached: bool, recorded: bool = True) -> None:
        """One denoising step in place, as `types.Denoiser.step`; `recorded`: as for `Session.run_bound`. Raises
        `InferenceError` where no full step came before a cached one; others as `Session.run`."""
        if cached and not self._reusable:
            raise InferenceError("a cached step needs a full step before it")
        graph = step_graph(guided=self._guided, cached=cached)
        session = self._open(graph)

        def run() -> list[Any]:
            # Copying needs a CUDA stream, and creating the first one allocates memory.
            self._values["timestep"].update_inplace(np.array(timestep, np.int64))
            self._values["coefficients"].update_inplace(coefficients)
            binding = self._bind(session)
            session.run_bound(binding, recorded=recorded)
            if self._cuda_graph:
                self._copy_back()
            return list(binding.get_outputs())

        outputs = session.explained(run)
        self._reusable = True
        if not self._cuda_graph:
            self._current = 1 - self._current
        names = [tensor.name for tensor in session.outputs]
        self.observe(graph, timestep, dict(zip(names, outputs, strict=True)))

    def latents(self) -> Float32Array:
        # A copy: on the CPU the array is a view of a buffer of this object.
        return np.array(self._states[self._current]["latents"].numpy()[0], np.float32)

    def observe(self, graph: str, timestep: int, outputs: Mapping[str, Any]) -> None:
        """Called after each step with all outputs, for graphs that have more."""

    def release(self) -> None:
        """Frees all buffers; call `begin` next."""
        self._buffers.clear()
        self._values, self._states, self._reusable = {}, [], False

    def _bind(self, session: Session) -> Any:
        source, target = self._states[self._current], self._states[1 - self._current]
        known = self._values | source | {f"next_{name}": value for name, value in target.items()}
        for tensor in (*session.inputs, *session.outputs):
            if tensor.name == HIDDEN:
                shape = tuple(size if isinstance(size, int) else self._sizes[size] for size in tensor.shape)
                known[HIDDEN] = self._buffers.empty(f"{HIDDEN} {self._guided}", shape, tensor.dtype)
        return session.bound(known)

    def _copy_back(self) -> None:
        """Copies the new state on the GPU, for which ONNX Runtime's Python interface has no call."""
        target, source = self._states
        copier = small_session(COPY_GRAPH, self._selection)
        copier.run_bound(copier.bound(source | {f"{name}_copy": target[name] for name in _STATE}))
