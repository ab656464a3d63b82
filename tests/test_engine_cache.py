"""The engine cache: one build per key for all processes; only the engine of an equal key is found,
whatever fails.
"""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from latentsync_trt.errors import OutputError
from latentsync_trt.files import remove_leftovers
from latentsync_trt.runtime.engines.cache import EngineCache
from tests.cache_worker import KEY, never, write_engine
from tests.conftest import REPOSITORY

RACERS = 3


@pytest.fixture
def cache(tmp_path: Path) -> EngineCache:
    return EngineCache(tmp_path / "cache")


def test_hashes_are_checked_once_in_the_life_of_a_cache(cache: EngineCache) -> None:
    engine = cache.obtain(KEY, write_engine).folder / "engine.bin"
    later = EngineCache(cache.folder)
    assert later.find(KEY) is not None
    engine.write_bytes(b"enginE")
    assert cache.find(KEY) is not None  # which built it
    assert later.find(KEY) is not None
    assert EngineCache(cache.folder).find(KEY) is None


def test_many_processes_build_one_engine_once(tmp_path: Path) -> None:
    signals = tmp_path / "signals"
    signals.mkdir()
    command = [
        sys.executable,
        "-m",
        "tests.cache_worker",
        str(tmp_path / "cache"),
        str(signals),
        f"{RACERS - 1}",
    ]
    workers = [
        subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
        for _ in range(RACERS)
    ]
    answers = [json.loads(worker.communicate()[0]) for worker in workers]
    assert sum(answer["built"] for answer in answers) == 1
    assert len(list(signals.glob("builds-*"))) == 1
    for answer in answers:
        if not answer["built"]:
            assert "built by another process" in answer["notices"][0]


def full(folder: Path) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("build", [full, write_engine], ids=["says so", "says nothing"])
def test_a_disk_that_a_build_fills_is_recognized(
    cache: EngineCache, monkeypatch: pytest.MonkeyPatch, build: Callable[[Path], None]
) -> None:
    usage = shutil.disk_usage(cache.folder.parent)

    def fill(folder: Path) -> None:
        if build is not full:
            monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
        build(folder)

    # a full disk is seen before minutes of building
    for action in (fill, never if build is not full else fill):
        with pytest.raises(OutputError, match=r"disk is full; .* cache prune"):
            cache.obtain(KEY, action)
        assert EngineCache(cache.folder).entries() == ()


@pytest.mark.skipif(
    sys.platform == "win32", reason="permissions of folders do not prevent writing on Windows"
)
def test_a_read_only_cache_is_read_but_not_written(cache: EngineCache) -> None:
    """Permissions do not stop root, but a mount does."""
    engine = cache.obtain(KEY, write_engine)
    path = cache.folder
    close = f"chmod -R a-w {path}"
    undo = f"chmod -R u+w {path}"
    if os.geteuid() == 0:
        close = f"mount --bind {path} {path} && mount -o remount,ro,bind {path}"
        undo = f"umount {path}"
    if subprocess.run(close, shell=True, check=False, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a file system")
    try:
        assert EngineCache(cache.folder).obtain(KEY, never).folder == engine.folder
        with pytest.raises(OutputError, match=r"cannot be used .*--engine-cache"):
            cache.obtain(replace(KEY, gpu="another"), write_engine)
    finally:
        subprocess.run(undo, shell=True, check=True)


def test_an_engine_that_was_built_again_meanwhile_is_not_removed(cache: EngineCache) -> None:
    damaged = cache.obtain(KEY, write_engine)
    (damaged.folder / "engine.bin").unlink()
    (seen,) = EngineCache(cache.folder).entries()
    EngineCache(cache.folder).obtain(KEY, write_engine)
    assert cache.remove(seen) == "it was built again"
    assert [item.state for item in EngineCache(cache.folder).entries()] == ["ready"]


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="forks, to kill a process at each of its steps")
@pytest.mark.parametrize("action", ["build", "build again", "remove"])
def test_a_process_killed_at_any_step_leaves_the_old_engine_the_new_one_or_none(
    tmp_path: Path, action: str
) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.cache_worker",
        str(tmp_path),
        str(tmp_path),
        f"kill {action}",
    ]
    steps = json.loads(
        subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True).stdout
    )["steps"]
    assert steps > 5
    engines: list[bytes | None] = []
    for step in range(steps):
        cache = EngineCache(tmp_path / f"{step}", lambda text: None)
        entry = cache.find(KEY)
        engines.append(entry and (entry.folder / "engine.bin").read_bytes())
        states = {item.state for item in EngineCache(cache.folder).entries(hashes=True)}
        assert states <= ({"ready", "damaged"} if action == "build again" else {"ready"})
        cache.obtain(KEY, lambda folder: (folder / "engine.bin").write_bytes(b"last") and None)
        remove_leftovers(cache.folder)
        files = [
            path.relative_to(cache.folder) for path in cache.folder.rglob("*") if path.is_file()
        ]
        assert {path.parts[0] for path in files} == {".locks", KEY.digest}
    before, after = {
        "build": (None, b"new"),
        "build again": (None, b"new"),
        "remove": (b"old", None),
    }[action]
    assert (engines[0], engines[-1]) == (before, after)
    assert set(engines) <= {before, after}
