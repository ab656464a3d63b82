"""Composed scenes in which objects with exact masks pass in front of faces; clips without objects.

`load_clip` reads a clip around its face, with the mesh of each free frame, and keeps it in a
folder. `compose` puts the object of a `Scene` before it. `FREE_CHANGES` change a clip in ways that
should not be taken for objects.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np

from latentsync_trt.compositing.outline import OVAL, drawn
from latentsync_trt.face.align import align, crop_size_px, mouth_mask, rescaled
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.geometry import face_of
from latentsync_trt.media.demo_clip import Camera, camera_frames
from latentsync_trt.types import (
    AlignedFace,
    BoolArray,
    Face,
    Float32Array,
    Float64Array,
    UInt8Array,
)
from scripts.occluder_objects import Cutout, cutout, resized

SIDE_PX = 256
"""Side of the square in which masks are compared."""
FRAMES = 70
"""Of a scene: 25 free ones first, so that a model of the face can learn."""
_FIRST_SEEN = 25
_LAST_SEEN = 62
_SURROUNDINGS = 2.3
"""Side of what is kept of a clip around the face, in heights of the face's box."""
_SHUTTER = (0.0, 0.17, 0.33, 0.5)
"""Times, in frames, at which the object is seen by one frame: motion blur."""
_LIPS = np.array([61, 185, 40, 39, 37, 0, 267, 269, 270, 409, 291, 375, 321, 405, 314, 17])


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """Free frames around a face."""

    frames: UInt8Array
    """RGB, `(n, h, w, 3)`."""
    landmarks: Float32Array
    """The face's mesh in each frame, `(n, 468, 2)` in its pixels."""

    def part(self, first: int, count: int) -> "Clip":
        span = slice(first, first + count)
        return Clip(self.frames[span], self.landmarks[span])

    def faces(self) -> list[Face]:
        depth = np.zeros((len(self.landmarks[0]), 1), np.float32)
        return [face_of(np.hstack([mesh, depth]), 20.0) for mesh in self.landmarks]


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """What is known of a clip from its free frames."""

    to_square: list[Float64Array]
    """Per frame, `(2, 3)`: frame pixels → the aligned square of 256 px."""
    regions: BoolArray
    """Where a mouth is painted, inside the face's outline: `(n, 256, 256)`."""


@dataclass(frozen=True, slots=True)
class Scene:
    """An object before a face."""

    kind: str
    """`hand`, `microphone`, `cup`, `pen`, `hair`, `blob` or `food`."""
    thing: str
    """Its name among the objects."""
    clip: str
    first: int
    """First frame of the clip."""
    size: float
    """The object's longer side, in widths of the face."""
    from_deg: float
    """Where the object comes from: 0 is the right side of the frame, 90 below."""
    move_frames: float
    """Frames from outside the frame to the mouth."""
    turn_deg: float = 0.0
    beside: tuple[float, float] = (0.0, 0.0)
    """Distance of the object's anchor from the mouth, in widths of the face."""
    is_still: bool = False
    """Whether it is there in all frames and never moves."""

    @property
    def name(self) -> str:
        still = ", still" if self.is_still else ""
        return f"{self.thing}, {self.size} wide{still}, {self.clip} from frame {self.first}"


@dataclass(frozen=True, slots=True, eq=False)
class Composed:
    """A scene's frames with exact masks."""

    scene: Scene
    frames: UInt8Array
    """RGB, `(n, h, w, 3)`."""
    alpha: Float32Array
    """What is in front, `(n, h, w)` in [0, 1]."""
    free: Clip
    """The same frames without the object."""
    stays: BoolArray
    """Whether the object is where it was in the frame before, `(n,)`."""


