"""`LipSync` in several threads: one call at a time, none after `close`, and no deadlock in callbacks."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.types import Progress
from tests.clips import write_clip
from tests.small import small_bundle

TIMEOUT_S = 600.0
QUICK = SyncOptions(steps=1, guidance=1.0)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_clip(tmp_path_factory.mktemp("clip"), 5)


@pytest.fixture
def own() -> Iterator[LipSync]:
    with LipSync.from_bundle(small_bundle(), "cpu") as made:
        yield made


@pytest.mark.integration
@pytest.mark.parametrize("name", ["close", "warm_up", "encode_audio"])
def test_calls_wait_for_a_running_clip(own: LipSync, clip: tuple[Path, Path], tmp_path: Path, name: str) -> None:
    calls: dict[str, Callable[[], object]] = {
        "close": own.close,
        "warm_up": lambda: own.warm_up(QUICK),
        "encode_audio": lambda: own.encode_audio(clip[1]),
    }
    in_callback, released = threading.Event(), threading.Event()

    def hold(_: Progress) -> None:
        in_callback.set()
        assert released.wait(TIMEOUT_S)

    with ThreadPoolExecutor() as threads:
        running = threads.submit(own.sync, *clip, tmp_path / "out.mp4", QUICK, on_progress=hold)
        assert in_callback.wait(TIMEOUT_S)
        other = threads.submit(calls[name])
        assert not wait([other], timeout=0.5).done
        released.set()
        running.result(TIMEOUT_S)
        other.result(TIMEOUT_S)
    assert (tmp_path / "out.mp4").is_file()


def test_no_call_after_close(own: LipSync, clip: tuple[Path, Path], tmp_path: Path) -> None:
    own.close()
    own.close()
    for call in (
        lambda: own.sync(*clip, tmp_path / "out.mp4", QUICK),
        lambda: own.encode_audio(clip[1]),
        own.warm_up,
    ):
        with pytest.raises(InputError, match=r"LipSync\.\w+: it is closed; open the bundle again"):
            call()
    assert not own.building
    assert own.wait_for_build() == ""


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
    with ThreadPoolExecutor() as threads, pytest.raises(InputError, match="stopped by the callback"):
        threads.submit(made.sync, *clip, tmp_path / "out.mp4", QUICK, on_progress=on_progress).result(TIMEOUT_S)
    assert list(refused) == ["close", "sync", "warm_up", "encode_audio"]
    assert all(f"LipSync.{name}: called from a callback" in text for name, text in refused.items())
    assert list(tmp_path.iterdir()) == []
    made.close()
