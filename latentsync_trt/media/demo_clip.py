"""The built-in clip: a public-domain portrait, filmed by a moving camera, and synthetic speech."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import ceil, pi, sin
from pathlib import Path

import cv2
import numpy as np

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import MediaError
from latentsync_trt.media.audio import audio_duration_s
from latentsync_trt.media.reader import probe
from latentsync_trt.media.writer import write_pictures
from latentsync_trt.types import Float64Array, UInt8Array

ASSETS = Path(__file__).parents[1] / "assets" / "demo"
SPEECH = ASSETS / "speech.flac"
WORDS_FILE = ASSETS / "words.csv"
"""When each word of the built-in speech begins, and when its lips are round."""
SENTENCE = "My lips follow these words. Papa, mama, and the boats by the pier."

_FACE_PX = (224.0, 125.0)
"""Center of the face in the portrait, and of the camera's path."""
_ZOOM_SWAY = 0.06
"""The sways are those of a hand-held camera."""
_PAN_SWAY = 7 / 480
"""As a share of the frame's side."""
_TURN_SWAY_DEG = 2.5
_PERIODS_S = (3.1, 4.3, 5.7)
"""Periods of zoom, pan and rotation, so that no view comes again within a clip."""


@dataclass(frozen=True, slots=True)
class Camera:
    """How the portrait is filmed."""

    side_px: int
    """Frames are squares of this size."""
    zoom: float
    """Frame pixels for a pixel of the portrait, on average."""
    face_height: float
    """Where the face is in a frame, from 0 = top to 1 = bottom."""


DEMO_CAMERA = Camera(320, 1.0, 0.34)
"""Head and shoulders in the photograph's own size, and with it a face of about the size that the
built-in model paints: neither is enlarged, so each is as sharp as the other.
"""


def demo_clip(folder: str | Path = ".") -> tuple[Path, Path]:
    """Writes the built-in clip, demo.mp4, 320×320 px, 5 s; returns it and its speech. Raises
    `OutputError`.
    """
    video = Path(folder) / "demo.mp4"
    write_pictures(video, camera_frames(audio_duration_s(SPEECH)))
    return video, SPEECH


@dataclass(frozen=True, slots=True)
class SpokenClip:
    """A video and its speech."""

    video: Path
    audio: Path
    name: str
    """As rows of measurements show it."""


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A word of a recording."""

    text: str
    start_s: float
    end_s: float
    rounded_s: float | None = None
    """When the lips are roundest; None if they are not round in this word."""


def spoken_words(audio: Path) -> list[SpokenWord]:
    """Returns the words of the built-in speech, none of another recording."""
    if audio != SPEECH:
        return []
    rows = [line.split(",") for line in WORDS_FILE.read_text("utf-8").splitlines()[1:]]
    words = list[SpokenWord]()
    for (start, text, rounded), (end, *_) in pairwise(rows):
        rounded_s = float(rounded) if rounded else None
        words.append(SpokenWord(text, float(start), float(end), rounded_s))
    return words


def choose_clip(
    video: Path | None, audio: Path | None, folder: Path, name: str = "portrait.mp4"
) -> SpokenClip:
    """Returns both files; a missing one is replaced by the built-in recording or a video of the
    built-in portrait, which `folder` receives under this `name`. Raises `MediaError` if they cannot
    be read.
    """
    speech = audio or SPEECH
    try:
        duration_s = audio_duration_s(speech)
    except MediaError as error:
        cure = "; name the speech with --audio" if audio == video else ""
        raise MediaError(f"{error}{cure}", usage=error.usage) from error
    if video is not None:
        info = probe(video)
        return SpokenClip(video, speech, f"{video.name} {info.width_px}×{info.height_px}")
    target = folder / name
    write_pictures(target, camera_frames(duration_s))
    return SpokenClip(target, speech, f"built-in {DEMO_CAMERA.side_px}×{DEMO_CAMERA.side_px}")


def portrait() -> UInt8Array:
    """Returns the photograph, uint8 `(H, W, 3)` RGB."""
    # Not `cv2.imread`, which on Windows opens no file below a folder whose name is not ASCII.
    content = np.fromfile(ASSETS / "portrait.jpg", np.uint8)
    return np.asarray(cv2.imdecode(content, cv2.IMREAD_COLOR_RGB), np.uint8)


def camera_frames(duration_s: Fraction, camera: Camera = DEMO_CAMERA) -> Iterator[UInt8Array]:
    """Yields frames of the clip that cover `duration_s`, uint8 `(side, side, 3)` RGB at the model's
    rate.
    """
    rgb = portrait()
    for index in range(ceil(duration_s * MODEL_FPS)):
        yield filmed(rgb, index, camera)


def filmed(rgb: UInt8Array, index: int, camera: Camera = DEMO_CAMERA) -> UInt8Array:
    """Returns what the camera sees of a picture of the portrait's size in a frame of the clip,
    uint8 `(side, side, 3)`.
    """
    frame = cv2.warpAffine(
        rgb,
        _view(index / MODEL_FPS, camera),
        (camera.side_px, camera.side_px),
        flags=cv2.INTER_CUBIC,
        borderMode=cv2.BORDER_REFLECT_101,
    )
    return np.asarray(frame, np.uint8)


def _view(time_s: float, camera: Camera) -> Float64Array:
    """Returns the map `(2, 3)` from pixels of the portrait to those of the frame at a time."""
    phases = [2 * pi * time_s / period_s for period_s in _PERIODS_S]
    zoom_phase, pan_phase, turn_phase = phases
    zoom = camera.zoom * (1 + _ZOOM_SWAY * sin(zoom_phase))
    turn_deg = _TURN_SWAY_DEG * sin(turn_phase)
    pan_px = _PAN_SWAY * camera.side_px
    face_x, face_y = _FACE_PX
    matrix = np.asarray(cv2.getRotationMatrix2D(_FACE_PX, turn_deg, zoom), np.float64)
    matrix[0, 2] += camera.side_px / 2 - face_x + pan_px * sin(pan_phase)
    matrix[1, 2] += camera.side_px * camera.face_height - face_y + pan_px * sin(pan_phase / 2)
    return matrix
