"""Paints the mouths of a session: windows whose last frames are new, on latents that are kept."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from latentsync_trt.live.frame import FRAME_S
from latentsync_trt.live.planner import PlannedFrame
from latentsync_trt.media.color import apply_patch
from latentsync_trt.media.pictures import LazyRgb
from latentsync_trt.types import Float32Array, Patch, UInt16Array, YuvPlanes

if TYPE_CHECKING:
    from latentsync_trt.audio.streaming import StreamingAudioEncoder
    from latentsync_trt.compositing.blend import FaceBlender
    from latentsync_trt.live.idle import IdleLoop
    from latentsync_trt.sync.inpainter import Inpainter

_DECODED_AT_ONCE = 4
"""Frames that are decoded and shown while the rest of their window is decoded."""


class Canceled(Exception):
    """The window is not wanted any more."""


class SessionPainter:
    """Paints for one session: `latents` and `decoded` in one thread, `patch` and `picture` in
    another.
    """

    def __init__(
        self,
        inpainter: "Inpainter",
        loop: "IdleLoop",
        encoder: "StreamingAudioEncoder",
        blender: "FaceBlender",
    ) -> None:
        self._inpainter = inpainter
        self._loop = loop
        self._encoder = encoder
        self._blender = blender

    def latents(
        self, planned: Sequence[PlannedFrame], ahead: Float32Array, check: Callable[[], None]
    ) -> Float32Array:
        """The latents of the new frames, float32 `(n, 4, h, w)`; `check` is called after each step,
        and may raise.
        """
        first = planned[0].position
        end = planned[-1].position + 1
        audio = self._encoder.windows(
            first, np.concatenate([each.spoken.heard for each in planned]), ahead
        )
        check()
        shown = [self._loop.index(position) for position in range(end - len(audio), end)]
        known = np.ascontiguousarray(self._loop.known[shown].transpose(1, 0, 2, 3))
        denoise = partial(self._inpainter.denoise, known, audio, lambda *_: check())
        painted: Float32Array = self._inpainter.run("denoise", denoise)
        return np.ascontiguousarray(painted[:, -len(planned) :].transpose(1, 0, 2, 3))

    def decoded(self, latents: Float32Array) -> Iterator[UInt16Array]:
        decode = self._inpainter.codec.decode_faces
        for start in range(0, len(latents), _DECODED_AT_ONCE):
            yield from self._inpainter.run(
                "decode", partial(decode, latents[start : start + _DECODED_AT_ONCE])
            )

    def patch(self, position: int, painted: UInt16Array, *, begins: bool) -> Patch:
        """The painted face as a patch of its frame; `begins`: it does not depend on those
        before.
        """
        from latentsync_trt.compositing.paste import composite

        if begins:
            self._blender.restart()
        index = self._loop.index(position)
        target = self._loop.targets[index]
        picture = LazyRgb(self._loop.planes[index])
        if target.face is None:
            raise ValueError("a target that was not cut out")
        inspected = self._blender.inspect_face(picture, target.face, painted, target.tracked)
        return composite(
            picture, target.face, painted, self._blender.blend(0, position * FRAME_S, inspected)
        )

    def picture(self, position: int, patch: Patch, share: float) -> YuvPlanes:
        """The frame with so much of its patch."""
        if share == 1:
            weighted = patch
        else:
            weighted = replace(patch, weight=patch.weight * np.float32(share))
        return apply_patch(self._loop.planes[self._loop.index(position)], weighted)
