"""What is in front of a mouth stays as it is in the whole pipeline, and the report says when."""

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.compositing.occluders import FrontMask, OccluderFinder
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.tracker import FaceTracker
from latentsync_trt.media.writer import write_pictures
from latentsync_trt.sync.faces import FaceFinder
from latentsync_trt.sync.fronts import FrontStage
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.types import BoolArray, Face, SyncReport
from tests.clips import camera_frames, decoded, frame_at, write_sound

LENGTH = 36
IN_FRONT = range(14, 26)
"""Frames in which there is a ball."""
QUICK = SyncOptions(steps=1, guidance=1.0, codec="ffv1", silence="model", length="video")
SMALL = 0.5
"""Radius of a ball before the mouth, in distances between the brows."""
LARGE = 0.7
"""That of a ball that hides most of what is painted; FaceMesh sees no face behind a larger one."""

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class BallClip:
    path: Path
    ball: list[BoolArray]
    """Where the ball is in each frame, without its edge."""


def write_clip_with_ball(path: Path, size: float) -> BallClip:
    detector = MediaPipeDetector()
    frames = []
    ball = []
    for index, free in enumerate(camera_frames(Fraction(LENGTH, 25))):
        frame = cv2.resize(free, (240, 240), interpolation=cv2.INTER_AREA)
        inside = np.zeros(frame.shape[:2], np.uint8)
        if index in IN_FRONT:
            (face,) = detector.detect(frame)
            assert face.landmarks is not None
            brows_px = float(np.linalg.norm(face.points[1] - face.points[0]))
            middle = np.rint(face.landmarks[14]).astype(int).tolist()
            radius_px = round(size * brows_px)
            cv2.circle(frame, middle, radius_px, (60, 70, 80), -1, cv2.LINE_AA)
            cv2.circle(inside, middle, radius_px - 3, 1, -1)
        frames.append(frame)
        ball.append(inside > 0)
    write_pictures(path, frames, lossless=True)
    return BallClip(path, ball)


def changed(before: Path, after: Path) -> list[BoolArray]:
    """Where each frame is another one."""
    pairs = zip(decoded(before), decoded(after), strict=True)
    return [(source != result).any(axis=2) for source, result in pairs]


def sync(lip_sync: LipSync, clip: BallClip, options: SyncOptions) -> tuple[SyncReport, Path]:
    folder = clip.path.parent
    speech = write_sound(folder / "speech.wav", LENGTH / 25, clicks_s=(0.2, 1.0))
    output = folder / f"{options.occluders}.mkv"
    return lip_sync.sync(clip.path, speech, output, options), output


@pytest.fixture(scope="module")
def small_ball(tmp_path_factory: pytest.TempPathFactory) -> BallClip:
    return write_clip_with_ball(tmp_path_factory.mktemp("small") / "clip.mkv", SMALL)


def test_a_ball_stays_and_the_face_around_it_is_painted(
    lip_sync: LipSync, small_ball: BallClip
) -> None:
    report, output = sync(lip_sync, small_ball, QUICK)
    for index, painted in enumerate(changed(small_ball.path, output)):
        assert painted.any()
        assert not painted[small_ball.ball[index]].any()
    assert report.untouched == ()
    (interval,) = report.in_front
    assert interval.reason == "kept"
    assert interval.start_s == pytest.approx(IN_FRONT.start / 25, abs=0.05)
    assert interval.end_s == pytest.approx(IN_FRONT.stop / 25, abs=0.05)
    assert any("--occluders" in notice for notice in report.notices)


def test_a_ball_is_painted_over_where_that_is_asked(
    lip_sync: LipSync, small_ball: BallClip
) -> None:
    report, output = sync(lip_sync, small_ball, replace(QUICK, occluders="paint"))
    painted = changed(small_ball.path, output)
    assert all(painted[index][small_ball.ball[index]].any() for index in IN_FRONT)
    assert report.in_front == ()


def test_a_mouth_that_is_covered_is_not_painted(lip_sync: LipSync, tmp_path: Path) -> None:
    clip = write_clip_with_ball(tmp_path / "clip.mkv", LARGE)
    report, output = sync(lip_sync, clip, QUICK)
    painted = changed(clip.path, output)
    middle = (IN_FRONT.start + IN_FRONT.stop) // 2
    assert painted[2].any()
    assert painted[-1].any()
    assert not painted[middle].any()
    assert "mouth covered" in {interval.reason for interval in report.untouched}


def test_where_nothing_is_in_front_few_frames_are_looked_at(small_ball: BallClip) -> None:
    """Those before a frame with the ball are looked at, too, so none of it is painted over."""

    class Counting(OccluderFinder):
        def find(self, *arguments: Any) -> tuple[Face, FrontMask | None]:
            looked.append(arguments[-1])
            return super().find(*arguments)

    looked: list[Fraction] = []
    detector = MediaPipeDetector()
    finder = FaceFinder(FaceTracker(detector), 64)
    frames = (frame_at(*numbered) for numbered in enumerate(decoded(small_ball.path)))
    fronts = FrontStage(Counting(detector), StageClock())
    jobs = list(finder.place(fronts.look(finder.choose(frames))))
    assert [job.frame.index for job in jobs] == list(range(LENGTH))
    with_front = [job.frame.index for job in jobs if job.front != "free"]
    assert with_front[0] == IN_FRONT.start
    assert set(IN_FRONT) <= set(with_front)
    assert len(looked) < LENGTH


def test_a_mouth_that_will_be_covered_is_painted_until_then(small_ball: BallClip) -> None:
    """Also in the frames that are looked at only when something has come."""
    begins = IN_FRONT.start + 2

    class Scripted(OccluderFinder):
        def find(self, *arguments: Any) -> tuple[Face, FrontMask | None]:
            _, _, face, time_s = arguments
            if time_s < Fraction(begins, 25):
                return face, None
            levels = np.full((256, 256), 255, np.uint8)
            return face, FrontMask(np.eye(2, 3), levels, mouth_share=0.9, is_most=True)

        def is_quiet(self, track_ids: Any) -> bool:
            return len(list(track_ids)) == 1

    detector = MediaPipeDetector()
    finder = FaceFinder(FaceTracker(detector), 64)
    frames = (frame_at(*numbered) for numbered in enumerate(decoded(small_ball.path)))
    fronts = FrontStage(Scripted(detector), StageClock())
    jobs = list(finder.place(fronts.look(finder.choose(frames))))
    assert [bool(job.targets) for job in jobs] == [index < begins for index in range(LENGTH)]
