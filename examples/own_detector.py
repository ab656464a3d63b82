"""Lip-sync with a face detector of your own: this one follows a face whose place was marked in the
first picture.

python own_detector.py
python own_detector.py in.mp4 speech.wav --marked 196,150 288,155 238,219 --bundle 1.6-512-fp16
"""

import argparse

import cv2
import numpy as np

from latentsync_trt import Face, Helpers, LipSync, SyncOptions, demo_clip


class MarkedFace:
    """A `FaceDetector`: any class with this `detect`. `marked (3, 2)`: left brow, right brow and
    nose, in pixels.
    """

    def __init__(self, marked: np.ndarray) -> None:
        self._marked = np.float32(marked)
        self._first = None
        self._move = np.eye(2, 3, dtype=np.float32)

    def detect(self, frame: np.ndarray) -> list[Face]:
        """The faces of a picture, uint8 (H, W, 3) RGB; an empty list where there is none."""
        gray = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
        if self._first is None:
            x, y, width, height = cv2.boundingRect(self._marked)
            self._first = gray
            self._inside = np.zeros_like(gray)
            self._inside[y : y + height, x : x + width] = 255
        try:  # the affine map from the first picture to this one, beginning with that of the last
            _, self._move = cv2.findTransformECC(
                self._first, gray, self._move.copy(), inputMask=self._inside
            )
        except cv2.error:  # nothing here looks like the marked face
            return []
        points = cv2.transform(self._marked[None], self._move)[0]
        (left, top), (right, bottom) = points.min(axis=0), points.max(axis=0)
        box = (
            left - (right - left) / 3,
            top - (bottom - top) / 2,
            right + (right - left) / 3,
            2.5 * bottom - 1.5 * top,
        )
        return [Face(box=np.float32(box), points=points)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("video", nargs="?", help="default: the built-in clip")
    parser.add_argument("audio", nargs="?", help="the speech; default: the sound of the video")
    parser.add_argument(
        "--marked", nargs=3, default=["196,150", "288,155", "238,219"], metavar="X,Y"
    )
    parser.add_argument("--bundle", default="demo")
    parser.add_argument("--output", default="own_detector.mp4")
    args = parser.parse_args()
    video, audio = (args.video, args.audio or args.video) if args.video else demo_clip()
    detector = MarkedFace([point.split(",") for point in args.marked])
    with LipSync.from_bundle(args.bundle) as lip_sync:
        print(
            lip_sync.sync(
                video,
                audio,
                args.output,
                SyncOptions(preset="fast"),
                helpers=Helpers(detector=detector),
            ).quality
        )
