"""Scenes with objects that nothing was chosen by: to see whether thresholds hold for new objects.

Importing this module makes its objects known to `scripts.occluder_objects.cutout`. Drawn objects
are shaded as solids of revolution under one light, with soft edges and a little grain. Hands are
cut out by how far each pixel lies between the colors of the skin and the shirt near it.
"""

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from latentsync_trt.types import BoolArray, Float32Array, UInt8Array
from scripts.occluder_objects import Cutout, HandPlace, add_objects, read_frame
from scripts.occluder_painting import (
    EDGE,
    Color,
    Painting,
    Shape,
    Wall,
    ball,
    between,
    ellipse,
    lit,
    noise,
    shine,
    soft,
)
from scripts.occluder_scenes import Scene

_MUG = Shape(0.16, 0.8, 0.26, 0.235, 0.035, middle=0.44)


def _mug(color: Color, inner: Color, gloss: float, *, is_left_handled: bool = False) -> Cutout:
    """Returns a mug; `gloss`: how white the reflection of a window in its glaze is."""
    painting = Painting()
    wall = _MUG.wall(painting)
    _handle(painting, color, gloss)
    levels = lit(color, wall.across) * (1.04 - 0.22 * wall.height**4)[..., None]
    painting.lay(wall.inside, levels)
    _glaze(painting, wall, gloss)
    depth = (painting.y - _MUG.top) / _MUG.bow
    inside = np.array(inner, np.float32) * (0.75 - 0.3 * depth)[..., None]
    painting.lay(wall.opening, inside)
    painting.tint(0.7 * wall.rim, np.minimum(np.array(color) * 1.1 + 12, 250))
    made = painting.cutout((0.44, 0.19))
    if is_left_handled:
        levels = np.ascontiguousarray(made.levels[:, ::-1])
        return Cutout(levels, np.ascontiguousarray(made.alpha[:, ::-1]), (0.56, 0.19))
    return made


def _handle(painting: Painting, color: Color, gloss: float) -> None:
    """Draws a mug's handle at its right."""
    around = (ellipse(painting, (0.69, 0.46), (0.125, 0.18)) - 1) / 0.2
    painting.lay(soft((1 - np.abs(around)) * 0.028), lit(color, np.clip(around, -1, 1), 0.3))
    upper = between(painting.y, 0.28, 0.4, 0.08)
    painting.tint(gloss * upper * shine(around, 0.25, 0.18), (250, 250, 248))
    # The wall's shadow.
    painting.shade(1 - 0.35 * np.exp(-(((painting.x - 0.7) / 0.04) ** 2)))


def _glaze(painting: Painting, wall: Wall, gloss: float) -> None:
    """Draws a window's reflection, crossed by its frame, and a weaker one of the room."""
    upright = between(wall.height, 0.12, 0.72, 0.05) * (1 - 0.8 * between(wall.height, 0.4, 0.43))
    window = between(wall.across, -0.62, -0.36, 0.06) * upright
    painting.tint(gloss * window * wall.inside, (252, 252, 250))
    painting.tint(0.35 * gloss * shine(wall.across, 0.82, 0.07) * wall.inside, (225, 232, 240))


def _clay_mug() -> Cutout:
    """Returns a mug of brown clay with turning grooves, its upper part glazed."""
    painting = Painting()
    _handle(painting, (122, 80, 56), 0.0)
    wall = Shape(0.14, 0.78, 0.235, 0.275, 0.03, middle=0.44).wall(painting)
    painting.lay(wall.inside, lit((134, 86, 58), wall.across, 0.35))
    wavy = wall.height + 0.018 * noise(22, 5, (1, 0.2))
    glazed = between(wavy, -0.2, 0.34, 0.02) * wall.inside
    painting.tint(0.85 * glazed, lit((74, 84, 88), wall.across, 0.35))
    painting.tint(0.4 * glazed * shine(wall.across, 0.4, 0.1), (240, 240, 235))
    grooves = 0.05 * np.sin(wall.height * 75 + 0.6 * noise(30, 8))
    painting.shade(1 + (grooves + 0.06 * noise(3, 9) + 0.04 * noise(9, 10)) * (1 - glazed))
    painting.lay(wall.opening, (50, 38, 32))
    painting.tint(0.7 * wall.rim, (128, 122, 112))
    return painting.cutout((0.44, 0.17))


