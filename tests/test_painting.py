"""Gathering and painting windows: every frame of every track is used once and gets its own mouth, in order."""

import threading
import time
from collections.abc import Generator, Sequence
from fractions import Fraction
from itertools import chain
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latentsync_trt.diffusion import PlannedStep, solver_schedule
from latentsync_trt.sync.faces import FrameJob, Target
from latentsync_trt.sync.inpaint import Inpainter
from latentsync_trt.sync.paint import Gathered, PaintDevice, Painter, Window, WindowPlanner, streams_at
from latentsync_trt.sync.threads import StageClock, prefetch
from latentsync_trt.types import AlignedFace, Face, Float32Array, Frame, UInt8Array, UInt16Array, WindowBatch
from tests.clips import frame_at

FRAMES, SIDE_PX, LATENT_PX = 4, 16, 2
TIMEOUT_S = 600.0


class Codec:
    """Latents are means of 8 × 8 pixels, by channel; the fourth is 0."""

    def encode_faces(self, faces: UInt8Array, mask: Float32Array) -> tuple[Float32Array, Float32Array]:
        whole = faces.transpose(0, 3, 1, 2) / np.float32(127.5) - np.float32(1)
        return self._encode(whole * mask), self._encode(whole)

    def _encode(self, images: Float32Array) -> Float32Array:
        small = images.reshape(len(images), 3, LATENT_PX, 8, LATENT_PX, 8).mean((3, 5))
        return np.concatenate([small, np.zeros_like(small[:, :1])], axis=1)

    def decode_faces(self, latents: Float32Array) -> list[UInt16Array]:
        images = np.repeat(np.repeat(latents[:, :3], 8, axis=2), 8, axis=3).transpose(0, 2, 3, 1)
        return list(np.rint((images + 1) * 32767.5).astype(np.uint16))


class AddsAudio:
    """A denoiser whose result is the reference picture plus the audio of each frame; `batches` counts windows."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def begin(self, batch: WindowBatch) -> None:
        self.batches.append(len(batch.latents))
        self._result = batch.conditioning[:, 5:] + batch.audio[..., 0, 0][:, None, :, None, None]

    def step(self, timestep: int, coefficients: Float32Array, *, cached: bool, guided: bool = True) -> None:
        pass

    def latents(self) -> Float32Array:
        return self._result


def inpainter(denoiser: AddsAudio, windows_per_batch: int = 1) -> Inpainter:
    return Inpainter(
        codec=Codec(),
        denoiser=denoiser,
        mask=np.ones((SIDE_PX, SIDE_PX), np.float32),
        latent_mask=np.ones((LATENT_PX, LATENT_PX), np.float32),
        noise=np.zeros((1, 4, 1, LATENT_PX, LATENT_PX), np.float32),
        guidance=1.5,
        schedule=solver_schedule("ddim", 1),
        plan=(PlannedStep(full=True, guided=True),),
        windows_per_batch=lambda: windows_per_batch,
    )


UNMOVED = np.eye(2, 3)
SOMEONE = Face(np.zeros(4, np.float32), np.zeros((3, 2), np.float32))


def jobs(tracks: Sequence[set[int]]) -> Generator[FrameJob, None, None]:
    """Frames with the faces of these tracks: flat pictures, as light as their frame's number modulo 128."""
    for index, shown in enumerate(tracks):
        rgb = np.full((SIDE_PX, SIDE_PX, 3), index % 128, np.uint8)
        face = AlignedFace(rgb, UNMOVED, (SIDE_PX, SIDE_PX))
        targets = (Target(track, track, track % 2, SOMEONE, UNMOVED, face) for track in sorted(shown))
        yield FrameJob(frame_at(index, rgb), tuple(targets))


def audio_windows(speaker: int, frames: Sequence[Frame]) -> Float32Array:
    """The audio of frame i is (i modulo 97) / 97, of speaker 1 half of that."""
    indices = np.array([frame.index for frame in frames], np.float32)
    return indices[:, None, None] % np.float32(97) / np.float32(97 * (1 + speaker))


