"""Engines run as code: what others put into the cache or the shared store is not opened, not deleted, and fails no run.

Each attack is a row of a table: what is done to an engine that is ready, and what the notice about it says.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from latentsync_trt.errors import OutputError
from latentsync_trt.runtime import cache as cache_module
from latentsync_trt.runtime.engines.cache import CACHE_VARIABLE, EngineCache, EngineStore, cache_folder
from latentsync_trt.runtime.engines.entries import RECORD_NAME
from tests.cache_worker import KEY, never, write_engine

ANOTHER_USER = 54321
MOST_BYTES = 16 * 1024**2
"""No download may write a file that is larger."""

posix = pytest.mark.skipif(sys.platform == "win32", reason="owners and permissions are those of POSIX")
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
        return os.stat_result((*state[:4], ANOTHER_USER, *state[5:])) if path in given else state

    monkeypatch.setattr(Path, "lstat", lstat)
    return given.add


@pytest.fixture
def notices() -> list[str]:
    return []


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def set_files(record: Path, **files: Any) -> None:
    content = json.loads(record.read_text(encoding="utf-8"))
    content["files"] = files or {}
    record.write_text(json.dumps(content), encoding="utf-8")


def add_file(record: Path, name: str, **values: Any) -> None:
    files = json.loads(record.read_text(encoding="utf-8"))["files"]
    set_files(record, **{**files, name: {**files["engine.bin"], **values}})


def link(path: Path) -> None:
    """Moves a file or folder out of the cache and links it from where it was."""
    outside = next(above for above in path.parents if above.name == "cache").with_name("outside") / path.name
    outside.parent.mkdir(exist_ok=True)
    path.symlink_to(path.rename(outside))


OWN_ENTRIES: dict[str, tuple[Callable[[Path], object], str]] = {
    "the entry is a link": (link, f"{KEY.digest} is a link"),
    "a file is a link": (lambda entry: link(entry / "engine.bin"), "engine.bin is a link"),
    "the record is a link": (lambda entry: link(entry / RECORD_NAME), "engine.json is a link"),
    "anyone may write the entry": (lambda entry: entry.chmod(0o777), "can be written by anyone"),
    "anyone may write a file": (lambda entry: (entry / "engine.bin").chmod(0o666), "engine.bin can be written"),
    "no files": (lambda entry: set_files(entry / RECORD_NAME), "of length >= 1"),
    "a file above": (lambda entry: add_file(entry / RECORD_NAME, "../x"), "matching regex"),
    "a file anywhere": (lambda entry: add_file(entry / RECORD_NAME, "/etc/passwd"), "matching regex"),
    "the record is a file": (lambda entry: add_file(entry / RECORD_NAME, RECORD_NAME), "matching regex"),
    "a drive": (lambda entry: add_file(entry / RECORD_NAME, "C:x"), "matching regex"),
    "a negative size": (lambda entry: add_file(entry / RECORD_NAME, "engine.bin", bytes=-1), ">= 0"),
}


@posix
@pytest.mark.parametrize("attack", OWN_ENTRIES)
def test_an_entry_that_others_may_have_written_is_not_opened(tmp_path: Path, notices: list[str], attack: str) -> None:
    change, words = OWN_ENTRIES[attack]
    change(EngineCache(tmp_path / "cache").obtain(KEY, write_engine).folder)
    outside = content_of(tmp_path / "outside")
    cache = EngineCache(tmp_path / "cache", notices.append)
    assert cache.find(KEY) is None
    assert [entry.state for entry in cache.entries()] == ["damaged"]
    entry, content = cache.load(KEY, lambda folder: write_engine(folder, b"newer"), content_of)
    assert (entry.built, content["engine.bin"]) == (True, b"newer")
    assert not any(path.is_symlink() for path in (entry.folder, *entry.folder.rglob("*")))
    (notice,) = notices
    assert words in notice
    assert notice.endswith("; building it again")
    assert content_of(tmp_path / "outside") == outside  # where links lead, nothing is deleted


@posix
@pytest.mark.parametrize("what", ["folder", "link"])
def test_another_users_entry_is_left_alone(tmp_path: Path, give_away: GiveAway, what: str) -> None:
    theirs = EngineCache(tmp_path / "cache").obtain(KEY, write_engine).folder
    if what == "link":
        link(theirs)
    give_away(theirs)
    before, cache = content_of(theirs), EngineCache(tmp_path / "cache")
    with pytest.raises(OutputError, match="belongs to another user; choose another place with engine_cache"):
        cache.obtain(KEY, never)
    (entry,) = cache.entries()
    assert entry.state == "damaged"
    assert cache.remove(entry) == "it belongs to another user"
    assert content_of(theirs) == before


@posix
def test_another_users_file_in_an_own_entry_is_not_opened(tmp_path: Path, give_away: GiveAway) -> None:
    give_away(EngineCache(tmp_path / "cache").obtain(KEY, write_engine).folder / "engine.bin")
    assert EngineCache(tmp_path / "cache").find(KEY) is None
    assert EngineCache(tmp_path / "cache").obtain(KEY, write_engine).folder.name == KEY.digest


@posix
def test_what_this_user_builds_or_fetches_is_closed_to_others(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        for name in ("built", "fetched"):
            EngineCache(tmp_path / name, store=str(tmp_path / "store")).obtain(KEY, write_engine)
    finally:
        os.umask(before)
    for name in ("built", "fetched"):
        assert EngineCache(tmp_path / name).obtain(KEY, never).folder == tmp_path / name / KEY.digest


# The folder.


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Path:
    """The working directory, with a cache in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    cache_module._log_once.cache_clear()
    (tmp_path / "engine_cache").mkdir()
    return tmp_path / "engine_cache"


