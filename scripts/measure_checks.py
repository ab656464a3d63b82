"""How many faults of painted faces are told, and how often is one told where there is none?

    python -m scripts.measure_checks ASSETS [--only WORD] [--out benchmarks/checks-cpu.json]

Faces of the clips in ASSETS, with several kinds of grain, are "painted" by stand-ins that know the
true face, and fitted into their frames as in a run. In some spans of half a second a fault is added
to what was painted. The limits were chosen on the clips of `TUNING`.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice, product
from pathlib import Path

import cv2
import numpy as np

from latentsync_trt.compositing.blend import FaceBlender
from latentsync_trt.compositing.resize import fit_face
from latentsync_trt.face.align import align, crop, inverse, mouth_mask, steps
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.measure.paint_check import PaintCheck
from latentsync_trt.measure.paint_figures import compared_face
from latentsync_trt.measures import Interval
from latentsync_trt.media.reader import read_frames
from latentsync_trt.types import AlignedFace, Face, Float32Array, Frame, UInt8Array
from latentsync_trt.version import __version__
from scripts.benchmark_file import write_benchmark
from scripts.measure_finish import blurred, denoised, with_grain

FRAMES = 100
FPS = 25
REACH_PX = 110
"""What is kept of a frame around the boxes of all its faces."""
SPAN_FRAMES = 13
STARTS = (30, 58, 86)
"""Frames at which a fault begins, and how long it lasts: 0.52 s."""

TUNING = ("demo1",)
HELD_OUT = ("demo2", "demo3")

Levels = Float32Array
Paint = Callable[[Levels], Levels]
PAINTERS: dict[str, Paint] = {
    "blurred by 0.7 px": blurred(0.7),
    "denoised strongly": denoised(20),
    "speaks": blurred(0.7),
}
"""Stand-ins for a network; the last one moves the mouth, too."""
MOST_SPOKEN = 0.05
"""How far a jaw moves at most, as a share of the side."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A face that moves, without grain."""

    clip: str
    pictures: Sequence[UInt8Array]
    faces: Sequence[Face]


@dataclass(frozen=True, slots=True)
class Setting:
    """How a scene is shown and painted."""

    side_px: int
    grain: str
    painter: str


@dataclass(frozen=True, slots=True)
class Moment:
    """A face to which a fault may be added, and where it is among all of its run."""

    painted: Sequence[Levels]
    index: int
    frame_px: float
    """Pixels of the crop for each of the frame."""
    random: np.random.Generator