def load_clip(name: str, assets: Path, kept: Path, detector: MediaPipeDetector) -> Clip:
    """Returns `demo1`, `demo2`, `demo3` or `portrait`, the built-in clip; `assets` holds the first
    three, `kept` receives what was computed.
    """
    path = kept / f"clip-{name}.npz"
    if path.exists():
        with np.load(path) as content:
            return Clip(content["frames"], content["landmarks"])
    frames = _read(name, assets)
    face = max(detector.detect(next(frames)), key=lambda face: float(np.prod(face.box[2:])))
    middle = (face.box[:2] + face.box[2:]) / 2
    half = _SURROUNDINGS / 2 * float(face.box[3] - face.box[1])
    left, top = np.maximum(middle - half, 0).astype(int)
    right, bottom = (middle + half).astype(int)
    parts = [frame[top:bottom, left:right] for frame in _read(name, assets)]
    followed = face_of(
        np.hstack([face.landmarks - (left, top), np.zeros((len(face.landmarks), 1))]), 20.0
    )
    meshes = []
    for part in parts:
        followed = detector.follow(part, followed) or detector.detect(part)[0]
        meshes.append(followed.landmarks)
    clip = Clip(np.array(parts), np.array(meshes, np.float32))
    kept.mkdir(parents=True, exist_ok=True)
    np.savez(path, frames=clip.frames, landmarks=clip.landmarks)
    return clip


def _read(name: str, assets: Path) -> Iterator[UInt8Array]:
    if name == "portrait":
        yield from camera_frames(Fraction(6), Camera(480, 1.7, 0.45))
        return
    with av.open(str(assets / f"{name}_video.mp4")) as file:
        for frame in file.decode(video=0):
            yield frame.to_ndarray(format="rgb24")


def reference(clip: Clip) -> Reference:
    """Returns how the free frames are aligned."""
    bias = None
    matrices = []
    regions = []
    painted = mouth_mask(SIDE_PX) < 0.5
    for face in clip.faces():
        matrix, bias = align(face.points, bias, SIDE_PX)
        to_square = square_of(matrix)
        mesh = face.landmarks @ to_square[:, :2].T + to_square[:, 2]
        outline = drawn([mesh[OVAL].astype(np.float32)], (SIDE_PX, SIDE_PX))
        matrices.append(to_square)
        regions.append(painted & (outline > 127))
    return Reference(matrices, np.array(regions))


def square_of(matrix: Float64Array) -> Float64Array:
    """Returns `(2, 3)`, frame pixels → the square of 256 px; `matrix`: from `align` at 256 px."""
    crop = AlignedFace(np.zeros((1, 1, 3), np.uint8), matrix, crop_size_px(SIDE_PX))
    return rescaled(crop, (SIDE_PX, SIDE_PX))


def compose(scene: Scene, clip: Clip, assets: Path) -> Composed:
    """Returns a scene; `clip`: all frames of the scene's clip."""
    free = clip.part(scene.first, FRAMES)
    seen = free.landmarks[_FIRST_SEEN:_LAST_SEEN]
    width_px = float(np.median(np.ptp(seen[..., 0], axis=1)))
    mouth = np.median(seen[:, _LIPS].mean(axis=1), axis=0) + np.array(scene.beside) * width_px
    thing = resized(cutout(scene.thing, assets), scene.size * width_px, scene.turn_deg)
    thing = _recolored(thing, free)
    angle = np.radians(scene.from_deg)
    direction = np.array([np.cos(angle), np.sin(angle)])
    farthest_px = 0.7 * max(free.frames.shape[1:3]) + scene.size * width_px
    frames = []
    alphas = []
    for index, frame in enumerate(free.frames):
        places = []
        for shutter in _SHUTTER:
            away = 0.0 if scene.is_still else _away(index + shutter, scene.move_frames)
            places.append(tuple(mouth + direction * (farthest_px * away)))
        composed, alpha = _behind(frame, thing, places)
        frames.append(composed)
        alphas.append(alpha)
    arrived = _FIRST_SEEN + scene.move_frames + 1
    leaves = _LAST_SEEN - scene.move_frames - 1
    indices = np.arange(len(frames))
    stays = (indices > arrived) & (indices < leaves) | scene.is_still
    return Composed(scene, np.array(frames), np.array(alphas), free, stays)


