"""What `sync` changes in real clips beside the faces, with the built-in model.

The first seconds of each clip are synced with the whole mask and with the face only. `changed_px`: changed pixels of a
frame, in 8-bit RGB. Of these lie outside the outlines that FaceMesh finds in the frame's own face and in the painted
one: the share `neck` below a chin, where the source's chin must go, and `beside` the rest; `worst`: that of the worst
frame. `reach_percent`: distance of the farthest of the rest, in percent of the face's height.

    python scripts/pasted_pixels.py CLIP.mp4=SPEECH.wav ... --json benchmarks/pasted-pixels-demo.json
"""

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.config import Paste
from latentsync_trt.face.paste import Pasted, Paster
from latentsync_trt.face.scene import OVAL, filled
from latentsync_trt.types import BoolArray, Float32Array, Picture
from latentsync_trt.version import __version__

_END_S = Fraction(4)

_VISIBLE = 0.5
"""A smaller difference in levels leaves an 8-bit pixel as it is."""


@dataclass
class Count:
    """Pixels of all frames, and what is kept of each frame."""

    changed: int = 0
    neck: int = 0
    beside: int = 0
    worst: float = 0.0
    reach_percent: float = 0.0
    frames: int = 0

    def add(self, picture: Picture, pasted: Pasted) -> None:
        """Counts the pixels of a frame in which both faces were found."""
        if pasted.source_mesh is None or pasted.painted_mesh is None or not pasted.patch.weight.size:
            return
        changed, (left, top) = changes(picture, pasted)
        meshes = [mesh - np.array((left, top), np.float32) for mesh in (pasted.source_mesh, pasted.painted_mesh)]
        face = filled([mesh[list(OVAL)] for mesh in meshes], changed.shape[::-1]) > 0
        outside = changed & ~face
        below = np.logical_or.accumulate(face, axis=0) & outside & under_jaw(meshes, changed.shape)
        beside = outside & ~below
        self.changed += int(changed.sum())
        self.neck += int(below.sum())
        self.beside += int(beside.sum())
        self.worst = max(self.worst, beside.sum() / changed.sum())
        far = cv2.distanceTransform((~face).astype(np.uint8), cv2.DIST_L2, 5)[beside]
        height = float(np.ptp(pasted.source_mesh[:, 1]))
        self.reach_percent = max(self.reach_percent, 100 * float(far.max(initial=0)) / height)
        self.frames += 1

    def row(self) -> dict[str, Any]:
        """The numbers of all frames."""
        return {
            "frames": self.frames,
            "changed_px": round(self.changed / max(self.frames, 1)),
            "neck": round(self.neck / self.changed, 5),
            "beside": round(self.beside / self.changed, 5),
            "worst": round(float(self.worst), 5),
            "reach_percent": round(self.reach_percent, 2),
        }


def changes(picture: Picture, pasted: Pasted) -> tuple[BoolArray, tuple[int, int]]:
    """Where 8-bit pixels change, in a part of the frame with the whole patch, and its corner (x, y)."""
    new = pasted.patch
    height, width = new.weight.shape
    place = slice(new.y_px, new.y_px + height), slice(new.x_px, new.x_px + width)
    apart = np.abs(new.rgb / np.float32(257) - picture[place]).max(axis=-1)
    return apart * new.weight >= _VISIBLE, (new.x_px, new.y_px)


def under_jaw(meshes: list[Float32Array], shape: tuple[int, ...]) -> BoolArray:
    """Pixels between the corners of the jaw, below the mouth."""
    corners = np.stack([mesh[[172, 397]] for mesh in meshes])
    mouth = np.mean([mesh[14] for mesh in meshes], axis=0)
    y, x = np.mgrid[: shape[0], : shape[1]]
    left, right = corners[..., 0].min(), corners[..., 0].max()
    return np.asarray((x >= left) & (x <= right) & (y > mouth[1]))


def measured(lip_sync: LipSync, video: Path, speech: Path, paste: Paste, output: Path) -> dict[str, Any]:
    count, usual = Count(), Paster.paste

    def counting(self: Paster, picture: Picture, *others: Any, **named: Any) -> Pasted:
        pasted = usual(self, picture, *others, **named)
        count.add(picture, pasted)
        return pasted

    with patch.object(Paster, "paste", counting):
        lip_sync.sync(video, speech, output, SyncOptions(preset="fast", paste=paste, end=_END_S, overwrite=True))
    return {"clip": video.name, "paste": paste, **count.row()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("clips", nargs="+", metavar="CLIP=SPEECH")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    rows = []
    with LipSync.from_bundle("demo", "cpu") as lip_sync, tempfile.TemporaryDirectory() as folder:
        for pair in arguments.clips:
            video, _, speech = pair.partition("=")
            for paste in get_args(Paste):
                rows.append(measured(lip_sync, Path(video), Path(speech), paste, Path(folder) / "out.mp4"))
                print(rows[-1], file=sys.stderr)
    arguments.json.write_text(json.dumps({"version": __version__, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
