"""What is in front of a face is found, and nothing on a face that is free."""

from collections.abc import Hashable
from fractions import Fraction

import cv2
import numpy as np
import pytest

from latentsync_trt.compositing.occluders import FrontMask, OccluderFinder
from latentsync_trt.face.align import transformed, transformed_face
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.people import FaceStats
from latentsync_trt.face.tracker import FaceTracker
from latentsync_trt.sync.faces import FaceFinder
from latentsync_trt.sync.fronts import FrontStage
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.types import Face, Picture, UInt8Array
from tests.clips import camera_frames, frame_at

FREE = 12
COVERED = 4
GRAY = (90, 90, 96)


@pytest.fixture(scope="module")
def detector() -> MediaPipeDetector:
    return MediaPipeDetector()


@pytest.fixture(scope="module")
def clip(detector: MediaPipeDetector) -> list[tuple[UInt8Array, Face]]:
    """Frames of the built-in clip with their faces."""
    pairs = []
    for frame in camera_frames(Fraction(FREE + COVERED, 25)):
        face = detector.follow(frame, pairs[-1][1]) if pairs else detector.detect(frame)[0]
        assert face is not None
        pairs.append((frame, face))
    return pairs


def with_ball(frame: UInt8Array, face: Face) -> tuple[UInt8Array, tuple[int, int], int]:
    """The frame with a gray ball before the mouth, its center and radius."""
    assert face.landmarks is not None
    x, y = (int(coordinate) for coordinate in face.landmarks[14])
    radius = int(np.ptp(face.landmarks[:, 0])) // 4
    return cv2.circle(frame.copy(), (x, y), radius, GRAY, -1, cv2.LINE_AA), (x, y), radius


def find_all(
    detector: MediaPipeDetector, frames: list[tuple[UInt8Array, Face]]
) -> list[FrontMask | None]:
    finder = OccluderFinder(detector)
    masks = []
    for index, (frame, face) in enumerate(frames):
        masks.append(finder.find(frame, 0, face, Fraction(index, 25))[1])
    return masks


def familiar_with(
    detector: MediaPipeDetector, clip: list[tuple[UInt8Array, Face]]
) -> OccluderFinder:
    """A finder that has seen the free frames of the clip."""
    finder = OccluderFinder(detector)
    for index, (frame, face) in enumerate(clip[:FREE]):
        finder.find(frame, 0, face, Fraction(index, 25))
    return finder


def test_nothing_is_in_front_of_a_free_face(
    detector: MediaPipeDetector, clip: list[tuple[UInt8Array, Face]]
) -> None:
    assert find_all(detector, clip) == [None] * len(clip)


def test_a_face_that_leaves_the_frame_is_free(
    detector: MediaPipeDetector, clip: list[tuple[UInt8Array, Face]]
) -> None:
    frames = []
    for index, (frame, face) in enumerate(clip):
        height = frame.shape[0]
        first_px = height - int(face.box[3]) + 40  # most of the mouth stays in the frame
        down = np.array([[1.0, 0, 0], [0, 1, first_px + 4 * max(index - FREE, 0)]])
        moved = np.asarray(cv2.warpAffine(frame, down, frame.shape[1::-1]), np.uint8)
        frames.append((moved, transformed_face(face, down)))
    inside = clip[:FREE]
    assert find_all(detector, [*inside, *frames[FREE:]]) == [None] * len(clip)


def test_a_ball_before_the_mouth_is_in_front(
    detector: MediaPipeDetector, clip: list[tuple[UInt8Array, Face]]
) -> None:
    frames = list(clip[:FREE])
    for frame, face in clip[FREE:]:
        frames.append((with_ball(frame, face)[0], face))

    masks = find_all(detector, frames)

    assert masks[:FREE] == [None] * FREE
    _, (x, y), radius = with_ball(*clip[-1])
    mask = masks[-1]
    assert mask is not None
    ball = cv2.circle(np.zeros(clip[-1][0].shape[:2], np.uint8), (x, y), radius, 1, -1)
    is_ball = cv2.warpAffine(ball, mask.from_frame, mask.levels.shape, flags=cv2.INTER_NEAREST) > 0
    is_marked = mask.levels >= 128
    shared = np.count_nonzero(is_ball & is_marked)
    assert shared / np.count_nonzero(is_ball | is_marked) > 0.85
    assert 0.1 < mask.mouth_share < 0.8


def test_a_face_that_appears_behind_an_object_is_free(
    detector: MediaPipeDetector, clip: list[tuple[UInt8Array, Face]]
) -> None:
    frames = [(with_ball(frame, face)[0], face) for frame, face in clip[:FREE]]
    assert find_all(detector, [*frames, *clip[FREE:]])[FREE:] == [None] * COVERED


