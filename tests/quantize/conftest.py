"""Fixtures of the tests of 8-bit bundles."""

from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest

from latentsync_trt.bundle.manifest import (
    MANIFEST_NAME,
    Bundle,
    files_of,
    read_manifest,
    write_manifest,
)
from latentsync_trt.quantize.calibration_options import CalibrateOptions
from latentsync_trt.quantize.eight_bit_bundle import Provenance, quantize_bundle
from tests.quantize.eight_bit import small_ranges
from tests.small import small_bundle


@pytest.fixture(scope="session")
def guided_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small bundle without its unguided graphs, to save time."""
    folder = copytree(small_bundle(), tmp_path_factory.mktemp("guided") / "demo")
    manifest = read_manifest(folder)
    graphs = {name: graph for name, graph in manifest.graphs.items() if "unguided" not in name}
    for unguided in folder.glob("*unguided*"):
        unguided.unlink()
    files = {name: file for name, file in files_of(folder).items() if name != MANIFEST_NAME}
    write_manifest(folder, replace(manifest, graphs=graphs, files=files))
    return folder


@pytest.fixture(scope="session")
def int8_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small bundle in INT8, with the provenance of one clip."""
    out = tmp_path_factory.mktemp("eight") / "small-int8"
    return quantize_bundle(
        Bundle.load(small_bundle()),
        small_ranges(),
        CalibrateOptions(percentile=100.0),
        out,
        Provenance(("clip.mp4",), {"samples": 1}),
        measure=lambda _: 40.0,
    )


@pytest.fixture(scope="session")
def fp8_bundle(guided_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small bundle in FP8."""
    out = tmp_path_factory.mktemp("eight") / "small-fp8"
    return quantize_bundle(
        Bundle.load(guided_bundle), small_ranges(), CalibrateOptions("fp8", percentile=100.0), out
    )
