"""What `compare` measures and says, on pictures and curves whose numbers are known."""

import math
from dataclasses import replace

import numpy as np
import pytest

from latentsync_trt.errors import InputError
from latentsync_trt.measure.compare import ClipResults, FaceMeter, Lips, compare_lips
from latentsync_trt.measure.lips import Curves, SyncScore
from latentsync_trt.measure.pictures import Likeness, mouth_part
from latentsync_trt.media.demo_clip import SpokenMouth
from latentsync_trt.types import UInt8Array

SIDE_PX = 128
SEED = 7

SCORE = SyncScore(known=False, opening=0.5, lag_frames=1, closures=math.nan, silence=0.5)
CURVES = Curves(np.array([0.1, math.nan], np.float32), np.array([0, -50], np.float32))
EQUAL = Likeness(None, 1.0, 2)


def face() -> UInt8Array:
    return np.random.default_rng(SEED).integers(40, 216, (SIDE_PX, SIDE_PX, 3)).astype(np.uint8)


def clip_results(found: Likeness = EQUAL) -> ClipResults:
    lips = Lips(SCORE, replace(SCORE, opening=0.4, lag_frames=0), 0, 2, 0.04, 0.03, 0.9, 0.01)
    flicker = {"source": 1.0, "a": 1.5, "b": 1.6, "difference": None}
    areas: dict[str, Likeness] = {"generated": found, "mouth": EQUAL}
    return ClipResults("clip.mp4", 2, 2, areas, lips, CURVES, CURVES, flicker, "c.png", "c.mp4")


def test_a_difference_counts_in_the_part_that_holds_it() -> None:
    source = face()
    rows, columns = mouth_part(SIDE_PX)
    changed = source.copy()
    changed[rows, columns] += 5
    meter = FaceMeter(SIDE_PX)
    meter.add(None)
    meter.add((source, source, changed))
    found = meter.areas()
    assert found["mouth"].psnr_db == pytest.approx(20 * math.log10(255 / 5))
    assert found["mouth"].psnr_db < found["generated"].psnr_db
    assert found["mouth"].ssim < found["generated"].ssim < 1
    assert found["mouth"].frames == 1


def test_lips_are_compared_with_the_speech_and_with_each_other() -> None:
    gaps = np.abs(np.sin(np.arange(40) / 3)).astype(np.float32) / 4
    mouth = SpokenMouth(gaps * 4, gaps < 0.02, np.zeros(40, np.bool_))
    level_db = np.zeros(40, np.float32)
    late = np.roll(gaps, 2)
    late[5] = np.nan
    found = compare_lips(Curves(gaps, level_db, mouth), Curves(late, level_db, mouth), "clip")
    assert (found.a.lag_frames, found.b.lag_frames) == (0, 2)
    assert (found.missing_a, found.missing_b) == (0, 1)
    assert found.alike < found.a.opening
    assert found.apart > 0
    assert found.moved_a == pytest.approx(float(gaps.std()))
    same = compare_lips(Curves(gaps, level_db, mouth), Curves(gaps, level_db, mouth), "clip")
    assert (same.alike, same.apart) == (1.0, 0.0)
    with pytest.raises(InputError, match=r"clip: 40 frames, of which too few show a face.*longer clip"):
        compare_lips(Curves(gaps, level_db), Curves(np.full_like(gaps, np.nan), level_db), "clip")