def _behind(
    frame: UInt8Array, thing: Cutout, places: Sequence[tuple[float, float]]
) -> tuple[UInt8Array, Float32Array]:
    """Returns a frame behind an object that is at several places, and how much of each pixel it
    covers.
    """
    alpha = np.zeros(frame.shape[:2], np.float32)
    levels = np.zeros(frame.shape, np.float32)
    counts = Counter(places)
    for place, count in counts.items():
        part, color = _placed(thing, place, frame.shape[:2])
        if part.any():
            alpha += part * (count / len(places))
            levels += color * part[..., None] * (count / len(places))
    if not alpha.any():
        return frame, alpha
    composed = frame * (1 - alpha[..., None]) + levels
    return np.clip(composed + 0.5, 0, 255).astype(np.uint8), alpha


def _away(time: float, move_frames: float) -> float:
    """Returns how far away an object is, 0 at the mouth and 1 outside the frame."""
    before = (_FIRST_SEEN + move_frames - time) / move_frames
    after = (time - _LAST_SEEN + move_frames) / move_frames
    return float(np.clip(max(before, after), 0, 1))


def _placed(
    thing: Cutout, place: tuple[float, float], shape: tuple[int, ...]
) -> tuple[Float32Array, Float32Array]:
    """Returns alpha and levels of an object whose anchor is at a place of a frame."""
    half = len(thing.alpha) / 2
    matrix = np.array([[1, 0, place[0] - half], [0, 1, place[1] - half]])
    size_px = (shape[1], shape[0])
    alpha = cv2.warpAffine(thing.alpha, matrix, size_px)
    return alpha, cv2.warpAffine(thing.levels, matrix, size_px)


def _recolored(thing: Cutout, free: Clip) -> Cutout:
    """Returns the object; if it is skin, with the mean color of the face's cheeks."""
    if not thing.is_skin:
        return thing
    cheeks = free.landmarks[0][[50, 101, 118, 280, 330, 347]].astype(int)
    skin = np.mean(
        [free.frames[0][y - 2 : y + 3, x - 2 : x + 3].mean((0, 1)) for x, y in cheeks], 0
    )
    own = thing.levels[thing.alpha > 0.9].mean(axis=0)
    levels = np.clip(thing.levels * (skin / own).astype(np.float32), 0, 255)
    return Cutout(levels.astype(np.float32), thing.alpha, thing.anchor, is_skin=True)


def _lit(clip: Clip, change: Callable[[int], Float32Array]) -> UInt8Array:
    frames = [frame * change(index) for index, frame in enumerate(clip.frames)]
    return np.clip(np.array(frames) + 0.5, 0, 255).astype(np.uint8)


def _waving_light(clip: Clip) -> UInt8Array:
    """A light that gets brighter and warmer, and darker and cooler, within seconds."""

    def gain(index: int) -> Float32Array:
        wave = np.sin(index / 25 * 2 * np.pi / 3)
        return np.array([1 + 0.22 * wave, 1 + 0.17 * wave, 1 + 0.1 * wave], np.float32)

    return _lit(clip, gain)


def _switched_light(clip: Clip) -> UInt8Array:
    """A lamp at the right that is switched on and off each second."""
    width = clip.frames.shape[2]
    ramp = np.linspace(0, 1, width, dtype=np.float32)[None, :, None]

    def gain(index: int) -> Float32Array:
        is_on = index // 25 % 2
        return 1 + is_on * ramp * np.array([0.35, 0.3, 0.2], np.float32)

    return _lit(clip, gain)


def _passing_shadow(clip: Clip) -> UInt8Array:
    """A soft shadow that passes over the face from left to right each two seconds."""
    width = clip.frames.shape[2]
    x = np.arange(width, dtype=np.float32)[None, :, None] / width

    def gain(index: int) -> Float32Array:
        middle = index % 50 / 50 * 1.6 - 0.3
        return 1 - 0.35 * np.exp(-(((x - middle) / 0.18) ** 2))

    return _lit(clip, gain)


