"""Results that are kept between runs: what they depend on, and that the newest one holds."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from latentsync_trt.paths import CACHE_VARIABLE
from latentsync_trt.runtime.providers import select
from latentsync_trt.runtime.providers.select import FOLDER, recall, remember

KEY = {"gpu": 0, "driver": "580"}


def test_a_result_holds_for_its_key_and_this_version(monkeypatch: pytest.MonkeyPatch) -> None:
    remember({"driver": "580", "gpu": 0}, "passed")
    assert recall(KEY) == "passed"
    remember(KEY, "failed")
    assert recall(KEY) == "failed"
    assert recall({**KEY, "gpu": 1}) is None
    monkeypatch.setattr(select, "__version__", "another")
    assert recall(KEY) is None


def test_the_newest_results_are_kept() -> None:
    for number in (*range(200), 0, 200):
        remember({"number": number}, "passed")
    assert [recall({"number": number}) for number in (0, 1, 200)] == ["passed", None, "passed"]


@pytest.mark.parametrize("content", [b"{", b'["a"]', b"\xff", b"[" * 100_000])
def test_a_damaged_file_holds_nothing_and_is_replaced(content: bytes, engine_cache: Path) -> None:
    remember(KEY, "passed")
    (file,) = (engine_cache / FOLDER).iterdir()
    file.write_bytes(content)
    assert recall(KEY) is None
    remember(KEY, "passed")
    assert recall(KEY) == "passed"


@pytest.mark.parametrize("place", ["a file", "~no-such-user/cache"])
def test_a_cache_that_cannot_be_written_is_no_error(place: str, here: Path) -> None:
    (here / "a file").touch()
    with CliRunner(env={CACHE_VARIABLE: place}).isolation():
        remember(KEY, "passed")
        assert recall(KEY) is None