def _printed_cup() -> Cutout:
    """Returns a white paper cup with a printed sign, lines of text and a domed lid."""
    painting = Painting()
    wall = Shape(0.2, 0.94, 0.22, 0.16, 0.015).wall(painting)
    painting.lay(wall.inside, lit((234, 230, 222), wall.across, 0.45, 0.38))
    angle = np.arcsin(wall.across) / 1.57
    sign = np.hypot((angle - 0.08) * 0.3, (wall.height - 0.42) * 0.74)
    ring = between(sign, 0.085, 0.1) + between(sign, -1, 0.062)
    green = lit((34, 104, 72), wall.across, 0.45, 0.38)
    painting.tint(0.92 * ring * wall.inside, green)
    star = np.cos(5 * np.arctan2(wall.height - 0.42, angle - 0.08)) * 0.012 + 0.028
    painting.tint(0.9 * soft(star - sign) * wall.inside, (222, 226, 214))
    words = (np.sin(angle * 95) + 0.8 * np.sin(angle * 41 + 1) > 0.1).astype(np.float32)
    line = between(wall.height, 0.64, 0.665) + between(wall.height, 0.7, 0.72)
    painting.tint(0.7 * words * line * between(angle, -0.26, 0.42) * wall.inside, green)
    painting.shade(1 - 0.25 * between(wall.height, -0.1, 0.035, 0.05))
    lid = Shape(0.085, 0.2, 0.2, 0.235, 0.014).wall(painting)
    painting.lay(lid.inside, lit((206, 204, 200), lid.across, 0.45))
    for height in (0.12, 0.55, 0.9):
        groove = between(lid.height, height, height + 0.06, 0.06) * lid.inside
        painting.tint(0.5 * groove, (120, 120, 120))
    painting.tint(0.6 * lid.inside * shine(lid.across, 0.5, 0.06), (248, 248, 246))
    painting.shade(1 + 0.012 * noise(4, 12))
    return painting.cutout((0.5, 0.12))


def _glass_of_tea() -> Cutout:
    """Returns a transparent glass: alpha is 0.38 where it is clear, 0.9 at walls and highlights."""
    painting = Painting()
    wall = Shape(0.08, 0.92, 0.23, 0.185, 0.03).wall(painting)
    walls = np.abs(wall.across) ** 7
    clear = np.array((196, 203, 204), np.float32) * (0.95 - 0.35 * walls)[..., None]
    painting.lay(wall.inside * (0.38 + 0.5 * walls), clear)
    tea = wall.inside * between(wall.height, 0.2, 0.93, 0.012)
    glow = (0.75 + 0.4 * shine(wall.across, 0.35, 0.4)) * (1.1 - 0.3 * wall.height)
    painting.lay(0.8 * tea, np.array((168, 88, 34), np.float32) * glow[..., None])
    surface = between(wall.height, 0.19, 0.212, 0.012) * wall.inside
    painting.lay(0.6 * surface, (214, 156, 96))
    foot = wall.inside * between(wall.height, 0.93, 1.2)
    bands = 150 + 70 * np.sin(wall.across * 9 + 1)
    painting.lay(0.85 * foot, bands[..., None] * np.array((1.0, 0.96, 0.9), np.float32))
    upright = between(wall.height, 0.06, 0.86, 0.05) * wall.inside
    painting.lay(0.85 * upright * between(wall.across, -0.68, -0.52, 0.05), (246, 248, 248))
    painting.lay(0.5 * upright * shine(wall.across, 0.78, 0.05), (240, 240, 236))
    painting.lay(0.88 * wall.rim, (232, 236, 238))
    return painting.cutout((0.5, 0.1))


