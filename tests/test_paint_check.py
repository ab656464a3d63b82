"""Each painted face is compared with its source, and with those before."""

from collections.abc import Callable
from fractions import Fraction

import cv2
import numpy as np
import pytest

from latentsync_trt.compositing.outline import LIPS
from latentsync_trt.errors import InputError
from latentsync_trt.face.align import crop_size_px
from latentsync_trt.measure.paint_check import PaintCheck
from latentsync_trt.measure.paint_figures import (
    ComparedFace,
    PaintFigures,
    compared_face,
    paint_figures,
)
from latentsync_trt.measures import Interval, LipMeasure, Measures
from latentsync_trt.media.demo_clip import portrait
from latentsync_trt.types import AlignedFace, Float32Array, Frame, UInt8Array

SIDE_PX = 128
FPS = 25
FACE = cv2.resize(portrait()[45:215, 140:310], (SIDE_PX, SIDE_PX), interpolation=cv2.INTER_AREA)
SIZE_PX = crop_size_px(SIDE_PX)
FRAME = cv2.resize(FACE, SIZE_PX)
MOUTH = (0.5 * SIZE_PX[0], 0.7 * SIZE_PX[1])

Change = Callable[[UInt8Array], UInt8Array]


def softer(sigma: float) -> Change:
    return lambda face: np.asarray(cv2.GaussianBlur(face, (0, 0), sigma), np.uint8)


BLURRED = softer(0.4)


def to_the_right(distance_px: float) -> Change:
    matrix = np.array([[1, 0, distance_px], [0, 1, 0]], np.float32)
    return lambda face: np.asarray(
        cv2.warpAffine(face, matrix, (SIDE_PX, SIDE_PX), borderMode=cv2.BORDER_REPLICATE), np.uint8
    )


