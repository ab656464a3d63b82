"""What the bench computes and writes: spreads of known numbers, inputs of graphs, rows without folders' names."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from latentsync_trt.audio.mel import MEL_FILTERS
from latentsync_trt.bench.rows import bundle_facts
from latentsync_trt.bundle.manifest import DimensionRange, FileEntry
from latentsync_trt.measure.pictures import generated_part
from latentsync_trt.privacy import without_paths
from latentsync_trt.runtime.sessions.session import TensorInfo
from latentsync_trt.runtime.sessions.trial import random_inputs
from tests.bundles import make_bundle


def test_a_bundle_with_mel_filters_is_the_one_measured_without(tmp_path: Path) -> None:
    manifest = make_bundle(tmp_path / "bundle").manifest
    files = {**manifest.files, MEL_FILTERS: FileEntry("0" * 64, 1)}
    assert bundle_facts(replace(manifest, files=files)) == bundle_facts(manifest)
    changed = {**manifest.files, "net.weights": FileEntry("0" * 64, 256)}
    assert bundle_facts(replace(manifest, files=changed)) != bundle_facts(manifest)


def test_inputs_are_random_and_never_zero() -> None:
    tensors = [
        TensorInfo("latents", ("windows", 4, 2), np.dtype(np.float32)),
        TensorInfo("hidden", (2, 3), np.dtype(np.float16)),
        TensorInfo("timestep", (), np.dtype(np.int64)),
        TensorInfo("coefficients", (5,), np.dtype(np.float32)),
    ]
    made = random_inputs(tensors, {"windows": DimensionRange(1, 3, 4)})
    assert made["latents"].shape == (3, 4, 2)
    assert [made[tensor.name].dtype for tensor in tensors] == [tensor.dtype for tensor in tensors]
    assert all(np.all(array != 0) for array in made.values())
    assert np.unique(made["latents"]).size == made["latents"].size


def test_the_generated_part_is_the_lower_face() -> None:
    rows, columns = generated_part(128)
    assert 40 < rows.start < 60 < 110 < rows.stop < 128
    assert columns.start < 10
    assert columns.stop > 118


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("bench --video /home/someone/private/in.mp4 -o x", "bench --video in.mp4 -o x"),
        ("bench --video ../someone/private/in.mp4 --audio ./private/a.wav", "bench --video in.mp4 --audio a.wav"),
        (r"D:\Users\someone\clip.mov: 25 fps", "clip.mov: 25 fps"),
        ("bench --bundle tests/data/small_bundle", "bench --bundle small_bundle"),
        ("5 frames/s with 1/2 of it", "5 frames/s with 1/2 of it"),
        ("'~/a/b c.wav'", "'b c.wav'"),
    ],
)
def test_paths_are_shortened_to_names(text: str, clean: str) -> None:
    assert without_paths(text) == clean
