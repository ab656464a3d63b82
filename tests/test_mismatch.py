"""A bundle that does not fit the face is told before the work, or from the first painted faces."""

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import cv2
import numpy as np
import pytest

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.bundle.manifest import Manifest, read_manifest
from latentsync_trt.errors import InputError
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.measure.clips import measure_clip
from latentsync_trt.measure.lips import FOLLOWS, loudness_of, measure_following
from latentsync_trt.measure.mismatch import ModelMismatchCheck
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.demo_clip import SPEECH, portrait
from latentsync_trt.types import Float32Array, UInt8Array
from scripts.train_demo.score import spoken_mouth
from tests.clips import write_clip
from tests.people import first_person, second_person
from tests.small import small_bundle

FACE = cv2.resize(portrait()[60:220, 150:310], (128, 128))
SMEARED = np.rint(0.4 * FACE + 0.6 * np.array([160, 120, 180])).astype(np.uint8)


DEMO = read_manifest(small_bundle())
PUBLISHED = replace(DEMO, name="mine", model="1.6")


def check(
    said: list[str], manifest: Manifest = PUBLISHED, side_px: int = 512
) -> ModelMismatchCheck:
    return ModelMismatchCheck(manifest, side_px, said.append, strict=False)


@pytest.mark.parametrize(
    ("painted", "side_px", "color", "sharpness", "words"),
    [
        (FACE, 512, (0, 0.01), (1, 1), ""),
        (np.rint(0.8 * FACE).astype(np.uint8), 512, (0, 4), (0.7, 0.9), ""),
        (SMEARED, 512, (9, 30), (0.3, 0.5), "bundle mine holds other weights"),
        (
            cv2.GaussianBlur(FACE, (0, 0), 4),
            256,
            (0, 2),
            (0, 0.35),
            "trained at 512 px",
        ),
        (np.full_like(FACE, 127), 512, (5, 20), (0, 0), "does not look like"),
    ],
    ids=["same", "darker", "smeared", "blurred", "gray"],
)
def test_the_first_painted_faces_decide_once(
    painted: UInt8Array,
    side_px: int,
    color: tuple[float, float],
    sharpness: tuple[float, float],
    words: str,
) -> None:
    said: list[str] = []
    checked = check(said, side_px=side_px)
    for _ in range(20):
        checked.check_painted_face(FACE, painted.astype(np.uint16) * 257)
    assert said == ([checked.text] if words else [])
    assert words in checked.text
    assert checked.fit is not None
    assert color[0] <= checked.fit.color <= color[1]
    assert sharpness[0] - 1e-6 <= checked.fit.sharpness <= sharpness[1] + 1e-6


@pytest.mark.parametrize(
    ("frames", "known"), [(first_person(30)[::7], True), (second_person(1), False)]
)
def test_the_built_in_model_knows_one_face(
    frames: list[UInt8Array], known: bool, detector: MediaPipeDetector
) -> None:
    for rgb in frames:
        said: list[str] = []
        (face,) = detector.detect(rgb)
        for manifest in (DEMO, PUBLISHED):
            checked = check(said, manifest)
            for _ in range(2):
                checked.check_source_face(rgb, face, detector)
            assert len(said) == (not known)


@pytest.mark.integration
def test_a_strict_run_stops_at_the_first_faces(lip_sync: LipSync, tmp_path: Path) -> None:
    """Random weights paint noise."""
    options = SyncOptions(steps=1, cache_interval=1, strict=True)
    with pytest.raises(InputError, match="does not look like") as caught:
        lip_sync.sync(*write_clip(tmp_path, 20), tmp_path / "out.mp4", options)
    assert not caught.value.usage
    assert sorted(each.name for each in tmp_path.iterdir()) == ["face.mp4", "speech.wav"]


# Lips of people; of the built-in clip, its known mouth


def talk_of(gaps: Float32Array, sound: Path) -> tuple[Float32Array, Float32Array]:
    """Gaps between the lips of a clip and its voice, frame by frame."""
    levels_db = loudness_of(read_audio_blocks(sound))
    count = min(len(gaps), len(levels_db))
    return gaps[:count], levels_db[:count, 1:]


def test_the_known_mouth_follows_its_own_speech_only() -> None:
    gaps, voice_db = talk_of(0.03 + 0.2 * spoken_mouth().opening, SPEECH)
    following = measure_following(gaps, voice_db)
    assert following.distinct >= FOLLOWS
    assert following.late_frames == 0
    for frames in range(20, 110, 10):
        assert measure_following(gaps, np.roll(voice_db, frames, axis=0)).distinct < FOLLOWS


@pytest.mark.slow
@pytest.mark.integration
def test_people_follow_their_own_speech_only(assets: Path) -> None:
    """Wrong speech is that of the others, and their own at another time."""
    clips = [assets / f"demo{number}_video.mp4" for number in (1, 2, 3)]
    talks = [talk_of(measure_clip(clip, clip).gaps, clip) for clip in clips]
    for talk in talks:
        following = measure_following(*talk)
        assert following.distinct >= FOLLOWS
        assert following.late_frames == 0
    wrong = [(gaps, voice_db) for (gaps, _), (_, voice_db) in permutations(talks, 2)]
    wrong += [
        (gaps, np.roll(own, n * len(own) // 4, axis=0)) for gaps, own in talks for n in (1, 2, 3)
    ]
    for gaps, voice_db in wrong:
        count = min(len(gaps), len(voice_db))
        assert measure_following(gaps[:count], voice_db[:count]).distinct < FOLLOWS