def own_mouth(index: int, track: int) -> float:
    """The painted picture of a track at frame `index`."""
    return (index % 128 / 127.5 + index % 97 / (97 * (1 + track % 2))) * 32767.5


def painter(denoiser: AddsAudio, at_once: int) -> Painter:
    made = Painter(FRAMES, audio_windows, StageClock(), at_once=lambda: at_once)
    made.devices = (PaintDevice(inpainter(denoiser, at_once)),)
    return made


def assert_own_mouths(found: list[FrameJob], tracks: Sequence[set[int]], frames_done: int = 0) -> None:
    """All frames in order, each with all of its faces."""
    assert [job.frame.index for job in found] == list(range(len(tracks)))
    for job, shown in zip(found[frames_done:], tracks[frames_done:], strict=True):
        assert {target.track_id for target in job.targets} == shown
        for target in job.targets:
            assert target.painted is not None
            assert target.painted.dtype == np.uint16
            np.testing.assert_allclose(target.painted, own_mouth(job.frame.index, target.track_id), atol=1)


@pytest.mark.parametrize(("at_once", "batches"), [(1, [1, 1, 1, 1]), (2, [2, 2]), (3, [3, 1])])
def test_every_frame_gets_its_own_mouth(at_once: int, batches: list[int]) -> None:
    tracks: list[set[int]] = [{0}] * 9 + [set()] * 2 + [{1}] * 3  # two windows, one shifted back, and one mirrored
    denoiser = AddsAudio()
    made = painter(denoiser, at_once)
    found = list(made.paint(made.gather(jobs(tracks))))
    assert denoiser.batches == batches
    assert made.devices[0].windows == sum(batches)
    assert_own_mouths(found, tracks)


def test_frames_that_are_written_already_are_not_painted_again() -> None:
    denoiser = AddsAudio()
    made = painter(denoiser, 1)
    made.frames_done = 2 * FRAMES + 1
    tracks = [{0}] * 4 * FRAMES
    found = list(made.paint(made.gather(jobs(tracks))))
    assert_own_mouths(found, tracks, frames_done=2 * FRAMES + 1)
    assert all(target.painted is None for job in found[: 2 * FRAMES + 1] for target in job.targets)
    assert made.devices[0].windows == 2


