"""What an export leaves on disk, and what it refuses."""

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from latentsync_trt.bundle.manifest import REQUIRED_GRAPHS, UNGUIDED_GRAPHS, Bundle
from latentsync_trt.bundle.weights import ALIGNMENT_BYTES, INLINE_BELOW_BYTES
from latentsync_trt.errors import ExportMismatch, InputError
from latentsync_trt.export import exporter, verify
from latentsync_trt.export.attention import attend
from latentsync_trt.export.graphs import GraphPlan, build_graph
from latentsync_trt.export.plans import plan_graphs
from latentsync_trt.runtime.sessions.session import Session
from tests import narrow

GRAPH_FILE_LIMIT_BYTES = 1_000_000
"""A graph beside its weights: node list, shapes and small constants."""


def test_the_bundle_is_whole_and_says_what_it_is(narrow_bundle: Path) -> None:
    manifest = Bundle.load(narrow_bundle).manifest
    assert set(manifest.graphs) == {*REQUIRED_GRAPHS, *UNGUIDED_GRAPHS}
    assert manifest.shapes == "static"
    assert (manifest.audio_layers, manifest.audio_width) == (narrow.WHISPER.layers, narrow.AUDIO_WIDTH)
    assert manifest.verification.keys() == manifest.graphs.keys()
    assert max(manifest.verification.values()) <= verify.TOLERANCE[manifest.precision]
    assert manifest.sources.keys() == {"unet", "vae", "whisper"}
    assert not [path for path in narrow_bundle.parent.iterdir() if path.name.startswith(".")]


def test_the_steps_have_the_contract_of_the_design(narrow_bundle: Path) -> None:
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
        assert {entry.name: entry.shape for entry in cached.inputs} == {**wanted, "hidden": hidden}
        assert {entry.name: entry.shape for entry in full.outputs} == {
            "next_latents": latents,
            "next_history": latents,
            "hidden": hidden,
        }
        assert [entry.name for entry in cached.outputs] == ["next_latents", "next_history"]
        assert {entry.name for entry in cached.inputs if entry.dtype != "float32"} == {"timestep"}


def test_all_steps_share_one_weights_file(narrow_bundle: Path) -> None:
    manifest = Bundle.load(narrow_bundle).manifest
    places: dict[str, set[tuple[str, str]]] = {}
    for name in ("denoise_step", "denoise_step_cached", "denoise_step_unguided", "denoise_step_unguided_cached"):
        entry = manifest.graphs[name]
        assert entry.weights == "unet.weights"
        assert manifest.files[entry.file].bytes < GRAPH_FILE_LIMIT_BYTES
        graph = onnx.load(narrow_bundle / entry.file, load_external_data=False).graph
        external = [tensor for tensor in graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
        places[name] = set()
        for tensor in external:
            fields = {field.key: field.value for field in tensor.external_data}
            assert fields["location"] == "unet.weights"
            assert int(fields["offset"]) % ALIGNMENT_BYTES == 0
            assert int(fields["length"]) >= INLINE_BELOW_BYTES
            places[name].add((fields["offset"], fields["length"]))
    assert places["denoise_step_unguided"] == places["denoise_step"]
    assert places["denoise_step_cached"] < places["denoise_step"]


def test_the_update_is_the_scheduler_s(narrow_bundle: Path) -> None:
    session = Session(narrow_bundle / "denoise_step_unguided_cached.onnx")
    generator = np.random.default_rng(1)
    inputs = {
        tensor.name: generator.standard_normal(tensor.shape).astype(tensor.dtype)
        for tensor in session.inputs
        if tensor.name != "timestep"
    } | {"timestep": np.array(41)}
    eps, _ = session.run(inputs | {"coefficients": np.array([0, 1, 0, 0, 0], np.float32)})
    c = inputs["coefficients"]
    latents, history = session.run(inputs)
    wanted = c[0] * inputs["latents"] + c[1] * eps + c[2] * inputs["history"]
    np.testing.assert_allclose(latents, wanted, rtol=0, atol=1e-5)
    np.testing.assert_allclose(history, c[3] * inputs["latents"] + c[4] * eps, rtol=0, atol=1e-5)


class _Product(nn.Module):
    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return attend(query, key, value)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "whole"),
    [(torch.float16, 40, True), (torch.float16, 8, False), (torch.float16, 20, False), (torch.float32, 40, False)],
)
def test_attention_is_one_op_where_tensorrt_takes_it(dtype: torch.dtype, head_dim: int, whole: bool) -> None:
    inputs = {name: torch.randn(2, 4, 6, head_dim).to(dtype) for name in ("query", "key", "value")}
    model = build_graph(GraphPlan("product", "unet", _Product(), inputs, ("out",)))
    assert ("Attention" in {node.op_type for node in model.graph}) == whole


