"""`LipSync` in several threads: which calls wait, clips beside one another, and no deadlock in callbacks."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.types import Progress, UInt8Array
from tests.clips import LOSSLESS, decoded, write_clip
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


CALLS: dict[str, tuple[Callable[[LipSync, Path, Path], object], bool]] = {
    "close": (lambda own, *_: own.close(), True),
    "warm up other graphs": (lambda own, *_: own.warm_up(SyncOptions()), True),
    "warm up the same graphs": (lambda own, *_: own.warm_up(QUICK), False),
    "encode audio": (lambda own, clip, _: own.encode_audio(clip / "speech.wav"), False),
    "sync": (lambda own, clip, out: own.sync(clip / "face.mp4", clip / "speech.wav", out, QUICK), False),
}
"""Calls for a bundle, the folder of a clip, and an output; whether each waits for a running clip."""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "stage"), [("close", "reading audio"), *((name, "painting first frames") for name in CALLS)]
)
def test_calls_beside_a_running_clip(
    own: LipSync, clip: tuple[Path, Path], tmp_path: Path, name: str, stage: str
) -> None:
    (call, waits), in_callback, released = CALLS[name], threading.Event(), threading.Event()

    def hold(step: Progress) -> None:
        if step.stage == stage:
            in_callback.set()
            assert released.wait(TIMEOUT_S)

    with ThreadPoolExecutor() as threads:
        running = threads.submit(own.sync, *clip, tmp_path / "out.mp4", QUICK, on_progress=hold)
        assert in_callback.wait(TIMEOUT_S)
        other = threads.submit(call, own, clip[0].parent, tmp_path / "other.mp4")
        if not waits:
            other.result(TIMEOUT_S)
        else:
            assert not wait([other], timeout=0.5).done
        released.set()
        running.result(TIMEOUT_S)
        other.result(TIMEOUT_S)
    assert (tmp_path / "out.mp4").is_file()


@pytest.mark.integration
def test_clips_beside_one_another_are_those_one_after_another(own: LipSync, tmp_path: Path) -> None:
    """Of different lengths and options."""
    jobs = []
    for name, frames, seed in (("a", 18, 1), ("b", 5, 2)):
        (tmp_path / name).mkdir()
        jobs.append((write_clip(tmp_path / name, frames), replace(LOSSLESS, seed=seed)))

    def run(number: int, output: str) -> UInt8Array:
        own.sync(*jobs[number][0], tmp_path / output, jobs[number][1])
        return np.stack(decoded(tmp_path / output))

    alone = [run(number, f"alone {number}.mkv") for number in range(2)]
    with ThreadPoolExecutor() as threads:
        together = [threads.submit(run, number, f"{number}.mkv") for number in range(2)]
        for found, expected in zip(together, alone, strict=True):
            assert np.array_equal(found.result(TIMEOUT_S), expected)


def test_no_call_after_close(own: LipSync, clip: tuple[Path, Path], tmp_path: Path) -> None:
    own.close()
    own.close()
    for call in (lambda: own.sync(*clip, tmp_path / "out.mp4"), lambda: own.encode_audio(clip[1]), own.warm_up):
        with pytest.raises(InputError, match=r"LipSync\.\w+: it is closed; open the bundle again"):
            call()
    assert own.build is None


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
