"""Engines run as code: what others put into the cache is not opened, not deleted, and fails no run.

Each attack is a row of a table: what is done to an engine that is ready, and what the notice about
it says.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from latentsync_trt.errors import OutputError
from latentsync_trt.paths import CACHE_VARIABLE
from latentsync_trt.runtime.engines.cache import EngineCache, cache_folder
from latentsync_trt.runtime.engines.entries import RECORD_NAME
from tests.cache_worker import KEY, never, write_engine

ANOTHER_USER = 54321

posix = pytest.mark.skipif(
    sys.platform == "win32", reason="owners and permissions are those of POSIX"
)
GiveAway = Callable[[Path], None]


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> GiveAway:
    """Makes another user the owner of a path alone; who may not do so sees it so."""
    given: set[Path] = set()
    if sys.platform != "win32" and os.geteuid() == 0:
        return lambda path: os.chown(path, ANOTHER_USER, ANOTHER_USER, follow_symlinks=False)
    real = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        state = real(path)
        if path in given:
            return os.stat_result((*state[:4], ANOTHER_USER, *state[5:]))
        return state

    monkeypatch.setattr(Path, "lstat", lstat)
    return given.add


def content_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def add_file(entry: Path, name: str) -> None:
    """Adds a file to the record of an entry."""
    content = json.loads((entry / RECORD_NAME).read_text(encoding="utf-8"))
    content["files"][name] = content["files"]["engine.bin"]
    (entry / RECORD_NAME).write_text(json.dumps(content), encoding="utf-8")


def link(path: Path) -> None:
    """Moves a file or folder out of the cache and links it from where it was."""
    outside = (
        next(above for above in path.parents if above.name == "cache").with_name("outside")
        / path.name
    )
    outside.parent.mkdir(exist_ok=True)
    path.symlink_to(path.rename(outside))


OWN_ENTRIES: dict[str, tuple[Callable[[Path], object], str]] = {
    "the entry is a link": (link, f"{KEY.digest} is a link"),
    "a file is a link": (lambda entry: link(entry / "engine.bin"), "engine.bin is a link"),
    "anyone may write the entry": (lambda entry: entry.chmod(0o777), "can be written by anyone"),
    "anyone may write a file": (
        lambda entry: (entry / "engine.bin").chmod(0o666),
        "engine.bin can be written",
    ),
    "a file above": (lambda entry: add_file(entry, "../x"), "matching regex"),
    "a file anywhere": (lambda entry: add_file(entry, "/etc/passwd"), "matching regex"),
}


@posix
@pytest.mark.parametrize("attack", OWN_ENTRIES)
def test_an_entry_that_others_may_have_written_is_not_opened(tmp_path: Path, attack: str) -> None:
    change, words = OWN_ENTRIES[attack]
    change(EngineCache(tmp_path / "cache").obtain(KEY, write_engine).folder)
    outside = content_of(tmp_path / "outside")
    notices: list[str] = []
    cache = EngineCache(tmp_path / "cache", notices.append)
    assert cache.find(KEY) is None
    assert [entry.state for entry in cache.entries()] == ["damaged"]
    entry, content = cache.load(KEY, lambda folder: write_engine(folder, b"newer"), content_of)
    assert (entry.built, content["engine.bin"]) == (True, b"newer")
    assert not any(path.is_symlink() for path in (entry.folder, *entry.folder.rglob("*")))
    notice, built = notices
    assert words in notice
    assert "built in" in built
    assert notice.endswith("; building it again")
    assert content_of(tmp_path / "outside") == outside  # where links lead, nothing is deleted


@posix
@pytest.mark.parametrize("what", ["folder", "link"])
def test_another_users_entry_is_left_alone(tmp_path: Path, give_away: GiveAway, what: str) -> None:
    theirs = EngineCache(tmp_path / "cache").obtain(KEY, write_engine).folder
    if what == "link":
        link(theirs)
    give_away(theirs)
    before = content_of(theirs)
    cache = EngineCache(tmp_path / "cache")
    with pytest.raises(OutputError, match=r"another user; .*--engine-cache"):
        cache.obtain(KEY, never)
    (entry,) = cache.entries()
    assert entry.state == "damaged"
    assert cache.remove(entry) == "it belongs to another user"
    assert content_of(theirs) == before


@posix
def test_another_users_file_in_an_own_entry_is_not_opened(
    tmp_path: Path, give_away: GiveAway
) -> None:
    give_away(EngineCache(tmp_path / "cache").obtain(KEY, write_engine).folder / "engine.bin")
    assert EngineCache(tmp_path / "cache").find(KEY) is None
    assert EngineCache(tmp_path / "cache").obtain(KEY, write_engine).folder.name == KEY.digest


@posix
def test_what_this_user_builds_is_closed_to_others(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        EngineCache(tmp_path / "cache").obtain(KEY, write_engine)
    finally:
        os.umask(before)
    assert (
        EngineCache(tmp_path / "cache").obtain(KEY, never).folder == tmp_path / "cache" / KEY.digest
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a cache in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(CACHE_VARIABLE)
    (tmp_path / "engine_cache").mkdir()
    return tmp_path / "engine_cache"


def test_a_cache_in_the_working_directory_is_used_and_told(
    here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert cache_folder(used=False) == Path("engine_cache")
    assert caplog.messages == []
    assert cache_folder() == Path("engine_cache")
    assert caplog.messages == [f"engine cache: {here}, in the working directory"]
    here.rmdir()
    assert "latentsync-trt" in cache_folder().parts


@posix
@pytest.mark.parametrize("attack", ["another user's", "anyone may write"])
def test_a_cache_in_the_working_directory_that_others_write_is_not_used(
    here: Path, give_away: GiveAway, attack: str
) -> None:
    if attack == "anyone may write":
        here.chmod(0o777)
    else:
        give_away(Path("engine_cache"))
    assert "latentsync-trt" in cache_folder().parts


@posix
def test_a_named_cache_is_used_with_a_warning_where_others_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o1777)
    assert cache_folder(tmp_path) == tmp_path
    assert caplog.messages == []
    tmp_path.chmod(0o777)
    assert cache_folder(tmp_path) == tmp_path
    (warning,) = caplog.messages
    assert "anyone can exchange engines there" in warning
