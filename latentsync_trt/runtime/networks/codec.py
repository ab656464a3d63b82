"""The VAE. Pictures are transferred as integers, and scaled on the device."""

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from latentsync_trt.bundle.manifest import PIXELS_PER_LATENT, VAE_DECODER, VAE_ENCODER
from latentsync_trt.runtime.sessions.pool import SessionPool
from latentsync_trt.runtime.sessions.profiles import usual_shape
from latentsync_trt.runtime.sessions.session import CPU, DeviceBuffers, Session, SessionSettings, plain_cuda
from latentsync_trt.types import Float32Array, UInt8Array, UInt16Array

T = TypeVar("T")
A = TypeVar("A", Float32Array, UInt8Array)

_GRAPHS = Path(__file__).parents[2] / "assets" / "graphs"
_FACES_IN, _FACES_OUT = _GRAPHS / "faces_in.onnx", _GRAPHS / "faces_out.onnx"
"""`faces` uint8, `mask` → `image`, `masked`; `image` → `painted` uint16."""


class VaeCodec:
    """An `ImageCodec` on the pool's engines. One thread may encode while another decodes."""

    def __init__(self, pool: SessionPool) -> None:
        self._pool, selection = pool, pool.engines.selection
        device = selection.device if selection.provider.with_cuda else "cpu"
        self._settings = SessionSettings(providers=CPU if device == "cpu" else plain_cuda(selection.device_id))
        self._buffers = DeviceBuffers(device, selection.device_id)

    def encode_faces(self, faces: UInt8Array, mask: Float32Array) -> tuple[Float32Array, Float32Array]:
        """As `ImageCodec.encode_faces`.

        Raises:
            InferenceError: the provider failed. OutOfMemory: there is too little memory.
        """
        pairs = self._in_batches(VAE_ENCODER, faces, partial(self._encode, mask=mask))
        masked, whole = zip(*((masked[:used], whole[:used]) for (masked, whole), used in pairs), strict=True)
        return np.concatenate(masked), np.concatenate(whole)

    def decode_faces(self, latents: Float32Array) -> list[UInt16Array]:
        """As `ImageCodec.decode_faces`; errors as `encode_faces`."""
        batches = self._in_batches(VAE_DECODER, latents, self._decode)
        return [picture for pictures, used in batches for picture in pictures[:used]]

    def _in_batches(self, graph: str, array: A, run: Callable[[A], T]) -> Iterator[tuple[T, int]]:
        """`run` on batches of the engine's size, with the number of results to use."""
        size = usual_shape(self._pool.session(graph).inputs[0].shape, self._pool.engines.ranges)[0]
        for batch, used in _padded_batches(array, size):
            yield run(batch), used

    @cached_property
    def _faces_in(self) -> Session:
        return self._pool.session(VAE_ENCODER).explained(lambda: Session(_FACES_IN, self._settings))

    @cached_property
    def _faces_out(self) -> Session:
        return self._pool.session(VAE_DECODER).explained(lambda: Session(_FACES_OUT, self._settings))

    def _encode(self, faces: UInt8Array, *, mask: Float32Array) -> tuple[Float32Array, Float32Array]:
        session, buffers = self._pool.session(VAE_ENCODER), self._buffers
        shape = (len(faces), 3, *faces.shape[1:3])
        given = session.explained(
            lambda: {"faces": buffers.upload("faces", faces), "mask": buffers.upload("mask", mask)}
        )
        made = session.explained(lambda: {name: buffers.empty(name, shape, np.float32) for name in ("image", "masked")})
        self._faces_in.run_bound(self._faces_in.bound(given, made))
        return _latents(session, made["masked"]), _latents(session, made["image"])

    def _decode(self, latents: Float32Array) -> UInt16Array:
        session, buffers, count = self._pool.session(VAE_DECODER), self._buffers, len(latents)
        size_px = [PIXELS_PER_LATENT * size for size in latents.shape[2:]]
        latent = session.explained(lambda: buffers.upload("latent", latents))
        image = session.explained(lambda: buffers.empty("decoded", (count, 3, *size_px), np.float32))
        painted = session.explained(lambda: buffers.empty("painted", (count, *size_px, 3), np.uint16))
        session.run_bound(session.bound({"latent": latent}, {"image": image}))
        self._faces_out.run_bound(self._faces_out.bound({"image": image}, {"painted": painted}))
        found: UInt16Array = session.explained(painted.numpy)
        # On the CPU it is a view of the buffer, which the next batch overwrites.
        return found.copy() if painted.device_name() == "cpu" else found


def _latents(session: Session, image: Any) -> Float32Array:
    binding = session.bound({"image": image}, {})
    binding.bind_output("latent")
    session.run_bound(binding)
    found: Float32Array = session.explained(binding.copy_outputs_to_cpu)[0]
    return found


def _padded_batches(array: A, size: int) -> Iterator[tuple[A, int]]:
    """Batches of exactly `size`, padded with the last item, each with its used length."""
    for start in range(0, len(array), size):
        batch = array[start : start + size]
        missing = size - len(batch)
        yield (np.concatenate([batch, np.repeat(batch[-1:], missing, axis=0)]) if missing else batch), len(batch)
