"""Finds the face in the photograph, and follows it through the source of every scene as a run does.

Needs the package's detector; training itself does not.
"""

import multiprocessing
from functools import partial

import numpy as np
import torch

from latentsync_trt.face.align import crop_size_px, inverse, transformed
from latentsync_trt.face.choice import MainFace
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.geometry import Region
from latentsync_trt.media.demo_clip import portrait
from latentsync_trt.types import Float32Array, Float64Array
from scripts.train_demo.clips import Alignment, ClipPlan, PlannedClip, source_poses
from scripts.train_demo.scene import Portrait, PortraitRenderer, Scene
from scripts.train_demo.speech import Speech

_DRAWN_PX = 256
_LOWER_BORDER = (
    *((18, 180), (29, 203), (45, 218), (60, 228), (82, 233), (105, 240)),
    *((131, 240), (160, 237), (185, 230), (205, 216), (222, 202), (236, 180)),
)
"""Just inside the lower border of the generated region, in an aligned face of 256 px."""
_CHUNK_FRAMES = 16


def find_portrait() -> Portrait:
    """The built-in photograph with its face."""
    photograph = portrait()
    detector = MediaPipeDetector()
    mesh, _ = detector.mesh_in(photograph, Region.around(detector.detect(photograph)[0]))
    tracked = MainFace(detector, _DRAWN_PX).update(photograph)
    upright = np.array(_LOWER_BORDER, np.float32) * crop_size_px(_DRAWN_PX) / _DRAWN_PX
    pinned = transformed(upright.astype(np.float32), inverse(tracked.matrix))
    return Portrait(photograph, mesh, pinned.astype(np.float64))


def track_faces(
    speech: Speech, plan: ClipPlan, planned: list[PlannedClip], found: Portrait, processes: int
) -> Alignment:
    """Aligns the face along all paths of the camera, in any number of processes."""
    jobs = [
        (clip.scene, source_poses(speech, clip, plan.frames)) for clip in planned[: plan.cameras]
    ]
    work = partial(_tracked, found, plan)
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        rows = list(pool.imap(work, jobs, chunksize=4))
    lost = np.zeros((plan.frames, 2, 3))
    matrices = np.stack([lost if row is None else row for row in rows])
    return Alignment(matrices, np.array([row is not None for row in rows]))


def _tracked(
    found: Portrait, plan: ClipPlan, job: tuple[Scene, Float32Array | None]
) -> Float64Array | None:
    """The alignment of each frame, `(n, 2, 3)`; None if the face was lost."""
    # There are as many processes as cores: more threads would only slow them down.
    torch.set_num_threads(1)
    scene, poses = job
    renderer = PortraitRenderer(found, torch.device("cpu"))
    follower = MainFace(MediaPipeDetector(), plan.resolution_px)
    matrices = []
    first = None
    for indices in torch.arange(plan.frames).split(_CHUNK_FRAMES):
        chosen = None if poses is None else torch.from_numpy(poses[indices.numpy()])
        frames = next(renderer.variants(scene, indices, [chosen])).permute(0, 2, 3, 1)
        for frame in np.ascontiguousarray(frames.numpy().astype(np.uint8)):
            tracked = follower.update(frame)
            if tracked is None or first not in (None, tracked.track_id):
                return None
            first = tracked.track_id
            matrices.append(tracked.matrix)
    return np.stack(matrices)
