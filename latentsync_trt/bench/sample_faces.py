"""Faces that a model paints for a self-test, in the built-in clip."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np

from latentsync_trt.bench.run import Setting, measure_sync
from latentsync_trt.config import MODEL_FPS, SyncOptions
from latentsync_trt.measure.pictures import generated_area
from latentsync_trt.media.demo_clip import SPEECH, SpokenClip, camera_frames
from latentsync_trt.media.writer import write_pictures
from latentsync_trt.sync.inputs import Helpers
from latentsync_trt.types import Float32Array

PICTURES = "pictures.npy"
"""Name of the file with the generated part of the painted faces, uint16 `(n, h, w, 3)` RGB."""


class _Recorder:
    """An enhancer that keeps the faces it gets, and changes none."""

    def __init__(self) -> None:
        self.faces: list[Float32Array] = []

    def enhance(self, face: Float32Array) -> Float32Array:
        self.faces.append(face)
        return face


def write_sample_faces(setting: Setting, steps: int, folder: Path) -> Sequence[str]:
    """Syncs two windows of the clip in so many denoising `steps`, the second one in buffers that
    the first has filled; writes `PICTURES` into `folder`, and returns notices about the model.
    Raises as `LipSync.sync`.
    """
    manifest = setting.bundle.manifest
    video = folder / "portrait.mp4"
    write_pictures(video, camera_frames(Fraction(2 * manifest.frames, MODEL_FPS)))
    clip = SpokenClip(video, SPEECH, video.name)
    options = SyncOptions(steps=steps, length="video", silence="model")
    recorder = _Recorder()
    measured = measure_sync(
        setting, clip, folder / "painted.mp4", options, Helpers(enhancer=recorder)
    )
    area = generated_area(manifest.resolution_px)
    faces = np.stack(recorder.faces)[:, *area]
    levels = np.rint(65535 * faces)
    np.save(folder / PICTURES, levels.astype(np.uint16))
    return measured.start_up_notices
