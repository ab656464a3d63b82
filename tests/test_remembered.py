"""Results that are kept between runs: what they depend on, and that the newest one holds."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from latentsync_trt.paths import CACHE_VARIABLE
from latentsync_trt.runtime.providers import remembered_tests
from latentsync_trt.runtime.providers.devices import Gpu
from latentsync_trt.runtime.providers.remembered_tests import FOLDER, remember_test
from latentsync_trt.runtime.providers.selection import Selection

RTX = Gpu(0, "RTX", "8.9", 2**34)
CUDA = Selection("cuda", gpu=RTX)


def test_a_result_holds_for_its_bundle_gpu_and_this_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remember_test(CUDA, "ab", "passed")
    assert remembered_tests.tested(CUDA, "ab") == "passed"
    remember_test(CUDA, "ab", "failed")
    assert remembered_tests.tested(replace(CUDA, gpu=replace(RTX, index=1)), "ab") == "failed"
    assert remembered_tests.tested(CUDA, "cd") is None
    assert remembered_tests.tested(replace(CUDA, gpu=replace(RTX, name="GTX")), "ab") is None
    assert remembered_tests.tested(Selection("tensorrt", gpu=RTX), "ab") is None
    monkeypatch.setattr(remembered_tests, "__version__", "another")
    assert remembered_tests.tested(CUDA, "ab") is None


@pytest.mark.parametrize("content", [b"{", b'["a"]', b"\xff", b"[" * 100_000])
def test_a_damaged_file_holds_nothing_and_is_replaced(content: bytes, engine_cache: Path) -> None:
    remember_test(CUDA, "ab", "passed")
    (file,) = (engine_cache / FOLDER).iterdir()
    file.write_bytes(content)
    assert remembered_tests.tested(CUDA, "ab") is None
    remember_test(CUDA, "ab", "passed")
    assert remembered_tests.tested(CUDA, "ab") == "passed"


@pytest.mark.parametrize("place", ["a file", "~no-such-user/cache"])
def test_a_cache_that_cannot_be_written_is_no_error(place: str, here: Path) -> None:
    (here / "a file").touch()
    with CliRunner(env={CACHE_VARIABLE: place}).isolation():
        remember_test(CUDA, "ab", "passed")
        assert remembered_tests.tested(CUDA, "ab") is None