def left_half_gray(face: UInt8Array) -> UInt8Array:
    result = face.copy()
    result[:, : SIDE_PX // 2] = 127
    return result


def with_open_mouth(face: UInt8Array) -> UInt8Array:
    result = face.copy()
    cv2.ellipse(result, (64, 90), (14, 10), 0, 0, 360, (50, 20, 20), -1)
    return result


def mesh(center: tuple[float, float] = MOUTH) -> Float32Array:
    points = np.zeros((468, 2), np.float32)
    angles = np.linspace(0, 2 * np.pi, len(LIPS), endpoint=False)
    points[LIPS] = np.array(center) + 8 * np.column_stack([np.cos(angles), np.sin(angles)])
    return points


def painted(
    change: Change = BLURRED, *, number: int = 0, lips: tuple[float, float] = MOUTH
) -> ComparedFace:
    """The portrait with some noise, painted with a change."""
    random = np.random.default_rng(number)
    source = np.clip(FACE + random.normal(0, 2, FACE.shape), 0, 255).astype(np.uint8)
    aligned = AlignedFace(source, np.eye(2, 3), SIZE_PX)
    levels = change(source).astype(np.uint16) * 257
    return compared_face(aligned, levels, mesh(lips), None)


def figures(change: Change, *, lips: tuple[float, float] = MOUTH) -> PaintFigures:
    (of_face,) = paint_figures([painted(change, lips=lips)])
    return of_face


def watched(check: PaintCheck, faces: int, faults: dict[range, ComparedFace]) -> list[Interval]:
    """Adds as many faces; in the ranges, those with faults."""
    for index in range(faces):
        face = painted(number=index)
        for indices, faulty in faults.items():
            if index in indices:
                face = faulty
        time_s = Fraction(index, FPS)
        frame = Frame(index, time_s, Fraction(1, FPS), time_s, FRAME, None)
        check.add(frame, 0, face, is_free=True)
    return list(check.times())


def test_figures_of_what_was_painted() -> None:
    alike = figures(lambda face: face)
    assert alike.forehead.likeness == pytest.approx(1, abs=0.01)
    assert alike.forehead.sharpness == pytest.approx(1)
    assert alike.lips_in_mask == 1
    blurred = figures(softer(2))
    assert blurred.forehead.sharpness < 0.6
    assert blurred.forehead.likeness > 0.9
    frame_px = SIZE_PX[0] / SIDE_PX
    assert figures(to_the_right(0.7)).shift_px == pytest.approx(0.7 * frame_px, abs=0.1)
    opened = figures(with_open_mouth)
    assert opened.nose.likeness > 0.9
    assert figures(lambda face: face, lips=(MOUTH[0] + 60, MOUTH[1])).lips_in_mask < 0.8


@pytest.mark.parametrize(
    ("change", "lips", "reason"),
    [
        (softer(1.5), MOUTH, "blurred"),
        (to_the_right(2), MOUTH, "jumps"),
        (left_half_gray, MOUTH, "smeared"),
        (lambda face: face, (MOUTH[0] + 60, MOUTH[1]), "partly outside its mask"),
    ],
)
def test_half_a_second_that_does_not_fit(
    change: Change, lips: tuple[float, float], reason: str
) -> None:
    times = watched(PaintCheck(), 60, {range(30, 43): painted(change, lips=lips)})
    assert [(each.start_s, reason in each.reason) for each in times] == [(1.2, True)]
    assert times[0].end_s == pytest.approx(1.72, abs=0.09)


def test_what_is_no_fault() -> None:
    assert watched(PaintCheck(), 60, {}) == []
    assert watched(PaintCheck(), 60, {range(30, 60): painted(with_open_mouth)}) == []
    assert watched(PaintCheck(), 60, {range(30, 33): painted(softer(3))}) == []
    # What a track begins with is usual there.
    assert watched(PaintCheck(), 60, {range(60): painted(softer(1))}) == []


def test_something_in_front_of_the_nose_is_no_fault() -> None:
    def hand(face: UInt8Array) -> UInt8Array:
        result = face.copy()
        result[62:] = 150
        return result

    for is_free, count in ((True, 1), (False, 0)):
        check = PaintCheck()
        watched(check, 30, {})
        for index in range(30, 45):
            time_s = Fraction(index, FPS)
            frame = Frame(index, time_s, Fraction(1, FPS), time_s, FRAME, None)
            check.add(frame, 0, painted(hand), is_free=is_free)
        assert len(check.times()) == count


def with_nose_of(other: UInt8Array, share: float) -> Change:
    """Blends the nose and the cheeks beside it with those of another picture."""

    def change(face: UInt8Array) -> UInt8Array:
        part = np.s_[64:79, 23:105]
        result = face.copy()
        result[part] = cv2.addWeighted(face[part], 1 - share, other[part], share, 0)
        return result

    return change


def test_a_nose_that_never_was_the_source_s_is_no_fault() -> None:
    """As where a model paints a smile away, and then rounds the lips."""
    other = np.ascontiguousarray(FACE[::-1, ::-1])
    usual = painted(with_nose_of(other, 0.5))
    worse = painted(with_nose_of(other, 0.8))
    assert watched(PaintCheck(), 60, {range(30): usual, range(30, 43): worse}) == []
    assert watched(PaintCheck(), 60, {range(30, 43): worse})


def test_what_lasts_is_usual_at_last() -> None:
    (time,) = watched(PaintCheck(), 700, {range(30, 700): painted(softer(1))})
    assert 2 < time.end_s < 20


def test_what_is_wrong_at_once_is_told_together() -> None:
    faults = {range(30, 43): painted(softer(2)), range(44, 60): painted(left_half_gray)}
    (time,) = watched(PaintCheck(), 70, faults)
    assert set(time.reason.split(", ")) >= {"blurred", "smeared"}


def test_strict_stops_at_the_first_time() -> None:
    with pytest.raises(InputError, match=r"1\.2–1\.4 s: blurred \(--strict\)"):
        watched(PaintCheck(strict=True), 60, {range(30, 43): painted(softer(2))})


def test_strict_stops_before_a_file_is_finished() -> None:
    """Also at one of the last faces: `times` is asked when the file is in its place."""
    check = PaintCheck(strict=True)
    watched(check, 49, {range(45, 49): painted(softer(2))})
    with pytest.raises(InputError, match="blurred"):
        for index in (49, 50):
            time_s = Fraction(index, FPS)
            frame = Frame(index, time_s, Fraction(1, FPS), time_s, FRAME, None)
            check.add(frame, 0, painted(softer(2)), is_free=True)


def test_color_as_it_is_pasted() -> None:
    aligned = AlignedFace(FACE, np.eye(2, 3), SIZE_PX)
    redder = np.clip(FACE + np.array([20, 0, 0]), 0, 255).astype(np.uint16) * 257
    back = np.eye(3, 4, dtype=np.float32)
    back[0, 3] = -20
    faces = [compared_face(aligned, redder, mesh(), color) for color in (None, back)]
    red, mended = paint_figures(faces)
    assert red.color.real > 4
    assert abs(mended.color) < 1


def test_a_verdict_names_the_first_times() -> None:
    lips = (LipMeasure(None, 50, "follows"),)
    times = tuple(Interval(each, each + 0.94, "smeared") for each in (3.2, 5.0, 7.0, 9.0))
    text = str(Measures(lips, misfits=times))
    assert text.startswith("alarm: 3.2–4.1 s: smeared, 5.0–5.9 s: smeared, 7.0–7.9 s: smeared and")
    assert text.endswith("and 1 more; lips follow the speech")
