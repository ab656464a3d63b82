"""Aligned faces to train on: each clip once with the mouth of its speech, once as a user's video would show it.

A user's video shows the same person in the same light who says something else, or nothing: that is what the network
gets as masked and as reference picture, and what the alignment sees, with the jitter of the detector.
"""

import multiprocessing
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from latentsync_trt.face.align import AlignState, align, crop
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.tracker import FaceTracker
from latentsync_trt.types import UInt8Array
from scripts.train_demo.scene import Scene, Studio, draw_scene, pose_at
from scripts.train_demo.speech import Speech
from scripts.train_demo.visemes import MouthTrack

_PLACES = "clips.npz"
_STILL_SHARE = 0.5
"""Clips whose source keeps the photographed mouth; the others say something else."""


@dataclass(frozen=True, slots=True)
class ClipPlan:
    """One clip: `frames` of recording `index` from `first` on, over a source that says frames of another, or None."""

    index: int
    first: int
    frames: int
    scene: Scene
    other: int | None
    other_first: int


_Work = tuple[int, ClipPlan, MouthTrack, MouthTrack | None]


@dataclass(frozen=True, slots=True, eq=False)
class Clips:
    """Aligned faces, uint8 `(c, n, R, R, 3)` RGB: `spoken` to learn, `source` as given; and what was said in them.

    `recording`, `first` `(c,)`: where in the speech each clip begins. `found (c,)`: whether its face was tracked.
    """

    spoken: UInt8Array
    source: UInt8Array
    recording: NDArray[np.int64]
    first: NDArray[np.int64]
    found: NDArray[np.bool_]


def plan_clips(speech: Speech, frames: int, count: int, seed: int) -> list[ClipPlan]:
    """`count` clips over all recordings that are long enough, in turn.

    Raises:
        ValueError: no recording has `frames` frames.
    """
    long_enough = [index for index in range(len(speech)) if speech.frames(index) >= frames]
    if not long_enough:
        raise ValueError(f"no recording lasts {frames} frames")
    plans = []
    for number in range(count):
        generator = np.random.Generator(np.random.PCG64([seed, number]))
        index = long_enough[number % len(long_enough)]
        other = None if generator.random() < _STILL_SHARE else int(generator.choice(long_enough))
        first = int(generator.integers(speech.frames(index) - frames + 1))
        other_first = 0 if other is None else int(generator.integers(speech.frames(other) - frames + 1))
        plans.append(ClipPlan(index, first, frames, draw_scene(generator), other, other_first))
    return plans


def film_clips(speech: Speech, plans: list[ClipPlan], resolution_px: int, folder: Path, processes: int) -> Clips:
    """Films and aligns all clips; the pictures lie in two files in `folder` and are mapped, not read.

    A clip is the same whichever process films it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shape = (len(plans), plans[0].frames, resolution_px, resolution_px, 3)
    for name in ("spoken", "source"):
        np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.uint8, shape).flush()
    work = [(number, plan, *_tracks(speech, plan)) for number, plan in enumerate(plans)]
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        found = list(pool.imap(partial(_film_one, folder, resolution_px), work, chunksize=1))
    places = np.array([(plan.index, plan.first) for plan in plans])
    # Written last: a folder that has it is complete.
    np.savez(folder / _PLACES, recording=places[:, 0], first=places[:, 1], found=np.array(found))
    return _mapped(folder)


def load_clips(folder: Path) -> Clips | None:
    """What `film_clips` left in `folder`; None if it is not there, or not complete."""
    return _mapped(folder) if (folder / _PLACES).exists() else None


def _mapped(folder: Path) -> Clips:
    spoken, source = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("spoken", "source"))
    with np.load(folder / _PLACES) as places:
        return Clips(spoken, source, places["recording"], places["first"], places["found"])


def _tracks(speech: Speech, plan: ClipPlan) -> tuple[MouthTrack, MouthTrack | None]:
    return speech.mouth(plan.index), None if plan.other is None else speech.mouth(plan.other)


def _film_one(folder: Path, resolution_px: int, work: _Work) -> bool:
    """Writes one clip to its place; False if its face was lost on the way, which leaves pictures out."""
    number, plan, said, other = work
    studio, detector = _tools()
    spoken = np.load(folder / "spoken.npy", mmap_mode="r+")[number]
    source = np.load(folder / "source.npy", mmap_mode="r+")[number]
    tracker, first_track = FaceTracker(detector), None
    state: AlignState | None = None
    for index in range(plan.frames):
        old = None if other is None else pose_at(other, plan.other_first + index)
        shown, target = studio.takes(plan.scene, (old, pose_at(said, plan.first + index)), index)
        tracked = tracker.update(shown)
        if tracked is None or first_track not in (None, tracked.track_id):
            return False
        first_track = tracked.track_id
        matrix, state = align(tracked.face.points, state, resolution_px, whole_pixels=False)
        source[index] = crop(shown, matrix, resolution_px).image
        spoken[index] = crop(target, matrix, resolution_px).image
    return True


@lru_cache(maxsize=1)
def _tools() -> tuple[Studio, MediaPipeDetector]:
    # As many processes as cores: threads of OpenCV would only get in each other's way.
    cv2.setNumThreads(1)
    return Studio(), MediaPipeDetector()
