"""What `compare` sums up, on pictures and curves whose numbers are known."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from latentsync_trt.bench.clip_sync import Curves, SyncScore
from latentsync_trt.bench.quality import wording
from latentsync_trt.bench.quality.areas import Tally, as_face, as_levels, parts_of
from latentsync_trt.bench.quality.faces import FaceStore
from latentsync_trt.bench.quality.flicker import FlickerMeter
from latentsync_trt.bench.quality.lips import compare_lips
from latentsync_trt.bench.quality.results import (
    AreaLikeness,
    ClipQuality,
    Comparison,
    Flicker,
    LayerNoise,
    LipCurves,
    Lips,
    Side,
    StepNoise,
    decibels,
    median_db,
    worst_db,
)
from latentsync_trt.bench.quality.side_by_side import GAIN, difference
from latentsync_trt.bench.quality.subjects import Subject, check, read_mouth
from latentsync_trt.bench.quality.table import show_comparison
from latentsync_trt.errors import InputError, MediaError
from latentsync_trt.media.demo_clip import SPEECH, SpokenMouth, spoken_mouth
from latentsync_trt.types import Float32Array
from tests.clips import write_face, write_sound
from tests.sounds import write_samples

SIDE_PX = 128
SEED = 7

NOISE_READ = 0.02
"""How far, as a share, 30 pictures of 40×40 pixels may be off the standard deviation of their noise."""

SCREEN_COLUMNS = 100

BLOCK = "unet.down_blocks.2.motion_modules.0.temporal_transformer.transformer_blocks.0"
LONGEST_LAYER = f"{BLOCK}.attention_blocks.0.to_out.0"
"""Of the published architecture; no table has room for it."""

SCORE = SyncScore(known=False, opening=0.5, lag_frames=1, best=0.6, closures=math.nan, silence=0.5)


def faces(count: int = 2) -> Float32Array:
    levels = np.random.default_rng(SEED).integers(40, 216, (count, SIDE_PX, SIDE_PX, 3))
    return as_face(levels.astype(np.uint8))


def clip_quality(*areas: AreaLikeness) -> ClipQuality:
    lips = Lips(SCORE, replace(SCORE, opening=0.4, lag_frames=0), 0, 2, 0.04, 0.03, 0.9, 0.01)
    curves = LipCurves((0.1, math.nan), (0.1, 0.2), None, (False, True))
    return ClipQuality("clip.mp4", 2, 2, areas, lips, curves, Flicker(1.0, 1.5, 1.6, None), "c.png", "c.mp4")


def test_the_mouth_lies_in_what_is_generated() -> None:
    for side_px in (128, 256, 512):
        parts = parts_of(side_px)
        assert parts["face"] == (slice(0, side_px), slice(0, side_px))
        for mouth, generated in zip(parts["mouth"], parts["generated"], strict=True):
            assert generated.start < mouth.start < mouth.stop < generated.stop


def test_a_difference_on_the_mouth_counts_where_it_is() -> None:
    reference = faces()
    rows, columns = parts_of(SIDE_PX)["mouth"]
    changed = reference.copy()
    changed[:, rows, columns] += np.float32(0.02)
    tally = Tally(SIDE_PX)
    tally.add(reference, changed)
    found = {area.area: area for area in tally.result()}
    assert found["mouth"].psnr_db == pytest.approx(40.0, abs=1e-3)  # 20 log10(2 / 0.02)
    share = 64 * 40 / SIDE_PX**2  # rounded to whole pixels, the mouth is a little wider
    assert found["face"].psnr_db == pytest.approx(40.0 - 10 * math.log10(share), abs=0.2)
    assert found["mouth"].psnr_db < found["generated"].psnr_db < found["face"].psnr_db
    assert found["mouth"].ssim < found["face"].ssim < 1
    assert {area.frames for area in found.values()} == {2}


def test_equal_faces_have_no_decibels() -> None:
    tally = Tally(SIDE_PX)
    tally.add(faces(), faces())
    for area in tally.result():
        assert area.psnr_db is None
        assert area.ssim == pytest.approx(1.0)


def test_faces_that_are_not_there_or_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="no face was generated"):
        Tally(SIDE_PX).result()
    with pytest.raises(InputError, match="of one shape"):
        Tally(SIDE_PX).add(faces(2), faces(1))


def test_pictures_and_faces_are_the_same_in_other_numbers() -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    assert np.array_equal(as_levels(as_face(levels)), levels)


def test_noise_is_read_as_flicker_and_movement_is_not() -> None:
    random = np.random.default_rng(SEED)
    noisy, moving = FlickerMeter(), FlickerMeter()
    for index in range(30):
        noisy.add(random.normal(100, 3.0, (40, 40, 3)).astype(np.float32))
        moving.add(np.full((40, 40, 3), 5 * index, np.float32))
    assert noisy.result() == pytest.approx(3.0, rel=NOISE_READ)
    assert moving.result() == 0.0


def test_flicker_does_not_reach_over_a_gap() -> None:
    meter = FlickerMeter()
    for level in (0, 0, None, 200, 200, None, 90):
        meter.add(None if level is None else np.full((4, 4, 3), level, np.float32))
    assert meter.result() is None
    meter.add(np.full((4, 4, 3), 90, np.float32))
    meter.add(np.full((4, 4, 3), 90, np.float32))
    assert meter.result() == 0.0


def test_decibels_put_what_is_equal_above_all() -> None:
    assert decibels(100.0, 1.0) == pytest.approx(20.0)
    assert decibels(1.0, 0.0) is None
    assert decibels(0.0, 1.0) == -math.inf
    assert worst_db([None, 30.0, 20.0]) == 20.0
    assert median_db([None, 30.0, 20.0]) == 30.0
    assert median_db([None, None, 20.0]) is None
    assert worst_db([None, None]) is None


def test_clips_are_put_together_by_their_power() -> None:
    first = clip_quality(AreaLikeness("mouth", 30.0, 0.9, 30))
    second = clip_quality(AreaLikeness("mouth", None, 1.0, 10))
    other = replace(second.lips, a=replace(SCORE, opening=0.9, lag_frames=2, closures=0.25))
    found = Comparison({}, Side("a"), Side("b"), "", (first, replace(second, lips=other)))
    (pooled,) = found.areas
    assert pooled.psnr_db == pytest.approx(30.0 + 10 * math.log10(40 / 30))
    assert pooled.ssim == pytest.approx(0.925)
    assert pooled.frames == 40
    a, b = found.mean_scores
    assert (a.opening, a.lag_frames, a.closures) == (pytest.approx(0.7), 1.5, 0.25)
    assert (b.opening, b.lag_frames) == (0.4, 0.0)
    assert math.isnan(b.closures)
    lines = {line[0]: line[1:] for line in wording.together(found)}
    assert lines["frames late"] == ("1.5", "0", "-1.5")
    assert list(wording.together(Comparison({}, Side("a"), Side("b"), "", (first,)))) == []


def test_what_is_no_number_is_null_in_json() -> None:
    steps = (StepNoise(0, 999, True, True, 30.123456789, math.nan),)
    found = Comparison({}, Side("a"), Side("b"), "", (clip_quality(AreaLikeness("face", None, 1.0, 2)),), steps)
    content = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert content["kind"] == "latentsync-trt compare"
    assert content["clips"][0]["areas"][0]["psnr_db"] is None
    assert content["clips"][0]["lips"]["a"]["closures"] is None
    assert content["clips"][0]["curves"]["a"] == [0.1, None]
    assert content["steps"][0] == {
        "step": 0,
        "timestep": 999,
        "full": True,
        "guided": True,
        "so_far_db": 30.1235,
        "alone_db": None,
    }


def test_lines_say_what_was_not_measured() -> None:
    lines = {line[0]: line[1:] for line in wording.clip(clip_quality(AreaLikeness("face", None, 1.0, 2)))}
    assert lines["whole face"] == ("", "", "equal, SSIM 1.0000")
    assert lines["opening follows loudness, r"] == ("0.500", "0.400", "-0.100")
    assert lines["frames late"] == ("1", "0", "-1")
    assert "m, b, p shown shut" not in lines
    assert lines["lips move by"] == ("0.0400", "0.0300", "0.75×")
    assert lines["frames without a face"] == ("0", "2", "")
    assert lines["flicker, levels (source 1)"] == ("1.5", "1.6", "– in the difference")
    assert list(wording.sides(Comparison({}, Side("a"), Side("b"), "", ()))) == []


def test_a_table_fits_the_screen_with_all_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    area = AreaLikeness("generated", 48.81, 0.99964, 2)
    clip = replace(clip_quality(area), name=f"{'a-long-name-' * 6}.mp4", flicker=Flicker(11.57, 12.83, 12.81, 0.476))
    known = replace(SCORE, known=True)
    clip = replace(clip, lips=replace(clip.lips, a=known, b=known))
    sides = Side("1.6-512-fp16", "fp16", 512, 2_725_000_000, "0"), Side("1.6-512-int8", "int8", 512, 1_536_000_000, "1")
    steps = (StepNoise(19, 999, True, True, 45.04, 121.42),)
    layers = (LayerNoise("unet.conv_in", "Conv", None, None), LayerNoise(LONGEST_LAYER, "MatMul", 30.0, 20.93))
    show_comparison(Comparison({}, *sides, "20 ddim steps, one in 3 full", (clip, clip), steps, layers))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"worst layer: {LONGEST_LAYER}"
    assert max(len(line) for line in lines[:-1]) <= SCREEN_COLUMNS
    shown = [" ".join(line.split()) for line in lines]
    for line in (
        "size 2725.0 MB 1536.0 MB 0.56×",
        "generated part 48.8 dB, SSIM 0.9996",
        "opening follows the spoken mouth, r 0.500 0.500 +0.000",
        "flicker, levels (source 11.6) 12.8 12.8 0.476 in the difference",
        "worst step by itself 121.4 dB (step 19)",
        "worst layer 20.9 dB",
    ):
        assert line in shown
    assert clip.name in "".join(shown)


def test_no_layer_is_the_worst_of_equal_ones(capsys: pytest.CaptureFixture[str]) -> None:
    equal = (LayerNoise("unet.conv_in", "Conv", None, None),)
    show_comparison(Comparison({}, Side("a"), Side("b"), "", (), (), equal))
    shown = capsys.readouterr().out
    assert "worst layer" in shown
    assert "unet.conv_in" not in shown


def test_the_difference_is_enlarged_and_ends_at_white() -> None:
    a, b = np.array([10, 200, 0], np.uint8), np.array([12, 199, 255], np.uint8)
    assert difference(a, b).tolist() == [2 * GAIN, GAIN, 255]


def test_lips_are_compared_with_each_other() -> None:
    gaps = np.abs(np.sin(np.arange(40) / 3)).astype(np.float32) / 4
    mouth = SpokenMouth(gaps * 4, gaps < 0.02, np.zeros(40, np.bool_))
    level_db = np.zeros(40, np.float32)
    unseen = np.roll(gaps, 2)
    unseen[5] = np.nan
    found = compare_lips(Curves(gaps, level_db, mouth), Curves(unseen, level_db, mouth), "clip")
    assert (found.a.lag_frames, found.b.lag_frames) == (0, 2)
    assert (found.unseen_a, found.unseen_b) == (0, 1)
    assert found.alike < found.a.opening
    assert found.apart > 0
    assert found.moved_a == pytest.approx(float(gaps.std()))
    same = compare_lips(Curves(gaps, level_db, mouth), Curves(gaps, level_db, mouth), "clip")
    assert (same.alike, same.apart) == (1.0, 0.0)
    with pytest.raises(InputError, match=r"clip: 40 frames, of which too few show a face.*longer clip"):
        compare_lips(Curves(gaps, level_db), Curves(np.full_like(gaps, np.nan), level_db), "clip")


def test_faces_wait_on_disk_for_the_other_run(tmp_path: Path) -> None:
    store = FaceStore(tmp_path / "faces", SIDE_PX)
    store.keep(faces())
    store.keep(faces(1))
    assert len(list((tmp_path / "faces").iterdir())) == 2
    store.compare(faces())
    with pytest.raises(InputError, match="B paints 1 windows of this clip, A 2"):
        store.result()
    store.compare(faces(1))
    assert list((tmp_path / "faces").iterdir()) == []
    assert {area.frames for area in store.result()} == {3}
    with pytest.raises(InputError, match="more windows of this clip than A's 2"):
        store.compare(faces())


def test_a_mouth_is_read_as_it_is_shipped() -> None:
    found, known = read_mouth(SPEECH.with_suffix(".csv")), spoken_mouth()
    assert np.array_equal(found.opening, known.opening)
    assert np.array_equal(found.shut, known.shut)
    assert np.array_equal(found.silent, known.silent)


@pytest.mark.parametrize("content", ["opening,shut\n1,0\n", "opening,shut,silent\n", "a,b,c\nx,y,z\n", "h\nnan,0,0\n"])
def test_what_is_no_mouth_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "mouth.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=r"mouth\.csv: "):
        read_mouth(path)
    with pytest.raises(InputError, match="nowhere"):
        read_mouth(tmp_path / "nowhere.csv")


def test_silence_and_a_missing_sound_are_known_before_a_run(tmp_path: Path) -> None:
    face = write_face(tmp_path / "face.mp4", 3)
    silence = write_samples(tmp_path / "silence.wav", np.zeros(16_000, np.float32), 16_000)
    with pytest.raises(InputError, match=r"silence\.wav: silent \(never above -50 dB.*give speech with --audio"):
        check(Subject(face, silence))
    with pytest.raises(MediaError, match="has no audio stream; name the speech with --audio"):
        check(Subject(face, face))
    with pytest.raises(MediaError, match=r"gone\.mp4"):
        check(Subject(tmp_path / "gone.mp4", SPEECH))
    check(Subject(face, write_sound(tmp_path / "speech.wav", 1.0)))
