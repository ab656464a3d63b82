"""Aligned faces to train on: each scene in several takes that say different things, and as a user's video shows it.

A user's video shows the same person in the same light who says something else, or nothing: that is what the network
gets as masked and as reference picture, and what the alignment sees, with the jitter of the detector. With one take a
scene the network would learn by heart which mouth belongs to which picture, and need not listen.
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
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.tracker import AligningTracker
from latentsync_trt.types import UInt8Array
from scripts.train_demo.atlas import Atlas, Levels, draw_atlas
from scripts.train_demo.mouth import MouthPose
from scripts.train_demo.scene import Scene, PortraitRenderer, draw_scene, pose_at
from scripts.train_demo.speech import Speech

_PLACES, _MOUTHS = "clips.npz", "mouths.npy"
_STILL_SHARE = 0.5
"""Clips whose source keeps the photographed mouth; the others say something else."""


@dataclass(frozen=True, slots=True)
class SpeechSegment:
    """Which recording, from which of its frames on."""

    recording: int
    first: int


@dataclass(frozen=True, slots=True)
class ClipPlan:
    """`frames` of a scene: what each of its takes says, and its source; None keeps the photographed mouth."""

    frames: int
    scene: Scene
    takes: tuple[SpeechSegment, ...]
    source: SpeechSegment | None


@dataclass(frozen=True, slots=True)
class RenderPlan:
    """How clips are filmed: side of an aligned face, poses that are drawn beforehand, and by how many processes."""

    resolution_px: int
    mouths: Levels
    processes: int


_Poses = list[MouthPose | None]
_Work = tuple[int, ClipPlan, _Poses, list[_Poses]]


@dataclass(frozen=True, slots=True, eq=False)
class Clips:
    """Aligned faces, uint8 RGB: `spoken (c, t, n, R, R, 3)` to learn, `source (c, n, R, R, 3)` as given.

    `recording`, `first` `(c, t)`: where in the speech each take begins. `found (c,)`: whether the face was tracked.
    """

    spoken: UInt8Array
    source: UInt8Array
    recording: NDArray[np.int64]
    first: NDArray[np.int64]
    found: NDArray[np.bool_]


def plan_clips(speech: Speech, frames: int, count: int, takes: int, seed: int) -> list[ClipPlan]:
    """`count` scenes of `takes` takes over all recordings that are long enough, in turn.

    Raises:
        ValueError: no recording has `frames` frames.
    """
    long_enough = [index for index in range(len(speech)) if speech.frames(index) >= frames]
    if not long_enough:
        raise ValueError(f"no recording lasts {frames} frames")
    plans = []
    for number in range(count):
        generator = np.random.Generator(np.random.PCG64([seed, number]))
        said = [
            _part(speech, long_enough[(number * takes + take) % len(long_enough)], frames, generator)
            for take in range(takes)
        ]
        still = generator.random() < _STILL_SHARE
        source = None if still else _part(speech, int(generator.choice(long_enough)), frames, generator)
        plans.append(ClipPlan(frames, draw_scene(generator), tuple(said), source))
    return plans


def render_clips(speech: Speech, plans: list[ClipPlan], how: RenderPlan, folder: Path) -> Clips:
    """Films and aligns all clips; the pictures lie in files in `folder` and are mapped, not read.

    A clip is the same whichever process films it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    count, takes, frames = len(plans), len(plans[0].takes), plans[0].frames
    picture = (how.resolution_px, how.resolution_px, 3)
    for name, shape in (("spoken", (count, takes, frames, *picture)), ("source", (count, frames, *picture))):
        np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.uint8, shape).flush()
    work = [
        (number, plan, _poses(speech, plan.source, frames), [_poses(speech, said, frames) for said in plan.takes])
        for number, plan in enumerate(plans)
    ]
    with multiprocessing.get_context("spawn").Pool(how.processes, _lower_priority) as pool:
        draw_atlas(folder / _MOUTHS, how.mouths, _draw, pool)
        found = list(pool.imap(partial(_render_clip, folder, how), work, chunksize=1))
    places = np.array([[(said.recording, said.first) for said in plan.takes] for plan in plans])
    # Written last: a folder that has it is complete.
    np.savez(folder / _PLACES, recording=places[..., 0], first=places[..., 1], found=np.array(found))
    return _mapped(folder)


def load_clips(folder: Path) -> Clips | None:
    """What `render_clips` left in `folder`; None if it is not there, or not complete."""
    return _mapped(folder) if (folder / _PLACES).exists() else None


def _mapped(folder: Path) -> Clips:
    spoken, source = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("spoken", "source"))
    with np.load(folder / _PLACES) as places:
        return Clips(spoken, source, places["recording"], places["first"], places["found"])


def _part(speech: Speech, recording: int, frames: int, generator: np.random.Generator) -> SpeechSegment:
    return SpeechSegment(recording, int(generator.integers(speech.frames(recording) - frames + 1)))


def _poses(speech: Speech, said: SpeechSegment | None, frames: int) -> _Poses:
    if said is None:
        return [None] * frames
    track = speech.mouth(said.recording)
    return [pose_at(track, said.first + index) for index in range(frames)]


def _lower_priority() -> None:
    """Lets what trains meanwhile go first: a step of the audio encoder is many small calls, each waits for a core."""
    psutil.Process().nice(psutil.BELOW_NORMAL_PRIORITY_CLASS if psutil.WINDOWS else 10)


def _render_clip(folder: Path, how: RenderPlan, work: _Work) -> bool:
    """Writes one clip to its place; False if its face was lost on the way, which leaves pictures out."""
    number, plan, given, said = work
    renderer, detector = _atlas_renderer(folder / _MOUTHS, how.mouths)
    spoken = np.load(folder / "spoken.npy", mmap_mode="r+")[number]
    source = np.load(folder / "source.npy", mmap_mode="r+")[number]
    follower, track_id = AligningTracker(detector, how.resolution_px), None
    for index in range(plan.frames):
        shown, *targets = renderer.takes(plan.scene, (given[index], *(poses[index] for poses in said)), index)
        followed = follower.update(shown)
        if followed is None or track_id not in (None, followed.track_id):
            return False
        track_id, matrix = followed.track_id, followed.matrix
        source[index] = crop(shown, matrix, how.resolution_px).image
        for take, target in zip(spoken, targets, strict=True):
            take[index] = crop(target, matrix, how.resolution_px).image
    return True


def _draw(pose: MouthPose) -> UInt8Array:
    return _renderer().draw(pose)


@lru_cache(maxsize=1)
def _renderer() -> PortraitRenderer:
    # As many processes as cores: threads of OpenCV would only get in each other's way.
    cv2.setNumThreads(1)
    return PortraitRenderer()


@lru_cache(maxsize=1)
def _atlas_renderer(mouths: Path, levels: Levels) -> tuple[PortraitRenderer, MediaPipeDetector]:
    return PortraitRenderer(Atlas(mouths, levels)), MediaPipeDetector()
