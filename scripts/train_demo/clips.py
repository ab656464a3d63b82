"""Aligned faces to train on: each scene as a source clip and as several takes with different
speech.

The source stands for a user's video: the same person in the same light, silent or with other
speech. It gives the masked image, the reference image and the alignment, including the detector's
jitter. Several takes of one scene keep the network from memorizing which mouth belongs to which
image without using the audio.
"""

from dataclasses import dataclass

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from latentsync_trt.face.align import crop_size_px, inverse
from latentsync_trt.types import BoolArray, Float32Array, Float64Array
from scripts.train_demo.scene import PortraitRenderer, Scene
from scripts.train_demo.speech import Int64Array, Speech
from scripts.train_demo.warp import sampled

_STILL_SHARE = 0.5
"""Share of scenes whose source keeps the photographed mouth; in the others it speaks."""
Segment = tuple[int, int]
"""A recording, and the frame in it at which the segment begins."""


@dataclass(frozen=True, slots=True)
class ClipPlan:
    """Scenes of `frames` frames and `takes` takes each at `resolution_px`; `cameras`: how many
    paths of camera and head they share, since following the face along one takes seconds.
    """

    scenes: int
    cameras: int
    takes: int
    frames: int
    resolution_px: int


@dataclass(frozen=True, slots=True)
class PlannedClip:
    """A scene, what its source says, None = nothing with the photographed mouth, and its takes."""

    scene: Scene
    source: Segment | None
    takes: list[Segment]


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """Where the face is along each path of the camera."""

    matrices: Float64Array
    """From frame to crop pixels, `(cameras, n, 2, 3)`."""
    tracked: BoolArray
    """`(cameras,)`: the face was never lost."""


@dataclass(frozen=True, slots=True, eq=False)
class Clips:
    """Aligned faces, uint8 RGB on a device: `spoken (c, t, n, R, R, 3)`, the targets; `source (c,
    n, R, R, 3)`, the input.

    `recording`, `first` `(c, t)`: where in the speech each take begins.
    """

    spoken: Tensor
    source: Tensor
    recording: Int64Array
    first: Int64Array


def plan_clips(speech: Speech, plan: ClipPlan, seed: int) -> list[PlannedClip]:
    """Draws all scenes, cycling through the recordings that are long enough."""
    recordings = [index for index in range(len(speech)) if speech.frames(index) >= plan.frames]
    return [_planned(speech, plan, recordings, seed, number) for number in range(plan.scenes)]


def _planned(
    speech: Speech, plan: ClipPlan, recordings: list[int], seed: int, number: int
) -> PlannedClip:
    camera = number % plan.cameras
    scene = Scene(np.random.Generator(np.random.PCG64([seed, camera])))
    if number >= plan.cameras:
        scene.take_light(Scene(np.random.Generator(np.random.PCG64([seed, number]))))
    generator = np.random.Generator(np.random.PCG64([seed, number, 1]))

    def segment(recording: int) -> Segment:
        return recording, int(generator.integers(speech.frames(recording) - plan.frames + 1))

    first = number * plan.takes
    takes = [segment(recordings[(first + take) % len(recordings)]) for take in range(plan.takes)]
    still = generator.random() < _STILL_SHARE
    source = None if still else segment(int(generator.choice(recordings)))
    return PlannedClip(scene, source, takes)


def source_poses(speech: Speech, clip: PlannedClip, frames: int) -> Float32Array | None:
    """The mouths `(frames, 5)` of a clip's source."""
    return None if clip.source is None else _poses(speech, clip.source, frames)


def _poses(speech: Speech, segment: Segment, frames: int) -> Float32Array:
    start = speech.starts[segment[0]] + segment[1]
    return speech.track[start : start + frames]


def render_clips(
    speech: Speech,
    plan: ClipPlan,
    planned: list[PlannedClip],
    alignment: Alignment,
    renderer: PortraitRenderer,
) -> Clips:
    """Renders all clips whose face was never lost, and cuts their faces out."""
    spoken = []
    source = []
    kept = []
    cropper = _Cropper(plan.resolution_px, renderer.device)
    indices = torch.arange(plan.frames)
    for number, clip in enumerate(planned):
        camera = number % plan.cameras
        if not alignment.tracked[camera]:
            continue
        kept.append(clip)
        speaking = source_poses(speech, clip, plan.frames)
        poses = [speaking, *(_poses(speech, take, plan.frames) for take in clip.takes)]
        tensors = [None if pose is None else torch.from_numpy(pose) for pose in poses]
        frames = renderer.variants(clip.scene, indices, tensors)
        faces = [cropper.faces(variant, alignment.matrices[camera]) for variant in frames]
        source.append(faces[0])
        spoken.append(torch.stack(faces[1:]))
    starts = np.array([clip.takes for clip in kept])
    return Clips(torch.stack(spoken), torch.stack(source), starts[..., 0], starts[..., 1])


class _Cropper:
    """Cuts faces out as `face.align.crop` does, of many frames at once."""

    def __init__(self, resolution_px: int, device: torch.device) -> None:
        width, height = crop_size_px(resolution_px)
        columns = torch.arange(width, device=device)
        rows = torch.arange(height, device=device)
        places = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1)
        self._places = F.pad(places.float(), (0, 1), value=1.0)
        self._down, self._across = (
            _resizing(size, resolution_px).to(device) for size in (height, width)
        )

    def faces(self, frames: Tensor, matrices: Float64Array) -> Tensor:
        """uint8 `(n, R, R, 3)` of `frames (n, 3, h, w)`; `matrices (n, 2, 3)`: from `align`."""
        back = np.stack([inverse(matrix) for matrix in matrices]).astype(np.float32)
        at = torch.einsum("hwk,nck->nhwc", self._places, torch.from_numpy(back).to(frames.device))
        upright = sampled(frames, at[..., 0], at[..., 1]).round()
        faces = self._down @ upright @ self._across.T
        return faces.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)


def _resizing(before: int, after: int) -> Tensor:
    """The matrix `(after, before)` by which OpenCV's Lanczos filter resizes a column."""
    unit = np.eye(before, dtype=np.float32)
    return torch.from_numpy(cv2.resize(unit, (before, after), interpolation=cv2.INTER_LANCZOS4))
