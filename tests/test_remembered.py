"""Facts that are kept between runs: what they depend on, and that only success is kept."""

from pathlib import Path

import pytest

from latentsync_trt import remembered
from latentsync_trt.remembered import FOLDER, known, remember

KEY = {"gpu": 0, "driver": "580"}


def test_a_fact_is_known_for_its_key_and_this_version(monkeypatch: pytest.MonkeyPatch) -> None:
    remember("kind", {"driver": "580", "gpu": 0})
    assert known("kind", KEY)
    assert not known("another kind", KEY)
    assert not known("kind", {**KEY, "gpu": 1})
    monkeypatch.setattr(remembered, "__version__", "another")
    assert not known("kind", KEY)
    remember("kind", None)
    assert not known("kind", None)


def test_the_newest_facts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "_MOST_KEYS", 2)
    for number in (0, 1, 0, 2):
        remember("kind", {"number": number})
    assert [known("kind", {"number": number}) for number in range(3)] == [True, False, True]


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1}', b"\xff", b"[" * 100_000])
def test_a_damaged_file_holds_nothing_and_is_replaced(content: bytes, engine_cache: Path) -> None:
    remember("kind", KEY)
    (engine_cache / FOLDER / "kind.json").write_bytes(content)
    assert not known("kind", KEY)
    remember("kind", KEY)
    assert known("kind", KEY)


@pytest.mark.parametrize("place", ["a file", "~no-such-user/cache"])
def test_a_cache_that_cannot_be_written_is_no_error(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(remembered.CACHE_VARIABLE, place)
    remember("kind", KEY)
    assert not known("kind", KEY)
