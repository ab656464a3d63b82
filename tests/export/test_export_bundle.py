"""The bundle that an export writes, its verification, and what it refuses."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from latentsync_trt.audio.mel import MEL_FILTERS, computed_filters
from latentsync_trt.bundle.manifest import (
    CACHED_STEP,
    HIDDEN,
    REQUIRED_GRAPHS,
    STEP_GRAPHS,
    UNGUIDED_GRAPHS,
    VAE_ENCODER,
    Bundle,
    read_manifest,
)
from latentsync_trt.bundle.weights import ALIGNMENT_BYTES, INLINE_BELOW_BYTES
from latentsync_trt.errors import ExportMismatch
from latentsync_trt.export import exporter, verify
from latentsync_trt.export.export_options import TOOLS
from latentsync_trt.export.exporter import plan_graphs
from latentsync_trt.export.graphs import GraphPlan
from tests import narrow

pytestmark = pytest.mark.integration

GRAPH_FILE_LIMIT_BYTES = 1_000_000
"""A graph without its weights: node list, shapes and small constants."""


WELL_CONDITIONED = {"fp32": 1e-5, "fp16": 1e-2}
"""Largest errors of the narrow networks' graphs: a few times PyTorch's own."""


def only(name: str) -> Callable[..., list[GraphPlan]]:
    """Plans one graph instead of all."""
    return lambda *arguments: [plan for plan in plan_graphs(*arguments) if plan.name == name]


def test_bundle_is_complete_and_its_manifest_correct(narrow_bundle: Path) -> None:
    manifest = Bundle.load(narrow_bundle).manifest
    assert set(manifest.graphs) == {*REQUIRED_GRAPHS, *UNGUIDED_GRAPHS}
    assert np.array_equal(np.load(narrow_bundle / MEL_FILTERS), computed_filters())
    assert MEL_FILTERS in manifest.files
    assert manifest.shapes == "static"
    assert (manifest.audio_layers, manifest.audio_width) == (narrow.WHISPER.layers, narrow.AUDIO_WIDTH)
    assert manifest.verification.keys() == manifest.graphs.keys()
    assert max(manifest.verification.values()) <= WELL_CONDITIONED["fp32"]
    assert manifest.tools.keys() == {"latentsync-trt", *TOOLS}
    assert manifest.sources.keys() == {"unet", "vae", "whisper"}
    assert not [path for path in narrow_bundle.parent.iterdir() if path.name.startswith(".")]


def test_step_inputs_and_outputs(narrow_bundle: Path) -> None:
    manifest = Bundle.load(narrow_bundle).manifest
    frames, size = manifest.frames, manifest.latent_px
    latents = (1, 4, frames, size, size)
    wanted = {
        "latents": latents,
        "conditioning": (1, 9, frames, size, size),
        "audio": (1, frames, 10 * manifest.audio_layers, manifest.audio_width),
        "timestep": (),
        "guidance": (),
        "history": latents,
        "coefficients": (5,),
    }
    for name, halves in (("denoise_step", 2), ("denoise_step_unguided", 1)):
        hidden = (halves, 1, frames, narrow.UNET.widths[0], size, size)
        full, cached = manifest.graphs[name], manifest.graphs[f"{name}_cached"]
        assert {entry.name: entry.shape for entry in full.inputs} == wanted
        assert {entry.name: entry.shape for entry in cached.inputs} == {**wanted, HIDDEN: hidden}
        assert {entry.name: entry.shape for entry in full.outputs} == {
            "next_latents": latents,
            "next_history": latents,
            HIDDEN: hidden,
        }
        assert [entry.name for entry in cached.outputs] == ["next_latents", "next_history"]
        assert {entry.name for entry in cached.inputs if entry.dtype != "float32"} == {"timestep"}


def test_all_steps_share_one_weights_file(narrow_bundle: Path) -> None:
    manifest = Bundle.load(narrow_bundle).manifest
    locations: dict[str, set[tuple[str, str]]] = {}
    for name in STEP_GRAPHS:
        entry = manifest.graphs[name]
        assert entry.weights == "unet.weights"
        assert manifest.files[entry.file].bytes < GRAPH_FILE_LIMIT_BYTES
        graph = onnx.load(narrow_bundle / entry.file, load_external_data=False).graph
        external = [tensor for tensor in graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
        locations[name] = set()
        for tensor in external:
            fields = {field.key: field.value for field in tensor.external_data}
            assert fields["location"] == "unet.weights"
            assert int(fields["offset"]) % ALIGNMENT_BYTES == 0
            assert int(fields["length"]) >= INLINE_BELOW_BYTES
            locations[name].add((fields["offset"], fields["length"]))
    assert locations["denoise_step_unguided"] == locations["denoise_step"]
    assert locations["denoise_step_cached"] < locations["denoise_step"]


def test_a_wrong_graph_ends_the_export_at_once_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "CEILING", 1e-12)
    options = narrow.narrow_options(narrow.write_sources(tmp_path / "sources"), tmp_path / "out" / "bundle")
    stages: list[str] = []
    with pytest.raises(ExportMismatch, match=r"audio_encoder\.onnx, output features: differs from PyTorch by"):
        exporter.export_bundle(options, lambda stage, _: stages.append(stage))
    assert stages == ["loading checkpoints", "exporting audio_encoder (1 of 7)", "verifying audio_encoder (1 of 7)"]
    assert list((tmp_path / "out").iterdir()) == []


def test_large_graphs_are_compared_at_a_lower_resolution(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = narrow.narrow_options(narrow.write_sources(tmp_path / "sources"), tmp_path / "bundle", resolution=192)
    monkeypatch.setattr(exporter, "plan_graphs", only(VAE_ENCODER))
    manifest = read_manifest(exporter.export_bundle(options))
    assert manifest.resolution_px == 192
    assert manifest.graphs[VAE_ENCODER].inputs[0].shape[2:] == (192, 192)
    assert manifest.verification.keys() == manifest.graphs.keys()
    assert max(manifest.verification.values()) <= WELL_CONDITIONED["fp32"]
    assert any("at 128 px" in note for note in manifest.notes)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "sources"]


@pytest.mark.slow
def test_dynamic_half_precision(dynamic_half_bundle: Path) -> None:
    manifest = Bundle.load(dynamic_half_bundle).manifest
    assert manifest.ranges.keys() == {"segments", "images", "windows"}
    assert manifest.graphs[CACHED_STEP].inputs[-1].shape[:2] == (2, "windows")
    assert manifest.graphs[CACHED_STEP].inputs[-1].dtype == "float16"
    assert max(manifest.verification.values()) <= WELL_CONDITIONED["fp16"]
