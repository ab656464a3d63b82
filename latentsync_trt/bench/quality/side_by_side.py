"""Source, A, B and what they differ by, side by side: one picture of moments, and a video with the sound."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from latentsync_trt.bench.canvas import FAINT, Canvas
from latentsync_trt.bench.moments import CELL_PX, Moment
from latentsync_trt.bench.quality.views import Faces, View
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import InputError
from latentsync_trt.media.writer import write_pictures
from latentsync_trt.types import UInt8Array

GAIN = 8
"""How many times the difference is enlarged."""

_GAP_PX, _HEAD_PX, _LABELS_PX, _FOOT_PX = 8, 40, 232, 64
_LABEL_CHARACTERS = 18
_NO_FACE = 127


def difference(a: UInt8Array, b: UInt8Array) -> UInt8Array:
    """What two pictures of one shape differ by, enlarged, white where it is too much to show."""
    apart = np.abs(a.astype(np.int16) - b) * GAIN
    return np.asarray(np.minimum(apart, 255), np.uint8)


def write_video(path: Path, stream: Iterable[View], names: tuple[str, str], audio: Path) -> None:
    """Writes a video of all views with the sound of `audio`; `names` are A's and B's.

    Raises:
        OutputError: it cannot be written. MediaError: the sound cannot be read.
    """
    write_pictures(path, _pictures(stream, names), audio=audio)


def keeping(stream: Iterable[View], moments: Sequence[Moment], kept: dict[int, Faces]) -> Iterator[View]:
    """The same views, of which the faces at `moments` go into `kept`, by their frames."""
    wanted = {moment.index for moment in moments}
    for view in stream:
        if view.index in wanted and view.shown is not None:
            kept[view.index] = view.shown
        yield view


def draw_moments(kept: Mapping[int, Faces], moments: Sequence[Moment], names: tuple[str, str]) -> Canvas:
    """A row each for source, A, B and the difference, a column for each of the moments, whose faces are `kept`.

    Raises:
        InputError: there are no moments, or the source shows no face at one of them.
    """
    if not moments:
        raise InputError("no frame shows a face: there is nothing to draw")
    titles = _titles(names)
    height = len(titles) * (CELL_PX + _GAP_PX) + _FOOT_PX
    canvas = Canvas(_LABELS_PX + len(moments) * (CELL_PX + _GAP_PX), height + _GAP_PX)
    for row, title in enumerate(titles):
        middle = _GAP_PX + row * (CELL_PX + _GAP_PX) + CELL_PX / 2
        canvas.text(_LABELS_PX - 16, middle, title, 18, bold=True, anchor=1)
    for column, moment in enumerate(moments):
        faces = kept.get(moment.index)
        if faces is None:
            raise InputError(f"the source shows no face in frame {moment.index}")
        left = _LABELS_PX + column * (CELL_PX + _GAP_PX)
        for row, image in enumerate(_cells(faces)):
            canvas.paste(left, _GAP_PX + row * (CELL_PX + _GAP_PX), image)
        canvas.text(left + CELL_PX / 2, height - 28, f"{moment.index / MODEL_FPS:.2f} s", 20, bold=True, anchor=0.5)
        canvas.text(left + CELL_PX / 2, height - 4, moment.shows, 18, FAINT, anchor=0.5)
    return canvas


def _pictures(stream: Iterable[View], names: tuple[str, str]) -> Iterator[UInt8Array]:
    titles = _titles(names)
    canvas = Canvas(len(titles) * (CELL_PX + _GAP_PX) + _GAP_PX, CELL_PX + _HEAD_PX + _GAP_PX)
    lefts = [_GAP_PX + column * (CELL_PX + _GAP_PX) for column in range(len(titles))]
    for left, title in zip(lefts, titles, strict=True):
        canvas.text(left + CELL_PX / 2, _HEAD_PX - 12, title, 18, bold=True, anchor=0.5)
    blank: UInt8Array = np.full((CELL_PX, CELL_PX, 3), _NO_FACE, np.uint8)
    for view in stream:
        cells = _cells((blank, blank, blank) if view.shown is None else view.shown)
        for left, image in zip(lefts, cells, strict=True):
            canvas.paste(left, _HEAD_PX, image)
        yield canvas.pixels.copy()


def _cells(faces: Faces) -> tuple[UInt8Array, ...]:
    source, a, b = faces
    return source, a, b, difference(a, b)


def _titles(names: tuple[str, str]) -> tuple[str, ...]:
    a, b = (_short(name) for name in names)
    return "source", f"A: {a}", f"B: {b}", f"difference x {GAIN}"


def _short(name: str) -> str:
    """In the characters that a canvas can draw, as many as fit."""
    plain = name.encode("ascii", "replace").decode()
    return plain if len(plain) <= _LABEL_CHARACTERS else f"{plain[: _LABEL_CHARACTERS - 2]}.."
