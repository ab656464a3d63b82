"""Fixtures of the tests of 8-bit bundles."""

from pathlib import Path

import pytest

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.quantize.calibrate import quantize_bundle
from latentsync_trt.quantize.calibration_options import CalibrateOptions
from tests.quantize.eight_bit import small_ranges
from tests.small import small_bundle


@pytest.fixture(scope="session")
def int8_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small bundle in INT8, with the provenance of one clip."""
    out = tmp_path_factory.mktemp("eight") / "small-int8"
    return quantize_bundle(
        Bundle.load(small_bundle()),
        small_ranges(),
        CalibrateOptions(percentile=100.0),
        out,
        clips=("clip.mp4",),
        settings={"samples": 1},
        measure=lambda _: 40.0,
    )


@pytest.fixture(scope="session")
def fp8_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small bundle in FP8."""
    out = tmp_path_factory.mktemp("eight") / "small-fp8"
    return quantize_bundle(Bundle.load(small_bundle()), small_ranges(), CalibrateOptions("fp8", percentile=100.0), out)
