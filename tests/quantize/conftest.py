"""Fixtures of the tests of 8-bit bundles."""

from pathlib import Path

import pytest

from latentsync_trt.quantize.bundle import Provenance
from tests.quantize.eight_bit import write_eight_bit


@pytest.fixture(scope="session")
def int8_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small bundle in INT8, with the provenance of one clip."""
    provenance = Provenance({"clip.mp4": "0a"}, {"samples": 1}, {"faces_psnr_db": 40.0})
    return write_eight_bit(tmp_path_factory.mktemp("eight") / "small-int8", "int8", provenance)


@pytest.fixture(scope="session")
def fp8_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small bundle in FP8."""
    return write_eight_bit(tmp_path_factory.mktemp("eight") / "small-fp8", "fp8")
