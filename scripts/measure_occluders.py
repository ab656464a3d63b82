"""Measures how exactly what is in front of a face is found, in composed scenes with exact masks.

    python -m scripts.measure_occluders ASSETS [--kept FOLDER] [--set tuning|held-out|fresh|all]
        [--only WORD] [--free] [--output FILE] [--pictures FOLDER]

ASSETS holds demo1_video.mp4 … demo3_video.mp4. Each face is followed in the composed frames, as in
a run. `--free` measures the clips without objects, too; `--only` takes the scenes whose name
contains a word; `--pictures` writes a strip of each scene; `--output` writes the rows as JSON.

For experiments, import:

- `scripts.occluder_scenes`: `load_clip`, `compose`, `reference`, `TUNING`, `HELD_OUT`,
  `FREE_CHANGES`, `HELD_OUT_CHANGES`; `scripts.occluder_fresh`: `FRESH`, with objects of its own,
  held out as well;
- from here: `followed` (faces of frames), `score` (a scene's masks and matrices → `Score`),
  `alignment_errors_px`, `marked_shares` (false alarms of free frames).

IoU is pooled over the frames of a scene, of the pixels at 256 px where a mouth is painted and that
lie inside the face's outline, as the free frames show it. `flicker` is the change of the marked
area from one frame to the next while the object stays where it is, as a part of it, over the pixels
of the frame that belong to that region in both (the head moves). A free frame counts as marked
where more than 2 % of the region are.
"""

import argparse
import time
from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np

from latentsync_trt.compositing.occluders import FrontMask, OccluderFinder
from latentsync_trt.face.align import align, composed, inverse
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.sync.faces import ChosenFace, FrameJob
from latentsync_trt.sync.fronts import FrontStage
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.types import Face, Float64Array, Frame, Picture, UInt8Array
from scripts.benchmark_file import write_benchmark
from scripts.occluder_fresh import FRESH
from scripts.occluder_scenes import (
    FREE_CHANGES,
    HELD_OUT,
    HELD_OUT_CHANGES,
    SIDE_PX,
    TUNING,
    Clip,
    Composed,
    Reference,
    compose,
    load_clip,
    reference,
    square_of,
)

LEAST_MARKED = 0.02
"""A free frame of which a larger part of the region is marked is a false alarm."""
LEAST_COVERED = 0.01
"""An object is in front where more than this part of the region is covered."""
MOST_PAINTED = 0.6
"""Where more of the region is covered, nothing is painted, and alignment does not matter."""
WHOLE_LEVEL = 250
"""Level of a pixel, of 255, that is wholly inside a region that was moved."""
_MOUTH = np.array([61, 291, 17, 0, 13])
"""FaceMesh's points at which alignment is compared."""
ASKED = ("hand", "microphone", "cup", "pen", "food")
"""Kinds of objects over which alignment and flicker are pooled, too."""
CLIPS = ("demo1", "demo2", "demo3", "portrait")


class Marked(Protocol):
    """What a finder returns; `FrontMask` is one."""

    @property
    def from_frame(self) -> Float64Array: ...
    @property
    def levels(self) -> UInt8Array: ...


class TimedFinder(OccluderFinder):
    """Adds up how long it takes."""

    def __init__(self, detector: MediaPipeDetector) -> None:
        super().__init__(detector)
        self.spent_s = 0.0
        self.covered_s: list[float] = []
        """Of each look at which something was in front."""

    def find(
        self, picture: Picture, track_id: Hashable, face: Face, time_s: Fraction
    ) -> tuple[Face, FrontMask | None]:
        start = time.thread_time()
        result = super().find(picture, track_id, face, time_s)
        spent_s = time.thread_time() - start
        self.spent_s += spent_s
        if result[1] is not None:
            self.covered_s.append(spent_s)
        return result


@dataclass(frozen=True, slots=True)
class Score:
    """How exactly the object of a scene was found."""

    shared_px: int
    union_px: int
    false_alarms: int
    """Free frames that are marked."""
    free_frames: int
    flickers: tuple[float, ...]
    """Changes of the marked area from frame to frame while the object stays."""
    most_false_share: float
    """Largest part of the region that is marked in a free frame."""

    @property
    def iou(self) -> float:
        return self.shared_px / max(self.union_px, 1)


