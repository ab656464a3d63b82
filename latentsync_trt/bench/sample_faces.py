"""Faces that a model paints for a self-test: the built-in portrait, speaking the built-in words."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import cv2
import numpy as np

from latentsync_trt.audio.encoder import encode_audio
from latentsync_trt.audio.mel import filters_of
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.measure.pictures import generated_area
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.demo_clip import SPEECH, portrait
from latentsync_trt.runtime.model import open_model
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.sync.inpainter import make_inpainter, paint_window
from latentsync_trt.sync.model_slot import graphs_for
from latentsync_trt.types import NoticeCallback, UInt8Array, UInt16Array

_PORTRAIT_FACE = np.s_[60:220, 150:310]
"""Where the portrait's face is, as an aligned face is cut out."""


@dataclass(frozen=True, slots=True, eq=False)
class SampleFaces:
    pictures: UInt16Array
    """The generated part of the faces, `(n, h, w, 3)` RGB."""
    notices: Sequence[str]


def paint_sample_faces(
    bundle: Bundle,
    selection: Selection,
    runtime: RuntimeOptions,
    steps: int,
    on_notice: NoticeCallback,
) -> SampleFaces:
    """Paints two windows in so many denoising `steps`. Raises as `open_model`."""
    options = SyncOptions(preset="balanced", steps=steps)
    frames = bundle.manifest.frames
    side_px = bundle.manifest.resolution_px
    faces = np.stack([_portrait_face(side_px)] * frames)
    painted: list[UInt16Array] = []
    with closing(open_model(bundle, selection, runtime, graphs_for(options), on_notice)) as model:
        read_speech = partial(read_audio_blocks, SPEECH)
        audio = encode_audio(read_speech, model.audio_encoder, filters_of(bundle)).windows
        inpainter = make_inpainter(model, options)
        for start in (0, frames):  # the second window reuses buffers that the first has filled
            painted += paint_window(inpainter, faces, audio[start : start + frames])
        notices = model.notices
    return SampleFaces(np.stack(painted)[:, *generated_area(side_px)], notices)


def _portrait_face(side_px: int) -> UInt8Array:
    return np.asarray(cv2.resize(portrait()[_PORTRAIT_FACE], (side_px, side_px)), np.uint8)
