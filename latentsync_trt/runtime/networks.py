"""The VAE and the denoiser, on device buffers, and the first run of each network.

Pictures are transferred as integers, and scaled on the device. A window is uploaded and downloaded
once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from latentsync_trt.bundle.manifest import (
    AUDIO_ENCODER,
    HIDDEN,
    LATENT_HEIGHT,
    LATENT_WIDTH,
    PIXELS_PER_LATENT,
    VAE_DECODER,
    VAE_ENCODER,
    step_graph,
)
from latentsync_trt.errors import InferenceError
from latentsync_trt.runtime.engines.builders import usual_shape
from latentsync_trt.runtime.engines.output_comparison import Ranges, random_inputs
from latentsync_trt.runtime.engines.session import (
    COPY_GRAPH,
    Array,
    DeviceBuffers,
    Session,
    small_session,
)
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.runtime.stages import Stage
from latentsync_trt.types import Float32Array, UInt8Array, UInt16Array

T = TypeVar("T")
A = TypeVar("A", Float32Array, UInt8Array)

STAGES: dict[str, Stage] = {VAE_ENCODER: "encode", AUDIO_ENCODER: "encode", VAE_DECODER: "decode"}
"""In whose thread a graph runs; all others are steps."""

_GRAPHS = Path(__file__).parents[1] / "assets" / "graphs"
_FACES_IN = _GRAPHS / "faces_in.onnx"
_FACES_OUT = _GRAPHS / "faces_out.onnx"
"""`faces` uint8, `mask` → `image`, `masked`; `image` → `painted` uint16."""

_STATE = ("latents", "history")

_TIMESTEP = 500


class VaeCodec:
    """Encodes and decodes faces on the sessions of two graphs. One thread may encode while another
    decodes.
    """

    def __init__(self, factory: SessionFactory, open_session: Callable[[str], Session]) -> None:
        self._ranges = factory.ranges
        self._open = open_session
        self._selection = factory.selection
        self._buffers = DeviceBuffers(factory.selection)

    def encode_faces(
        self, faces: UInt8Array, mask: Float32Array
    ) -> tuple[Float32Array, Float32Array]:
        """Scaled latents of `faces` (uint8 `(N, H, W, 3)` RGB, any N) times `mask` (float32 `(H,
        W)`, 1 = kept, 0 = turned gray), and of whole faces: both float32 `(N, 4, h, w)`. Raises as
        `Session.run`.
        """
        pairs = self._in_batches(VAE_ENCODER, faces, partial(self._encode, mask=mask))
        masked, whole = zip(
            *((masked[:used], whole[:used]) for (masked, whole), used in pairs), strict=True
        )
        return np.concatenate(masked), np.concatenate(whole)

    def decode_faces(self, latents: Float32Array) -> list[UInt16Array]:
        """Faces of scaled latents `(N, 4, h, w)`: N pictures, uint16 `(H, W, 3)` RGB.

        The network's −1 to 1 become 0 to 65535 (257 × the 8-bit level), clipped. Rounding to the
        depth of the video comes last, in the planes. Raises as `encode_faces`.
        """
        batches = self._in_batches(VAE_DECODER, latents, self._decode)
        return [picture for pictures, used in batches for picture in pictures[:used]]

    def _in_batches(
        self, graph: str, array: A, run: Callable[[Session, A], T]
    ) -> Iterator[tuple[T, int]]:
        """What `run` makes of batches of the engine's size, each with the number of its items that
        are to be used.
        """
        session = self._open(graph)
        size = usual_shape(session.inputs[0].shape, self._ranges)[0]
        for start in range(0, len(array), size):
            batch = array[start : start + size]
            used = len(batch)
            if used < size:
                batch = np.concatenate([batch, np.repeat(batch[-1:], size - used, axis=0)])
            yield session.explained(partial(run, session, batch)), used

    def _encode(
        self, session: Session, faces: UInt8Array, *, mask: Float32Array
    ) -> tuple[Float32Array, Float32Array]:
        buffers = self._buffers
        shape = (len(faces), 3, *faces.shape[1:3])
        given = {"faces": buffers.upload("faces", faces), "mask": buffers.upload("mask", mask)}
        made = {name: buffers.empty(name, shape, np.float32) for name in ("image", "masked")}
        faces_in = small_session(_FACES_IN, self._selection)
        faces_in.run_bound(faces_in.bound(given | made))
        return _latents(session, made["masked"]), _latents(session, made["image"])

    def _decode(self, session: Session, latents: Float32Array) -> UInt16Array:
        buffers = self._buffers
        count = len(latents)
        size_px = [PIXELS_PER_LATENT * size for size in latents.shape[2:]]
        image = buffers.empty("decoded", (count, 3, *size_px), np.float32)
        painted = buffers.empty("painted", (count, *size_px, 3), np.uint16)
        session.run_bound(
            session.bound({"latent": buffers.upload("latent", latents), "image": image})
        )
        faces_out = small_session(_FACES_OUT, self._selection)
        faces_out.run_bound(faces_out.bound({"image": image, "painted": painted}))
        found: UInt16Array = painted.numpy()
        # On the CPU it is a view of the buffer, which the next batch overwrites.
        if painted.device_name() == "cpu":
            return found.copy()
        return found


def _latents(session: Session, image: Any) -> Float32Array:
    binding = session.bound({"image": image})
    session.run_bound(binding)
    found: Float32Array = binding.copy_outputs_to_cpu()[0]
    return found


class GraphDenoiser:
    """A `types.Denoiser` that runs the graphs of all kinds of steps by I/O binding.

    Two pairs of state buffers are swapped between steps. A recorded CUDA graph always uses the
    addresses it was recorded with, so with CUDA graphs the new state is copied back on the device
    instead. Guided and unguided graphs share all buffers except `hidden`, which guided graphs hold
    for both halves, conditional and unconditional.

    `open_session` returns the session of a graph, which with `cuda_graph` replays CUDA graphs.
    `check_sizes`: called with the sizes of a window by name, as in `frames=16`; raises `InputError`
    for those that engines do not take.
    """

    def __init__(
        self,
        open_session: Callable[[str], Session],
        selection: Selection,
        *,
        cuda_graph: bool = False,
        check_sizes: Callable[..., None] = lambda **_: None,
    ) -> None:
        self._open = open_session
        self._selection = selection
        self._cuda_graph = cuda_graph
        self._check_sizes = check_sizes
        self._buffers = DeviceBuffers(selection)
        self._sizes: dict[str, int] = {}
        self._values: dict[str, Any] = {}
        self._states: list[dict[str, Any]] = []
        self._current = 0
        self._guided = self._reusable = False

    def begin(
        self,
        latents: Float32Array,
        conditioning: Float32Array,
        audio: Float32Array,
        guidance: float,
    ) -> None:
        """Uploads a window, as `types.Denoiser.begin`. Raises `InputError` if the sessions do not
        support its sizes; others as `Session.run`.
        """
        _, frames, height, width = latents.shape
        sizes = {"frames": frames, LATENT_HEIGHT: height, LATENT_WIDTH: width}
        self._check_sizes(**sizes)
        self._sizes = {"windows": 1} | sizes
        self._guided = guidance > 1.0
        self._reusable = False
        self._current = 0
        session = self._open(step_graph(guided=self._guided, cached=False))
        upload = self._buffers.upload

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
                {
                    name: self._buffers.empty(f"next {name}", (1, *latents.shape), np.float32)
                    for name in _STATE
                },
            ]

        session.explained(upload_all)

    def step(
        self, timestep: int, coefficients: Float32Array, *, cached: bool, recorded: bool = True
    ) -> None:
        """One denoising step in place, as `types.Denoiser.step`; `recorded`: as for
        `Session.run_bound`. Raises `InferenceError` where no full step came before a cached one;
        others as `Session.run`.
        """
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
        self._values = {}
        self._states = []
        self._reusable = False

    def _bind(self, session: Session) -> Any:
        source = self._states[self._current]
        target = self._states[1 - self._current]
        known = self._values | source | {f"next_{name}": value for name, value in target.items()}
        for tensor in (*session.inputs, *session.outputs):
            if tensor.name == HIDDEN:
                shape = tuple(
                    size if isinstance(size, int) else self._sizes[size] for size in tensor.shape
                )
                known[HIDDEN] = self._buffers.empty(f"{HIDDEN} {self._guided}", shape, tensor.dtype)
        return session.bound(known)

    def _copy_back(self) -> None:
        """Copies the new state on the GPU, for which ONNX Runtime's Python interface has no
        call.
        """
        target, source = self._states
        copier = small_session(COPY_GRAPH, self._selection)
        copier.run_bound(copier.bound(source | {f"{name}_copy": target[name] for name in _STATE}))


@dataclass(frozen=True, slots=True)
class FirstRuns:
    """Runs graphs as a clip will, with the same buffers, in their threads. `session`: waits until a
    graph is open.
    """

    session: Callable[[str], Session]
    ranges: Ranges
    vae: VaeCodec
    denoiser: GraphDenoiser

    def network(self, graph: str) -> None:
        """Runs one graph of `STAGES`."""
        given = self._random(graph)
        if graph == VAE_ENCODER:
            count, _, *size = given["image"].shape
            self.vae.encode_faces(np.zeros((count, *size, 3), np.uint8), np.ones(size, np.float32))
        elif graph == VAE_DECODER:
            self.vae.decode_faces(given["latent"])
        else:
            self.session(graph).run(given)

    def steps(self, graphs: Sequence[str], *, recorded: bool) -> None:
        """Runs those of `graphs` that are steps; `recorded`: as CUDA graphs, where the sessions
        record them.
        """
        for guided in (True, False):
            kinds = [
                cached
                for cached in (False, True)
                if step_graph(guided=guided, cached=cached) in graphs
            ]
            if kinds:
                given = self._random(step_graph(guided=guided, cached=False))
                latents, conditioning, audio = (
                    given[name][0] for name in ("latents", "conditioning", "audio")
                )
                self.denoiser.begin(latents, conditioning, audio, 2.0 if guided else 1.0)
            for cached in kinds:
                self.denoiser.step(
                    _TIMESTEP, np.zeros(5, np.float32), cached=cached, recorded=recorded
                )

    def _random(self, graph: str) -> dict[str, Array]:
        return random_inputs(self.session(graph).inputs, self.ranges)
