"""What the bench computes and writes: spreads of known numbers, inputs of graphs, rows without folders' names."""

from dataclasses import replace
from pathlib import Path

import pytest

from latentsync_trt.audio.mel import MEL_FILTERS
from latentsync_trt.bench.rows import bundle_facts
from latentsync_trt.bundle.manifest import FileEntry
from latentsync_trt.measure.pictures import generated_part
from latentsync_trt.unexpected import without_paths
from tests.bundles import make_bundle


def test_a_bundle_with_mel_filters_is_the_one_measured_without(tmp_path: Path) -> None:
    manifest = make_bundle(tmp_path / "bundle").manifest
    files = {**manifest.files, MEL_FILTERS: FileEntry("0" * 64, 1)}
    assert bundle_facts(replace(manifest, files=files))["sha256"] == bundle_facts(manifest)["sha256"]
    changed = {**manifest.files, "net.weights": FileEntry("0" * 64, 256)}
    assert bundle_facts(replace(manifest, files=changed))["sha256"] != bundle_facts(manifest)["sha256"]


def test_the_generated_part_is_the_lower_face() -> None:
    rows, columns = generated_part(128)
    assert 40 < rows.start < 60 < 110 < rows.stop < 128
    assert (columns.start < 10, columns.stop > 118) == (True, True)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("bench --video ../someone/private/in.mp4 --audio /home/a.wav", "bench --video in.mp4 --audio a.wav"),
        (r"D:\Users\someone\clip.mov: 25 fps", "clip.mov: 25 fps"),
        ("5 frames/s with 1/2 of it", "5 frames/s with 1/2 of it"),
        ("'~/a/b c.wav'", "'b c.wav'"),
    ],
)
def test_paths_are_shortened_to_names(text: str, clean: str) -> None:
    assert without_paths(text) == clean