def _steel_cup() -> Cutout:
    """Returns a travel cup of brushed steel that reflects a room, with a black lid."""
    painting = Painting()
    wall = Shape(0.17, 0.94, 0.175, 0.135, 0.014).wall(painting)
    places = (-1, -0.85, -0.6, -0.36, -0.12, 0.1, 0.34, 0.55, 0.78, 0.92, 1)
    levels = (52, 88, 176, 243, 186, 118, 78, 128, 214, 140, 64)
    bent = wall.across + 0.03 * np.sin(wall.height * 5)
    room = np.interp(bent, places, levels).astype(np.float32)
    room *= 0.94 + 0.1 * np.sin(wall.height * 4 + 0.8)
    steel = room[..., None] * np.array((0.98, 1.0, 1.03), np.float32)
    painting.lay(wall.inside, steel)
    # The drinker's face, mirrored.
    mirrored = shine(wall.across, 0.1, 0.35) * shine(wall.height, 0.1, 0.2)
    painting.tint(0.3 * mirrored, (170, 116, 96))
    painting.shade(1 + 0.03 * noise(1, 14, (14, 0.7)))
    painting.shade(1 - 0.5 * between(wall.height, 0.86, 0.868, 0.012))
    lid = Shape(0.07, 0.175, 0.155, 0.185, 0.014).wall(painting)
    painting.lay(lid.inside, lit((44, 44, 47), lid.across))
    painting.tint(0.55 * lid.inside * shine(lid.across, -0.5, 0.1), (205, 208, 212))
    painting.tint(0.6 * lid.inside * between(lid.height, 0.86, 1.0, 0.05), (20, 20, 22))
    return painting.cutout((0.5, 0.1))


def _foam_microphone() -> Cutout:
    """Returns a microphone in black foam on a thin stand."""
    painting = Painting()
    pole = Shape(0.5, 1.0, 0.014, 0.014).wall(painting)
    painting.lay(pole.inside, lit((92, 92, 96), pole.across, -0.3))
    clamp = Shape(0.46, 0.58, 0.05, 0.034, 0.008).wall(painting)
    painting.lay(clamp.inside, lit((40, 40, 42), clamp.across))
    body = Shape(0.27, 0.5, 0.062, 0.05, 0.008).wall(painting)
    painting.lay(body.inside, lit((58, 58, 62), body.across))
    painting.tint(0.5 * body.inside * shine(body.across, -0.4, 0.12), (190, 190, 194))
    painting.tint(0.8 * body.inside * between(body.height, 0.55, 0.6, 0.02), (150, 34, 34))
    around = ellipse(painting, (0.5, 0.17), (0.145, 0.16))
    facing = ball(around)
    slope = 0.55 * (painting.x - 0.5) / 0.145 + 0.5 * (painting.y - 0.17) / 0.16
    light = 0.35 + 0.5 * facing - slope
    pores = 1 + 0.2 * noise(2.5, 16) + 0.12 * noise(6, 17)
    foam = np.array((44, 44, 46), np.float32) * (np.maximum(light, 0.25) * pores)[..., None]
    ragged = (1 - around) * 0.15 + 0.0025 * noise(4, 18)
    painting.lay(soft(ragged), foam)
    return painting.cutout((0.5, 0.19))


def _mesh_microphone() -> Cutout:
    """Returns a microphone with a ball of golden mesh."""
    painting = Painting()
    handle = Shape(0.3, 0.97, 0.075, 0.05, 0.012).wall(painting)
    painting.lay(handle.inside, lit((48, 40, 34), handle.across))
    painting.tint(0.6 * handle.inside * shine(handle.across, -0.45, 0.1), (214, 200, 176))
    painting.tint(0.9 * handle.inside * between(handle.height, 0.2, 0.3), (120, 92, 44))
    across = np.clip((painting.x - 0.5) / 0.135, -1, 1)
    down = np.clip((painting.y - 0.17) / 0.15, -1, 1)
    around = ellipse(painting, (0.5, 0.17), (0.135, 0.15))
    facing = ball(around)
    wires = np.cos(np.arcsin(across) * 34) + np.cos(np.arcsin(down) * 34)
    light = 0.28 + 0.75 * np.maximum(0, 0.75 * facing - 0.45 * across - 0.45 * down)
    gold = np.array((206, 160, 78), np.float32) * (light * (0.8 + 0.2 * wires))[..., None]
    painting.lay(soft((1 - around) * 0.14), gold)
    painting.tint(0.75 * shine(across, -0.4, 0.2) * shine(down, -0.4, 0.2), (255, 236, 190))
    band = Shape(0.255, 0.31, 0.115, 0.09, 0.02).wall(painting)
    polished = 0.6 + 0.55 * shine(band.across, -0.4, 0.2) + 0.2 * shine(band.across, 0.6, 0.15)
    painting.lay(band.inside, np.array((196, 152, 76), np.float32) * polished[..., None])
    return painting.cutout((0.5, 0.2))