def test_masks_do_not_depend_on_random_numbers(
    detector: MediaPipeDetector, clip: list[tuple[UInt8Array, Face]]
) -> None:
    frames = [*clip[:FREE], (with_ball(*clip[FREE])[0], clip[FREE][1])]
    results = []
    for seed in (1, 2):
        cv2.setRNGSeed(seed)
        mask = find_all(detector, frames)[-1]
        assert mask is not None
        results.append(mask.levels)
    np.testing.assert_array_equal(*results)


def test_a_face_without_a_mesh_is_left_as_it_is(
    detector: MediaPipeDetector, clip: list[tuple[UInt8Array, Face]]
) -> None:
    frame, face = clip[0]
    bare = Face(face.box, face.points, face.score)
    assert OccluderFinder(detector).find(frame, 0, bare, Fraction(0)) == (bare, None)


def test_tracks_do_not_share_what_they_look_like(
    detector: MediaPipeDetector, clip: list[tuple[UInt8Array, Face]]
) -> None:
    finder = familiar_with(detector, clip)
    frame, face = clip[FREE]
    covered = with_ball(frame, face)[0]
    assert finder.find(covered, 1, face, Fraction(FREE, 25))[1] is None
    assert finder.find(covered, 0, face, Fraction(FREE, 25))[1] is not None


def test_a_mask_lies_where_the_frame_says(
    detector: MediaPipeDetector, clip: list[tuple[UInt8Array, Face]]
) -> None:
    frames = [*clip[:FREE], (with_ball(*clip[FREE])[0], clip[FREE][1])]
    mask = find_all(detector, frames)[-1]
    _, center, _ = with_ball(*clip[FREE])
    assert mask is not None
    (x, y) = transformed(np.array([center], np.float32), mask.from_frame)[0].round().astype(int)
    assert mask.levels[y, x] == 255


class OneCovered(OccluderFinder):
    """Something is in front of most of one person's mouth; of the other's, if `both` are."""

    def __init__(self, detector: MediaPipeDetector, *, both: bool) -> None:
        super().__init__(detector)
        self._both = both
        self._first: Hashable = None

    def find(
        self, picture: Picture, track_id: Hashable, face: Face, time_s: Fraction
    ) -> tuple[Face, FrontMask | None]:
        self._first = self._first or track_id
        if track_id != self._first and not self._both:
            return face, None
        mask = FrontMask(
            np.eye(2, 3), np.full((256, 256), 255, np.uint8), mouth_share=0.9, is_most=True
        )
        return face, mask


@pytest.mark.parametrize("both", [True, False])
def test_a_time_is_untouched_only_if_all_mouths_are_covered(
    detector: MediaPipeDetector, clip: list[tuple[UInt8Array, Face]], both: bool
) -> None:
    two = (np.hstack([frame, frame[:, ::-1]]) for frame, _ in clip)
    finder = FaceFinder(FaceTracker(detector), 64, choice={0: 0, 1: 1})
    frames = (frame_at(index, frame) for index, frame in enumerate(two))
    stats = FaceStats()
    fronts = FrontStage(OneCovered(detector, both=both), StageClock())
    for job in finder.place(fronts.look(finder.choose(frames))):
        assert len(job.chosen) == 2
        assert len(job.targets) == (0 if both else 1)
        is_chosen = bool(job.chosen)
        stats.add(
            job.frame,
            job.seen,
            has_face=is_chosen,
            front=job.front,
            why_unpainted=job.why_unpainted,
        )
    assert [each.reason for each in stats.in_front] == ["covered"]
    assert [each.reason for each in stats.untouched] == (["mouth covered"] if both else [])


def test_what_covers_most_of_a_mouth_for_long_is_the_face(
    detector: MediaPipeDetector, clip: list[tuple[UInt8Array, Face]]
) -> None:
    finder = familiar_with(detector, clip)
    frame, face = clip[FREE]
    covered, (x, y), radius = with_ball(frame, face)
    cv2.circle(covered, (x, y), round(1.4 * radius), GRAY, -1, cv2.LINE_AA)
    shares = {}
    for step in range(1, 31):
        time_s = Fraction(FREE, 25) + Fraction(step, 5)
        _, mask = finder.find(covered, 0, face, time_s)
        shares[time_s] = 0.0 if mask is None else mask.mouth_share
    begins_s = min(shares)
    assert min(share for time_s, share in shares.items() if time_s < begins_s + 3) > 0.6
    assert max(share for time_s, share in shares.items() if time_s > begins_s + 5) < 0.6
