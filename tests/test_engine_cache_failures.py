"""The engine cache where things go wrong: damaged engines, full, protected and vanishing folders."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from latentsync_trt.errors import EngineBuildError, OutputError
from latentsync_trt.runtime.cache import store
from latentsync_trt.runtime.cache.entry import RECORD_NAME
from latentsync_trt.runtime.cache.store import EngineCache
from tests.cache_worker import KEY, engine_key, never, write_engine

REPOSITORY = Path(__file__).resolve().parents[1]

DISK_MB = 24
"""More than the cache wants left free, and little to fill."""


@pytest.fixture
def notices() -> list[str]:
    return []


@pytest.fixture
def cache(tmp_path: Path, notices: list[str]) -> EngineCache:
    return EngineCache(tmp_path / "cache", notices.append)


def mount(*arguments: str) -> None:
    command = ["mount", *arguments]
    if shutil.which("mount") is None or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a file system")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of `DISK_MB` of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount("-t", "tmpfs", "-o", f"size={DISK_MB}m", "none", str(disk))
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def replace_by_another_engine(entry: Path) -> None:
    other = EngineCache(entry.parent).obtain(engine_key(gpu="another"), write_engine)
    shutil.rmtree(entry)
    other.folder.rename(entry)


def replace_in_record(entry: Path, old: str, new: str) -> None:
    text = (entry / RECORD_NAME).read_text(encoding="utf-8")
    (entry / RECORD_NAME).write_text(text.replace(old, new), encoding="utf-8")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "999 bytes instead of 1000": lambda entry: os.truncate(entry / "context" / "timing.bin", 999),
    "SHA-256 differs": lambda entry: (entry / "engine.bin").write_bytes(b"Engine"),
    "engine.bin is missing": lambda entry: (entry / "engine.bin").unlink(),
    "engine.json is missing": lambda entry: (entry / RECORD_NAME).unlink(),
    "damaged record": lambda entry: os.truncate(entry / RECORD_NAME, 100),
    "`key` in `$.files`": lambda entry: replace_in_record(entry, "context/timing", "../timing"),
    "got `array`": lambda entry: (entry / RECORD_NAME).write_text("[" * 200_000),
    "belongs to another engine": replace_by_another_engine,
}


@pytest.mark.parametrize("words", DAMAGES)
def test_a_damaged_engine_is_built_again_with_a_notice(cache: EngineCache, notices: list[str], words: str) -> None:
    first = cache.obtain(KEY, write_engine)
    DAMAGES[words](first.folder)
    again = EngineCache(cache.folder, notices.append)
    assert again.find(KEY) is None
    assert again.obtain(KEY, write_engine).built
    assert len(notices) == 1
    assert words in notices[0]
    assert notices[0].endswith("; building it again")
    found = EngineCache(cache.folder).find(KEY)
    assert found is not None
    assert found.folder == first.folder
    assert sorted(path.name for path in cache.folder.iterdir()) == [".locks", KEY.digest]


def test_an_engine_deleted_while_it_is_opened_is_built_again(cache: EngineCache, notices: list[str]) -> None:
    def load(folder: Path) -> bytes:
        if not notices:
            notices.append("deleted")
            shutil.rmtree(cache.folder)
        return (folder / "engine.bin").read_bytes()

    engine, content = cache.load(KEY, write_engine, load)
    assert engine.built
    assert content == b"engine"
    assert "was deleted while it was opened; building it again" in notices[1]


def test_a_path_with_spaces_and_other_letters(tmp_path: Path) -> None:
    folder = tmp_path / "engine cache für Ženy 引擎"
    key = engine_key(bundle="été 引擎", gpu="Grafikkarte ß")
    engine = EngineCache(folder).obtain(key, write_engine)
    (item,) = EngineCache(folder).entries(hashes=True)
    assert (item.folder, item.state, item.key) == (engine.folder, "ready", key)


def full(folder: Path) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def fail(folder: Path) -> None:
    raise EngineBuildError("serializing failed")


@pytest.mark.parametrize("build", [full, fail, write_engine], ids=["says so", "says anything", "says nothing"])
def test_a_disk_that_a_build_fills_is_recognized(
    cache: EngineCache, monkeypatch: pytest.MonkeyPatch, build: Callable[[Path], None]
) -> None:
    usage = shutil.disk_usage(cache.folder.parent)

    def fill(folder: Path) -> None:
        if build is not full:
            monkeypatch.setattr(store.shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
        build(folder)

    for action in (fill, never if build is not full else fill):  # a full disk is seen before minutes of building
        with pytest.raises(OutputError, match=r"the disk is full; make room, .* cache prune"):
            cache.obtain(KEY, action)
        assert EngineCache(cache.folder).entries() == ()


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "engine.bin").write_bytes(bytes(2 * DISK_MB * 1024**2))

    cache = EngineCache(small_disk / "cache")
    with pytest.raises(OutputError, match="the disk is full"):
        cache.obtain(KEY, build)
    assert EngineCache(cache.folder).entries() == ()
    assert cache.obtain(KEY, write_engine).built


@pytest.fixture
def protect() -> Iterator[Callable[[Path], None]]:
    """Takes the right to write from all below a folder, until the test ends."""
    undo: list[Callable[[], object]] = []

    def protect(folder: Path) -> None:
        if sys.platform == "win32":
            pytest.skip("permissions of folders do not prevent writing on Windows")
        if os.geteuid() == 0:
            mount("--bind", str(folder), str(folder))
            undo.append(lambda: subprocess.run(["umount", str(folder)], check=True))
            mount("-o", "remount,ro,bind", str(folder))
            return
        for path in (folder, *folder.rglob("*")):
            mode = path.stat().st_mode
            path.chmod(mode & ~0o222)
            undo.append(partial(path.chmod, mode))

    yield protect
    for step in undo:
        step()


def test_a_read_only_cache_is_read_but_not_written(cache: EngineCache, protect: Callable[[Path], None]) -> None:
    engine = cache.obtain(KEY, write_engine)
    with pytest.raises(OutputError, match=r"engine\.bin: the engine cache cannot be used .*; choose another place"):
        EngineCache(engine.folder / "engine.bin").obtain(KEY, write_engine)  # a file
    protect(cache.folder)
    assert EngineCache(cache.folder).obtain(KEY, never).folder == engine.folder
    with pytest.raises(OutputError, match=r"cannot be used .*choose another place with --engine-cache"):
        cache.obtain(engine_key(gpu="another"), write_engine)


def test_an_engine_that_was_built_again_meanwhile_is_not_removed(cache: EngineCache) -> None:
    damaged = cache.obtain(KEY, write_engine)
    (damaged.folder / "engine.bin").unlink()
    (seen,) = EngineCache(cache.folder).entries()
    EngineCache(cache.folder).obtain(KEY, write_engine)
    assert cache.remove(seen) == "it was built again"
    assert [item.state for item in EngineCache(cache.folder).entries()] == ["ready"]
    (seen,) = EngineCache(cache.folder).entries()
    assert cache.remove(seen) == ""
    assert cache.remove(seen) == ""  # of another process
    assert EngineCache(cache.folder).entries() == ()


def test_an_engine_that_cannot_be_put_in_place_leaves_the_old_one(
    cache: EngineCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = cache.obtain(KEY, write_engine)
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if (self / "engine.bin").read_bytes() == b"newer":
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OutputError, match="Input/output error"):
        cache.obtain(KEY, lambda folder: write_engine(folder, b"newer"), other_than=old.built_at)
    assert EngineCache(cache.folder).obtain(KEY, never).built_at == old.built_at
    assert sorted(path.name for path in cache.folder.iterdir()) == [".locks", KEY.digest]


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="forks, to kill a process at each of its steps")
@pytest.mark.parametrize("action", ["build", "build again", "remove"])
def test_a_process_killed_at_any_step_leaves_the_old_engine_the_new_one_or_none(tmp_path: Path, action: str) -> None:
    command = [sys.executable, "-m", "tests.cache_worker", str(tmp_path), str(tmp_path), f"kill {action}"]
    steps = json.loads(subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True).stdout)["steps"]
    assert steps > 5
    found: list[bytes | None] = []
    for step in range(steps):
        cache = EngineCache(tmp_path / f"{step}", lambda text: None)
        entry = cache.find(KEY)
        found.append(entry and (entry.folder / "engine.bin").read_bytes())
        states = {item.state for item in EngineCache(cache.folder).entries(hashes=True)}
        assert states <= {"ready"}
        cache.obtain(KEY, lambda folder: (folder / "engine.bin").write_bytes(b"last") and None)
        cache.remove_all([])
        files = [path.relative_to(cache.folder) for path in cache.folder.rglob("*") if path.is_file()]
        assert {path.parts[0] for path in files} == {".locks", KEY.digest}
    before, after = {"build": (None, b"new"), "build again": (b"old", b"new"), "remove": (b"old", None)}[action]
    assert (found[0], found[-1]) == (before, after)
    assert set(found) <= {before, after, None}
    assert found.count(None) <= 1 or action != "build again"  # between two renames
