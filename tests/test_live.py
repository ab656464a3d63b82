"""Live sessions on real networks: the small bundle on the CPU, frames at the test's pace."""

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from latentsync_trt import LipSync, LiveOptions, LiveSession
from latentsync_trt.cli import main
from latentsync_trt.config import MODEL_RESOLUTION_PX
from latentsync_trt.errors import Busy, InputError, NoFaceError
from latentsync_trt.live import cost as live_cost
from latentsync_trt.live import sessions
from latentsync_trt.live.cost import WindowCost
from latentsync_trt.live.idle import IdleLoop
from latentsync_trt.media.reader import read_frames
from tests.clips import numbered, write_clip, write_video
from tests.live import Inline, take, until_idle, voice
from tests.small import small_bundle

IDLE_FRAMES = 10
OPTIONS = LiveOptions(steps=2, cache_interval=1)
MEASURED = sessions.measure_cost


@pytest.fixture(scope="module")
def idle_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("idle"), IDLE_FRAMES)[0]


@pytest.fixture(scope="module", autouse=True)
def cost() -> Iterator[list[WindowCost]]:
    """Of a window, said to be nothing, so that networks on the CPU are admitted."""
    found = [WindowCost(0.0, 0.0)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "measure_cost", lambda *_: found[0])
        patch.setattr(sessions, "composing_s", lambda *_: 0.0)
        yield found


def stream(lip_sync: LipSync, video: Path | IdleLoop) -> LiveSession:
    """A session that paints at once, under a clock that stands still."""
    return lip_sync.stream(video, OPTIONS, executors=(Inline(), Inline()), now=lambda: 0.0)


@pytest.fixture(scope="module")
def opened(lip_sync: LipSync, idle_clip: Path) -> Iterator[LiveSession]:
    """A session that stays open, so that others share its loop."""
    with stream(lip_sync, idle_clip) as session:
        yield session


def say(session: LiveSession, seconds: float, seed: int = 0) -> None:
    session.say(voice(seconds, seed=seed), 16_000)
    session.end()


def test_idle_frames_are_the_sources_and_take_no_network(
    lip_sync: LipSync, idle_clip: Path, opened: LiveSession
) -> None:
    source = list(read_frames(idle_clip))
    with stream(lip_sync, opened.loop) as session:
        frames = take(session, 2 * IDLE_FRAMES)
        assert session.counts.windows == session.counts.painted == 0
    for live, frame in zip(frames, [*source, *source[-2:0:-1]], strict=False):
        assert frame.planes is not None
        for name in "yuv":
            assert np.array_equal(getattr(live.planes, name), getattr(frame.planes, name))
        assert np.array_equal(live.rgb, frame.rgb)


def test_speech_changes_the_mouth_alone(lip_sync: LipSync, opened: LiveSession) -> None:
    loop = opened.loop
    with stream(lip_sync, loop) as session:
        say(session, 0.2)
        _, *frames = until_idle(session)
        assert next(session).planes is loop.planes[loop.index(1 + len(frames))]
    different = [
        frame.planes.y != loop.planes[loop.index(1 + place)].y for place, frame in enumerate(frames)
    ]
    assert all(each.any() for each in different)
    assert np.any(different, axis=0).mean() < 0.2


def test_a_mouth_does_not_show_where_the_head_is_turned_away(
    lip_sync: LipSync, opened: LiveSession
) -> None:
    ahead = opened.loop
    loop = replace(ahead, faces=tuple(replace(face, opacity=0.0) for face in ahead.faces))
    with stream(lip_sync, loop) as session:
        say(session, 0.2)
        frames = take(session, 8)
        assert session.counts.painted
    for place, frame in enumerate(frames):
        assert np.array_equal(frame.planes.y, loop.planes[loop.index(place)].y)


def test_sessions_do_not_mix(lip_sync: LipSync, opened: LiveSession) -> None:
    with stream(lip_sync, opened.loop) as one, stream(lip_sync, opened.loop) as other:
        for seed, session in enumerate((one, other)):
            say(session, 0.12, seed)
        together = [(next(one), next(other)) for _ in range(8)]
    with stream(lip_sync, opened.loop) as alone:
        say(alone, 0.12)
        for frame, (same, _) in zip(take(alone, 8), together, strict=True):
            assert np.array_equal(frame.planes.y, same.planes.y)
            assert np.array_equal(frame.sound, same.sound)
    assert any(
        (one.planes.y != other.planes.y).any() and (one.sound != other.sound).any()
        for one, other in together
    )


def test_a_clip_is_synced_while_a_session_is_open(
    lip_sync: LipSync, opened: LiveSession, tmp_path: Path
) -> None:
    say(opened, 0.2)
    take(opened, 3)
    lip_sync.sync(*write_clip(tmp_path, 2), tmp_path / "out.mp4", OPTIONS.sync_options())
    assert any(frame.speaking for frame in until_idle(opened))


def test_many_sessions_leave_nothing(lip_sync: LipSync, opened: LiveSession) -> None:
    threads = threading.active_count()
    kept = list[weakref.ref[LiveSession]]()
    for _ in range(5):
        with stream(lip_sync, opened.loop) as session:
            session.say(voice(0.1), 16_000)
            next(session)
            kept.append(weakref.ref(session))
    del session
    gc.collect()
    assert not any(reference() for reference in kept)
    assert threading.active_count() <= threads


