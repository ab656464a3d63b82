"""Engines that machines share: fetched instead of built, uploaded whole, refused if damaged, and never in the way."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest

from latentsync_trt.errors import EngineBuildError, InputError
from latentsync_trt.runtime.engines.cache import EngineCache
from tests.cache_worker import KEY, never, write_engine
from tests.s3 import BUCKET, s3_server


class Machines:
    """Machines with a cache each and one store."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, folder / "store"
        self.notices: list[str] = []

    def cache(self, name: str) -> EngineCache:
        return EngineCache(self.folder / name, self.notices.append, str(self.store))

    @property
    def entry(self) -> Path:
        return self.store / f"{KEY.digest}.json"


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_engine_that_one_machine_built_is_fetched_by_another(machines: Machines) -> None:
    built = machines.cache("one").obtain(KEY, write_engine)
    assert built.built
    fetched = machines.cache("two").obtain(KEY, never)
    assert not fetched.built
    assert fetched == replace(
        built, folder=fetched.folder, built=False, last_used_at=fetched.last_used_at, size_bytes=fetched.size_bytes
    )
    assert content_of(fetched.folder) == content_of(built.folder)
    assert machines.notices == [f"engine store: {KEY.label}: {machines.entry}: fetched"]
    assert sorted(path.name for path in (machines.folder / "two").iterdir()) == [".locks", KEY.digest]
    machines.store.rename(machines.folder / "gone")  # it lies in the cache like any other
    assert EngineCache(machines.folder / "two").obtain(KEY, never).folder == fetched.folder


def replace_by_another_engine(entry: Path) -> None:
    other = replace(KEY, gpu="another")
    EngineCache(entry.parent / "cache", store=str(entry.parent)).obtain(other, write_engine)
    entry.with_name(f"{other.digest}.json").replace(entry)


def change_a_file(entry: Path) -> None:
    (path,) = (path for path in entry.parent.iterdir() if path.read_bytes() == b"engine")
    path.write_bytes(b"Engine")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "SHA-256 differs": change_a_file,
    "belongs to another engine": replace_by_another_engine,
}


@pytest.mark.parametrize("words", DAMAGES)
def test_a_damaged_engine_in_the_store_is_refused_and_replaced(machines: Machines, words: str) -> None:
    machines.cache("one").obtain(KEY, write_engine)
    DAMAGES[words](machines.entry)
    machines.notices.clear()
    assert machines.cache("two").obtain(KEY, write_engine).built
    assert len(machines.notices) == 1
    assert words in machines.notices[0]
    assert machines.notices[0].endswith("; not used, building it again")
    assert not machines.cache("three").obtain(KEY, never).built


def test_machines_that_build_at_once_upload_an_engine_that_fits_together(machines: Machines) -> None:
    barrier = threading.Barrier(4)

    def obtain(number: int) -> None:
        def build(folder: Path) -> None:
            barrier.wait()  # all have looked into the store
            write_engine(folder, bytes([number]) * (number + 1))

        machines.cache(f"{number}").obtain(KEY, build)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(obtain, range(4)))
    assert not machines.cache("another").obtain(KEY, never).built
    assert machines.notices == [f"engine store: {KEY.label}: {machines.entry}: fetched"]


def test_a_fetched_engine_that_does_not_open_is_built_and_uploaded(machines: Machines) -> None:
    machines.cache("one").obtain(KEY, write_engine)

    def load(folder: Path) -> bytes:
        content = (folder / "engine.bin").read_bytes()
        if content == b"engine":
            raise EngineBuildError("built by another driver")
        return content

    entry, _ = machines.cache("two").load(KEY, lambda folder: write_engine(folder, b"newer"), load)
    assert entry.built
    assert (machines.cache("three").obtain(KEY, never).folder / "engine.bin").read_bytes() == b"newer"


@pytest.fixture
def closed_port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """An address of an S3 server that does not answer."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "geheim")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{taken.getsockname()[1]}")
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        yield taken.getsockname()[1]
        fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.mark.integration
@pytest.mark.usefixtures("closed_port")
def test_a_store_that_does_not_answer_is_said_once_and_left_alone(tmp_path: Path) -> None:
    notices: list[str] = []
    cache = EngineCache(tmp_path / "cache", notices.append, "s3://someone:geheim@bucket/engines")
    for graph in ("vae_encoder", "vae_decoder"):
        assert cache.obtain(replace(KEY, graph=graph), write_engine).built
    assert len(notices) == 1
    assert notices[0].startswith(f"engine store: s3://bucket/engines/{replace(KEY, graph='vae_encoder').digest}.json: ")
    assert notices[0].endswith("; continuing without it")
    assert "geheim" not in notices[0]


@pytest.mark.integration
def test_a_store_on_s3(tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/engines/"
    with s3_server():
        EngineCache(tmp_path / "one", store=url).obtain(KEY, write_engine)
        fetched = EngineCache(tmp_path / "two", lambda _: None, url).obtain(KEY, never)
    assert content_of(fetched.folder) == content_of(tmp_path / "one" / KEY.digest)


def test_a_url_that_nothing_knows_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gopher://host/x.*: no known kind of URL"):
        EngineCache(tmp_path, store="gopher://host/x")
    with pytest.raises(InputError, match="https can only be read"):
        EngineCache(tmp_path, store="https://host/x")
