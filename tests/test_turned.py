"""A face fades as its head turns aside, comes back, and the report says when it does not show."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.compositing.turning import aside_of, next_turn, opacity_at
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.geometry import Region, face_of
from latentsync_trt.face.people import FaceStats
from latentsync_trt.face.tracker import FrameFaces
from latentsync_trt.media.writer import write_pictures
from latentsync_trt.sync.faces import FrameJob, Target
from latentsync_trt.sync.inputs import Helpers
from latentsync_trt.sync.turned import with_turns
from latentsync_trt.types import Face, Float32Array, Interval, UInt8Array
from tests.clips import decoded, frame_at, write_sound
from tests.people import first_person

UNMOVED = np.eye(2, 3)
FRAMES = 50
"""Of a clip in which a head turns away and back."""


@pytest.fixture(scope="module")
def head() -> Float32Array:
    """FaceMesh's points of the portrait in space, `(468, 3)`."""
    detector = MediaPipeDetector()
    (picture,) = first_person(1)
    (face,) = detector.detect(picture)
    mesh = detector.mesh_in(picture, Region.around(face))
    assert mesh is not None
    return mesh[0]


def turned(head: Float32Array, yaw_deg: float, nod_deg: float = 0.0) -> Face:
    """The face of a head that is turned to the side, then nods."""
    yaw, nod = np.radians([yaw_deg, nod_deg])
    side = [[np.cos(yaw), 0, -np.sin(yaw)], [0, 1, 0], [np.sin(yaw), 0, np.cos(yaw)]]
    down = [[1, 0, 0], [0, np.cos(nod), -np.sin(nod)], [0, np.sin(nod), np.cos(nod)]]
    middle = head.mean(axis=0)
    points = (head - middle) @ (np.array(down) @ side).T + middle
    return face_of(points.astype(np.float32), 20.0)


def swing(frames: int = FRAMES, most_deg: float = 70.0) -> list[float]:
    """Angles of a head that turns away and back."""
    return [most_deg * np.sin(np.pi * index / (frames - 1)) for index in range(frames)]


def jobs_of(faces: Iterable[Face], fps: int = 25) -> Iterator[FrameJob]:
    pixels = np.zeros((8, 8, 3), np.uint8)
    for index, face in enumerate(faces):
        time_s = Fraction(index, fps)
        frame = replace(frame_at(index, pixels), time_s=time_s, duration_s=Fraction(1, fps))
        target = Target(index, time_s, 0, 0, 0, face, UNMOVED)
        yield FrameJob(frame, (target,), FrameFaces(0, ()))


def opacities(faces: Iterable[Face]) -> list[float]:
    jobs = with_turns((job for job in jobs_of(faces)), leaves_out=False)
    return [target.opacity for job in jobs for target in job.targets]


def test_opacity_falls_steadily_over_a_range() -> None:
    shown = [opacity_at(aside) for aside in np.linspace(0, 1.2, 241)]
    assert shown[:85] == [1.0] * 85
    assert shown[-96:] == [0.0] * 96
    steps = -np.diff(shown)
    assert steps.min() >= 0
    assert 0 < steps.max() < 0.03
    assert np.count_nonzero(steps) > 50


def test_people_who_talk_to_somebody_beside_the_camera_show_fully(head: Float32Array) -> None:
    assert set(opacities(turned(head, angle) for angle in swing(most_deg=30))) == {1.0}


def test_a_head_that_turns_fades_with_its_angle_and_comes_back(head: Float32Array) -> None:
    shown = opacities(turned(head, angle) for angle in swing())
    assert shown[0] == shown[-1] == 1
    assert shown[FRAMES // 2] == 0
    assert np.abs(np.diff(shown)).max() < 0.35
    assert len([each for each in shown if 0 < each < 1]) >= 6
    middle = int(np.argmin(shown))
    assert (np.diff(shown[: middle + 1]) <= 0).all()
    back = shown[shown.index(0.0) :]
    assert (np.diff(back[back.count(0.0) :]) >= 0).all()


@pytest.mark.parametrize("nod_deg", [-15, 0, 15])
def test_a_nod_hardly_changes_how_far_aside_a_head_looks(
    head: Float32Array, nod_deg: float
) -> None:
    level = aside_of(turned(head, 40), UNMOVED)
    assert aside_of(turned(head, 40, nod_deg), UNMOVED) == pytest.approx(level, rel=0.25)


def test_pixels_that_are_not_square_are_stretched(head: Float32Array) -> None:
    face = turned(head, 40, nod_deg=10)
    assert face.landmarks is not None
    narrow = np.diag([0.5, 1.0]).astype(np.float32)
    stretched = Face(face.box, face.points @ narrow, face.score, face.landmarks @ narrow)
    to_square = np.array([[2.0, 0, 0], [0, 1, 0]])
    assert aside_of(stretched, to_square) == pytest.approx(aside_of(face, UNMOVED), rel=1e-4)


def test_a_jittering_angle_does_not_flicker() -> None:
    rng = np.random.default_rng(0)
    turn = None
    steady = []
    for index, aside in enumerate(0.6 + 0.015 * rng.standard_normal(100)):
        turn = next_turn(turn, Fraction(index, 25), aside)
        steady.append(turn.opacity)
    alone = np.diff([opacity_at(0.6 + 0.015 * each) for each in rng.standard_normal(100)])
    assert np.diff(steady[10:]).std() < 0.4 * alone.std()


def test_a_face_that_is_turned_away_is_left_out_and_reported(head: Float32Array) -> None:
    stats = FaceStats()
    painted = []
    for job in with_turns(jobs_of(turned(head, angle) for angle in swing())):  # type: ignore[arg-type]
        painted.append(len(job.targets))
        stats.add(job.frame, job.seen, has_face=True, why_unpainted=job.why_unpainted)
    assert sum(painted) < FRAMES
    assert np.count_nonzero(np.diff(painted)) == 2
    (interval,) = stats.untouched
    assert interval.reason == "turned away"
    assert 0.4 < interval.start_s < 1 < interval.end_s < 1.9


class Turning:
    """Finds the face of every frame, without points but those by which it is aligned; in some, it
    looks aside.
    """

    def __init__(self, away: range) -> None:
        self.detector = MediaPipeDetector()
        self.away = away
        self.frames = 0

    def detect(self, frame: UInt8Array) -> list[Face]:
        (face,) = self.detector.detect(frame)
        points = face.points.copy()
        if self.frames in self.away:
            points[2] += 0.9 * (points[1] - points[0])
        self.frames += 1
        return [Face(face.box, points)]


@pytest.mark.integration
def test_a_face_in_profile_stays_as_it_is(lip_sync: LipSync, tmp_path: Path) -> None:
    clip = tmp_path / "clip.mkv"
    write_pictures(clip, first_person(36), lossless=True)
    speech = write_sound(tmp_path / "speech.wav", 36 / 25)
    options = SyncOptions(
        steps=1, guidance=1.0, codec="ffv1", silence="model", length="video", occluders="paint"
    )
    helpers = Helpers(detector=Turning(range(12, 26)))
    report = lip_sync.sync(clip, speech, tmp_path / "out.mkv", options, helpers=helpers)
    pairs = zip(decoded(clip), decoded(tmp_path / "out.mkv"), strict=True)
    painted = [bool((source != result).any()) for source, result in pairs]
    assert painted[0]
    assert painted[-1]
    assert not any(painted[18:25])
    assert [each.reason for each in report.untouched] == ["turned away"]
    assert isinstance(report.untouched[0], Interval)
    assert any("turned away from" in notice for notice in report.notices)