def _wooden_spoon() -> Cutout:
    painting = Painting()
    grain = 1 + 0.07 * noise(2.5, 20, (1, 22)) + 0.03 * noise(2, 21)
    handle = Shape(0.2, 0.98, 0.018, 0.026, 0.006).wall(painting)
    painting.lay(handle.inside, lit((188, 140, 88), handle.across, -0.3, 0.45))
    around = ellipse(painting, (0.5, 0.14), (0.078, 0.12))
    outer = np.array((196, 148, 96), np.float32) * (1.05 - 0.25 * around)[..., None]
    painting.lay(soft((1 - around) * 0.09), outer)
    # The hollow is dark where the light comes from.
    slope = (painting.x - 0.5) / 0.078 + 0.5 * (painting.y - 0.14) / 0.12
    hollow = np.array((176, 128, 78), np.float32) * (1 + 0.2 * slope)[..., None]
    painting.tint(soft((0.82 - around) * 0.09), hollow)
    painting.shade(grain)
    return painting.cutout((0.5, 0.13))


def _toothbrush() -> Cutout:
    """Returns a toothbrush seen from its side, bristles to the left."""
    painting = Painting()
    tufts = 0.5 + 0.5 * np.sin(painting.y * 260)
    bristles = between(painting.x, 0.405, 0.485, 0.008) * between(painting.y, 0.03, 0.19, 0.008)
    white = (224 + 8 * noise(1.5, 23, (12, 1))) * (0.72 + 0.28 * tufts)
    tips = 0.55 + 0.45 * between(painting.x, 0.3, 0.45, 0.05)
    painting.lay(bristles, white[..., None] * np.array((0.94, 0.98, 1.0), np.float32))
    painting.tint(0.8 * bristles * between(painting.y, 0.085, 0.135), (84, 140, 206))
    painting.shade(0.6 + 0.4 * tips)
    bend = 0.012 * np.sin((painting.y - 0.03) * 6)
    neck = between(painting.y, 0.2, 0.42, 0.1)
    half = 0.026 - 0.011 * neck
    across = np.clip((painting.x - 0.505 - bend) / half, -1.2, 1.2)
    length = between(painting.y, 0.015, 0.97, 0.012)
    plastic = lit((30, 148, 150), np.clip(across, -1, 1))
    painting.lay(soft((1 - np.abs(across)) * half) * length, plastic)
    grip = between(painting.y, 0.52, 0.86, 0.02) * between(across, -0.5, 0.75, 0.2)
    ribs = 0.85 + 0.15 * np.sin(painting.y * 230)
    painting.tint(0.9 * grip, 232 * ribs[..., None] * np.ones(3, np.float32))
    painting.tint(0.6 * shine(across, -0.5, 0.16) * between(painting.x, 0.47, 0.6), (246, 252, 252))
    return painting.cutout((0.47, 0.11))


def _banana() -> Cutout:
    painting = Painting()
    along = np.arctan2(painting.y - 0.5, 1.02 - painting.x) / 0.78
    distance = np.hypot(painting.x - 1.02, painting.y - 0.5)
    thick = 0.088 * np.clip(1 - np.abs(along) ** 5, 0, 1) ** 0.6
    stem = 0.02 * between(along, -1.12, 0.5, 0.03)
    half = np.maximum(np.maximum(thick, stem), 1e-3)
    across = np.clip((0.6 - distance) / half, -1.2, 1.2)
    body = soft((1 - np.abs(across)) * half) * between(along, -1.12, 1.0, 0.02)
    painting.lay(body, lit((232, 192, 62), np.clip(across, -1, 1), 0.45, 0.42))
    for ridge in (-0.35, 0.4):
        painting.tint(0.3 * shine(across, ridge, 0.06), (166, 122, 34))
        painting.tint(0.25 * shine(across, ridge + 0.14, 0.1), (250, 226, 120))
    painting.tint(0.6 * between(along, -1.3, -0.8, 0.3), (150, 152, 56))
    painting.tint(0.9 * between(along, 0.93, 1.2, 0.06), (62, 44, 26))
    painting.tint(0.8 * between(along, -1.3, -1.07, 0.05), (74, 54, 30))
    painting.tint(0.65 * between(noise(5, 26, (1, 2)), 2.1, 9, 0.4), (112, 72, 28))
    painting.shade(1 + 0.02 * noise(7, 27))
    return painting.cutout((0.42, 0.5))


