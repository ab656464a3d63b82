"""What passes in front of faces in composed scenes: hands cut out of clips, and drawn objects."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import av
import cv2
import numpy as np

from latentsync_trt.types import Float32Array, UInt8Array

_CANVAS_PX = 600
"""Side of the canvas of a drawn object, which is larger than any face: it is only made smaller."""


@dataclass(frozen=True, slots=True, eq=False)
class Cutout:
    """An object without its surroundings."""

    levels: Float32Array
    """RGB, `(h, w, 3)`, 0 to 255."""
    alpha: Float32Array
    """`(h, w)` in [0, 1]."""
    anchor: tuple[float, float]
    """Where the mouth is, as parts of width and height."""
    is_skin: bool = False
    """Whether it takes the color of the face's skin."""


@dataclass(frozen=True, slots=True)
class HandPlace:
    """Where a hand lies before a shirt, in pixels of the frame."""

    clip: str
    frame: int
    left: int
    top: int
    right: int
    bottom: int
    anchor: tuple[float, float]


HANDS = {
    "open hand": HandPlace("demo3", 84, 590, 975, 950, 1300, (0.35, 0.35)),
    "fist": HandPlace("demo3", 294, 235, 1015, 415, 1300, (0.6, 0.25)),
    "hand from the left": HandPlace("demo3", 98, 220, 1000, 610, 1315, (0.7, 0.35)),
    "loose hand": HandPlace("demo3", 462, 200, 925, 480, 1295, (0.6, 0.25)),
    "flat fingers": HandPlace("demo3", 294, 725, 975, 960, 1290, (0.45, 0.3)),
    "spread hand": HandPlace("demo3", 420, 620, 860, 940, 1345, (0.4, 0.2)),
    "hand from the right": HandPlace("demo3", 98, 610, 1065, 940, 1330, (0.4, 0.5)),
    "edge of a hand": HandPlace("demo3", 504, 520, 1045, 960, 1330, (0.3, 0.2)),
    "reaching fingers": HandPlace("demo3", 545, 560, 1085, 830, 1370, (0.3, 0.4)),
    "half-open hand": HandPlace("demo3", 250, 585, 1180, 850, 1390, (0.35, 0.45)),
    "back of a hand": HandPlace("demo2", 434, 455, 1315, 840, 1590, (0.4, 0.5)),
    "hanging hand": HandPlace("demo2", 448, 535, 1385, 945, 1900, (0.4, 0.6)),
}


@lru_cache(maxsize=16)
def hand(name: str, folder: Path) -> Cutout:
    """Returns a hand of `HANDS`, cut out by its color against a white or black shirt."""
    place = HANDS[name]
    rows = slice(place.top, place.bottom)
    columns = slice(place.left, place.right)
    rgb = read_frame(folder / f"{place.clip}_video.mp4", place.frame)[rows, columns]
    lab = cv2.cvtColor(rgb, cv2.COLOR_RGB2LAB).astype(int)
    is_skin = (lab[..., 1] + lab[..., 2] - 256 > 14) & (lab[..., 0] > 45)
    closed = cv2.morphologyEx(is_skin.astype(np.uint8), cv2.MORPH_CLOSE, np.ones((3, 3), np.uint8))
    _, labels, stats, _ = cv2.connectedComponentsWithStats(closed)
    largest = 1 + int(np.argmax(stats[1:, cv2.CC_STAT_AREA]))
    alpha = cv2.erode((labels == largest).astype(np.uint8), np.ones((3, 3), np.uint8))
    soft = cv2.GaussianBlur(alpha.astype(np.float32), (0, 0), 0.8)
    return Cutout(_spread(rgb, alpha), soft, place.anchor, is_skin=True)


def read_frame(path: Path, index: int) -> UInt8Array:
    """Returns one frame of a clip, RGB, `(h, w, 3)`."""
    with av.open(str(path)) as file:
        for number, frame in enumerate(file.decode(video=0)):
            if number == index:
                return np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
    raise ValueError(f"{path} has fewer than {index + 1} frames")


def _spread(rgb: UInt8Array, inside: UInt8Array) -> Float32Array:
    """Returns the picture with the object's colors around the object, so that its soft edge shows
    nothing of what was behind it.
    """
    outside = cv2.dilate(1 - inside, np.ones((3, 3), np.uint8))
    return cv2.inpaint(rgb, outside, 3, cv2.INPAINT_TELEA).astype(np.float32)


def _canvas() -> tuple[Float32Array, Float32Array, Float32Array, Float32Array]:
    """Returns levels, alpha, and the coordinates x and y from 0 to 1."""
    y, x = np.mgrid[:_CANVAS_PX, :_CANVAS_PX].astype(np.float32) / _CANVAS_PX
    levels = np.zeros((_CANVAS_PX, _CANVAS_PX, 3), np.float32)
    return levels, np.zeros((_CANVAS_PX, _CANVAS_PX), np.float32), x, y


