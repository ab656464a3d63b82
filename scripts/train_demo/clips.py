"""Aligned faces to train on: each scene as a source clip and as several takes with different speech.

The source stands for a user's video: the same person in the same light, silent or with other speech. It gives the
masked image, the reference image and the alignment, including the detector's jitter. Several takes of one scene keep
the network from memorizing which mouth belongs to which image without using the audio.
"""

import multiprocessing
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import cv2
import numpy as np
import psutil
from numpy.typing import NDArray

from latentsync_trt.face.align import crop
from latentsync_trt.face.choice import MainFace
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.types import UInt8Array
from scripts.train_demo.atlas import Atlas, Levels, draw_atlas
from scripts.train_demo.mouth import MouthPose
from scripts.train_demo.scene import PortraitRenderer, Scene, draw_scene, pose_at
from scripts.train_demo.speech import Speech

_INDEX, _MOUTHS = "clips.npz", "mouths.npy"
_STILL_SHARE = 0.5
"""Share of scenes whose source keeps the photographed mouth; in the others it speaks."""


@dataclass(frozen=True, slots=True)
class SpeechSegment:
    """A recording, and the frame in it at which the segment begins."""

    recording: int
    first: int


@dataclass(frozen=True, slots=True)
class ClipPlan:
    """`frames` of a scene: the speech of each take and of the source; None keeps the photographed mouth."""

    frames: int
    scene: Scene
    takes: tuple[SpeechSegment, ...]
    source: SpeechSegment | None


@dataclass(frozen=True, slots=True)
class RenderPlan:
    """How clips are rendered: side of an aligned face, size of the atlas of mouths, number of processes."""

    resolution_px: int
    mouths: Levels
    processes: int


_Poses = list[MouthPose | None]
_Work = tuple[int, ClipPlan, _Poses, list[_Poses]]


@dataclass(frozen=True, slots=True, eq=False)
class Clips:
    """Aligned faces, uint8 RGB: `spoken (c, t, n, R, R, 3)`, the targets; `source (c, n, R, R, 3)`, the input.

    `recording`, `first` `(c, t)`: where in the speech each take begins. `tracked (c,)`: the face was never lost.
    """

    spoken: UInt8Array
    source: UInt8Array
    recording: NDArray[np.int64]
    first: NDArray[np.int64]
    tracked: NDArray[np.bool_]


def plan_clips(speech: Speech, frames: int, count: int, takes: int, seed: int) -> list[ClipPlan]:
    """Plans `count` scenes of `takes` takes each, cycling through all recordings that are long enough.

    Raises:
        ValueError: no recording has `frames` frames.
    """
    long_enough = [index for index in range(len(speech)) if speech.frames(index) >= frames]
    if not long_enough:
        raise ValueError(f"no recording has {frames} frames; shorten the clips")
    plans = []
    for number in range(count):
        generator = np.random.Generator(np.random.PCG64([seed, number]))
        segments = [
            _segment(speech, long_enough[(number * takes + take) % len(long_enough)], frames, generator)
            for take in range(takes)
        ]
        still = generator.random() < _STILL_SHARE
        source = None if still else _segment(speech, int(generator.choice(long_enough)), frames, generator)
        plans.append(ClipPlan(frames, draw_scene(generator), tuple(segments), source))
    return plans


def render_clips(speech: Speech, plans: list[ClipPlan], how: RenderPlan, folder: Path) -> Clips:
    """Renders and aligns all clips into `folder`; the result is memory-mapped.

    The result does not depend on the number of processes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    count, takes, frames = len(plans), len(plans[0].takes), plans[0].frames
    picture = (how.resolution_px, how.resolution_px, 3)
    for name, shape in (("spoken", (count, takes, frames, *picture)), ("source", (count, frames, *picture))):
        np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.uint8, shape).flush()
    work = [
        (number, plan, _poses(speech, plan.source, frames), [_poses(speech, take, frames) for take in plan.takes])
        for number, plan in enumerate(plans)
    ]
    with multiprocessing.get_context("spawn").Pool(how.processes, _lower_priority) as pool:
        draw_atlas(folder / _MOUTHS, how.mouths, _draw, pool)
        tracked = list(pool.imap(partial(_render_clip, folder, how), work, chunksize=1))
    starts = np.array([[(take.recording, take.first) for take in plan.takes] for plan in plans])
    # Written last: a folder that has it is complete.
    np.savez(folder / _INDEX, recording=starts[..., 0], first=starts[..., 1], tracked=np.array(tracked))
    return _mapped(folder)


def load_clips(folder: Path) -> Clips | None:
    """What `render_clips` wrote to `folder`; None if it is missing or incomplete."""
    return _mapped(folder) if (folder / _INDEX).exists() else None


def _mapped(folder: Path) -> Clips:
    spoken, source = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("spoken", "source"))
    with np.load(folder / _INDEX) as index:
        return Clips(spoken, source, index["recording"], index["first"], index["tracked"])


def _segment(speech: Speech, recording: int, frames: int, generator: np.random.Generator) -> SpeechSegment:
    return SpeechSegment(recording, int(generator.integers(speech.frames(recording) - frames + 1)))


def _poses(speech: Speech, segment: SpeechSegment | None, frames: int) -> _Poses:
    if segment is None:
        return [None] * frames
    track = speech.mouth(segment.recording)
    return [pose_at(track, segment.first + index) for index in range(frames)]


def _lower_priority() -> None:
    """The audio encoder trains at the same time: its many small calls each wait for a free core."""
    psutil.Process().nice(psutil.BELOW_NORMAL_PRIORITY_CLASS if psutil.WINDOWS else 10)


def _render_clip(folder: Path, how: RenderPlan, work: _Work) -> bool:
    """Writes one clip; False if the face was lost, which leaves the clip incomplete."""
    number, plan, source_poses, take_poses = work
    renderer, detector = _atlas_renderer(folder / _MOUTHS, how.mouths)
    spoken = np.load(folder / "spoken.npy", mmap_mode="r+")[number]
    source = np.load(folder / "source.npy", mmap_mode="r+")[number]
    tracker, track_id = MainFace(detector, how.resolution_px), None
    for index in range(plan.frames):
        poses = (source_poses[index], *(take[index] for take in take_poses))
        source_frame, *targets = renderer.variants(plan.scene, poses, index)
        tracked = tracker.update(source_frame)
        if tracked is None or track_id not in (None, tracked.track_id):
            return False
        track_id, matrix = tracked.track_id, tracked.matrix
        source[index] = crop(source_frame, matrix, how.resolution_px).image
        for take, target in zip(spoken, targets, strict=True):
            take[index] = crop(target, matrix, how.resolution_px).image
    return True


def _draw(pose: MouthPose) -> UInt8Array:
    return _renderer().draw(pose)


@lru_cache(maxsize=1)
def _renderer() -> PortraitRenderer:
    # There are as many processes as cores: more threads would only slow them down.
    cv2.setNumThreads(1)
    return PortraitRenderer()


@lru_cache(maxsize=1)
def _atlas_renderer(mouths: Path, levels: Levels) -> tuple[PortraitRenderer, MediaPipeDetector]:
    return PortraitRenderer(Atlas(mouths, levels)), MediaPipeDetector()