def test_a_failed_verification_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_steps(*arguments: object) -> list[GraphPlan]:
        return [plan for plan in plan_graphs(*arguments) if plan.name == "audio_encoder"]

    monkeypatch.setattr(exporter, "plan_graphs", without_steps)
    monkeypatch.setattr(exporter, "TOLERANCE", {"fp32": 0.0})
    sources = narrow.write_sources(tmp_path / "sources")
    options = narrow.narrow_options(sources, tmp_path / "out" / "bundle")
    with pytest.raises(ExportMismatch, match=r"audio_encoder\.onnx, output features: differs from PyTorch by"):
        exporter.export_bundle(options)
    assert list((tmp_path / "out").iterdir()) == []


def test_verification_sees_other_weights(narrow_bundle: Path, tmp_path: Path) -> None:
    options = narrow.narrow_options(narrow.write_sources(tmp_path / "sources"), tmp_path)
    networks = exporter.load_networks(exporter.find_sources(options), options, torch.float32)
    plan = next(plan for plan in plan_graphs(networks, options) if plan.name == "audio_encoder")
    graph = narrow_bundle / "audio_encoder.onnx"
    assert verify.verify_graph(graph, plan, verify.TOLERANCE["fp32"]) <= verify.TOLERANCE["fp32"]
    networks.whisper.blocks[0].mlp[0].weight.mul_(1.01)
    with pytest.raises(ExportMismatch, match="output features: differs"):
        verify.verify_graph(graph, plan, verify.TOLERANCE["fp32"])
    with pytest.raises(ExportMismatch, match="its outputs are"):
        verify.verify_graph(graph, dataclasses.replace(plan, outputs=("sound",)), 1.0)


def test_too_little_memory_is_said_before_the_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000000 kB\nMemAvailable:    8000 kB\n", encoding="ascii")
    monkeypatch.setattr(verify, "_MEMORY_FILE", meminfo)
    options = narrow.narrow_options(narrow.write_sources(tmp_path / "sources"), tmp_path / "bundle", resolution=512)
    with pytest.raises(InputError, match=r"at 128 px .* needs about 0\.0 GB of memory, 0\.0 are free; add --no-verify"):
        exporter.export_bundle(options)


@pytest.mark.slow
def test_short_of_memory_the_networks_are_compared_at_a_lower_resolution(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = narrow.narrow_options(narrow.write_sources(tmp_path / "sources"), tmp_path / "bundle", resolution=192)
    lower = dataclasses.replace(options, resolution=128)
    free_bytes = (verify.needed_bytes(options) + verify.needed_bytes(lower)) // 2
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemAvailable: {free_bytes // 1024} kB\n", encoding="ascii")
    monkeypatch.setattr(verify, "_MEMORY_FILE", meminfo)
    manifest = Bundle.load(exporter.export_bundle(options)).manifest
    assert manifest.resolution_px == 192
    assert manifest.graphs["vae_encoder"].inputs[0].shape[2:] == (192, 192)
    assert manifest.verification.keys() == manifest.graphs.keys()
    assert max(manifest.verification.values()) <= verify.TOLERANCE["fp32"]
    assert any("compared at 128 px instead" in note for note in manifest.notes)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "meminfo", "sources"]


@pytest.mark.slow
def test_dynamic_half_precision(dynamic_half_bundle: Path) -> None:
    manifest = Bundle.load(dynamic_half_bundle).manifest
    assert manifest.ranges.keys() == {"segments", "images", "windows", "frames"}
    assert manifest.graphs["denoise_step_cached"].inputs[-1].shape[:3] == (2, "windows", "frames")
    assert manifest.graphs["denoise_step_cached"].inputs[-1].dtype == "float16"
    assert max(manifest.verification.values()) <= verify.TOLERANCE["fp16"]