def _burger() -> Cutout:
    painting = Painting()
    _slab(painting, (0.6, 0.75), 0.37, (206, 148, 82), 0.05)
    _slab(painting, (0.5, 0.635), 0.39, (84, 50, 34), 0.17)
    _slab(painting, (0.44, 0.53), 0.37, (196, 52, 40), 0.05)
    drooping = 0.49 + 0.075 * np.abs(np.sin(painting.x * 14))
    cheese = between(painting.x, 0.14, 0.86, EDGE) * soft(painting.y - 0.48)
    painting.lay(cheese * soft(drooping - painting.y), (240, 180, 62))
    curly = 0.478 + 0.018 * np.sin(painting.x * 60) + 0.006 * noise(9, 31)
    leaf = 96 + 30 * np.sin(painting.x * 60 + 1) + 10 * noise(4, 30)
    salad = leaf[..., None] * np.array((0.95, 1.5, 0.5), np.float32)
    layer = between(painting.y - curly, -0.04, 0.0, EDGE)
    painting.lay(layer * between(painting.x, 0.1, 0.9), salad)
    around = ellipse(painting, (0.5, 0.46), (0.39, 0.29))
    facing = ball(around)
    light = 0.5 + 0.5 * facing - 0.22 * (painting.x - 0.5) / 0.39
    crust = np.array((206, 136, 64), np.float32) * light[..., None]
    painting.lay(soft((1 - around) * 0.3) * soft(0.46 - painting.y), crust)
    _sesame(painting)
    painting.shade(1 + 0.03 * noise(5, 32))
    return painting.cutout((0.42, 0.45))


def _slab(
    painting: Painting, rows: tuple[float, float], half: float, color: Color, roughness: float
) -> None:
    """Draws a round layer of a burger between two rows."""
    middle = (rows[0] + rows[1]) / 2
    down = np.clip(np.abs(painting.y - middle) / (rows[1] - middle), 0, 1)
    width = half - 0.04 * down**3
    part = soft(width - np.abs(painting.x - 0.5)) * between(painting.y, *rows, EDGE)
    across = np.clip((painting.x - 0.5) / half, -1, 1)
    levels = lit(color, across, -0.25, 0.4) * (1.08 - 0.4 * down**2)[..., None]
    levels *= (1 + roughness * noise(5, 29))[..., None]
    painting.lay(part, levels)


def _sesame(painting: Painting) -> None:
    random = np.random.default_rng(33)
    for _ in range(32):
        angle = random.uniform(0, np.pi)
        reach = np.sqrt(random.uniform(0, 0.8))
        center = (0.5 + 0.37 * reach * np.cos(angle), 0.44 - 0.27 * reach * np.sin(angle))
        near = ellipse(painting, center, (0.013, 0.009))
        painting.tint(0.9 * soft((1 - near) * 0.01), (236, 212, 164))


_SQUARE = np.ones((3, 3), np.uint8)

_HANDS = {
    "straight fingers": HandPlace("demo3", 48, 345, 1050, 600, 1270, (0.65, 0.5)),
    "flat hand and thumb": HandPlace("demo3", 434, 350, 1175, 775, 1365, (0.7, 0.6)),
    "spread thumb": HandPlace("demo3", 406, 400, 1065, 845, 1350, (0.28, 0.65)),
}


def _hand(place: HandPlace, folder: Path) -> Cutout:
    """Returns a hand before a white shirt; alpha: how far each pixel is from the shirt's color near
    it, on the way to the skin's.
    """
    whole = read_frame(folder / f"{place.clip}_video.mp4", place.frame)
    rgb = whole[place.top : place.bottom, place.left : place.right]
    lab = cv2.cvtColor(rgb, cv2.COLOR_RGB2LAB).astype(int)
    warmth = lab[..., 1] + lab[..., 2] - 256
    skin = _largest(cv2.erode(((warmth > 16) & (lab[..., 0] < 192)).astype(np.uint8), _SQUARE))
    shirt = cv2.erode(((warmth < 9) & (lab[..., 0] > 160)).astype(np.uint8), _SQUARE) > 0
    skin_color = _color_near(rgb, skin)
    toward = skin_color - _color_near(rgb, shirt)
    from_shirt = rgb - skin_color + toward
    share = (from_shirt * toward).sum(axis=2) / np.maximum((toward**2).sum(axis=2), 1)
    alpha = np.clip((share - 0.1) / 0.8, 0, 1)
    alpha[cv2.erode(skin.astype(np.uint8), _SQUARE) > 0] = 1
    alpha[cv2.dilate(skin.astype(np.uint8), np.ones((9, 9), np.uint8)) == 0] = 0
    # Nails and slits between fingers are nearly as white as the shirt.
    alpha = cv2.morphologyEx(alpha, cv2.MORPH_CLOSE, np.ones((5, 5), np.uint8))
    own = cv2.erode((share > 0.85).astype(np.uint8), _SQUARE) > 0
    levels = np.where(own[..., None], rgb, skin_color).astype(np.float32)
    return Cutout(levels, alpha.astype(np.float32), place.anchor, is_skin=True)


