"""Encodes and decodes faces by the VAE, on device buffers.

Pictures are transferred as integers, and scaled on the device.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from latentsync_trt.bundle.manifest import PIXELS_PER_LATENT, VAE_DECODER, VAE_ENCODER
from latentsync_trt.runtime.engines.buffers import DeviceBuffers, small_session
from latentsync_trt.runtime.engines.session import Session
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.runtime.engines.shapes import usual_shape
from latentsync_trt.types import Float32Array, UInt8Array, UInt16Array

A = TypeVar("A", Float32Array, UInt8Array)

_GRAPHS = Path(__file__).parents[1] / "assets" / "graphs"
_FACES_IN = _GRAPHS / "faces_in.onnx"
"""Graph that turns `faces` (uint8) and `mask` into `image` and `masked`."""
_FACES_OUT = _GRAPHS / "faces_out.onnx"
"""Graph that turns `image` into `painted` (uint16)."""


class VaeCodec:
    """Encodes and decodes faces on the sessions of two graphs. One thread may encode while another
    decodes.
    """

    def __init__(self, factory: SessionFactory, open_session: Callable[[str], Session]) -> None:
        self._ranges = factory.ranges
        self._open_session = open_session
        self._selection = factory.selection
        self._buffers = DeviceBuffers(factory.selection)

    def encode_faces(
        self, faces: UInt8Array, mask: Float32Array
    ) -> tuple[Float32Array, Float32Array]:
        """Returns the scaled latents of masked and of whole faces, each float32 `(N, 4, h, w)`.

        `faces`: uint8 `(N, H, W, 3)` RGB, any N. `mask`: float32 `(H, W)`, 1 = kept, 0 = turned
        gray. Raises as `Session.run`.
        """
        session = self._open_session(VAE_ENCODER)
        masked = []
        whole = []
        for batch in self._batches(session, faces):
            encode = partial(self._encode, session, batch, mask)
            masked_latents, whole_latents = session.with_translated_errors(encode)
            masked.append(masked_latents)
            whole.append(whole_latents)
        count = len(faces)
        return np.concatenate(masked)[:count], np.concatenate(whole)[:count]

    def decode_faces(self, latents: Float32Array) -> list[UInt16Array]:
        """Returns the faces of scaled latents `(N, 4, h, w)`: N pictures, uint16 `(H, W, 3)` RGB.

        The network's −1 to 1 become 0 to 65535 (257 × the 8-bit level), clipped. Rounding to the
        depth of the video comes last, in the planes. Raises as `encode_faces`.
        """
        session = self._open_session(VAE_DECODER)
        pictures: list[UInt16Array] = []
        for batch in self._batches(session, latents):
            pictures.extend(session.with_translated_errors(partial(self._decode, session, batch)))
        return pictures[: len(latents)]

    def _batches(self, session: Session, array: A) -> Iterator[A]:
        """Yields batches of the engine's size; the last is filled up with its last item."""
        size = usual_shape(session.inputs[0].shape, self._ranges)[0]
        for start in range(0, len(array), size):
            batch = array[start : start + size]
            missing = size - len(batch)
            if missing:
                filler = np.repeat(batch[-1:], missing, axis=0)
                batch = np.concatenate([batch, filler])
            yield batch

    def _encode(
        self, session: Session, faces: UInt8Array, mask: Float32Array
    ) -> tuple[Float32Array, Float32Array]:
        buffers = self._buffers
        count, height_px, width_px, channels = faces.shape
        shape = (count, channels, height_px, width_px)
        image = buffers.empty("image", shape, np.float32)
        masked = buffers.empty("masked", shape, np.float32)
        faces_in = small_session(_FACES_IN, self._selection)
        binding = faces_in.bound(
            {
                "faces": buffers.upload("faces", faces),
                "mask": buffers.upload("mask", mask),
                "image": image,
                "masked": masked,
            }
        )
        faces_in.run_bound(binding)
        return _latents(session, masked), _latents(session, image)

    def _decode(self, session: Session, latents: Float32Array) -> UInt16Array:
        buffers = self._buffers
        count, _, height, width = latents.shape
        height_px = PIXELS_PER_LATENT * height
        width_px = PIXELS_PER_LATENT * width
        latent = buffers.upload("latent", latents)
        image = buffers.empty("decoded", (count, 3, height_px, width_px), np.float32)
        painted = buffers.empty("painted", (count, height_px, width_px, 3), np.uint16)
        session.run_bound(session.bound({"latent": latent, "image": image}))
        faces_out = small_session(_FACES_OUT, self._selection)
        faces_out.run_bound(faces_out.bound({"image": image, "painted": painted}))
        pictures: UInt16Array = painted.numpy()
        # On the CPU it is a view of the buffer, which the next batch overwrites.
        if painted.device_name() == "cpu":
            return pictures.copy()
        return pictures


def _latents(session: Session, image: Any) -> Float32Array:
    binding = session.bound({"image": image})
    session.run_bound(binding)
    latents: Float32Array = binding.copy_outputs_to_cpu()[0]
    return latents
