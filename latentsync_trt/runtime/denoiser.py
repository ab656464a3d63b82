"""The denoiser, on device buffers. A window is uploaded and downloaded once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from latentsync_trt.bundle.manifest import HIDDEN, LATENT_HEIGHT, LATENT_WIDTH, step_graph
from latentsync_trt.errors import InferenceError
from latentsync_trt.runtime.engines.buffers import COPY_GRAPH, DeviceBuffers, small_session
from latentsync_trt.runtime.engines.session import Array, Session
from latentsync_trt.runtime.engines.shapes import shape_with
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.types import Float32Array


@dataclass(slots=True, eq=False)
class _WindowState:
    """The window that is being denoised, on the device."""

    guided: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)
    """By names of variable dimensions."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """`OrtValue`s by name, of which steps only update the content."""
    source: dict[str, Any] = field(default_factory=dict)
    """`OrtValue`s of latents and history that the next step reads."""
    target: dict[str, Any] = field(default_factory=dict)
    """Those that the next step writes."""
    has_features: bool = False
    """Whether a full step has left features that a cached one can use."""


class GraphDenoiser:
    """A `types.Denoiser` that runs the graphs of all kinds of steps by I/O binding.

    Two pairs of state buffers are swapped between steps. A recorded CUDA graph always uses the
    addresses it was recorded with, so with CUDA graphs the new state is copied back on the device
    instead. Guided and unguided graphs share all buffers except `hidden`, which guided graphs hold
    for both halves, conditional and unconditional.

    `open_session` returns the session of a graph, which with `cuda_graph` replays CUDA graphs.
    """

    def __init__(
        self,
        open_session: Callable[[str], Session],
        selection: Selection,
        *,
        cuda_graph: bool = False,
    ) -> None:
        self._open_session = open_session
        self._selection = selection
        self._cuda_graph = cuda_graph
        self._buffers = DeviceBuffers(selection)
        self._window = _WindowState()

    def begin(
        self,
        latents: Float32Array,
        conditioning: Float32Array,
        audio: Float32Array,
        guidance: float,
    ) -> None:
        """Uploads a window, as `types.Denoiser.begin`. Raises as `Session.run`."""
        guided = guidance > 1.0
        session = self._open_session(step_graph(guided=guided, cached=False))

        def upload() -> _WindowState:
            arrays: dict[str, Array] = {
                "conditioning": conditioning[None],
                "audio": audio[None],
                "timestep": np.array(0, np.int64),
                "guidance": np.array(guidance, np.float32),
                "coefficients": np.zeros(5, np.float32),
            }
            state = {"latents": latents[None], "history": np.zeros_like(latents[None])}
            shape = (1, *latents.shape)
            buffers = self._buffers
            _, frames, height, width = latents.shape
            return _WindowState(
                guided=guided,
                sizes={
                    "windows": 1,
                    "frames": frames,
                    LATENT_HEIGHT: height,
                    LATENT_WIDTH: width,
                },
                inputs={name: buffers.upload(name, array) for name, array in arrays.items()},
                source={name: buffers.upload(name, array) for name, array in state.items()},
                target={name: buffers.empty(f"next {name}", shape, np.float32) for name in state},
            )

        self._window = session.with_translated_errors(upload)

    def step(
        self, timestep: int, coefficients: Float32Array, *, cached: bool, recorded: bool = True
    ) -> None:
        """Does one denoising step in place, as `types.Denoiser.step`; `recorded` is that of
        `Session.run_bound`. Raises `InferenceError` where no full step came before a cached one;
        others as `Session.run`.
        """
        window = self._window
        if cached and not window.has_features:
            raise InferenceError("a cached step needs a full step before it")
        graph = step_graph(guided=window.guided, cached=cached)
        session = self._open_session(graph)

        def run() -> list[Any]:
            # Copying needs a CUDA stream, and creating the first one allocates memory.
            window.inputs["timestep"].update_inplace(np.array(timestep, np.int64))
            window.inputs["coefficients"].update_inplace(coefficients)
            binding = self._bind(session)
            session.run_bound(binding, recorded=recorded)
            if self._cuda_graph:
                self._copy_back()
            return list(binding.get_outputs())

        outputs = session.with_translated_errors(run)
        window.has_features = True
        if not self._cuda_graph:
            window.source, window.target = window.target, window.source
        names = [tensor.name for tensor in session.outputs]
        self.observe(graph, timestep, dict(zip(names, outputs, strict=True)))

    def latents(self) -> Float32Array:
        # A copy: on the CPU the array is a view of a buffer of this object.
        return np.array(self._window.source["latents"].numpy()[0], np.float32)

    def observe(self, graph: str, timestep: int, outputs: Mapping[str, Any]) -> None:
        """Called after each step with all outputs, for graphs that have more."""

    def release(self) -> None:
        """Frees all buffers; call `begin` next."""
        self._buffers.clear()
        self._window = _WindowState()

    def _bind(self, session: Session) -> Any:
        window = self._window
        values = {**window.inputs, **window.source}
        for name, value in window.target.items():
            values[f"next_{name}"] = value
        for tensor in (*session.inputs, *session.outputs):
            if tensor.name == HIDDEN:
                shape = shape_with(tensor.shape, window.sizes)
                name = f"{HIDDEN} {window.guided}"
                values[HIDDEN] = self._buffers.empty(name, shape, tensor.dtype)
        return session.bound(values)

    def _copy_back(self) -> None:
        """Copies the new state on the GPU, for which ONNX Runtime's Python interface has no
        call.
        """
        window = self._window
        copier = small_session(COPY_GRAPH, self._selection)
        copies = {f"{name}_copy": value for name, value in window.source.items()}
        copier.run_bound(copier.bound({**window.target, **copies}))
