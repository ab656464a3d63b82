"""The VAE between pictures and latents. Pictures travel to the device and back as integers, and are scaled there."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnxruntime as ort

from latentsync_trt.errors import OutOfMemory
from latentsync_trt.runtime.compiler.profiles import usual_shape
from latentsync_trt.runtime.sessions.engines import Engines
from latentsync_trt.runtime.sessions.memory import device_value
from latentsync_trt.runtime.sessions.pool import SessionPool
from latentsync_trt.runtime.sessions.session import CPU, Array, Session, SessionSettings
from latentsync_trt.types import Float32Array, UInt8Array, UInt16Array

T = TypeVar("T")
A = TypeVar("A", Float32Array, UInt8Array)

_GRAPHS = Path(__file__).parents[2] / "assets" / "graphs"
_FACES_IN, _FACES_OUT = _GRAPHS / "faces_in.onnx", _GRAPHS / "faces_out.onnx"
"""`faces` uint8, `mask` → `image`, `masked`; `image` → `painted` uint16."""

# Where sessions of these run, ONNX Runtime's own CUDA provider does, too. A plug-in comes without it.
_BESIDE_CUDA = ("tensorrt", "cuda")


class GraphCodec:
    """Runs the VAE's two graphs by I/O binding, with what scales their pictures before and after them.

    What it allocates is as large as a batch of pictures, and stays.

    Args:
        open_session: gives the session of a graph by name. side_px: the pictures' H = W.
        device: "cpu" or "cuda", where the buffers are. device_id: which GPU.
    """

    def __init__(self, open_session: Callable[[str], Session], side_px: int, device: str, device_id: int) -> None:
        self._open, self._side_px = open_session, side_px
        self._device, self._device_id = device, device_id
        cuda = (("CUDAExecutionProvider", {"device_id": str(device_id)}),) if device == "cuda" else ()
        settings = SessionSettings(providers=(*cuda, *CPU))
        self._faces_in, self._faces_out = Session(_FACES_IN, settings), Session(_FACES_OUT, settings)
        self._values: dict[str, Any] = {}
        self._mask: Float32Array | None = None

    def encode(self, faces: UInt8Array, mask: Float32Array) -> tuple[Float32Array, Float32Array]:
        """Latents `(N, 4, h, w)` of masked and of whole pictures, uint8 `(N, H, W, 3)`; `mask (H, W)`, 1 = kept.

        Raises:
            InferenceError: the provider failed. OutOfMemory: the device's memory is short.
        """
        session = self._open("vae_encoder")
        if mask is not self._mask:
            self._upload("mask", mask, session)
            self._mask = mask
        given = {"faces": self._upload("faces", faces, session), "mask": self._values["mask"]}
        shape = (len(faces), 3, self._side_px, self._side_px)
        made = {name: self._buffer(name, shape, np.float32, session) for name in ("image", "masked")}
        self._faces_in.relieve = session.relieve
        _run(self._faces_in, given, made)
        return _latents(session, made["masked"]), _latents(session, made["image"])

    def decode(self, latents: Float32Array) -> UInt16Array:
        """Pictures `(N, H, W, 3)`, 0 for −1 to 65535 for 1, of latents `(N, 4, h, w)`. Errors as `encode`."""
        count, side_px = len(latents), self._side_px
        session = self._open("vae_decoder")
        latent = self._upload("latent", latents, session)
        image = self._buffer("decoded", (count, 3, side_px, side_px), np.float32, session)
        painted = self._buffer("painted", (count, side_px, side_px, 3), np.uint16, session)
        _run(session, {"latent": latent}, {"image": image})
        self._faces_out.relieve = session.relieve
        _run(self._faces_out, {"image": image}, {"painted": painted})
        # On the GPU this downloads; elsewhere it is a view of what the next batch is written to.
        pictures: UInt16Array = session.with_relief(painted.numpy)
        return pictures.copy() if self._device == "cpu" else pictures

    def _upload(self, name: str, array: Array, session: Session) -> Any:
        """The buffer `name` with `array` in it; `session` frees memory where it is short."""
        value = self._values.get(name)
        if value is not None and tuple(value.shape()) == array.shape:
            known = value
            session.with_relief(lambda: known.update_inplace(np.asarray(array, order="C")))
        else:
            value = session.with_relief(lambda: device_value(array, self._device, self._device_id))
            self._values[name] = value
        return value

    def _buffer(self, name: str, shape: tuple[int, ...], dtype: type[np.generic], session: Session) -> Any:
        value = self._values.get(name)
        if value is None or tuple(value.shape()) != shape:
            value = session.with_relief(
                lambda: ort.OrtValue.ortvalue_from_shape_and_type(shape, dtype, self._device, self._device_id)
            )
            self._values[name] = value
        return value


class PooledCodec:
    """The image codec over a pool of sessions, on whatever engines there are at each call.

    See `diffusion.inpainting.ImageCodec`.
    """

    def __init__(self, pool: SessionPool) -> None:
        self._pool = pool
        self._made_for: Engines | None = None
        self._codec: GraphCodec | None = None

    def encode(self, images: Float32Array) -> Float32Array:
        """Images `(N, 3, H, W)` in [−1, 1] → scaled latents `(N, 4, h, w)`, any N."""
        return self._on_host("vae_encoder", "image", images)

    def decode(self, latents: Float32Array) -> Float32Array:
        """Scaled latents `(N, 4, h, w)` → images `(N, 3, H, W)`, about [−1, 1], any N."""
        return self._on_host("vae_decoder", "latent", latents)

    def encode_faces(self, faces: UInt8Array, mask: Float32Array) -> tuple[Float32Array, Float32Array]:
        """As `ImageCodec.encode_faces`."""
        codec = self._graph_codec()
        masked, whole = list[Float32Array](), list[Float32Array]()
        for batch, used in _padded_batches(faces, self._size("vae_encoder")):
            of_masked, of_whole = self._retried("vae_encoder", partial(codec.encode, batch, mask))
            masked.append(of_masked[:used])
            whole.append(of_whole[:used])
        return np.concatenate(masked), np.concatenate(whole)

    def decode_faces(self, latents: Float32Array) -> list[UInt16Array]:
        """As `ImageCodec.decode_faces`."""
        codec = self._graph_codec()
        batches = _padded_batches(latents, self._size("vae_decoder"))
        return [
            picture
            for batch, used in batches
            for picture in self._retried("vae_decoder", partial(codec.decode, batch))[:used]
        ]

    def release(self) -> None:
        """Gives the buffers' memory back; they are made anew when they are needed."""
        self._made_for = self._codec = None

    def _retried(self, graph: str, action: Callable[[], T]) -> T:
        """`action`; once more on a new session of `graph` where memory was short to the last."""
        try:
            return action()
        except OutOfMemory:
            if not self._pool.reopen(graph):
                raise
        return action()

    def _graph_codec(self) -> GraphCodec:
        engines = self._pool.engines
        if self._codec is None or self._made_for is not engines:
            selection, side_px = engines.selection, engines.bundle.manifest.resolution_px
            device = "cuda" if selection.name in _BESIDE_CUDA else "cpu"
            self._codec = self._pool.session("vae_encoder").with_relief(
                lambda: GraphCodec(self._pool.session, side_px, device, selection.device_id)
            )
            self._made_for = engines
        return self._codec

    def _on_host(self, graph: str, name: str, array: Float32Array) -> Float32Array:
        batches = _padded_batches(array, self._size(graph))
        return np.concatenate([self._pool.session(graph).run({name: batch})[0][:used] for batch, used in batches])

    def _size(self, graph: str) -> int:
        """How many pictures the engine takes at once."""
        return usual_shape(self._pool.session(graph).inputs[0].shape, self._pool.engines.ranges)[0]


def _latents(session: Session, image: Any) -> Float32Array:
    binding = session.ort.io_binding()
    binding.bind_ortvalue_input("image", image)
    binding.bind_output("latent")
    session.run_bound(binding)
    found: Float32Array = session.with_relief(binding.copy_outputs_to_cpu)[0]
    return found


def _run(session: Session, given: Mapping[str, Any], made: Mapping[str, Any]) -> None:
    """Runs a graph from buffers to buffers."""
    binding = session.ort.io_binding()
    for name, value in given.items():
        binding.bind_ortvalue_input(name, value)
    for name, value in made.items():
        binding.bind_ortvalue_output(name, value)
    session.run_bound(binding)


def _padded_batches(array: A, size: int) -> Iterator[tuple[A, int]]:
    """Cuts `array` into batches of exactly `size`, the last filled up by repeating its end; with the used length."""
    for start in range(0, len(array), size):
        batch = array[start : start + size]
        missing = size - len(batch)
        yield (np.concatenate([batch, np.repeat(batch[-1:], missing, axis=0)]) if missing else batch), len(batch)
