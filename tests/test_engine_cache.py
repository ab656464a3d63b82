"""The engine cache: one build per key for all processes, and only engines whose key is equal are found."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from latentsync_trt import remembered
from latentsync_trt.bundle.manifest import sha256_file
from latentsync_trt.errors import OutOfMemory
from latentsync_trt.runtime.cache import entry
from latentsync_trt.runtime.cache.store import CACHE_VARIABLE, EngineCache, cache_folder
from tests.cache_worker import KEY, never, until, write_engine

REPOSITORY = Path(__file__).resolve().parents[1]
RACERS = 6


def start_worker(cache: Path, signals: Path, mode: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.cache_worker", str(cache), str(signals), mode]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def notices() -> list[str]:
    return []


@pytest.fixture
def cache(tmp_path: Path, notices: list[str]) -> EngineCache:
    return EngineCache(tmp_path / "cache", notices.append)


def test_hashes_are_checked_once_until_an_engine_changes(cache: EngineCache, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []

    def hash_file(path: Path) -> str:
        hashed.append(path.name)
        return sha256_file(path)

    engine = cache.obtain(KEY, write_engine).folder / "engine.bin"
    monkeypatch.setattr(remembered, "_SETTLED_S", -1.0)
    monkeypatch.setattr(entry, "sha256_file", hash_file)
    for _ in range(2):
        assert EngineCache(cache.folder).find(KEY) is not None
    assert sorted(hashed) == ["engine.bin", "timing.bin"]
    EngineCache(cache.folder).entries(hashes=True)  # as `cache verify` does
    assert len(hashed) == 4
    engine.write_bytes(b"enginE")
    os.utime(engine, (1, 1))
    assert EngineCache(cache.folder).find(KEY) is None


def test_many_processes_build_one_engine_once(tmp_path: Path) -> None:
    signals = tmp_path / "signals"
    signals.mkdir()
    workers = [start_worker(tmp_path / "cache", signals, f"race-{RACERS - 1}") for _ in range(RACERS)]
    answers = [json.loads(worker.communicate()[0]) for worker in workers]
    assert sum(answer["built"] for answer in answers) == 1
    assert len(list(signals.glob("builds-*"))) == 1
    assert len({answer["folder"] for answer in answers}) == 1
    for answer in answers:
        if not answer["built"]:
            assert "being built by another process; waiting" in answer["notices"][0]


def files_in(cache: EngineCache) -> list[str]:
    """Names of all files below the cache except locks, which stay."""
    names = (path.name for path in cache.folder.rglob("*") if path.is_file())
    return sorted(name for name in names if not name.endswith((".lock", ".in-use")))


def test_a_killed_build_is_never_used_and_removed_by_the_next(tmp_path: Path, cache: EngineCache) -> None:
    signals = tmp_path / "signals"
    signals.mkdir()
    worker = start_worker(cache.folder, signals, "hang")
    try:
        until(lambda: list(signals.glob("builds-*")))
        EngineCache(cache.folder).remove_all([])
        assert files_in(cache) == ["engine.bin"]  # a build in progress stays
    finally:
        worker.kill()
        worker.communicate()
    assert cache.find(KEY) is None
    assert EngineCache(cache.folder).entries() == ()
    assert files_in(cache) == ["engine.bin"]
    assert cache.obtain(KEY, write_engine).built
    assert [item.state for item in EngineCache(cache.folder).entries()] == ["ready"]
    assert files_in(cache) == ["engine.bin", "engine.json", "timing.bin"]
    assert sorted(path.name for path in cache.folder.iterdir()) == [".locks", KEY.digest]


def test_two_forced_builds_at_once_are_one(cache: EngineCache, notices: list[str]) -> None:
    old = cache.obtain(KEY, write_engine)

    def build(folder: Path) -> None:
        until(lambda: notices)
        write_engine(folder)

    with ThreadPoolExecutor(2) as pool:
        engines = list(pool.map(lambda _: cache.obtain(KEY, build, other_than=old.built_at), range(2)))
    assert sorted(engine.built for engine in engines) == [False, True]
    assert engines[0].built_at == engines[1].built_at != old.built_at


def test_an_engine_is_kept_where_opening_it_fails_for_other_reasons(cache: EngineCache) -> None:
    def load(folder: Path) -> None:
        raise OutOfMemory("too little")

    with pytest.raises(OutOfMemory):
        cache.load(KEY, write_engine, load)
    with pytest.raises(OutOfMemory):
        cache.load(KEY, never, load)


def test_where_engines_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CACHE_VARIABLE, "named")
    assert cache_folder("given") == Path("given")
    assert cache_folder() == Path("named")
    monkeypatch.delenv(CACHE_VARIABLE)
    assert cache_folder().is_absolute()
    assert "latentsync-trt" in cache_folder().parts
    (tmp_path / "engine_cache").mkdir()
    assert cache_folder() == Path("engine_cache")