class Slow(AddsAudio):
    """Takes a while for each batch."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def step(self, timestep: int, coefficients: Float32Array, *, cached: bool, guided: bool = True) -> None:
        time.sleep(self._seconds)


runs = st.tuples(st.sets(st.integers(0, 2)), st.integers(1, 3 * FRAMES) | st.sampled_from([1, 40 * FRAMES]))


@pytest.mark.integration
@given(
    pattern=st.lists(runs, max_size=12),
    at_once=st.sampled_from([1, 2, 3, 8]),
    seconds=st.lists(st.sampled_from([0.0, 0.0, 0.001]), min_size=1, max_size=4),
    streams=st.integers(1, 3),
    frames_done=st.just(0) | st.integers(0, 6 * FRAMES),
)
def test_any_pattern_of_tracks_leaves_in_order_and_in_time(
    pattern: list[tuple[set[int], int]], at_once: int, seconds: list[float], streams: int, frames_done: int
) -> None:
    """On devices of these speeds; counts the jobs that the painter has taken and not returned."""
    tracks = list(chain.from_iterable([shown] * length for shown, length in pattern))
    denoisers, taken, most_held = [Slow(each) for each in seconds], 0, 0

    def counted() -> Generator[FrameJob, None, None]:
        nonlocal taken
        for job in jobs(tracks):
            taken += 1
            yield job

    made = Painter(FRAMES, audio_windows, StageClock(), at_once=lambda: at_once, streams=streams)
    made.devices = tuple(PaintDevice(inpainter(denoiser, at_once)) for denoiser in denoisers)
    made.frames_done = frames_done
    found: list[FrameJob] = []
    for job in made.paint(made.gather(counted())):
        most_held = max(most_held, taken - len(found))
        found.append(job)
    assert_own_mouths(found, tracks, frames_done)
    of_several = 2 * len(seconds) * at_once if len(seconds) > 1 else 0
    assert most_held <= (at_once + streams + of_several) * FRAMES
    assert max(chain.from_iterable(denoiser.batches for denoiser in denoisers), default=0) <= at_once


def test_frames_are_gathered_while_networks_run() -> None:
    """The next window is complete before this one is painted: networks that wait for frames waste a GPU."""
    gathered, prepared = threading.Event(), threading.Event()

    class Waiting(AddsAudio):
        def step(self, timestep: int, coefficients: Float32Array, *, cached: bool, guided: bool = True) -> None:
            if len(self.batches) == 1:
                assert gathered.wait(TIMEOUT_S)
                prepared.set()

    def watched(items: Generator[Gathered, None, None]) -> Generator[Gathered, None, None]:
        for item in items:
            if item.windows and item.windows[0].items[0][0].index == FRAMES:
                gathered.set()
            yield item

    made = painter(Waiting(), 1)
    items = prefetch(watched(made.gather(jobs([{0}] * 3 * FRAMES))), depth=FRAMES, name="gather")
    assert len(list(made.paint(items))) == 3 * FRAMES
    assert prepared.is_set()


# Windows use every frame of every track exactly once, in order.


T = TypeVar("T")

WINDOW_LENGTHS = (1, 2, 3, 4, 7, 16)


def planned(tracks: list[int | None], frames: int, streams: int = 1) -> list[Window[int]]:
    """Pushes the numbers 0, 1, 2, … with the given track ids."""
    planner: WindowPlanner[int] = WindowPlanner(frames, streams=streams)
    windows = []
    for item, track in enumerate(tracks):
        windows += planner.push({} if track is None else {track: item})
    return windows + planner.push({})


def used(windows: list[Window[T]]) -> list[T]:
    return [window.items[position] for window in windows for position in window.used]


def test_the_last_window_is_shifted_back():
    assert planned([0] * 5, 3)[-1] == Window((2, 3, 4), range(1, 3))


def test_a_short_track_is_mirrored():
    (eight,) = planned([0] * 3, 8)
    assert eight.items == (0, 1, 2, 1, 0, 1, 2, 1)
    assert eight.used == range(3)
    assert [window.items for window in planned([0], 4)] == [(0, 0, 0, 0)]


def test_streams_interleave():
    windows = planned([0] * 11, 3, streams=2)
    assert [window.items for window in windows] == [(0, 2, 4), (1, 3, 5), (6, 8, 10), (5, 7, 9)]
    assert [len(window.used) for window in windows] == [3, 3, 3, 2]


RUNS = st.lists(st.tuples(st.sets(st.integers(0, 2)), st.integers(1, 40)), max_size=6)


@given(RUNS, st.sampled_from(WINDOW_LENGTHS), st.integers(1, 4))
def test_every_face_is_used_once(runs: list[tuple[set[int], int]], frames: int, streams: int) -> None:
    planner: WindowPlanner[tuple[int, int]] = WindowPlanner(frames, streams=streams)
    shown = [faces for faces, length in runs for _ in range(length)]
    windows = [w for i, faces in enumerate(shown) for w in planner.push({f: (f, i) for f in faces})]
    windows += planner.push({})
    assert all(len({face for face, _ in window.items}) == 1 and len(window.items) == frames for window in windows)
    assert sorted(used(windows)) == sorted((face, index) for index, faces in enumerate(shown) for face in faces)


def test_streams_have_a_rate_near_that_of_training() -> None:
    wanted = {None: 1, 10: 1, 25: 1, 30: 1, 40: 1, 48: 2, 50: 2, 60: 2, 90: 3, 120: 4, 240: 9}
    assert {rate: streams_at(None if rate is None else Fraction(rate)) for rate in wanted} == wanted
    assert streams_at(Fraction(60000, 1001)) == streams_at(Fraction(60)) == 2
