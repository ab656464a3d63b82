"""Denoising steps on device buffers, with one upload and one download per batch of windows."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from latentsync_trt.bundle.manifest import HIDDEN, LATENT_HEIGHT, LATENT_WIDTH, step_graph
from latentsync_trt.errors import InferenceError
from latentsync_trt.runtime.engines.session import COPY_GRAPH, DeviceBuffers, Session, SessionSettings, plain_cuda
from latentsync_trt.types import Float32Array, WindowBatch

_STATE = ("latents", "history")


class GraphDenoiser:
    """A `types.Denoiser` that runs the graphs of all kinds of steps by I/O binding.

    Two pairs of state buffers are swapped between steps. A recorded CUDA graph always uses the addresses it was
    recorded with, so with CUDA graphs the new state is copied back on the device instead. Guided and unguided graphs
    share all buffers except `hidden`, which guided graphs hold for both halves, conditional and unconditional.

    Args:
        open_session: returns the session of a graph by name; called only for graphs that are needed.
        device: "cpu" or "cuda", where the sessions' provider keeps its buffers.
        cuda_graph: the sessions replay CUDA graphs.
        check_sizes: called with the sizes of a batch by name, as in `windows=2`; raises `InputError` for unsupported
            ones.
    """

    def __init__(
        self,
        open_session: Callable[[str], Session],
        device: str = "cpu",
        device_id: int = 0,
        *,
        cuda_graph: bool = False,
        check_sizes: Callable[..., None] = lambda **_: None,
    ) -> None:
        self._open, self._cuda_graph, self._device_id = open_session, cuda_graph, device_id
        self._check_sizes = check_sizes
        self._buffers = DeviceBuffers(device, device_id)
        self._sizes: dict[str, int] = {}
        self._values: dict[str, Any] = {}
        self._states: list[dict[str, Any]] = []
        self._current = 0
        self._guidance = False
        self._kinds = {True, False}
        self._reusable: bool | None = None

    def begin(self, batch: WindowBatch) -> None:
        """Uploads a batch of windows; at a guidance of 1 or below, only unguided graphs run.

        Raises:
            InputError: the sessions do not support its sizes. OutOfMemory: there is too little memory.
        """
        windows, _, frames, height, width = batch.latents.shape
        self._check_sizes(windows=windows, frames=frames, latent_height=height, latent_width=width)
        self._guidance = batch.guidance > 1.0
        self._kinds = {self._guidance, False} if batch.unguided_too else {self._guidance}
        session = self._open(step_graph(guided=self._guidance, cached=False))
        session.explained(lambda: self._upload(batch))
        self._reusable = None
        self._current = 0

    def _upload(self, batch: WindowBatch) -> None:
        windows, _, frames, height, width = batch.latents.shape
        sizes = {"windows": windows, "frames": frames, LATENT_HEIGHT: height, LATENT_WIDTH: width}
        if sizes != self._sizes:
            self.release()
        self._sizes, upload = sizes, self._buffers.upload
        self._values = {
            "conditioning": upload("conditioning", batch.conditioning),
            "audio": upload("audio", batch.audio),
            "timestep": upload("timestep", np.array(0, np.int64)),
            "guidance": upload("guidance", np.array(batch.guidance, np.float32)),
            "coefficients": upload("coefficients", np.zeros(5, np.float32)),
        }
        first = {"latents": batch.latents, "history": np.zeros_like(batch.latents)}
        self._states = [
            {name: upload(name, first[name]) for name in _STATE},
            {name: self._buffers.empty(f"next {name}", batch.latents.shape, np.float32) for name in _STATE},
        ]

    def step(
        self,
        timestep: int,
        coefficients: Float32Array,
        *,
        cached: bool,
        guided: bool = True,
        recorded: bool = True,
    ) -> None:
        """One denoising step in place. `cached` reuses the inner features of the last full step.

        Args:
            guided: False skips the unconditional half of this step, as a scale of 1 or below does.
            recorded: replays the CUDA graph of this step, or records it; as for `Session.run_bound`.

        Raises:
            InferenceError: the provider failed, no full step of its kind came before a cached one,
                or the batch was not begun with `unguided_too`.
            OutOfMemory: there is too little memory.
        """
        guided = guided and self._guidance
        if guided not in self._kinds:
            raise InferenceError("an unguided step, but the batch of windows was begun for guided steps only")
        if cached and self._reusable is not guided:
            kind = "guided" if guided else "unguided"
            raise InferenceError(f"a cached step needs a full step before it, here a full {kind} step")
        graph = step_graph(guided=guided, cached=cached)
        session = self._open(graph)

        def run() -> list[Any]:
            # Copying needs a CUDA stream, and creating the first one allocates memory.
            self._values["timestep"].update_inplace(np.array(timestep, np.int64))
            self._values["coefficients"].update_inplace(coefficients)
            binding = self._bind(session, guided=guided)
            session.run_bound(binding, recorded=recorded)
            if self._cuda_graph:
                self._copy_back()
            return list(binding.get_outputs())

        outputs = session.explained(run)
        if not cached:
            self._reusable = guided
        if not self._cuda_graph:
            self._current = 1 - self._current
        self.observe(
            graph, timestep, {tensor.name: value for tensor, value in zip(session.outputs, outputs, strict=True)}
        )

    def latents(self) -> Float32Array:
        # A copy: on the CPU the array is a view of a buffer of this object.
        return np.array(self._states[self._current]["latents"].numpy(), np.float32)

    def observe(self, graph: str, timestep: int, outputs: Mapping[str, Any]) -> None:
        """Called after each step with all outputs, for subclasses whose graphs have more."""

    def release(self) -> None:
        """Frees all buffers; call `begin` next."""
        self._buffers.clear()
        self._values, self._states, self._reusable = {}, [], None

    def _bind(self, session: Session, *, guided: bool) -> Any:
        source, target = self._states[self._current], self._states[1 - self._current]
        known = self._values | source | {f"next_{name}": value for name, value in target.items()}
        for tensor in (*session.inputs, *session.outputs):
            if tensor.name == HIDDEN:
                shape = tuple(size if isinstance(size, int) else self._sizes[size] for size in tensor.shape)
                known[HIDDEN] = self._buffers.empty(f"{HIDDEN} {guided}", shape, tensor.dtype.type)
        return session.bound(known)

    @cached_property
    def _copier(self) -> Session:
        return Session(COPY_GRAPH, SessionSettings(providers=plain_cuda(self._device_id)))

    def _copy_back(self) -> None:
        """Copies the new state on the GPU, for which ONNX Runtime's Python interface has no call."""
        target, source = self._states
        self._copier.run_bound(self._copier.bound(source | {f"{name}_copy": target[name] for name in _STATE}))
