"""`LipSync` in several threads: one call at a time, none after `close`, and no deadlock in callbacks."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.types import Progress
from tests.clips import write_clip
from tests.small import small_bundle

TIMEOUT_S = 60.0
QUICK = SyncOptions(steps=1, guidance=1.0)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_clip(tmp_path_factory.mktemp("clip"), 5)


class Background:
    """Runs a function in a thread, and keeps its result or error."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.result: object = None
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(function,), daemon=True)
        self._thread.start()

    def _run(self, function: Callable[[], object]) -> None:
        try:
            self.result = function()
        except Exception as error:  # noqa: BLE001 -- the test looks at it
            self.error = error

    def join(self, timeout_s: float = TIMEOUT_S) -> bool:
        """Whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


class Held:
    """A `sync` in a thread that stays in its first `on_progress` until it is released."""

    def __init__(self, lip_sync: LipSync, clip: tuple[Path, Path], target: Path) -> None:
        self._in_callback, self._released = threading.Event(), threading.Event()
        self.thread = Background(lambda: lip_sync.sync(*clip, target, QUICK, on_progress=self._progress))
        assert self._in_callback.wait(TIMEOUT_S)

    def _progress(self, progress: Progress) -> None:
        self._in_callback.set()
        assert self._released.wait(TIMEOUT_S)

    def release(self) -> None:
        self._released.set()
        assert self.thread.join()


@pytest.fixture
def lip_sync() -> Iterator[LipSync]:
    with LipSync.from_bundle(small_bundle(), "cpu") as made:
        yield made


@pytest.mark.integration
@pytest.mark.parametrize("name", ["close", "warm_up", "encode_audio"])
def test_calls_wait_for_a_running_clip(lip_sync: LipSync, clip: tuple[Path, Path], tmp_path: Path, name: str) -> None:
    calls: dict[str, Callable[[], object]] = {
        "close": lip_sync.close,
        "warm_up": lambda: lip_sync.warm_up(QUICK),
        "encode_audio": lambda: lip_sync.encode_audio(clip[1]),
    }
    running = Held(lip_sync, clip, tmp_path / "out.mp4")
    other = Background(calls[name])
    assert not other.join(0.5)
    running.release()
    assert other.join()
    assert (running.thread.error, other.error) == (None, None)
    assert (tmp_path / "out.mp4").is_file()


def test_no_call_after_close(lip_sync: LipSync, clip: tuple[Path, Path], tmp_path: Path) -> None:
    lip_sync.close()
    lip_sync.close()
    for call in (
        lambda: lip_sync.sync(*clip, tmp_path / "out.mp4", QUICK),
        lambda: lip_sync.encode_audio(clip[1]),
        lip_sync.warm_up,
    ):
        with pytest.raises(InputError, match=r"LipSync\.\w+: it is closed; open the bundle again"):
            call()
    assert not lip_sync.building
    assert lip_sync.wait_for_build() == ""


@pytest.mark.integration
@pytest.mark.parametrize("callback", ["on_progress", "on_notice"])
def test_a_callback_cannot_wait_for_its_own_call(clip: tuple[Path, Path], tmp_path: Path, callback: str) -> None:
    refused: dict[str, str] = {}

    def call_all(_: object) -> None:
        calls: dict[str, Callable[[], object]] = {
            "close": made.close,
            "sync": lambda: made.sync(*clip, tmp_path / "other.mp4", QUICK),
            "warm_up": made.warm_up,
            "encode_audio": lambda: made.encode_audio(clip[1]),
        }
        for name, call in calls.items():
            try:
                call()
            except InputError as error:
                refused[name] = str(error)
        raise InputError("stopped by the callback")

    made = LipSync.from_bundle(small_bundle(), "cpu", on_notice=call_all if callback == "on_notice" else None)
    on_progress = call_all if callback == "on_progress" else None
    # The small bundle is named as the built-in one, about which there is a notice.
    running = Background(lambda: made.sync(*clip, tmp_path / "out.mp4", QUICK, on_progress=on_progress))
    assert running.join()
    assert str(running.error) == "stopped by the callback"
    assert list(refused) == ["close", "sync", "warm_up", "encode_audio"]
    assert all(f"LipSync.{name}: called from a callback" in text for name, text in refused.items())
    assert list(tmp_path.iterdir()) == []
    made.close()