def followed(detector: MediaPipeDetector, frames: UInt8Array, first: Face) -> list[Face]:
    """Returns the face of each frame as it is followed; where it is lost, where it was last."""
    faces = []
    face = first
    for frame in frames:
        nearby = detector.follow(frame, face)
        if nearby is None:
            others = detector.detect(frame)
            nearby = others[0] if others else None
        face = nearby or face
        faces.append(face)
    return faces


def in_square(mask: Marked | None, to_square: Float64Array) -> UInt8Array:
    """Returns levels of a mask in the square of a reference."""
    if mask is None:
        return np.zeros((SIDE_PX, SIDE_PX), np.uint8)
    matrix = composed(inverse(mask.from_frame), to_square)
    return np.asarray(cv2.warpAffine(mask.levels, matrix, (SIDE_PX, SIDE_PX)), np.uint8)


def score(scene: Composed, masks: Sequence[Marked | None], known: Reference) -> Score:
    """Compares masks, one a frame, with those of the scene; `known`: of its free frames."""
    shared = union = alarms = free = 0
    most_false = 0.0
    for alpha, mask, matrix, region in zip(
        scene.alpha, masks, known.to_square, known.regions, strict=True
    ):
        truth = cv2.warpAffine(alpha, matrix, (SIDE_PX, SIDE_PX))[region] > 0.5
        marked = in_square(mask, matrix)[region] >= 128
        shared += int((truth & marked).sum())
        union += int((truth | marked).sum())
        if truth.mean() == 0:
            free += 1
            alarms += marked.mean() > LEAST_MARKED
            most_false = max(most_false, float(marked.mean()))
    flickers = []
    for index in range(1, len(masks)):
        if scene.stays[index] and scene.stays[index - 1]:
            flickers += _flicker(masks, known, index)
    return Score(shared, union, int(alarms), free, tuple(flickers), most_false)


def _flicker(masks: Sequence[Marked | None], known: Reference, index: int) -> list[float]:
    """Returns by which part the marked area changes in a frame; nothing where nothing is marked."""
    matrix = known.to_square[index]
    moved = composed(inverse(known.to_square[index - 1]), matrix)
    before = (255 * known.regions[index - 1]).astype(np.uint8)
    shared = cv2.warpAffine(before, moved, (SIDE_PX, SIDE_PX)) >= WHOLE_LEVEL
    shared &= known.regions[index]
    areas = [
        int((in_square(masks[each], matrix)[shared] >= 128).sum()) for each in (index - 1, index)
    ]
    if not max(areas):
        return []
    return [abs(areas[1] - areas[0]) / max(areas)]


def marked_shares(masks: Sequence[Marked | None], known: Reference) -> list[float]:
    """Returns which part of the region of each free frame is marked."""
    shares = []
    for mask, matrix, region in zip(masks, known.to_square, known.regions, strict=True):
        marked = in_square(mask, matrix)[region] >= 128
        shares.append(float(marked.mean()))
    return shares


def alignment_errors_px(scene: Composed, faces: Sequence[Face], known: Reference) -> list[float]:
    """Returns how far the mouth is from its place in the free frames, in pixels at 256 px, for each
    frame in which an object is in front and something is painted.
    """
    errors = []
    bias = None
    for index, face in enumerate(faces):
        matrix, bias = align(face.points, bias, SIDE_PX)
        true_matrix = known.to_square[index]
        truth = cv2.warpAffine(scene.alpha[index], true_matrix, (SIDE_PX, SIDE_PX))
        covered = float((truth[known.regions[index]] > 0.5).mean())
        if LEAST_COVERED < covered < MOST_PAINTED:
            errors.append(_distance_px(scene.free, index, square_of(matrix), true_matrix))
    return errors