def _drawn_on_face(clip: Clip, draw: Callable[[int, UInt8Array, Float32Array], None]) -> UInt8Array:
    frames = clip.frames.copy()
    for index, frame in enumerate(frames):
        draw(index, frame, clip.landmarks[index])
    return frames


def _beard(clip: Clip, dark: tuple[int, int, int] = (58, 42, 34)) -> UInt8Array:
    jaw = [93, 132, 58, 172, 136, 150, 149, 176, 148, 152, 377, 400, 378, 379, 365, 397, 288, 361]
    jaw += [323, 425, 391, 393, 164, 167, 165, 205]
    texture = np.random.default_rng(3).normal(size=(64, 64)).astype(np.float32)

    def draw(_index: int, frame: UInt8Array, mesh: Float32Array) -> None:
        beard = drawn([mesh[jaw]], frame.shape[1::-1]) / np.float32(255)
        lips = drawn([mesh[[*_LIPS, 84, 181, 91, 146]]], frame.shape[1::-1]) / np.float32(255)
        soft = cv2.GaussianBlur(beard, (0, 0), 3) * (1 - lips) * 0.8
        left, top = mesh.min(axis=0)
        scale = np.ptp(mesh[:, 0]) / 64 * 1.2
        matrix = np.array([[scale, 0, left], [0, scale, top]])
        grain = cv2.warpAffine(texture, matrix, frame.shape[1::-1], borderMode=cv2.BORDER_WRAP)
        color = np.array(dark) + 12 * grain[..., None]
        frame[:] = np.clip(frame * (1 - soft[..., None]) + color * soft[..., None], 0, 255)

    return _drawn_on_face(clip, draw)


def _glasses(clip: Clip, color: tuple[int, int, int] = (25, 22, 24)) -> UInt8Array:
    rims = ([35, 31, 228, 230, 232, 244, 55, 65, 53, 46], [265, 261, 448, 450, 452, 464, 285, 295])

    def draw(_index: int, frame: UInt8Array, mesh: Float32Array) -> None:
        width_px = max(2, round(float(np.ptp(mesh[:, 0])) / 45))
        for rim in rims:
            hull = cv2.convexHull(mesh[rim]).astype(np.int32)
            cv2.polylines(frame, [hull], True, color, width_px, cv2.LINE_AA)
        bridge = mesh[[55, 285]].astype(np.int32)
        cv2.line(frame, tuple(bridge[0]), tuple(bridge[1]), color, width_px, cv2.LINE_AA)

    return _drawn_on_face(clip, draw)


def _breath(clip: Clip) -> UInt8Array:
    """A puff of breath each 40 frames, which rises from the mouth and fades."""
    noise = np.random.default_rng(5).normal(size=(256, 256)).astype(np.float32)
    clouds = cv2.GaussianBlur(noise, (0, 0), 14)
    clouds = np.clip(0.6 + 0.4 * clouds / float(clouds.std()), 0, 1)

    def draw(index: int, frame: UInt8Array, mesh: Float32Array) -> None:
        age = index % 40 / 40
        width_px = float(np.ptp(mesh[:, 0]))
        side_px = width_px * (0.4 + 0.9 * age)
        middle = mesh[13] + np.array([0.15, -0.35]) * (age * width_px)
        y, x = np.mgrid[: frame.shape[0], : frame.shape[1]].astype(np.float32)
        reach = np.exp(-2 * (((x - middle[0]) ** 2 + (y - middle[1]) ** 2) / (side_px / 1.5) ** 2))
        cloud = cv2.resize(clouds, frame.shape[1::-1])
        alpha = 0.3 * np.sin(np.pi * age) * reach * cloud
        frame[:] = frame * (1 - alpha[..., None]) + 235 * alpha[..., None]

    return _drawn_on_face(clip, draw)


