"""Aligned faces to train on: each scene as a source clip and as several takes with different
speech.

The source stands for a user's video: the same person in the same light, silent or with other
speech. It gives the masked image, the reference image and the alignment, including the detector's
jitter. Several takes of one scene keep the network from memorizing which mouth belongs to which
image without using the audio.
"""

import multiprocessing
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from latentsync_trt.face.align import crop
from latentsync_trt.face.choice import MainFace
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.types import BoolArray, Float32Array, UInt8Array
from scripts.train_demo.scene import PortraitRenderer, Scene
from scripts.train_demo.speech import Int64Array, Speech

_MOUTHS = "mouths.npy"
# share of scenes whose source keeps the photographed mouth; in the others it speaks
_STILL_SHARE = 0.5
_LOWEST = np.array([0.0, -1.0, 0.0])
_HIGHEST = np.array([1.0, 1.0, 1.0])

Levels = tuple[int, int, int]  # poses of the atlas along opening, width and rounding
Segment = tuple[int, int]  # a recording, and the frame in it at which the segment begins


@dataclass(frozen=True, slots=True)
class ClipPlan:
    """Scenes of `frames` frames and `takes` takes each at `resolution_px`; `mouths`: the size of
    the atlas.
    """

    scenes: int
    takes: int
    frames: int
    resolution_px: int
    mouths: Levels


@dataclass(frozen=True, slots=True, eq=False)
class Clips:
    """Aligned faces, uint8 RGB: `spoken (c, t, n, R, R, 3)`, the targets; `source (c, n, R, R, 3)`,
    the input.

    `recording`, `first` `(c, t)`: where in the speech each take begins. `tracked (c,)`: the face
    was never lost.
    """

    spoken: UInt8Array
    source: UInt8Array
    recording: Int64Array
    first: Int64Array
    tracked: BoolArray


def render_clips(speech: Speech, plan: ClipPlan, seed: int, processes: int, folder: Path) -> Clips:
    """Renders and aligns all clips into `folder`, cycling through the recordings that are long
    enough; memory-mapped.

    The result does not depend on the number of processes.
    """
    folder.mkdir(parents=True)
    picture = (plan.frames, plan.resolution_px, plan.resolution_px, 3)
    for name, shape in (
        ("spoken", (plan.scenes, plan.takes, *picture)),
        ("source", (plan.scenes, *picture)),
    ):
        np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.uint8, shape).flush()
    long_enough = [index for index in range(len(speech)) if speech.frames(index) >= plan.frames]
    drawn = [_draw_clip(speech, plan, long_enough, seed, number) for number in range(plan.scenes)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        _draw_atlas(folder / _MOUTHS, plan.mouths, pool)
        tracked = list(
            pool.imap(partial(_render, folder, plan.mouths), enumerate(drawn), chunksize=1)
        )
    spoken, source = (
        np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("spoken", "source")
    )
    starts = np.array([takes for _, takes, _ in drawn])
    return Clips(spoken, source, starts[..., 0], starts[..., 1], np.array(tracked))


_Drawn = tuple[Scene, list[Segment], list[Float32Array | None]]
"""A scene, the segments of its takes, and the mouths `(n, 3)` of the source, None = the
photographed one, and of all takes.
"""


def _draw_clip(
    speech: Speech, plan: ClipPlan, recordings: list[int], seed: int, number: int
) -> _Drawn:
    generator = np.random.Generator(np.random.PCG64([seed, number]))

    def segment(recording: int) -> Segment:
        return recording, int(generator.integers(speech.frames(recording) - plan.frames + 1))

    def mouths(segment: Segment) -> Float32Array:
        start = speech.starts[segment[0]] + segment[1]
        return speech.track[start : start + plan.frames]

    first = number * plan.takes
    takes = [segment(recordings[(first + take) % len(recordings)]) for take in range(plan.takes)]
    still = generator.random() < _STILL_SHARE
    source = None if still else mouths(segment(int(generator.choice(recordings))))
    return Scene(generator), takes, [source, *map(mouths, takes)]


def _render(folder: Path, levels: Levels, numbered: tuple[int, _Drawn]) -> bool:
    """Writes one clip; False if the face was lost, which leaves the clip incomplete."""
    number, (scene, _, mouths) = numbered
    renderer, detector = _atlas_renderer(folder / _MOUTHS, levels)
    spoken, source = (
        np.load(folder / f"{name}.npy", mmap_mode="r+")[number] for name in ("spoken", "source")
    )
    side_px = source.shape[1]
    tracker = MainFace(detector, side_px)
    track_id = None
    for index in range(len(source)):
        poses = [None if track is None else track[index] for track in mouths]
        source_frame, *targets = renderer.variants(scene, poses, index)
        tracked = tracker.update(source_frame)
        if tracked is None or track_id not in (None, tracked.track_id):
            return False
        track_id = tracked.track_id
        matrix = tracked.matrix
        source[index] = crop(source_frame, matrix, side_px).image
        for take, target in zip(spoken, targets, strict=True):
            take[index] = crop(target, matrix, side_px).image
    return True


def _draw_atlas(path: Path, levels: Levels, pool: Any) -> None:
    """Draws mouths ahead of time on a grid of poses, because drawing one is slow: uint8 `(*levels,
    h, w, 3)`.
    """
    steps = [
        np.linspace(low, high, count)
        for low, high, count in zip(_LOWEST, _HIGHEST, levels, strict=True)
    ]
    images = np.stack(list(pool.imap(_draw, product(*steps), chunksize=8)))
    np.save(path, images.reshape(*levels, *images.shape[1:]))


def _draw(pose: Any) -> UInt8Array:
    return _renderer().draw(pose)


@lru_cache(maxsize=1)
def _renderer() -> PortraitRenderer:
    # There are as many processes as cores: more threads would only slow them down.
    cv2.setNumThreads(1)
    return PortraitRenderer()


@lru_cache(maxsize=1)
def _atlas_renderer(mouths: Path, levels: Levels) -> tuple[PortraitRenderer, MediaPipeDetector]:
    images = np.load(mouths, mmap_mode="r")
    last = np.array(levels) - 1

    def interpolated(pose: Float32Array) -> UInt8Array:
        """Trilinear; poses beyond the grid are clipped to it."""
        position = ((pose.astype(np.float64) - _LOWEST) / (_HIGHEST - _LOWEST)).clip(0, 1) * last
        low = np.minimum(position.astype(np.int64), np.maximum(last - 1, 0))
        share = position - low
        total = np.zeros(images.shape[3:], np.float32)
        for corner in product((0, 1), repeat=3):
            weight = float(np.prod(np.where(corner, share, 1 - share)))
            if weight:
                cv2.scaleAdd(images[tuple(low + corner)].astype(np.float32), weight, total, total)
        return np.rint(total).astype(np.uint8)

    return PortraitRenderer(interpolated), MediaPipeDetector()
