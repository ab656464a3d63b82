"""The engine cache where things go wrong: damaged engines, full, protected and vanishing folders."""

import errno
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from latentsync_trt.errors import EngineBuildError, OutputError
from latentsync_trt.runtime.cache import store
from latentsync_trt.runtime.cache.entry import RECORD_NAME
from latentsync_trt.runtime.cache.prune import survey
from latentsync_trt.runtime.cache.store import EngineCache
from tests.cache_worker import KEY, engine_key, never, until, write_engine

DISK_MB = 24
"""More than the cache wants left free, and little to fill."""


@pytest.fixture
def notices() -> list[str]:
    return []


@pytest.fixture
def cache(tmp_path: Path, notices: list[str]) -> EngineCache:
    return EngineCache(tmp_path / "cache", notices.append)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of `DISK_MB` of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "none", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a small file system")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def cut_short(entry: Path) -> None:
    os.truncate(entry / "context" / "timing.bin", 999)


def edit(entry: Path) -> None:
    (entry / "engine.bin").write_bytes(b"Engine")


def lose_a_file(entry: Path) -> None:
    (entry / "engine.bin").unlink()


def lose_the_record(entry: Path) -> None:
    (entry / RECORD_NAME).unlink()


def cut_the_record(entry: Path) -> None:
    os.truncate(entry / RECORD_NAME, 100)


def empty_the_record(entry: Path) -> None:
    (entry / RECORD_NAME).write_text("[]")


def edit_the_record(entry: Path) -> None:
    text = (entry / RECORD_NAME).read_text(encoding="utf-8")
    (entry / RECORD_NAME).write_text(text.replace("4090", "4080"), encoding="utf-8")


def replace_by_another_engine(entry: Path) -> None:
    other = EngineCache(entry.parent).obtain(engine_key(gpu="another"), write_engine)
    shutil.rmtree(entry)
    other.folder.rename(entry)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut_short, "999 bytes instead of 1000"),
        (edit, "SHA-256 differs"),
        (lose_a_file, "engine.bin is missing"),
        (lose_the_record, "engine.json is missing"),
        (cut_the_record, "cut short or not a record"),
        (empty_the_record, "cut short or not a record"),
        (edit_the_record, "edited or damaged"),
        (replace_by_another_engine, "belongs to another engine"),
    ],
)
def test_a_damaged_engine_is_built_again_with_a_notice(
    cache: EngineCache, notices: list[str], damage: Callable[[Path], None], words: str
) -> None:
    first = cache.obtain(KEY, write_engine)
    damage(first.folder)
    again = EngineCache(cache.folder, notices.append)
    assert again.find(KEY) is None
    assert again.obtain(KEY, write_engine).built
    assert len(notices) == 1
    assert words in notices[0]
    assert notices[0].endswith("; building it again")
    assert EngineCache(cache.folder).find(KEY) == first.folder
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


@pytest.mark.parametrize("writes_on", [True, False])
def test_a_cache_deleted_during_a_build_is_said(cache: EngineCache, writes_on: bool) -> None:
    def build(folder: Path) -> None:
        write_engine(folder)
        shutil.rmtree(folder if sys.platform == "win32" else cache.folder)  # Windows keeps a locked file
        if writes_on:
            (folder / "engine.bin").write_bytes(b"more")

    with pytest.raises(OutputError, match="was deleted while an engine was built in it; run again"):
        cache.obtain(KEY, build)
    assert cache.obtain(KEY, write_engine).built


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not delete a file that is locked")
def test_locks_deleted_while_they_are_waited_for_let_the_next_one_build(cache: EngineCache, notices: list[str]) -> None:
    taken_over = threading.Event()

    def first(folder: Path) -> None:
        until(lambda: notices)
        shutil.rmtree(cache.folder / ".locks")
        assert taken_over.wait(60)
        write_engine(folder)

    def second(folder: Path) -> None:
        write_engine(folder)
        taken_over.set()

    with ThreadPoolExecutor(2) as pool:
        loser = pool.submit(cache.obtain, KEY, first)
        until(lambda: list(cache.folder.glob(f".{KEY.digest}-*")))
        winner = pool.submit(cache.obtain, KEY, second)
        assert winner.result().built
        with pytest.raises(OutputError, match="was deleted while an engine was built"):
            loser.result()
    assert cache.find(KEY) == winner.result().folder


