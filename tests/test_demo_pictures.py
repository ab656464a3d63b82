"""What `demo` measures and draws."""

import numpy as np
import pytest
import torch

from latentsync_trt.measure.clips import face_views, masked
from latentsync_trt.measure.page import SHOWN_PX
from latentsync_trt.types import UInt8Array
from scripts.train_demo.scene import PortraitRenderer, Scene
from scripts.train_demo.tracking import find_portrait

pytestmark = pytest.mark.integration


def _rgb(frames: torch.Tensor) -> UInt8Array:
    """The first of `frames (n, 3, h, w)`, `(h, w, 3)` uint8."""
    return np.ascontiguousarray(frames[0].permute(1, 2, 0).numpy().astype(np.uint8))


def test_faces_are_cut_out_where_the_source_has_them_and_masked() -> None:
    wide = torch.tensor([[1.0, 0, 0, 0, 0]])
    renderer = PortraitRenderer(find_portrait(), torch.device("cpu"))
    scene = Scene(np.random.default_rng(3))
    drawn = renderer.variants(scene, torch.arange(1), (None, wide))
    source, dubbed = (_rgb(frames) for frames in drawn)
    blank = np.zeros_like(source)
    faces, nothing = face_views([[source, blank], [dubbed, blank]], SHOWN_PX)
    assert nothing is None
    assert faces is not None
    old, new = (face.astype(int) for face in faces)
    masked_face = masked(faces[0], 128).astype(int)
    chin = np.s_[150:220, 90:170]
    forehead = np.s_[20:70, 60:200]
    assert np.abs(masked_face[chin] - 128).max() <= 1
    # reduced to 128 px and enlarged again
    assert np.abs(masked_face[forehead] - old[forehead]).mean() < 4
    assert np.abs(new[forehead] - old[forehead]).mean() < 1  # the renderer's light
    assert np.abs(new[chin] - old[chin]).mean() > 4