def _distance_px(free: Clip, index: int, matrix: Float64Array, truth: Float64Array) -> float:
    points = free.landmarks[index][_MOUTH]
    difference = points @ (matrix - truth)[:, :2].T + (matrix - truth)[:, 2]
    return float(np.linalg.norm(difference, axis=1).mean())


def strip(scene: Composed, masks: Sequence[Marked | None], known: Reference) -> UInt8Array:
    """Returns some frames of a scene in the square, with exact masks (green) and masks that were
    found (red).
    """
    columns = []
    for index in (24, 29, 33, 37, 42, 47, 51, 55, 59, 63):
        matrix = known.to_square[index]
        picture = cv2.warpAffine(scene.frames[index], matrix, (SIDE_PX, SIDE_PX))
        truth = cv2.warpAffine(scene.alpha[index], matrix, (SIDE_PX, SIDE_PX)) > 0.5
        marked = in_square(masks[index], matrix) >= 128
        _outline(picture, known.regions[index], (255, 255, 0))
        shown = picture.copy()
        _outline(picture, truth, (0, 255, 0))
        _outline(shown, marked, (255, 0, 0))
        columns.append(np.vstack([picture, shown]))
    return np.hstack(columns)


def _outline(picture: UInt8Array, inside: np.ndarray, color: tuple[int, int, int]) -> None:
    contours, _ = cv2.findContours(
        inside.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE
    )
    cv2.drawContours(picture, contours, -1, color, 1)


class Bench:
    """Runs the finder over scenes and clips."""

    def __init__(self, assets: Path, kept: Path) -> None:
        self._assets = assets
        self._kept = kept
        self._detector = MediaPipeDetector()
        self._clips: dict[str, Clip] = {}

    def clip(self, name: str) -> Clip:
        if name not in self._clips:
            self._clips[name] = load_clip(name, self._assets, self._kept, self._detector)
        return self._clips[name]

    def compose(self, scene) -> Composed:
        return compose(scene, self.clip(scene.clip), self._assets)

    def find(self, frames: UInt8Array, first: Face) -> tuple[list[Face], list, TimedFinder]:
        """Returns faces and masks, as in a run, and what has found them."""
        finder = TimedFinder(self._detector)
        stage = FrontStage(finder, StageClock())
        chosen = []
        for job in stage.look(_jobs(frames, followed(self._detector, frames, first))):
            chosen += job.chosen
        return [one.face for one in chosen], [one.front for one in chosen], finder

    def scene_row(self, scene, of_set: str, pictures: Path | None) -> dict[str, object]:
        composition = self.compose(scene)
        known = reference(composition.free)
        faces, masks, finder = self.find(composition.frames, composition.free.faces()[0])
        result = score(composition, masks, known)
        errors = alignment_errors_px(composition, faces, known)
        if pictures is not None:
            picture = strip(composition, masks, known)
            name = scene.name.replace(" ", "-").replace(",", "")
            cv2.imwrite(str(pictures / f"{name}.png"), picture[..., ::-1])
        return {
            "scene": scene.name,
            "kind": scene.kind + (" that never moves" if scene.is_still else ""),
            "set": of_set,
            "iou": round(result.iou, 3),
            "shared_px": result.shared_px,
            "union_px": result.union_px,
            "false_alarms": result.false_alarms,
            "free_frames": result.free_frames,
            "flicker_p50": _percentile(result.flickers, 50),
            "flicker_most": _percentile(result.flickers, 100),
            "alignment_errors_px": errors,
            "flickers": result.flickers,
            "alignment_p50_px": _percentile(errors, 50),
            "alignment_p95_px": _percentile(errors, 95),
            "ms_a_covered_look": _percentile([1000 * each for each in finder.covered_s], 50),
        }

    def free_row(self, clip_name: str, change: str) -> dict[str, object]:
        clip = self.clip(clip_name)
        if change != "as filmed":
            clip = clip.part(0, 150)
        frames = (FREE_CHANGES | HELD_OUT_CHANGES)[change](clip)
        _, masks, finder = self.find(frames, clip.faces()[0])
        shares = np.array(marked_shares(masks, reference(clip)))
        return {
            "clip": clip_name,
            "change": change,
            "held_out": change in HELD_OUT_CHANGES,
            "frames": len(shares),
            "marked": int((shares > LEAST_MARKED).sum()),
            "most_marked": round(float(shares.max()), 3),
            "ms_a_frame": round(1000 * finder.spent_s / len(frames), 1),
        }