def _largest(mask: UInt8Array) -> BoolArray:
    """Returns the largest connected part of a mask."""
    _, labels, stats, _ = cv2.connectedComponentsWithStats(mask)
    return labels == 1 + int(np.argmax(stats[1:, cv2.CC_STAT_AREA]))


def _color_near(rgb: UInt8Array, where: BoolArray) -> Float32Array:
    """Returns for each pixel the mean color of the nearest pixels of a mask."""
    total = np.zeros(rgb.shape, np.float32)
    weight = np.zeros(where.shape, np.float32)
    # Far pixels count only where there are no near ones.
    for reach_px, share in ((2.5, 1.0), (8, 1e-3), (40, 1e-6)):
        inside = where.astype(np.float32)
        total += share * cv2.GaussianBlur(rgb * inside[..., None], (0, 0), reach_px)
        weight += share * cv2.GaussianBlur(inside, (0, 0), reach_px)
    return total / np.maximum(weight, 1e-12)[..., None]


_DRAWN: dict[str, Callable[[], Cutout]] = {
    "porcelain mug": lambda: _mug((236, 234, 229), (196, 192, 186), 0.9),
    "clay mug": _clay_mug,
    "printed cup": _printed_cup,
    "glass of tea": _glass_of_tea,
    "steel cup": _steel_cup,
    "pink mug": lambda: _mug((228, 184, 168), (206, 178, 168), 0.3, is_left_handled=True),
    "black mug": lambda: _mug((40, 40, 43), (70, 66, 64), 0.75),
    "foam microphone": _foam_microphone,
    "golden microphone": _mesh_microphone,
    "wooden spoon": _wooden_spoon,
    "toothbrush": _toothbrush,
    "banana": _banana,
    "burger": _burger,
}


def _made(name: str, folder: Path) -> Cutout:
    return _hand(_HANDS[name], folder) if name in _HANDS else _DRAWN[name]()


add_objects((*_HANDS, *_DRAWN), _made)

FRESH = (
    Scene("cup", "porcelain mug", "demo1", 65, 0.8, 95, 9, turn_deg=6),
    Scene("cup", "clay mug", "demo2", 90, 0.72, 80, 6, -8, (0.03, -0.05)),
    Scene("cup", "printed cup", "demo3", 30, 0.9, 75, 7, turn_deg=-10),
    Scene("cup", "glass of tea", "demo2", 415, 0.85, 90, 8, turn_deg=5),
    Scene("cup", "steel cup", "portrait", 25, 1.05, 105, 6, turn_deg=12),
    Scene("cup", "pink mug", "demo3", 200, 0.85, 100, 10, turn_deg=-5),
    Scene("cup", "black mug", "portrait", 55, 0.78, 85, 5, turn_deg=-14),
    Scene("hand", "straight fingers", "demo3", 120, 1.25, 140, 7, 20, (0, 0.16)),
    Scene("hand", "flat hand and thumb", "demo2", 20, 2.3, 165, 9, turn_deg=15),
    Scene("hand", "spread thumb", "demo1", 85, 2.2, 15, 6, turn_deg=-10),
    Scene("microphone", "foam microphone", "demo3", 350, 1.5, 90, 8, 0, (0.04, 0.1)),
    Scene("microphone", "golden microphone", "demo1", 100, 1.15, 65, 6, 24, (0.02, 0.1)),
    Scene("pen", "wooden spoon", "demo3", 420, 1.5, 60, 7, 35, (-0.05, 0)),
    Scene("pen", "toothbrush", "portrait", 80, 1.25, 40, 6, turn_deg=55),
    Scene("food", "banana", "demo2", 430, 1.0, 110, 8, turn_deg=65),
    Scene("food", "burger", "demo3", 520, 0.75, 90, 6),
)
"""Scenes from which numbers are reported, and by which neither thresholds nor steps are chosen."""