def _tongue(clip: Clip) -> UInt8Array:
    """A tongue over the lower lip in 12 of 50 frames."""

    def draw(index: int, frame: UInt8Array, mesh: Float32Array) -> None:
        if index % 50 < 38:
            return
        mouth, lip = mesh[13], mesh[17]
        axes = (float(np.linalg.norm(mesh[291] - mesh[61])) * 0.2, float(lip[1] - mouth[1]) * 0.75)
        tongue = np.zeros(frame.shape[:2], np.float32)
        middle = tuple((mouth + np.array([0, axes[1] * 0.6])).astype(int).tolist())
        size = tuple(max(1, round(axis)) for axis in axes)
        cv2.ellipse(tongue, middle, size, 0, 0, 360, 1.0, -1, cv2.LINE_AA)
        soft = cv2.GaussianBlur(tongue, (0, 0), 1.2)[..., None]
        frame[:] = frame * (1 - soft) + np.array([190, 100, 104]) * soft

    return _drawn_on_face(clip, draw)


def _flickering_screen(clip: Clip) -> UInt8Array:
    """Bluish light from below that changes each few frames, as that of a screen."""
    steps = np.random.default_rng(11).uniform(0, 1, 1 + len(clip.frames) // 6)
    ramp = np.linspace(0.3, 1, clip.frames.shape[1], dtype=np.float32)[:, None, None]

    def gain(index: int) -> Float32Array:
        return 1 + float(steps[index // 6]) * ramp * np.array([0.08, 0.14, 0.26], np.float32)

    return _lit(clip, gain)


FREE_CHANGES: dict[str, Callable[[Clip], UInt8Array]] = {
    "as filmed": lambda clip: clip.frames,
    "light waves": _waving_light,
    "lamp switched": _switched_light,
    "shadow passes": _passing_shadow,
    "beard": _beard,
    "glasses": _glasses,
    "breath": _breath,
    "tongue": _tongue,
}

HELD_OUT_CHANGES: dict[str, Callable[[Clip], UInt8Array]] = {
    "screen flickers": _flickering_screen,
    "red beard": lambda clip: _beard(clip, (104, 62, 38)),
    "golden glasses": lambda clip: _glasses(clip, (176, 142, 70)),
}
"""Changes by which no thresholds were chosen."""

TUNING = (
    Scene("hand", "open hand", "demo1", 0, 1.6, 60, 8),
    Scene("hand", "open hand", "demo2", 0, 1.3, 60, 5),
    Scene("hand", "fist", "demo1", 20, 1.3, 110, 10),
    Scene("hand", "fist", "demo2", 40, 1.5, 100, 6),
    Scene("hand", "hand from the left", "demo1", 40, 1.7, 170, 7),
    Scene("hand", "loose hand", "demo2", 60, 1.5, 120, 9, beside=(0.1, 0.1)),
    Scene("microphone", "microphone", "demo1", 0, 1.3, 80, 8, beside=(0, 0.1)),
    Scene("microphone", "microphone", "demo2", 0, 1.0, 100, 6, turn_deg=-25, beside=(0.1, 0.12)),
    Scene("cup", "cup", "demo1", 20, 0.75, 70, 8),
    Scene("cup", "cup", "demo2", 40, 0.9, 90, 6, turn_deg=15),
    Scene("pen", "pen", "demo1", 40, 1.3, 45, 7, turn_deg=50),
    Scene("pen", "pen", "demo2", 60, 1.1, 120, 6, turn_deg=-35),
    Scene("cup", "striped mug", "portrait", 50, 0.8, 90, 8),
    Scene("pen", "fork", "demo1", 130, 1.1, 60, 8, turn_deg=30),
    Scene("hair", "hair", "demo2", 0, 1.4, 180, 9),
    Scene("blob", "skin-colored blob", "demo1", 0, 0.7, 0, 7),
    Scene("blob", "skin-colored blob", "demo2", 40, 0.6, 180, 6),
    Scene("microphone", "microphone", "demo1", 40, 0.9, 90, 8, beside=(0, 0.2), is_still=True),
)
"""Scenes on which thresholds may be chosen."""

HELD_OUT = (
    Scene("hand", "flat fingers", "demo1", 130, 1.6, 80, 8),
    Scene("hand", "flat fingers", "demo2", 250, 1.3, 90, 5),
    Scene("hand", "flat fingers", "portrait", 0, 1.5, 90, 7),
    Scene("hand", "spread hand", "demo1", 160, 1.9, 70, 10),
    Scene("hand", "spread hand", "demo2", 300, 1.6, 60, 6, beside=(0.1, 0.0)),
    Scene("hand", "hand from the right", "demo1", 175, 1.5, 10, 6),
    Scene("hand", "hand from the right", "demo2", 350, 1.8, 30, 8),
    Scene("hand", "edge of a hand", "demo2", 400, 1.7, 30, 7),
    Scene("hand", "edge of a hand", "portrait", 40, 1.5, 20, 9),
    Scene("hand", "back of a hand", "demo2", 250, 1.6, 0, 7),
    Scene("hand", "back of a hand", "demo1", 150, 1.4, 10, 5),
    Scene("hand", "hanging hand", "demo2", 330, 1.9, 90, 9, turn_deg=180),
    Scene("hand", "hanging hand", "portrait", 70, 1.7, 100, 7, turn_deg=170),
    Scene("microphone", "steel microphone", "demo1", 140, 1.2, 90, 7, beside=(0, 0.08)),
    Scene("microphone", "steel microphone", "demo2", 280, 1.5, 60, 9, 25, beside=(0, 0.1)),
    Scene("microphone", "microphone", "demo1", 170, 0.9, 120, 5, turn_deg=-30, beside=(-0.1, 0.1)),
    Scene("microphone", "microphone", "portrait", 20, 1.1, 90, 8, beside=(0, 0.15)),
    Scene("cup", "mug", "demo1", 150, 0.8, 60, 7, turn_deg=-10),
    Scene("cup", "striped mug", "demo2", 320, 0.7, 100, 8),
    Scene("cup", "mug", "demo2", 380, 0.95, 90, 5, turn_deg=20),
    Scene("pen", "dark pen", "demo1", 160, 1.2, 40, 6, turn_deg=60),
    Scene("pen", "fork", "demo2", 300, 1.3, 120, 7, turn_deg=-40),
    Scene("pen", "dark pen", "portrait", 30, 1.3, 130, 7, turn_deg=-50),
    Scene("hand", "reaching fingers", "demo1", 110, 1.5, 20, 7),
    Scene("hand", "reaching fingers", "portrait", 15, 1.3, 40, 6, turn_deg=20),
    Scene("hand", "half-open hand", "demo2", 150, 1.4, 70, 8),
    Scene("microphone", "green microphone", "demo2", 120, 1.15, 75, 7, 15, (0.05, 0.1)),
    Scene("cup", "pale mug", "portrait", 10, 0.75, 75, 7, turn_deg=-12),
    Scene("cup", "pale mug", "demo1", 115, 0.85, 100, 9),
    Scene("cup", "paper cup", "demo2", 170, 0.9, 80, 6, turn_deg=8),
    Scene("cup", "paper cup", "portrait", 65, 0.8, 110, 8, turn_deg=14),
    Scene("pen", "spoon", "demo1", 145, 1.2, 70, 7, turn_deg=25),
    Scene("pen", "spoon", "demo2", 220, 1.1, 50, 6, turn_deg=45),
    Scene("pen", "red pen", "portrait", 45, 1.2, 60, 8, turn_deg=40),
    Scene("hair", "fair hair", "demo2", 360, 1.4, 180, 9),
    Scene("hair", "hair", "portrait", 60, 1.3, 0, 8),
    Scene("blob", "round skin-colored blob", "demo1", 140, 0.6, 0, 6),
    Scene("blob", "round skin-colored blob", "demo2", 400, 0.6, 180, 8),
    Scene("food", "sandwich", "demo2", 270, 0.9, 90, 7),
    Scene("food", "sandwich", "demo1", 165, 0.8, 60, 7),
    Scene("microphone", "steel microphone", "demo1", 150, 0.9, 90, 8, 0, (0, 0.2), is_still=True),
    Scene("microphone", "microphone", "demo2", 200, 1.0, 90, 8, 0, (0, 0.2), is_still=True),
)
"""Scenes from which numbers are reported."""