def test_a_path_with_spaces_and_other_letters(tmp_path: Path) -> None:
    folder = tmp_path / "engine cache für Ženy 引擎"
    key = engine_key(bundle="été 引擎", gpu="Grafikkarte ß")
    engine = EngineCache(folder).obtain(key, write_engine)
    assert EngineCache(folder).find(key) == engine.folder
    (item,) = survey(folder, hashes=True)
    assert item.state == "ready"
    assert item.record is not None
    assert item.record.key == key


def test_a_file_in_the_place_of_the_cache_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "cache"):
        for action in (EngineCache(folder).find, lambda key, at=folder: EngineCache(at).obtain(key, write_engine)):
            with pytest.raises(OutputError, match="a file is in the place of the engine cache; choose another place"):
                action(KEY)


def full(folder: Path) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def fail(folder: Path) -> None:
    raise EngineBuildError("serializing failed")


@pytest.mark.parametrize("build", [full, fail, write_engine], ids=["says so", "says anything", "says nothing"])
def test_a_full_disk_is_recognized(
    cache: EngineCache, monkeypatch: pytest.MonkeyPatch, build: Callable[[Path], None]
) -> None:
    usage = shutil.disk_usage(cache.folder.parent)
    if build is not full:
        monkeypatch.setattr(store.shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    with pytest.raises(OutputError, match=r"the disk is full; make room, .* cache prune"):
        cache.obtain(KEY, build)
    assert survey(cache.folder) == ()


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "engine.bin").write_bytes(bytes(2 * DISK_MB * 1024**2))

    cache = EngineCache(small_disk / "cache")
    with pytest.raises(OutputError, match="the disk is full"):
        cache.obtain(KEY, build)
    assert survey(cache.folder) == ()
    assert cache.obtain(KEY, write_engine).built


def test_a_read_only_cache_is_read_but_not_written(small_disk: Path) -> None:
    cache = EngineCache(small_disk / "cache")
    engine = cache.obtain(KEY, write_engine)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert EngineCache(cache.folder).obtain(KEY, never).folder == engine.folder
    with pytest.raises(OutputError, match=r"cannot be used .*choose another place with --engine-cache"):
        cache.obtain(engine_key(gpu="another"), write_engine)


@pytest.fixture
def protect() -> Iterator[Callable[[Path], None]]:
    """Takes the right to write from all below a folder, until the test ends."""
    changed: list[Path] = []

    def protect(folder: Path) -> None:
        changed.extend([folder, *folder.rglob("*")])
        for path in changed:
            path.chmod(path.stat().st_mode & ~0o222)
        if os.access(folder, os.W_OK):
            pytest.skip("permissions of folders bind neither Windows nor root")

    yield protect
    for path in changed:
        path.chmod(path.stat().st_mode | 0o200)


def test_a_protected_cache_is_read_but_not_written(cache: EngineCache, protect: Callable[[Path], None]) -> None:
    engine = cache.obtain(KEY, write_engine)
    protect(cache.folder)
    assert EngineCache(cache.folder).obtain(KEY, never).folder == engine.folder
    with pytest.raises(OutputError, match=r"cannot be used .*Permission denied"):
        cache.obtain(engine_key(gpu="another"), write_engine)


def test_an_engine_in_use_cannot_be_replaced(cache: EngineCache, monkeypatch: pytest.MonkeyPatch) -> None:
    old = cache.obtain(KEY, write_engine)

    def in_use(self: EngineCache, path: Path) -> None:
        raise PermissionError(errno.EACCES, "used by another process", str(path))

    monkeypatch.setattr(EngineCache, "remove", in_use)
    with pytest.raises(OutputError, match=f"cannot be used .used by another process: {re.escape(str(old.folder))}"):
        cache.obtain(KEY, write_engine, force=True)
    assert [item.state for item in survey(cache.folder, hashes=True)] == ["ready"]
