"""Gathering and painting windows: every frame of every track is used once and gets its own mouth,
in order.
"""

from collections.abc import Generator, Sequence
from fractions import Fraction
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latentsync_trt.config import SyncOptions
from latentsync_trt.spans import frames_from
from latentsync_trt.sync.faces import FrameJob, Target
from latentsync_trt.sync.inpainter import Inpainter
from latentsync_trt.sync.painting import Painter, in_order
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.sync.windows import (
    Window,
    WindowPlanner,
    gather,
    in_groups,
    streams_at,
)
from latentsync_trt.types import AlignedFace, Face, Float32Array, UInt8Array, UInt16Array
from tests.clips import frame_at

FRAMES = 4
SIDE_PX = 16
LATENT_PX = 2


class Codec:
    """Latents are means of 8 × 8 pixels, by channel; the fourth is 0."""

    def encode_faces(
        self, faces: UInt8Array, mask: Float32Array
    ) -> tuple[Float32Array, Float32Array]:
        whole = faces.transpose(0, 3, 1, 2) / np.float32(127.5) - np.float32(1)
        return self._encode(whole * mask), self._encode(whole)

    def _encode(self, images: Float32Array) -> Float32Array:
        small = images.reshape(len(images), 3, LATENT_PX, 8, LATENT_PX, 8).mean((3, 5))
        return np.concatenate([small, np.zeros_like(small[:, :1])], axis=1)

    def decode_faces(self, latents: Float32Array) -> list[UInt16Array]:
        images = np.repeat(np.repeat(latents[:, :3], 8, axis=2), 8, axis=3).transpose(0, 2, 3, 1)
        return list(np.rint((images + 1) * 32767.5).astype(np.uint16))


class AddsAudio:
    """A denoiser whose result is the reference picture plus the audio of each frame."""

    def begin(
        self,
        latents: Float32Array,
        conditioning: Float32Array,
        audio: Float32Array,
        guidance: float,
    ) -> None:
        self._result = conditioning[5:] + audio[:, 0, 0][None, :, None, None]

    def step(
        self, timestep: int, coefficients: Float32Array, *, cached: bool, guided: bool = True
    ) -> None:
        pass

    def latents(self) -> Float32Array:
        return self._result


UNMOVED = np.eye(2, 3)
SOMEONE = Face(np.zeros(4, np.float32), np.zeros((3, 2), np.float32))


def jobs(tracks: Sequence[set[int]]) -> Generator[FrameJob, None, None]:
    """Frames with the faces of these tracks: flat pictures, as light as their frame's number modulo
    128.
    """
    for index, visible in enumerate(tracks):
        rgb = np.full((SIDE_PX, SIDE_PX, 3), index % 128, np.uint8)
        face = AlignedFace(rgb, UNMOVED, (SIDE_PX, SIDE_PX))
        targets = (
            Target(index, Fraction(index, 25), track, track, track % 2, SOMEONE, UNMOVED, face)
            for track in sorted(visible)
        )
        yield FrameJob(frame_at(index, rgb), tuple(targets))


def audio_windows(speaker: int, times_s: Sequence[Fraction]) -> Float32Array:
    """The audio of frame i is (i modulo 97) / 97, of speaker 1 half of that."""
    indices = np.array([25 * time_s for time_s in times_s], np.float32)
    return indices[:, None, None] % np.float32(97) / np.float32(97 * (1 + speaker))


def own_mouth(index: int, track: int) -> float:
    """The painted picture of a track at frame `index`."""
    return (index % 128 / 127.5 + index % 97 / (97 * (1 + track % 2))) * 32767.5