def test_as_many_are_admitted_as_can_be_painted(
    lip_sync: LipSync, opened: LiveSession, cost: list[WindowCost]
) -> None:
    options = LiveOptions(steps=3, cache_interval=1)
    cost[0] = WindowCost(first_s=0.05, busy_s=0.4 * 8 * 0.04)
    with lip_sync.stream(opened.loop, options) as first:
        second = lip_sync.stream(opened.loop, options)
        with pytest.raises(
            Busy,
            match=r"another session: .*0\.13 s",
        ):
            lip_sync.stream(opened.loop, options)
        second.close()
        lip_sync.stream(opened.loop, options).close()
        assert not next(first).late
    cost[0] = WindowCost(first_s=0.05, busy_s=8 * 0.04)
    slow = LiveOptions(steps=4, cache_interval=1, slow=True)
    with pytest.raises(Busy, match="slower than real time"):
        lip_sync.stream(opened.loop, replace(slow, slow=False))
    with (
        lip_sync.stream(opened.loop, slow),
        pytest.raises(Busy, match="no room for another session"),
    ):
        lip_sync.stream(opened.loop, slow)
    cost[0] = WindowCost(0.0, 0.0)


def test_a_machine_that_is_too_slow_is_told_in_time_and_reads_no_clip(
    lip_sync: LipSync, idle_clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "measure_cost", MEASURED)
    monkeypatch.setattr(live_cost, "measure_s", lambda _: 0.3)

    def paint(_: object, __: object, ___: object, check: Callable[[], None]) -> None:
        for _step in range(1000):
            time.sleep(0.1)
            check()

    monkeypatch.setattr(sessions.SessionPainter, "latents", paint)
    monkeypatch.setattr(sessions, "load_idle", lambda *_: pytest.fail("the clip was read"))
    with pytest.raises(Busy, match=r"0\.30 s.*--slow"):
        lip_sync.stream(idle_clip, replace(OPTIONS, guidance=1.7))
    monkeypatch.setitem(MODEL_RESOLUTION_PX, "demo", 64)
    monkeypatch.setattr(sessions, "measure_cost", lambda *_: pytest.fail("it was measured"))
    with pytest.raises(Busy, match="on the CPU"):
        lip_sync.stream(idle_clip, replace(OPTIONS, guidance=1.8))


def test_a_window_is_measured_without_a_clip(
    lip_sync: LipSync, opened: LiveSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[WindowCost] = []

    def measured(*arguments: Any) -> WindowCost:
        found.append(MEASURED(*arguments))
        return found[-1]

    monkeypatch.setattr(sessions, "measure_cost", measured)
    monkeypatch.setattr(live_cost, "measure_s", lambda _: 600.0)
    options = replace(OPTIONS, guidance=1.9, hop=2, slow=True)
    for _ in range(2):  # once for all sessions with these options
        lip_sync.stream(opened.loop, options).close()
    (cost,) = found
    assert 0 < cost.first_s <= cost.busy_s < 600


def test_idle_clips_that_cannot_be_used(lip_sync: LipSync, idle_clip: Path, tmp_path: Path) -> None:
    with pytest.raises(NoFaceError, match=r"after 0\.00 s"):
        lip_sync.stream(write_video(tmp_path / "faceless.mp4", numbered(5)), OPTIONS)
    with pytest.raises(InputError, match="--memory-gb"):
        lip_sync.stream(idle_clip, replace(OPTIONS, memory_gb=0.001, face="left"))
    with pytest.raises(InputError, match=r"--hop 17: .*16 frames"):
        lip_sync.stream(idle_clip, LiveOptions(hop=17))


def test_closing_the_bundle_closes_its_sessions(idle_clip: Path) -> None:
    with LipSync.from_bundle(small_bundle(), "cpu") as lip_sync:
        session = lip_sync.stream(idle_clip, OPTIONS)
    assert not list(session)


def test_the_command_opens_the_clip_once_and_a_session_for_each_viewer(
    idle_clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("aiortc", reason="needs the extra live")
    from latentsync_trt.serve import live, server

    seen: list[LiveSession] = []

    def open_two(service: Any, key: str | None, *, own_hosts: bool) -> None:
        seen.extend((service._open(), service._open()))

    monkeypatch.setattr(live, "live_app", open_two)
    monkeypatch.setattr(server, "run", lambda *_: None)
    words = [
        "live",
        "--video",
        str(idle_clip),
        "--bundle",
        str(small_bundle()),
        "--provider",
        "cpu",
        "--port",
        "0",
    ]
    result = CliRunner().invoke(main, [*words, "--hop", "4", "--look-ahead-ms", "120"])
    assert result.exit_code == 0, result.output
    first, *_, last = result.output.splitlines()
    assert (
        first.startswith("opening the networks")
        and "http://127.0.0.1:" in last
        and last.endswith(": ready")
    )
    assert [(each.options.hop, each.options.look_ahead_ms) for each in seen] == [(4, 120)] * 2
    assert seen[0].loop is seen[1].loop
    assert CliRunner().invoke(main, [*words, "--host", "0.0.0.0"]).exit_code == 2  # without a key
