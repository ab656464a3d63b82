"""Leftover frames and short tracks are painted in shorter windows where the engines take them."""

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from latentsync_trt.bundle.manifest import DimensionRange
from latentsync_trt.runtime.compiler.profiles import shorter_windows
from latentsync_trt.types import WindowBatch
from tests.test_painting import FRAMES, AddsAudio, assert_own_mouths, jobs, painter, runs

ALLOWED = {"frames": DimensionRange(2, 16, 24)}


def test_engines_of_variable_shapes_take_shorter_windows() -> None:
    assert shorter_windows(ALLOWED) == (8, 12)
    assert shorter_windows({"frames": DimensionRange(12, 16, 24)}) == (12,)


def test_fixed_shapes_take_none() -> None:
    assert shorter_windows({}) == ()
    assert shorter_windows({"frames": DimensionRange(16, 16, 16)}) == ()


class Lengths(AddsAudio):
    """Notes the lengths of all windows."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[int] = []

    def begin(self, batch: WindowBatch) -> None:
        super().begin(batch)
        self.lengths += [batch.audio.shape[1]] * len(batch.audio)


def test_short_tracks_and_leftover_frames_cost_less() -> None:
    tracks: list[set[int]] = [{0}] * (FRAMES + 1) + [{1}] * 2 + [set()] + [{2}] * 3
    denoiser = Lengths()
    made = painter(denoiser, 1, shorter=(2,))
    assert_own_mouths(list(made.paint(made.gather(jobs(tracks)))), tracks)
    assert denoiser.lengths == [FRAMES, 2, 2, FRAMES]


@given(
    pattern=st.lists(runs, max_size=6),
    shorter=st.sets(st.integers(1, FRAMES - 1)),
    streams=st.integers(1, 2),
    overlap=st.integers(0, FRAMES // 2),
    done=st.integers(0, 30),
)
def test_every_frame_gets_its_own_mouth_also_after_an_interruption(
    pattern: list[tuple[set[int], int]], shorter: set[int], streams: int, overlap: int, done: int
) -> None:
    tracks = list(chain.from_iterable([shown] * length for shown, length in pattern))
    made = painter(AddsAudio(), 1, streams=streams, overlap=overlap, shorter=tuple(sorted(shorter)))
    made.skip(done)
    assert_own_mouths(list(made.paint(made.gather(jobs(tracks)))), tracks, done)
