"""Facts that are kept between runs: what they depend on, and that only success is kept."""

import os
from pathlib import Path

import pytest

from latentsync_trt import RuntimeOptions, remembered
from latentsync_trt.remembered import FOLDER, files_key, forget, known, remember
from latentsync_trt.sync.api import LipSync
from tests.small import small_bundle

LONG_AGO = 1_000_000_000


def written(path: Path, content: bytes = b"weights") -> Path:
    """A file that was written long ago, as far as the test may set that."""
    path.write_bytes(content)
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def test_a_fact_is_known_for_its_key_until_it_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("one", "two"):
        remember(kind, {"driver": "580", "gpu": 0})
    assert known("one", {"gpu": 0, "driver": "580"})
    assert not known("one", {"gpu": 1, "driver": "580"})
    forget("one")
    assert (known("one", {"gpu": 0, "driver": "580"}), known("two", {"gpu": 0, "driver": "580"})) == (False, True)
    monkeypatch.setattr(remembered, "__version__", "another")
    assert not known("two", {"gpu": 0, "driver": "580"})
    remember("one", None)
    assert not known("one", None)


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1}', b"\xff", b"[" * 100_000])
def test_a_damaged_file_holds_nothing_and_is_replaced(content: bytes, engine_cache: Path) -> None:
    remember("kind", {"a": 1})
    (engine_cache / FOLDER / "kind.json").write_bytes(content)
    assert not known("kind", {"a": 1})
    remember("kind", {"a": 1})
    assert known("kind", {"a": 1})


@pytest.mark.parametrize("place", ["a file", "~no-such-user/cache"])
def test_a_cache_that_cannot_be_written_is_no_error(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(remembered.CACHE_VARIABLE, place)
    remember("kind", {"a": 1})
    forget()
    assert not known("kind", {"a": 1})


def test_a_key_of_files_changes_with_each_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "file")
    assert files_key({path: "hash"}) is None  # as it was written just now
    monkeypatch.setattr(remembered, "_SETTLED_S", -1.0)
    before = files_key({path: "hash"})
    assert before == files_key({path: "hash"}) != files_key({path: "another"})
    written(tmp_path / "new", b"another").replace(path)  # the same size and time, another file
    assert files_key({path: "hash"}) != before
    path.unlink()
    assert files_key({path: "hash"}) is None


def test_verify_forgets_all() -> None:
    remember("kind", {"a": 1})
    for again in (False, True):
        LipSync.from_bundle(small_bundle(), "cpu", RuntimeOptions(verify=again)).close()
        assert known("kind", {"a": 1}) is not again
