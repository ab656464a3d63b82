"""Live sessions without networks, and executors that run tasks when a test says so."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from fractions import Fraction
from typing import Any

import numpy as np

from latentsync_trt.live.frame import LiveFrame
from latentsync_trt.live.idle import IdleLoop
from latentsync_trt.live.options import LiveOptions
from latentsync_trt.live.planner import PlannedFrame
from latentsync_trt.live.session import LiveSession
from latentsync_trt.types import ColorTags, Float32Array, Patch, UInt16Array, VideoInfo, YuvPlanes

IDLE = 0
PAINTED = 1
LOOP = 7


def planes_of(kind: int, position: int, opacity: float = 1.0) -> YuvPlanes:
    """A picture that tells what it is: its kind, index or position, and quarters of the painted
    face.
    """
    y = np.array([[kind, position % 251], [round(4 * opacity), 0]], np.uint8)
    return YuvPlanes(y, y[:1, :1], y[:1, :1], ColorTags())


def toy_loop() -> IdleLoop:
    info = VideoInfo(2, 2, Fraction(LOOP, 25), "yuv420p", False, Fraction(1))
    return IdleLoop(
        info,
        tuple(planes_of(IDLE, index) for index in range(LOOP)),
        (),
        np.zeros((LOOP, 0), np.float32),
    )


class ToyPainter:
    """Stands in for `SessionPainter`: notes its windows."""

    def __init__(self, error: Exception | None = None) -> None:
        self.windows: list[tuple[Sequence[PlannedFrame], int]] = []
        self.loop: Any = toy_loop()
        self.error = error

    def latents(
        self, planned: Sequence[PlannedFrame], ahead: Float32Array, check: Callable[[], None]
    ) -> Float32Array:
        check()
        if self.error is not None:
            raise self.error
        self.windows.append((planned, len(ahead)))
        return np.zeros((len(planned), 1), np.float32)

    def decoded(self, latents: Float32Array) -> Iterator[UInt16Array]:
        yield from latents.astype(np.uint16)

    def patch(self, position: int, painted: UInt16Array, *, begins: bool) -> Patch:
        return Patch(0, 0, painted, np.zeros(0, np.float32))

    def picture(self, position: int, patch: Patch, opacity: float) -> YuvPlanes:
        return planes_of(PAINTED, position, opacity)


class Inline(Executor):
    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        run(future, fn, args, kwargs)
        return future


class Held(Executor):
    """Runs tasks when `release` is called; `waiting`: the others."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Any, ...]] = deque()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, fn, args, kwargs))
        return future

    def release(self) -> None:
        if self.waiting:
            run(*self.waiting.popleft())

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        while self.waiting:
            self.release()


def run(future: Future[Any], fn: Any, args: Any, kwargs: Any) -> None:
    future.set_running_or_notify_cancel()
    try:
        future.set_result(fn(*args, **kwargs))
    except BaseException as error:  # noqa: BLE001 -- as executors do
        future.set_exception(error)


def toy_session(
    painter: ToyPainter | None = None,
    painting: Executor | None = None,
    now: Callable[[], float] = lambda: 0.0,
    *,
    paint_s: float = 0.0,
    **options: Any,
) -> LiveSession:
    """A session that paints at once, or in `painting`, under a clock that stands still, or
    `now`.
    """
    toy: Any = painter or ToyPainter()
    executors = painting or Inline(), Inline()
    return LiveSession(toy, LiveOptions(**options), executors=executors, now=now, paint_s=paint_s)


def take(session: LiveSession, count: int) -> list[LiveFrame]:
    return [next(session) for _ in range(count)]


def until_idle(session: LiveSession) -> list[LiveFrame]:
    found: list[LiveFrame] = []
    while not session.idle and len(found) < 5000:
        found.append(next(session))
    assert session.idle
    return found


def kinds(frames: Sequence[LiveFrame]) -> str:
    """A letter a frame: painted with speech (s) or without (q), idle (.), late (L)."""
    return "".join(
        "L" if each.late else "." if each.planes.y[0, 0] == IDLE else "s" if each.speaking else "q"
        for each in frames
    )


def shares(frames: Sequence[LiveFrame]) -> list[int]:
    """How much of the painted face shows, in quarters."""
    return [int(each.planes.y[1, 0]) if each.planes.y[0, 0] == PAINTED else 0 for each in frames]


def voice(seconds: float, rate_hz: int = 16_000, seed: int = 0) -> Float32Array:
    return (0.1 * np.random.default_rng(seed).standard_normal(round(seconds * rate_hz))).astype(
        np.float32
    )


class PictureLoop:
    """A dark idle clip that can be encoded."""

    def __init__(self, info: VideoInfo) -> None:
        self.info = info
        self.planes = [flat_planes(info, 40)] * 5

    def index(self, position: int) -> int:
        return position % len(self.planes)


class PicturePainter(ToyPainter):
    """Paints bright pictures."""

    def __init__(self, loop: PictureLoop) -> None:
        super().__init__()
        self.loop = loop

    def picture(self, position: int, patch: Patch, opacity: float) -> YuvPlanes:
        return flat_planes(self.loop.info, 220)


def flat_planes(info: VideoInfo, level: int) -> YuvPlanes:
    y = np.full((info.height_px, info.width_px), level, np.uint8)
    half = np.full((info.height_px // 2, info.width_px // 2), 128, np.uint8)
    return YuvPlanes(y, half, half, info.color)