def test_a_cache_in_the_working_directory_is_told_once(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert [cache_folder(), cache_folder()] == [Path("engine_cache")] * 2
    assert caplog.messages == [f"engine cache: {here}, in the working directory"]
    here.rmdir()
    assert cache_folder().is_absolute()
    assert len(caplog.messages) == 1  # the user's own needs no message


@posix
@pytest.mark.parametrize("attack", ["another user's", "anyone may write"])
def test_a_cache_in_the_working_directory_that_others_write_is_not_used(
    here: Path, caplog: pytest.LogCaptureFixture, give_away: GiveAway, attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if attack == "anyone may write":
        here.chmod(0o777)
    else:
        give_away(Path("engine_cache"))
    assert cache_folder().is_absolute()
    assert here not in cache_folder().parents
    assert caplog.messages == [f"engine cache: {here} is not used, as others can write there"]


@posix
def test_a_named_cache_is_used_with_a_warning_where_others_write(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    here.chmod(0o1777)
    assert cache_folder(here) == here
    assert caplog.messages == []
    here.chmod(0o777)
    assert cache_folder(here) == here
    assert caplog.messages == [
        f"engine cache: {here}: anyone can exchange engines there; set its sticky bit (chmod +t), or take the right "
        "to write from others (chmod o-w)"
    ]


# The store.


@pytest.fixture
def limited() -> Iterator[None]:
    """Lets this process write no file that is larger than `MOST_BYTES`."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_BYTES, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def engine_in(store: Path) -> Path:
    (path,) = (path for path in store.iterdir() if path.stat().st_size == len(b"engine"))
    return path


def inflate(path: Path) -> None:
    """Makes a file a bomb, which takes no room on this disk."""
    hard = pytest.importorskip("resource")
    limits = hard.getrlimit(hard.RLIMIT_FSIZE)
    hard.setrlimit(hard.RLIMIT_FSIZE, (limits[1], limits[1]))
    os.truncate(path, 1024**3)
    hard.setrlimit(hard.RLIMIT_FSIZE, limits)


def inflate_with_record(record: Path) -> None:
    add_file(record, "engine.bin", bytes=1024**3)
    inflate(engine_in(record.parent))


def replace_by(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


STORES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a record of 1 GB": (inflate, "engine.json has 1073741824 bytes, more than 1048576; not used, building it again"),
    "a file of 1 GB": (
        lambda record: inflate(engine_in(record.parent)),
        "engine.bin has 1073741824 bytes, more than 6; not used, building it again",
    ),
    "more than the disk holds": (inflate_with_record, "engine.bin has 1073741824 bytes, more than 16777216; not used"),
    "a record of no text": (lambda record: record.write_bytes(bytes(range(256))), "; not used, building it again"),
    "a file above": (lambda record: add_file(record, "../outside"), "matching regex"),
    "a file and a folder of one name": (lambda record: add_file(record, "engine.bin/x"), "; continuing without it"),
    "another SHA-256": (
        lambda record: add_file(record, "engine.bin", sha256="0" * 64),
        "no such file or bucket; check the URL; continuing without it",
    ),
    "a pipe": (lambda record: replace_by(engine_in(record.parent), os.mkfifo), "; continuing without it"),
    "a device": (
        lambda record: replace_by(engine_in(record.parent), lambda path: path.symlink_to("/dev/zero")),
        "; continuing without it",
    ),
}


@posix
@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("attack", STORES)
def test_what_is_wrong_in_a_store_is_a_notice_and_the_engine_is_built(
    tmp_path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch, attack: str
) -> None:
    change, words = STORES[attack]
    store = tmp_path / "store"
    EngineCache(tmp_path / "one", store=str(store)).obtain(KEY, write_engine)
    change(store / f"{KEY.digest}.json")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2 * MOST_BYTES))
    assert EngineCache(tmp_path / "two", notices.append, str(store)).obtain(KEY, write_engine).built
    (notice,) = notices
    assert words in notice
    assert not list(tmp_path.rglob("outside*"))


class Understating(MemoryFileSystem):
    """Files that are larger than the store says, as of a server that compresses them."""

    protocol = "understating"
    store: ClassVar[dict[str, Any]] = {}
    most_read_bytes = 0

    def info(self, path: str, **arguments: Any) -> Any:
        found = super().info(path, **arguments)
        return {**found, "size": min(found["size"], len(b"engine"))} if found["type"] == "file" else found

    def get_file(self, rpath: str, lpath: str, callback: Any = None, **arguments: Any) -> None:
        content = self.cat_file(rpath)
        with Path(lpath).open("wb") as target:
            for start in range(0, len(content), 1024):
                target.write(content[start : start + 1024])
                target.flush()
                Understating.most_read_bytes = max(Understating.most_read_bytes, start + 1024)
                callback.relative_update(1024)


def test_a_transfer_that_grows_is_stopped(tmp_path: Path, notices: list[str]) -> None:
    fsspec.register_implementation("understating", Understating, clobber=True)
    url = "understating://engines"
    EngineCache(tmp_path / "one", store=url).obtain(KEY, write_engine)
    (path,) = (path for path, file in Understating.store.items() if file.getvalue() == b"engine")
    Understating.store[path].write(bytes(1024**2))
    assert EngineCache(tmp_path / "two", notices.append, url).obtain(KEY, write_engine).built
    assert notices[0].endswith("has more than 6 bytes; continuing without it")
    assert Understating.most_read_bytes < 100_000


def test_an_engine_that_is_damaged_before_it_is_uploaded_fails_nothing(tmp_path: Path, notices: list[str]) -> None:
    entry = EngineCache(tmp_path / "cache").obtain(KEY, write_engine)
    (entry.folder / RECORD_NAME).write_text("{")
    EngineStore(str(tmp_path / "store"), notices.append).put(entry)
    assert notices[0].endswith("; continuing without it")