def _textured(levels: Float32Array, strength: float, grain_px: float) -> Float32Array:
    """Returns levels with a texture that is always the same."""
    noise = np.random.default_rng(7).normal(size=levels.shape[:2]).astype(np.float32)
    noise = cv2.GaussianBlur(noise, (0, 0), grain_px)
    noise *= strength / float(noise.std())
    return np.clip(levels + noise[..., None], 0, 255)


def microphone(ball: tuple[int, int, int], handle: tuple[int, int, int]) -> Cutout:
    levels, alpha, x, y = _canvas()
    shine = np.exp(-((x - 0.43) ** 2 + (y - 0.17) ** 2) / 0.012)
    levels[:] = np.array(ball) + 70 * shine[..., None]
    below = y > 0.38
    across = 1 - np.abs(x - 0.5) / 0.09
    levels[below] = (np.array(handle) * (0.5 + 0.7 * across[..., None]))[below]
    levels[(y > 0.36) & (y < 0.4)] = (150, 150, 155)
    cv2.circle(alpha, (300, 125), 118, 1.0, -1, cv2.LINE_AA)
    corners = np.array([(240, 215), (360, 215), (340, 599), (260, 599)])
    cv2.fillPoly(alpha, [corners], 1.0, cv2.LINE_AA)
    return Cutout(_textured(levels, 14, 2.5), alpha, (0.5, 0.2))


def cup(color: tuple[int, int, int], *, has_stripe: bool) -> Cutout:
    levels, alpha, x, y = _canvas()
    light = 0.72 + 0.36 * np.cos((x - 0.38) * 3.4)
    levels[:] = np.array(color) * light[..., None]
    if has_stripe:
        levels[(y > 0.5) & (y < 0.62)] *= (0.35, 0.5, 0.9)
    body = np.array([(130, 120), (470, 120), (440, 500), (400, 530), (200, 530), (160, 500)])
    cv2.fillPoly(alpha, [body], 1.0, cv2.LINE_AA)
    cv2.ellipse(alpha, (300, 120), (170, 36), 0, 0, 360, 1.0, -1, cv2.LINE_AA)
    cv2.ellipse(alpha, (470, 290), (80, 100), 0, -90, 90, 1.0, 34, cv2.LINE_AA)
    rim = (((x - 0.5) / 0.26) ** 2 + ((y - 0.2) / 0.045) ** 2) < 1
    levels[rim] *= 0.45
    return Cutout(_textured(levels, 3, 1.5), alpha, (0.45, 0.3))


def pen(color: tuple[int, int, int]) -> Cutout:
    levels, alpha, x, y = _canvas()
    light = 0.6 + 0.9 * np.exp(-(((x - 0.485) / 0.012) ** 2))
    levels[:] = np.array(color) * light[..., None]
    levels[(y > 0.6) & (y < 0.62)] = (200, 190, 150)
    corners = np.array([(300, 5), (317, 60), (318, 595), (282, 595), (283, 60)])
    cv2.fillPoly(alpha, [corners], 1.0, cv2.LINE_AA)
    return Cutout(np.clip(levels, 0, 255), alpha, (0.5, 0.15))


def fork() -> Cutout:
    levels, alpha, x, y = _canvas()
    light = 150 + 70 * np.sin(x * 90) + 30 * np.sin(y * 17)
    levels[:] = light[..., None] * np.array((1.0, 1.0, 1.03))
    for left in (255, 283, 311, 339):
        cv2.line(alpha, (left, 10), (left, 150), 1.0, 11, cv2.LINE_AA)
    cv2.ellipse(alpha, (297, 160), (50, 55), 0, 0, 180, 1.0, -1, cv2.LINE_AA)
    cv2.rectangle(alpha, (250, 145), (344, 165), 1.0, -1)
    cv2.line(alpha, (297, 210), (297, 590), 1.0, 22, cv2.LINE_AA)
    return Cutout(np.clip(levels, 0, 255), alpha, (0.5, 0.12))


def tumbler(color: tuple[int, int, int]) -> Cutout:
    """Returns a paper cup with a lid and a darker sleeve."""
    levels, alpha, x, y = _canvas()
    light = 0.66 + 0.4 * np.cos((x - 0.6) * 3.0)
    levels[:] = np.array(color) * light[..., None]
    levels[(y > 0.42) & (y < 0.72)] *= (0.72, 0.6, 0.5)
    levels[y < 0.13] = (46, 44, 44)
    body = np.array([(150, 75), (450, 75), (410, 590), (190, 590)])
    cv2.fillPoly(alpha, [body], 1.0, cv2.LINE_AA)
    cv2.rectangle(alpha, (140, 45), (460, 80), 1.0, -1)
    return Cutout(_textured(levels, 4, 2), alpha, (0.5, 0.2))


def spoon() -> Cutout:
    levels, alpha, x, y = _canvas()
    light = 135 + 75 * np.cos((x - 0.47) * 22) + 20 * np.sin(y * 11)
    levels[:] = light[..., None] * np.array((1.03, 1.0, 0.94))
    cv2.ellipse(alpha, (300, 90), (52, 82), 0, 0, 360, 1.0, -1, cv2.LINE_AA)
    corners = np.array([(288, 160), (312, 160), (320, 595), (280, 595)])
    cv2.fillPoly(alpha, [corners], 1.0, cv2.LINE_AA)
    return Cutout(np.clip(levels, 0, 255), alpha, (0.5, 0.15))


