"""What it would cost to paint every other frame of 50 per second, and to make those between of their neighbors.

    python -m scripts.measure_half_motion --json FILE --picture FILE.png

The built-in clip is filmed at 50 frames/s and dubbed with two interleaved streams, as a run does. Then every other face
is replaced, in the network's pose, by the mean of its neighbors (`fade`), or of both warped half of the way to each
other by dense optical flow (`warp`, OpenCV's DIS). PSNR is that of the mouth beside the painted face; `opening`:
correlation of the gap between the lips with the mouth of the sentence. The picture shows the worst frame.
"""

import argparse
import json
import platform
import tempfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import onnxruntime

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.face.align import crop, inverse, rescaled
from latentsync_trt.face.choice import MainFace
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.measure.lips import agreement, gap_of
from latentsync_trt.measure.page import SHOWN_PX, face_grid, write_png
from latentsync_trt.measure.pictures import decibels, mouth_part
from latentsync_trt.media.audio import audio_duration_s
from latentsync_trt.media.demo_clip import SPEECH, camera_frames_at, spoken_mouth
from latentsync_trt.media.reader import read_frames
from latentsync_trt.media.writer import write_pictures
from latentsync_trt.types import AlignedFace, Face, Float32Array, UInt8Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FPS = Fraction(50)
SHOWN = 3
Between = Callable[[UInt8Array, UInt8Array], UInt8Array]


def fade(before: UInt8Array, after: UInt8Array) -> UInt8Array:
    """The mean."""
    return np.rint((before.astype(np.float32) + after) / 2).astype(np.uint8)


def warp(before: UInt8Array, after: UInt8Array) -> UInt8Array:
    """The mean of both, each moved half of the way."""
    flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    gray = [cv2.cvtColor(each, cv2.COLOR_RGB2GRAY) for each in (before, after)]
    grid = np.stack(np.meshgrid(*map(np.arange, before.shape[1::-1])), -1).astype(np.float32)
    moved = [
        cv2.remap(face, grid - flow.calc(one, other, None) / 2, None, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
        for face, one, other in ((before, *gray), (after, *gray[::-1]))
    ]
    return fade(np.asarray(moved[0], np.uint8), np.asarray(moved[1], np.uint8))


WAYS: dict[str, Between] = {"fade": fade, "warp": warp}


class Clip:
    """The faces of a dubbed clip in the network's pose, `(SHOWN_PX, SHOWN_PX, 3)` each, and the gaps between lips."""

    def __init__(self, source: Path, dubbed: Path) -> None:
        self._detector = MediaPipeDetector()
        follower = MainFace(self._detector, SHOWN_PX)
        self.frames, self.faces = list[UInt8Array](), list[AlignedFace]()
        self._found = list[Face]()
        for before, after in zip(read_frames(source), read_frames(dubbed), strict=True):
            tracked = follower.update(before.rgb)
            if tracked is None:
                raise ValueError(f"frame {before.index}: no face")
            self.frames.append(after.rgb)
            self._found.append(tracked.face)
            self.faces.append(crop(after.rgb, tracked.matrix, SHOWN_PX))

    def gap(self, index: int, face: UInt8Array) -> float:
        """Between the lips of the frame with another face."""
        frame, own = self.frames[index].copy(), self.faces[index]
        matrix = inverse(rescaled(own, (SHOWN_PX, SHOWN_PX)))
        cv2.warpAffine(face, matrix, frame.shape[1::-1], dst=frame, borderMode=cv2.BORDER_TRANSPARENT)
        mesh = self._detector.mesh(frame, self._found[index])
        return float("nan") if mesh is None else gap_of(mesh)


def measured(
    clip: Clip, between: Between | None, opening: Float32Array
) -> tuple[dict[str, Any], dict[int, UInt8Array]]:
    """A row, and the faces that were replaced."""
    part, made = mouth_part(SHOWN_PX), dict[int, UInt8Array]()
    faces = [each.image for each in clip.faces]
    if between is not None:
        made = {at: between(faces[at - 1], faces[at + 1]) for at in range(1, len(faces) - 1, 2)}
    gaps = np.array([clip.gap(at, made.get(at, face)) for at, face in enumerate(faces)], np.float32)
    row: dict[str, Any] = {"opening": round(agreement(gaps, opening[: len(gaps)]).correlation, 3)}
    if made:
        errors = {
            at: float(np.square(face[part].astype(np.float64) - faces[at][part]).mean()) for at, face in made.items()
        }
        levels = sorted(decibels(255**2, error) or 99.0 for error in errors.values())
        mean = decibels(255**2, float(np.mean(list(errors.values()))))
        row |= {"psnr_db": round(mean or 99.0, 1), "worst_db": [round(level, 1) for level in levels[:SHOWN]]}
        row["below_35_db"] = sum(level < 35 for level in levels)
        row["frames"] = len(levels)
    return row, made


def picture(faces: list[UInt8Array], made: dict[str, dict[int, UInt8Array]]) -> "Figure":
    """The frame that differs most from the painted one where neighbors are faded into each other."""
    part = mouth_part(SHOWN_PX)
    at = max(made["fade"], key=lambda at: cv2.norm(made["fade"][at][part], faces[at][part]))
    shown = {
        "before": faces[at - 1],
        "painted": faces[at],
        **{way: made[way][at] for way in WAYS},
        "after": faces[at + 1],
    }
    return face_grid((f"{float(at / FPS):.2f} s",), {name: [face] for name, face in shown.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--preset", default="balanced")
    arguments = parser.parse_args()
    duration_s = audio_duration_s(SPEECH)
    times_s = [Fraction(index, FPS) for index in range(int(duration_s * FPS))]
    mouth = spoken_mouth().opening
    opening = np.interp([float(25 * time_s) for time_s in times_s], np.arange(len(mouth)), mouth).astype(np.float32)
    with tempfile.TemporaryDirectory() as name:
        source, dubbed = Path(name) / "source.mkv", Path(name) / "dubbed.mkv"
        write_pictures(source, camera_frames_at(times_s), fps=FPS, lossless=True)
        with LipSync.from_bundle("demo", "cpu") as lip_sync:
            options = SyncOptions(preset=arguments.preset, codec="ffv1", length="video")
            lip_sync.sync(source, SPEECH, dubbed, options)
        clip = Clip(source, dubbed)
    rows, made = {"painted": measured(clip, None, opening)[0]}, dict[str, dict[int, UInt8Array]]()
    for way, between in WAYS.items():
        rows[way], made[way] = measured(clip, between, opening)
    result = {
        "command": f"python -m scripts.measure_half_motion --preset {arguments.preset}",
        "onnxruntime": onnxruntime.__version__,
        "python": platform.python_version(),
        "rows": rows,
    }
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    if arguments.picture:
        write_png(arguments.picture, picture([each.image for each in clip.faces], made))


if __name__ == "__main__":
    main()
