"""What `compare` measures and says, on pictures and curves whose numbers are known."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from latentsync_trt.bench.compare.clip import (
    Area,
    ClipResults,
    FaceMeter,
    FlickerMeter,
    Lips,
    compare_lips,
    parts_of,
)
from latentsync_trt.bench.compare.report import lines_of, show_comparison
from latentsync_trt.bench.compare.run import Comparison, Side

from latentsync_trt.errors import InputError
from latentsync_trt.measure.lips import Curves, SyncScore
from latentsync_trt.measure.pictures import Likeness
from latentsync_trt.media.demo_clip import SpokenMouth
from latentsync_trt.types import UInt8Array

SIDE_PX = 128
SEED = 7

NOISE_READ = 0.02
"""How far, as a share, 30 pictures of 40×40 pixels may be off the standard deviation of their noise."""

SCREEN_COLUMNS = 100

SCORE = SyncScore(known=False, opening=0.5, lag_frames=1, closures=math.nan, silence=0.5)
CURVES = Curves(np.array([0.1, math.nan], np.float32), np.array([0, -50], np.float32))
EQUAL = Likeness(None, 1.0, 2)
SIDES = Side("1.6-512-fp16", "fp16", 512, 2_725_000_000, "0"), Side("1.6-512-int8", "int8", 512, 1_536_000_000, "1")


def face() -> UInt8Array:
    return np.random.default_rng(SEED).integers(40, 216, (SIDE_PX, SIDE_PX, 3)).astype(np.uint8)


def clip_results(found: Likeness = EQUAL) -> ClipResults:
    lips = Lips(SCORE, replace(SCORE, opening=0.4, lag_frames=0), 0, 2, 0.04, 0.03, 0.9, 0.01)
    flicker = {"source": 1.0, "a": 1.5, "b": 1.6, "difference": None}
    areas: dict[Area, Likeness] = {"generated": found, "mouth": EQUAL}
    return ClipResults("clip.mp4", 2, 2, areas, lips, CURVES, CURVES, flicker, "c.png", "c.mp4")


def test_a_difference_counts_in_the_part_that_holds_it() -> None:
    source = face()
    rows, columns = parts_of(SIDE_PX)["mouth"]
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


def test_noise_is_flicker_and_steady_movement_is_not() -> None:
    random = np.random.default_rng(SEED)
    noisy, moving = FlickerMeter(), FlickerMeter()
    for index in range(30):
        noisy.add(random.normal(100, 3.0, (40, 40, 3)).astype(np.float32))
        moving.add(np.full((40, 40, 3), 5 * index, np.float32))
    assert noisy.result() == pytest.approx(3.0, rel=NOISE_READ)
    assert moving.result() == 0.0


def test_flicker_is_not_measured_across_frames_without_a_face() -> None:
    meter = FlickerMeter()
    for level in (0, 0, None, 200, 200, None, 90):
        meter.add(None if level is None else np.full((4, 4, 3), level, np.float32))
    assert meter.result() is None
    meter.add(np.full((4, 4, 3), 90, np.float32))
    meter.add(np.full((4, 4, 3), 90, np.float32))
    assert meter.result() == 0.0


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


def test_json_has_null_for_what_is_not_a_number() -> None:
    found = Comparison({}, Side("a"), Side("b"), "", clip_results())
    content = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert (content["kind"], content["format"]) == ("latentsync-trt compare", 3)
    clip = content["clip"]
    assert clip["areas"]["mouth"] == {"psnr_db": None, "ssim": 1.0, "frames": 2}
    assert clip["lips"]["a"]["closures"] is None
    assert clip["a"]["gaps"] == [0.1, None]
    assert clip["flicker"] == {"source": 1.0, "a": 1.5, "b": 1.6, "difference": None}


def test_lines_leave_out_what_was_not_measured() -> None:
    lines = {line[0]: line[1:] for line in lines_of(Comparison({}, Side("a"), Side("b"), "", clip_results()))}
    assert lines["mouth"] == ("", "", "equal, SSIM 1.0000")
    assert lines["opening follows loudness, r"] == ("0.500", "0.400", "-0.100")
    assert lines["frames late"] == ("1", "0", "-1")
    assert "m, b, p shown shut" not in lines
    assert lines["lips move by"] == ("0.0400", "0.0300", "0.75×")
    assert lines["frames without a face"] == ("0", "2", "")
    assert lines["flicker, levels (source 1)"] == ("1.5", "1.6", "– in the difference")
    assert not {"precision", "resolution", "size"} & set(lines)


def test_the_table_fits_a_terminal_with_all_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    found = Likeness(48.81, 0.99964, 2)
    clip = replace(clip_results(found), name=f"{'a-long-name-' * 6}.mp4")
    known = replace(SCORE, known=True)
    clip = replace(
        clip,
        lips=replace(clip.lips, a=known, b=known),
        flicker={"source": 11.57, "a": 12.83, "b": 12.81, "difference": 0.476},
    )
    show_comparison(Comparison({}, *SIDES, "steps 20", clip))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= SCREEN_COLUMNS
    shown = [" ".join(line.split()) for line in lines]
    for line in (
        "size 2725.0 MB 1536.0 MB 0.56×",
        "generated part 48.8 dB, SSIM 0.9996",
        "opening follows the spoken mouth, r 0.500 0.500 +0.000",
        "flicker, levels (source 11.6) 12.8 12.8 0.476 in the difference",
    ):
        assert line in shown
    assert clip.name in "".join(shown)