def painted(
    jobs_in: Generator[FrameJob, None, None], frames_done: int, at_once: int, streams: int
) -> Generator[FrameJob, None, None]:
    """The stages of painting, one after another in one thread."""
    inpainter = Inpainter(
        codec=Codec(),
        denoiser=AddsAudio(),
        options=SyncOptions(steps=1, solver="ddim"),
        side_px=SIDE_PX,
        noise=np.zeros((1, 4, 1, LATENT_PX, LATENT_PX), np.float32),
        run=lambda _, action: action(),
    )
    paint = frames_from(frames_done)
    stages = Painter(inpainter, audio_windows, paint, StageClock(), lambda: None)
    items = in_groups(gather(jobs_in, FRAMES, streams, paint), at_once, FRAMES)
    done = (
        item if isinstance(item, FrameJob) else stages.decode(stages.denoise(stages.encode(item)))
        for item in items
    )
    return in_order(done, paint)


def assert_own_mouths(
    painted_jobs: list[FrameJob], tracks: Sequence[set[int]], frames_done: int = 0
) -> None:
    """All frames in order, each with all of its faces, but for those of frames that were written
    before.
    """
    assert [job.frame.index for job in painted_jobs] == list(range(len(tracks)))
    assert not any(job.painted for job in painted_jobs[:frames_done])
    for job, visible in zip(painted_jobs[frames_done:], tracks[frames_done:], strict=True):
        assert {target.track_id for target in job.targets} == visible
        for target, picture in zip(job.targets, job.painted, strict=True):
            assert picture.dtype == np.uint16
            np.testing.assert_allclose(picture, own_mouth(job.frame.index, target.track_id), atol=1)


runs = st.tuples(
    st.sets(st.integers(0, 2)), st.integers(1, 3 * FRAMES) | st.sampled_from([1, 16 * FRAMES])
)


@pytest.mark.integration
@given(
    pattern=st.lists(runs, max_size=12),
    at_once=st.sampled_from([1, 2, 3, 8]),
    streams=st.integers(1, 3),
    frames_done=st.just(0) | st.integers(0, 6 * FRAMES),
)
def test_any_pattern_of_tracks_leaves_in_order_and_in_time(
    pattern: list[tuple[set[int], int]], at_once: int, streams: int, frames_done: int
) -> None:
    """Counts the jobs that the stages have taken and not returned."""
    tracks = list(chain.from_iterable([visible] * length for visible, length in pattern))
    taken = 0
    most_held = 0

    def counted() -> Generator[FrameJob, None, None]:
        nonlocal taken
        for job in jobs(tracks):
            taken += 1
            yield job

    painted_jobs: list[FrameJob] = []
    for job in painted(counted(), frames_done, at_once, streams):
        most_held = max(most_held, taken - len(painted_jobs))
        painted_jobs.append(job)
    assert_own_mouths(painted_jobs, tracks, frames_done)
    assert most_held <= (at_once + streams) * FRAMES


# What lies in a window.


def planned(items: int, frames: int, streams: int = 1) -> list[Window[int]]:
    """Of the numbers 0, 1, 2, … in one track."""
    planner: WindowPlanner[int] = WindowPlanner(frames, streams=streams)
    return [window for item in range(items) for window in planner.push({0: item})] + planner.push(
        {}
    )


def test_the_last_window_is_shifted_back():
    assert planned(5, 3)[-1] == Window((2, 3, 4), range(1, 3))


def test_a_short_track_is_mirrored():
    assert planned(3, 8) == [Window((0, 1, 2, 1, 0, 1, 2, 1), range(3))]
    assert [window.items for window in planned(1, 4)] == [(0, 0, 0, 0)]


def test_streams_interleave():
    windows = planned(11, 3, streams=2)
    assert [window.items for window in windows] == [(0, 2, 4), (1, 3, 5), (6, 8, 10), (5, 7, 9)]


def test_streams_have_a_rate_near_that_of_training() -> None:
    wanted = {None: 1, 10: 1, 25: 1, 40: 1, 48: 2, 60: 2, 90: 3, 240: 9}
    assert {rate: streams_at(None if rate is None else Fraction(rate)) for rate in wanted} == wanted
    assert streams_at(Fraction(60000, 1001)) == streams_at(Fraction(60)) == 2