def hair(color: tuple[int, int, int], seed: int) -> Cutout:
    levels, alpha, x, y = _canvas()
    levels[:] = np.array(color) * (0.8 + 0.4 * np.sin(x * 60 + y * 5))[..., None]
    random = np.random.default_rng(seed)
    height = np.linspace(0, 1, 40)
    for _ in range(9):
        start, bend, end = random.uniform(0.35, 0.6, 3)
        curve = (1 - height) ** 2 * start + 2 * height * (1 - height) * bend + height**2 * end
        points = np.stack([curve, height], axis=1) * _CANVAS_PX
        width_px = int(random.integers(6, 16))
        cv2.polylines(alpha, [points.astype(np.int32)], False, 1.0, width_px, cv2.LINE_AA)
    return Cutout(_textured(levels, 10, 2), alpha, (0.5, 0.6))


def blob(width: float) -> Cutout:
    """Returns an ellipse that takes the color of the skin: what no color tells from the face."""
    levels, alpha, x, y = _canvas()
    light = 1.05 - 0.5 * ((x - 0.42) ** 2 + (y - 0.4) ** 2)
    levels[:] = np.array((205, 160, 140)) * light[..., None]
    cv2.ellipse(alpha, (300, 300), (int(290 * width), 290), 0, 0, 360, 1.0, -1, cv2.LINE_AA)
    return Cutout(_textured(levels, 4, 4), alpha, (0.5, 0.4), is_skin=True)


def sandwich() -> Cutout:
    levels, alpha, _, y = _canvas()
    levels[:] = (196, 140, 78)
    levels[(y > 0.46) & (y < 0.5)] = (90, 150, 60)
    levels[(y > 0.5) & (y < 0.56)] = (225, 190, 150)
    cv2.ellipse(alpha, (300, 300), (280, 150), 0, 0, 360, 1.0, -1, cv2.LINE_AA)
    return Cutout(_textured(levels, 14, 5), alpha, (0.4, 0.5))


_DRAWN = {
    "microphone": microphone((62, 62, 66), (40, 40, 44)),
    "steel microphone": microphone((128, 130, 136), (70, 72, 80)),
    "cup": cup((235, 232, 225), has_stripe=False),
    "mug": cup((70, 96, 150), has_stripe=False),
    "striped mug": cup((238, 226, 205), has_stripe=True),
    "green microphone": microphone((60, 92, 70), (30, 34, 32)),
    "pale mug": cup((214, 192, 168), has_stripe=False),
    "paper cup": tumbler((226, 214, 196)),
    "spoon": spoon(),
    "red pen": pen((150, 36, 44)),
    "pen": pen((40, 70, 160)),
    "dark pen": pen((34, 34, 38)),
    "fork": fork(),
    "hair": hair((62, 42, 32), 1),
    "fair hair": hair((150, 112, 72), 2),
    "skin-colored blob": blob(0.7),
    "round skin-colored blob": blob(0.95),
    "sandwich": sandwich(),
}


_ADDED: dict[str, Callable[[str, Path], Cutout]] = {}


def add_objects(names: Iterable[str], make: Callable[[str, Path], Cutout]) -> None:
    """Makes objects of another module known to `cutout`, which calls `make` as it is called."""
    _ADDED.update(dict.fromkeys(names, make))


def cutout(name: str, folder: Path) -> Cutout:
    """Returns an object by its name; `folder`: of the clips that hands are cut out of."""
    if name in _ADDED:
        return _ADDED[name](name, folder)
    return hand(name, folder) if name in HANDS else _DRAWN[name]


def resized(source: Cutout, length_px: float, turn_deg: float) -> Cutout:
    """Returns an object whose longer side is `length_px`, turned around its anchor."""
    rows, columns = np.nonzero(source.alpha > 0.5)
    length = max(np.ptp(rows), np.ptp(columns)) + 1
    height, width = source.alpha.shape
    anchor = (source.anchor[0] * width, source.anchor[1] * height)
    scale = length_px / length
    shrink = min(1.0, 2 * scale)
    small = cv2.resize(source.levels, None, fx=shrink, fy=shrink, interpolation=cv2.INTER_AREA)
    mask = cv2.resize(source.alpha, None, fx=shrink, fy=shrink, interpolation=cv2.INTER_AREA)
    side_px = int(2 * 1.5 * max(width, height) * scale)
    center = (anchor[0] * shrink, anchor[1] * shrink)
    matrix = cv2.getRotationMatrix2D(center, turn_deg, scale / shrink)
    matrix[:, 2] += side_px / 2 - np.array(center)
    size_px = (side_px, side_px)
    levels = cv2.warpAffine(small, matrix, size_px, borderMode=cv2.BORDER_REPLICATE)
    alpha = cv2.warpAffine(mask, matrix, size_px)
    return replace(source, levels=levels, alpha=alpha, anchor=(0.5, 0.5))