Change = Callable[[Moment], Levels]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong with a painted face."""

    change: Change = lambda moment: moment.painted[moment.index]
    """What it makes of a face."""
    tint: float = 0.0
    """By how many levels what is pasted is redder."""
    displaced: float = 0.0
    """How far the face was found beside its place, in widths of its box."""


def soft(sigma: float) -> Change:
    """Blurs by a sigma in 128ths of the side."""

    def change(moment: Moment) -> Levels:
        face = moment.painted[moment.index]
        return np.asarray(cv2.GaussianBlur(face, (0, 0), sigma * len(face) / 128), np.float32)

    return change


def jitter(distance_px: float) -> Change:
    """Moves each face by so many pixels of the frame, at random to one of four sides."""

    def change(moment: Moment) -> Levels:
        face = moment.painted[moment.index]
        right, down = moment.random.choice([-1, 1], 2) * distance_px * moment.frame_px / 2**0.5
        matrix = np.array([[1, 0, right], [0, 1, down]])
        size_px = (len(face), len(face))
        moved = cv2.warpAffine(face, matrix, size_px, borderMode=cv2.BORDER_REPLICATE)
        return np.asarray(moved, np.float32)

    return change


def of_another_moment(frames: int) -> Change:
    def change(moment: Moment) -> Levels:
        earlier = moment.index - frames
        return moment.painted[earlier if earlier >= 0 else moment.index + frames]

    return change


def mouth_of_another_moment(frames: int) -> Change:
    """Only what is inside the mask."""
    other = of_another_moment(frames)

    def change(moment: Moment) -> Levels:
        face = moment.painted[moment.index]
        kept = mouth_mask(len(face))[..., None]
        return np.asarray(kept * face + (1 - kept) * other(moment), np.float32)

    return change


def half(of: Change) -> Change:
    """The left half as another fault has it."""

    def change(moment: Moment) -> Levels:
        face = moment.painted[moment.index].copy()
        middle = len(face) // 2
        face[:, :middle] = of(moment)[:, :middle]
        return face

    return change


def gray(moment: Moment) -> Levels:
    return np.full_like(moment.painted[moment.index], 127)


FAULTS = {
    "none": Fault(),
    "blur of 1.0": Fault(soft(1.0)),
    "blur of 1.5": Fault(soft(1.5)),
    "blur of 2.5": Fault(soft(2.5)),
    "color by 8 levels": Fault(tint=8),
    "color by 12 levels": Fault(tint=12),
    "color by 20 levels": Fault(tint=20),
    "jitter of 1.0 px": Fault(jitter(1)),
    "jitter of 2.0 px": Fault(jitter(2)),
    "face of 0.5 s before": Fault(of_another_moment(13)),
    "face of 1.6 s before": Fault(of_another_moment(40)),
    "mouth of 0.5 s before": Fault(mouth_of_another_moment(13)),
    "mouth of 1.6 s before": Fault(mouth_of_another_moment(40)),
    "half a face, rest gray": Fault(half(gray)),
    "half a face, rest smeared": Fault(half(soft(6))),
    "half a face, mask displaced": Fault(displaced=0.45),
}


def scene_of(assets: Path, clip: str, detector: MediaPipeDetector) -> Scene:
    frames = [frame.rgb for frame in islice(read_frames(assets / f"{clip}_video.mp4"), FRAMES)]
    faces = [
        max(detector.detect(frame), key=lambda face: face.box[2] - face.box[0]) for frame in frames
    ]
    boxes = np.array([face.box for face in faces])
    left, top = np.maximum(boxes[:, :2].min(axis=0) - REACH_PX, 0).astype(int).tolist()
    width, height = (boxes[:, 2:].max(axis=0) + REACH_PX - (left, top)).astype(int) // 2 * 2
    pictures = [frame[top:, left:][:height, :width] for frame in frames]
    width = pictures[0].shape[1] // 2 * 2
    height = pictures[0].shape[0] // 2 * 2
    pictures = [picture[:height, :width] for picture in pictures]
    return Scene(clip, pictures, [moved(face, -left, -top) for face in faces])


def moved(face: Face, right_px: float, down_px: float) -> Face:
    by = np.array([right_px, down_px], np.float32)
    landmarks = None if face.landmarks is None else face.landmarks + by
    return Face(face.box + np.tile(by, 2), face.points + by, face.score, landmarks)


def spoken(face: Levels, index: int) -> Levels:
    """The face with its jaw moved down and up."""
    side = len(face)
    rows = np.arange(side, dtype=np.float32) / side
    opening = MOST_SPOKEN * side * abs(np.sin(index / 3.1)) * (0.5 + 0.5 * np.sin(index / 17))
    moves = (opening * np.clip((rows - 0.66) / 0.1, 0, 1)).astype(np.float32)
    from_rows = np.arange(side, dtype=np.float32) - moves
    columns = np.arange(side, dtype=np.float32)
    grid = np.meshgrid(columns, from_rows)
    return np.asarray(cv2.remap(face, *grid, cv2.INTER_LINEAR), np.float32)


@dataclass(frozen=True, slots=True)
class PaintedScene:
    """The faces of a scene as they were cut out and painted."""

    sources: list[UInt8Array]
    aligned: list[AlignedFace]
    painted: list[Levels]


def painted_scene(scene: Scene, setting: Setting) -> PaintedScene:
    bias = None
    result = PaintedScene([], [], [])
    paint = PAINTERS[setting.painter]
    for index, (picture, face) in enumerate(zip(scene.pictures, scene.faces, strict=True)):
        source = with_grain(picture, setting.grain, index)
        matrix, bias = align(face.points, bias, setting.side_px)
        aligned = crop(source, matrix, setting.side_px)
        levels = paint(aligned.image.astype(np.float32))
        if setting.painter == "speaks":
            levels = spoken(levels, index)
        result.sources.append(source)
        result.aligned.append(aligned)
        result.painted.append(np.clip(levels, 0, 255))
    return result


def tinted(color: Float32Array | None, levels: float) -> Float32Array:
    """A change of colors after which a face is redder."""
    result = np.eye(3, 4, dtype=np.float32) if color is None else color.copy()
    result[:, 3] += levels * np.array([1, -0.5, -0.5])
    return result


def in_fault(index: int) -> bool:
    return any(start <= index < start + SPAN_FRAMES for start in STARTS)


@dataclass(frozen=True, slots=True)
class Result:
    """What was told of a scene."""

    times: tuple[Interval, ...]
    busy_ms: float
    """A face, on one core."""


def watched(
    scene: Scene, painted: PaintedScene, fault: Fault, detector: MediaPipeDetector
) -> Result:
    """Fits all faces into their frames, with the fault in its spans, and checks them."""
    blender = FaceBlender(detector)
    check = PaintCheck()
    random = np.random.default_rng(5)
    busy_s = 0.0
    for index, source in enumerate(painted.sources):
        face, tracked = painted.aligned[index], scene.faces[index]
        levels = painted.painted[index]
        is_faulty = in_fault(index)
        if is_faulty:
            if fault.displaced:
                tracked, face, levels = displaced(tracked, source, len(face.image), fault.displaced)
            else:
                step = 1 / steps(inverse(face.matrix))[0] * len(face.image) / face.crop_size_px[0]
                levels = fault.change(Moment(painted.painted, index, step, random))
        pixels = np.rint(levels * 257).astype(np.uint16)
        fitted = fit_face(face, pixels)
        inspected = blender.inspect_face(source, fitted, tracked)
        time_s = Fraction(index, FPS)
        color = blender.blend(0, time_s, inspected).finish.color
        if is_faulty and fault.tint:
            color = tinted(color, fault.tint)
        frame = Frame(index, time_s, Fraction(1, FPS), time_s, source, None)
        begun_s = time.process_time()
        compared = compared_face(face, pixels, inspected.painted_mesh_in_frame, color)
        check.add(frame, 0, compared, is_free=True)
        busy_s += time.process_time() - begun_s
    return Result(check.times(), 1000 * busy_s / len(painted.sources))


def displaced(
    tracked: Face, source: UInt8Array, side_px: int, share: float
) -> tuple[Face, AlignedFace, Levels]:
    """Returns the face as if it had been found to the right of its place, and the true picture."""
    found = moved(tracked, share * float(tracked.box[2] - tracked.box[0]), 0)
    matrix, _ = align(found.points, None, side_px)
    face = crop(source, matrix, side_px)
    return found, face, blurred(0.7)(face.image.astype(np.float32))


def row_of(scene: Scene, setting: Setting, name: str, result: Result) -> dict:
    spans_s = [(start / FPS, (start + SPAN_FRAMES) / FPS) for start in STARTS]
    row = {
        "clip": scene.clip,
        "side_px": setting.side_px,
        "grain": setting.grain,
        "painter": setting.painter,
        "fault": name,
        "times": [str(each) for each in result.times],
        "busy_ms": round(result.busy_ms, 2),
    }
    if name == "none":
        row["false_frames"] = sum(
            any(each.start_s <= index / FPS < each.end_s for each in result.times)
            for index in range(len(scene.faces))
        )
        row["frames"] = len(scene.faces)
    else:
        row["spans"] = len(spans_s)
        row["told"] = sum(
            any(each.start_s < end_s and each.end_s > start_s for each in result.times)
            for start_s, end_s in spans_s
        )
    return row


def summary(rows: Sequence[dict]) -> dict[str, object]:
    """Told spans of each fault, and false alarms, of the clips for tuning and of the others."""
    total: dict[str, object] = {}
    for kind, clips in (("tuning", TUNING), ("held out", HELD_OUT)):
        chosen = [row for row in rows if row["clip"] in clips]
        clean = [row for row in chosen if row["fault"] == "none"]
        shares: dict[str, object] = {}
        for name in FAULTS:
            of_fault = [row for row in chosen if row["fault"] == name and name != "none"]
            if of_fault:
                told = sum(row["told"] for row in of_fault)
                shares[name] = f"{told} of {sum(row['spans'] for row in of_fault)}"
        false_frames = sum(row["false_frames"] for row in clean)
        shares["false alarms, frames"] = f"{false_frames} of {sum(row['frames'] for row in clean)}"
        total[kind] = shares
    if rows:
        total["busy_ms"] = float(np.median([row["busy_ms"] for row in rows]))
    return total


def settings_of(fault: str) -> list[Setting]:
    """Faults are measured in fewer settings than what has none."""
    if fault == "none":
        grains = ("none", "8-bit night video", "film scan")
        all_painters = product((128, 256), grains, PAINTERS)
        large = product((512,), grains, ("speaks",))
        return [Setting(*each) for each in (*all_painters, *large)]
    return [Setting(*each) for each in product((128, 256), ("none", "film scan"), ("speaks",))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("assets", type=Path)
    parser.add_argument("--only", default="", help="a part of a row's name")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    cv2.setNumThreads(1)
    detector = MediaPipeDetector()
    rows = []
    for clip in (*TUNING, *HELD_OUT):
        if args.only and args.only.startswith("demo") and not args.only.startswith(clip):
            continue
        scene = scene_of(args.assets, clip, detector)
        by_setting: dict[Setting, list[str]] = {}
        for name in FAULTS:
            for setting in settings_of(name):
                if args.only in f"{clip} {setting.side_px} {setting.grain} {name}":
                    by_setting.setdefault(setting, []).append(name)
        for setting, names in by_setting.items():
            painted = painted_scene(scene, setting)
            for name in names:
                result = watched(scene, painted, FAULTS[name], detector)
                rows.append(row_of(scene, setting, name, result))
                print(rows[-1], flush=True)
    total = summary(rows)
    print(json.dumps(total, indent=1))
    if args.out is not None:
        command = "python -m scripts.measure_checks ASSETS"
        versions = f"latentsync-trt {__version__}, OpenCV {cv2.__version__}"
        write_benchmark(args.out, command, versions=versions, summary=total, rows=rows)


if __name__ == "__main__":
    main()
