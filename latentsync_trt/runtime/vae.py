"""The VAE. Pictures are transferred as integers, and scaled on the device."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from latentsync_trt.bundle.manifest import PIXELS_PER_LATENT, VAE_DECODER, VAE_ENCODER
from latentsync_trt.runtime.engines.profiles import usual_shape
from latentsync_trt.runtime.engines.session import DeviceBuffers, Session, small_session
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.types import Float32Array, UInt8Array, UInt16Array

T = TypeVar("T")
A = TypeVar("A", Float32Array, UInt8Array)

_GRAPHS = Path(__file__).parents[1] / "assets" / "graphs"
_FACES_IN, _FACES_OUT = _GRAPHS / "faces_in.onnx", _GRAPHS / "faces_out.onnx"
"""`faces` uint8, `mask` → `image`, `masked`; `image` → `painted` uint16."""


class VaeCodec:
    """Encodes and decodes faces on the sessions of two graphs. One thread may encode while another decodes."""

    def __init__(self, factory: SessionFactory, open_session: Callable[[str], Session]) -> None:
        self._ranges, self._open, self._selection = factory.ranges, open_session, factory.selection
        self._buffers = DeviceBuffers(factory.selection)

    def encode_faces(self, faces: UInt8Array, mask: Float32Array) -> tuple[Float32Array, Float32Array]:
        """Scaled latents of `faces` (uint8 `(N, H, W, 3)` RGB, any N) times `mask` (float32 `(H, W)`, 1 = kept, 0 =
        turned gray), and of whole faces: both float32 `(N, 4, h, w)`. Raises as `Session.run`."""
        pairs = self._in_batches(VAE_ENCODER, faces, partial(self._encode, mask=mask))
        masked, whole = zip(*((masked[:used], whole[:used]) for (masked, whole), used in pairs), strict=True)
        return np.concatenate(masked), np.concatenate(whole)

    def decode_faces(self, latents: Float32Array) -> list[UInt16Array]:
        """Faces of scaled latents `(N, 4, h, w)`: N pictures, uint16 `(H, W, 3)` RGB.

        The network's −1 to 1 become 0 to 65535 (257 × the 8-bit level), clipped. Rounding to the depth of the video
        comes last, in the planes. Raises as `encode_faces`.
        """
        batches = self._in_batches(VAE_DECODER, latents, self._decode)
        return [picture for pictures, used in batches for picture in pictures[:used]]

    def _in_batches(self, graph: str, array: A, run: Callable[[Session, A], T]) -> Iterator[tuple[T, int]]:
        """What `run` makes of batches of the engine's size, each with the number of its items that are to be used."""
        session = self._open(graph)
        size = usual_shape(session.inputs[0].shape, self._ranges)[0]
        for start in range(0, len(array), size):
            batch = array[start : start + size]
            used = len(batch)
            if used < size:
                batch = np.concatenate([batch, np.repeat(batch[-1:], size - used, axis=0)])
            yield session.explained(partial(run, session, batch)), used

    def _encode(self, session: Session, faces: UInt8Array, *, mask: Float32Array) -> tuple[Float32Array, Float32Array]:
        buffers, shape = self._buffers, (len(faces), 3, *faces.shape[1:3])
        given = {"faces": buffers.upload("faces", faces), "mask": buffers.upload("mask", mask)}
        made = {name: buffers.empty(name, shape, np.float32) for name in ("image", "masked")}
        faces_in = small_session(_FACES_IN, self._selection)
        faces_in.run_bound(faces_in.bound(given | made))
        return _latents(session, made["masked"]), _latents(session, made["image"])

    def _decode(self, session: Session, latents: Float32Array) -> UInt16Array:
        buffers, count = self._buffers, len(latents)
        size_px = [PIXELS_PER_LATENT * size for size in latents.shape[2:]]
        image = buffers.empty("decoded", (count, 3, *size_px), np.float32)
        painted = buffers.empty("painted", (count, *size_px, 3), np.uint16)
        session.run_bound(session.bound({"latent": buffers.upload("latent", latents), "image": image}))
        faces_out = small_session(_FACES_OUT, self._selection)
        faces_out.run_bound(faces_out.bound({"image": image, "painted": painted}))
        found: UInt16Array = painted.numpy()
        # On the CPU it is a view of the buffer, which the next batch overwrites.
        return found.copy() if painted.device_name() == "cpu" else found


def _latents(session: Session, image: Any) -> Float32Array:
    binding = session.bound({"image": image})
    session.run_bound(binding)
    found: Float32Array = binding.copy_outputs_to_cpu()[0]
    return found
