"""`LipSync` in several threads: which calls wait, clips beside one another, and no deadlock in
callbacks.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
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
    return write_clip(tmp_path_factory.mktemp("clip"), 2)


@pytest.fixture
def lip_sync() -> Iterator[LipSync]:
    with LipSync.from_bundle(small_bundle(), "cpu") as opened:
        yield opened


@pytest.mark.integration
def test_calls_beside_a_running_clip(
    lip_sync: LipSync, clip: tuple[Path, Path], tmp_path: Path
) -> None:
    """Another clip does not wait for it; what opens other graphs or closes the bundle does."""
    in_callback = threading.Event()
    released = threading.Event()

    def hold(step: Progress) -> None:
        if step.stage == "painting first frames":
            in_callback.set()
            assert released.wait(TIMEOUT_S)

    with ThreadPoolExecutor() as threads:
        calls = [
            threads.submit(lip_sync.sync, *clip, tmp_path / "out.mp4", QUICK, on_progress=hold)
        ]
        assert in_callback.wait(TIMEOUT_S)
        lip_sync.sync(*clip, tmp_path / "other.mp4", QUICK)
        for call in (partial(lip_sync.warm_up, SyncOptions()), lip_sync.close):
            calls.append(threads.submit(call))
            assert not wait(calls, timeout=0.5).done
        released.set()
        for each in calls:
            each.result(TIMEOUT_S)


@pytest.mark.integration
def test_clips_beside_one_another_are_those_one_after_another(
    lip_sync: LipSync, tmp_path: Path
) -> None:
    """Of different lengths and options."""
    jobs = []
    for name, frames, seed in (("a", 6, 1), ("b", 3, 2)):
        (tmp_path / name).mkdir()
        jobs.append(
            (write_clip(tmp_path / name, frames), replace(LOSSLESS, guidance=1.0, seed=seed))
        )

    def run(number: int, output: str) -> UInt8Array:
        lip_sync.sync(*jobs[number][0], tmp_path / output, jobs[number][1])
        return np.stack(decoded(tmp_path / output))

    alone = [run(number, f"alone {number}.mkv") for number in range(2)]
    with ThreadPoolExecutor() as threads:
        together = [threads.submit(run, number, f"{number}.mkv") for number in range(2)]
        for call, expected in zip(together, alone, strict=True):
            assert np.array_equal(call.result(TIMEOUT_S), expected)


def test_no_call_after_close(lip_sync: LipSync, clip: tuple[Path, Path], tmp_path: Path) -> None:
    lip_sync.close()
    lip_sync.close()
    for call in (
        lambda: lip_sync.sync(*clip, tmp_path / "out.mp4"),
        lambda: lip_sync.encode_audio(clip[1]),
        lip_sync.warm_up,
    ):
        with pytest.raises(InputError, match=r"LipSync\.\w+: it is closed"):
            call()
    assert lip_sync.build is None


@pytest.mark.integration
def test_a_callback_cannot_wait_for_its_own_call(
    lip_sync: LipSync, clip: tuple[Path, Path], tmp_path: Path
) -> None:
    def call_all(_: object) -> None:
        for call in (
            lip_sync.close,
            lip_sync.warm_up,
            lambda: lip_sync.sync(*clip, tmp_path / "other.mp4", QUICK),
        ):
            with pytest.raises(InputError, match=r"LipSync\.\w+: .* a callback"):
                call()
        raise InputError("stopped by the callback")

    with (
        ThreadPoolExecutor() as threads,
        pytest.raises(InputError, match="stopped by the callback"),
    ):
        threads.submit(
            lip_sync.sync, *clip, tmp_path / "out.mp4", QUICK, on_progress=call_all
        ).result(TIMEOUT_S)
    assert list(tmp_path.iterdir()) == []
