"""Paints the mouths of a session: windows whose last frames are new, with the encoded idle clip."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from latentsync_trt.compositing.paste import composite
from latentsync_trt.compositing.resize import fit_face
from latentsync_trt.live.frame import FRAME_S
from latentsync_trt.live.planner import PlannedFrame
from latentsync_trt.media.color import apply_patch
from latentsync_trt.media.pictures import LazyRgb
from latentsync_trt.sync.composing import with_opacity
from latentsync_trt.types import Float32Array, Patch, UInt16Array, YuvPlanes

if TYPE_CHECKING:
    from latentsync_trt.audio.streaming import StreamingAudioEncoder
    from latentsync_trt.compositing.blend import FaceBlender
    from latentsync_trt.live.idle import IdleLoop
    from latentsync_trt.sync.inpainter import Inpainter

_DECODED_AT_ONCE = 4
"""Frames that are decoded and shown while the rest of their window is decoded."""


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
        self.loop = loop
        self._inpainter = inpainter
        self._encoder = encoder
        self._blender = blender

    def on(self, loop: "IdleLoop") -> "SessionPainter":
        """Returns a painter of the same kind for another clip."""
        return SessionPainter(self._inpainter, loop, self._encoder, self._blender)

    def latents(
        self, planned: Sequence[PlannedFrame], ahead: Float32Array, check: Callable[[], None]
    ) -> Float32Array:
        """Returns the latents of the new frames, float32 `(n, 4, h, w)`.

        Args:
            ahead: the samples at 16 kHz that follow them.
            check: called after each step; raises to stop.
        """

        def after_step(*_: int) -> None:
            check()

        heard = np.concatenate([each.spoken.heard for each in planned])
        audio = self._encoder.windows(planned[0].position, heard, ahead)
        check()
        end = planned[-1].position + 1
        frames = [self.loop.index(position) for position in range(end - len(audio), end)]
        of_frames = self.loop.conditioning[frames]
        conditioning = np.ascontiguousarray(of_frames.swapaxes(0, 1))
        denoise = partial(self._inpainter.denoise, conditioning, audio, after_step)
        painted: Float32Array = self._inpainter.run("denoise", denoise)
        newest = painted[:, -len(planned) :]
        return np.ascontiguousarray(newest.swapaxes(0, 1))

    def decoded(self, latents: Float32Array) -> Iterator[UInt16Array]:
        """Yields the new faces, each as soon as it is decoded."""
        for start in range(0, len(latents), _DECODED_AT_ONCE):
            part = latents[start : start + _DECODED_AT_ONCE]
            decode = partial(self._inpainter.codec.decode_faces, part)
            yield from self._inpainter.run("decode", decode)

    def patch(self, position: int, painted: UInt16Array, *, begins: bool) -> Patch:
        """Returns the painted face as a patch of its frame; where it `begins`, it does not depend
        on those before.
        """
        index = self.loop.index(position)
        face = self.loop.faces[index]
        picture = LazyRgb(self.loop.planes[index])
        fitted = fit_face(face.face, painted)
        inspected = self._blender.inspect_face(picture, fitted, face.tracked)
        following = None
        if begins:
            self._blender.restart()
            # Detail and grain of the first frame need two: the same face in front of the next.
            next_picture = LazyRgb(self.loop.planes[self.loop.index(position + 1)])
            following = self._blender.inspect_face(next_picture, fitted, face.tracked)
        blend = self._blender.blend(0, position * FRAME_S, inspected, following)
        return composite(picture, fitted, replace(blend, kept=face.kept))

    def picture(self, position: int, patch: Patch, opacity: float) -> YuvPlanes:
        """Returns the frame with its patch, of which so much shows, or less where the head turns
        aside.
        """
        index = self.loop.index(position)
        opacity *= self.loop.faces[index].opacity
        return apply_patch(self.loop.planes[index], with_opacity(patch, opacity))