def _jobs(frames: UInt8Array, faces: Sequence[Face]) -> Generator[FrameJob, None, None]:
    """Yields frames on their way through a run, with their faces."""
    step_s = Fraction(1, 25)
    for index, (picture, face) in enumerate(zip(frames, faces, strict=True)):
        frame = Frame(index, index * step_s, step_s, index * step_s, picture, None)
        yield FrameJob(frame, chosen=(ChosenFace(face, (0, 0), 0, 0),))


def _percentile(values: Sequence[float], percent: float) -> float | None:
    return round(float(np.percentile(values, percent)), 3) if len(values) else None


def totals(rows: Sequence[dict]) -> list[dict[str, object]]:
    """Returns the pooled IoU and alignment of each kind of object in each set."""
    result = []
    for of_set in sorted({row["set"] for row in rows}):
        of_this = [row for row in rows if row["set"] == of_set]
        for kind in sorted({row["kind"] for row in of_this}):
            same = [row for row in of_this if row["kind"] == kind]
            shared = sum(row["shared_px"] for row in same)
            union = sum(row["union_px"] for row in same)
            iou = round(shared / max(union, 1), 3)
            result.append({"kind": kind, "set": of_set, "iou": iou} | _pooled(same))
        asked = [row for row in of_this if row["kind"] in ASKED]
        result.append({"kind": ", ".join(ASKED), "set": of_set} | _pooled(asked))
    return result


def _pooled(rows: Sequence[dict]) -> dict[str, object]:
    """Returns how far mouths are from their places, and how much masks change, over the frames of
    all these scenes.
    """
    errors = [error for row in rows for error in row["alignment_errors_px"]]
    flickers = np.array([flicker for row in rows for flicker in row["flickers"]])
    return {
        "alignment_frames": len(errors),
        "alignment_p50_px": _percentile(errors, 50),
        "alignment_p95_px": _percentile(errors, 95),
        "flicker_frames": len(flickers),
        "flicker_p50": _percentile(flickers, 50),
        "flicker_p95": _percentile(flickers, 95),
        "flicker_above_3_percent": int((flickers > 0.03).sum()),
    }


def _without_frames(row: dict) -> dict[str, object]:
    """Returns a row without what it says of single frames."""
    return {key: row[key] for key in row if key not in ("alignment_errors_px", "flickers")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("assets", type=Path)
    parser.add_argument("--kept", type=Path, default=Path("occluder-clips"))
    parser.add_argument("--set", choices=("tuning", "held-out", "fresh", "all"), default="all")
    parser.add_argument("--only", default="")
    parser.add_argument("--free", action="store_true")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--pictures", type=Path)
    args = parser.parse_args()
    cv2.setNumThreads(1)
    bench = Bench(args.assets, args.kept)
    rows = []
    for scenes, name in ((TUNING, "tuning"), (HELD_OUT, "held-out"), (FRESH, "fresh")):
        for scene in scenes:
            if args.set in (name, "all") and args.only in scene.name:
                rows.append(bench.scene_row(scene, name, args.pictures))
                print(_without_frames(rows[-1]), flush=True)
    kinds = totals(rows)
    for row in kinds:
        print(row)
    free_rows = []
    if args.free:
        for clip_name in CLIPS:
            for change in FREE_CHANGES | HELD_OUT_CHANGES:
                free_rows.append(bench.free_row(clip_name, change))
                print(free_rows[-1], flush=True)
    if args.output is not None:
        command = "python -m scripts.measure_occluders ASSETS --free"
        scenes = [_without_frames(row) for row in rows]
        write_benchmark(args.output, command, kinds=kinds, scenes=scenes, free=free_rows)


if __name__ == "__main__":
    main()
