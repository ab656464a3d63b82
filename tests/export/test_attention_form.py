"""`--attention`: which operators portable graphs hold, that both forms compute the same, and what a bundle says."""

import collections
import dataclasses
import hashlib
import json
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from latentsync_trt.bundle.find import CHECKPOINTS_VARIABLE
from latentsync_trt.bundle.manifest import (
    FORMAT_VERSION,
    REQUIRED_GRAPHS,
    AttentionForm,
    Bundle,
    read_manifest,
    write_manifest,
)
from latentsync_trt.cli import main
from latentsync_trt.export import exporter
from latentsync_trt.export.attention import attend, exports_whole, traced_as
from latentsync_trt.export.graphs import GraphPlan, build_graph
from latentsync_trt.export.options import ExportOptions, Sources
from latentsync_trt.export.verify import TOLERANCE
from latentsync_trt.quantize.bundle_out import quantize_bundle
from latentsync_trt.quantize.layers import layers_of
from latentsync_trt.quantize.options import QuantizeOptions
from latentsync_trt.quantize.ranges import Ranges, observed
from latentsync_trt.runtime.compiler.rtx import compile_graph
from tests import narrow
from tests.small import small_bundle

OPERATOR = "Attention"
IN_PARTS = ["Mul", "Transpose", "MatMul", "Cast", "Softmax", "Cast", "MatMul"]
"""The query is scaled before the product, and the softmax is float32."""

WIDE_HEADS = dataclasses.replace(narrow.UNET, widths=(128,), attention=(True,), motion_down=(True,), motion_up=(True,))
"""Heads of 16, as in the narrow VAE and audio encoder: in half precision all of them can be one operator."""

WITHOUT_FULL_STEP = ("audio_encoder", "vae_encoder", "vae_decoder", "denoise_step_cached")
STEPS = ("denoise_step", "denoise_step_cached")


class _Product(nn.Module):
    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return attend(query, key, value)


def operations(folder: Path, file: str) -> collections.Counter[str]:
    graph = onnx.load(folder / file, load_external_data=False).graph
    return collections.Counter(node.op_type for node in graph.node)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    return narrow.write_sources(tmp_path_factory.mktemp("sources"), WIDE_HEADS)


@pytest.fixture(scope="module")
def export(sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Exports a float16 bundle with some of the graphs."""
    plan_graphs = exporter.plan_graphs

    def make(attention: AttentionForm, graphs: Collection[str], **fields: object) -> Path:
        out = tmp_path_factory.mktemp(attention) / "bundle"

        def chosen(*arguments: object) -> list[GraphPlan]:
            return [plan for plan in plan_graphs(*arguments) if plan.name in graphs]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exporter, "plan_graphs", chosen)
            options = narrow.narrow_options(sources, out, precision="fp16", attention=attention, **fields)
            return exporter.export_bundle(options)

    return make


@pytest.fixture(scope="module")
def matmul_bundle(export: Callable[..., Path]) -> Path:
    """All that a run needs, verified."""
    return export("matmul", REQUIRED_GRAPHS)


@pytest.fixture(scope="module")
def fused_bundle(export: Callable[..., Path]) -> Path:
    """Without the full step, which costs the most time, and not verified: `dynamic_half_bundle` is."""
    return export("fused", WITHOUT_FULL_STEP, verify=False)


@pytest.mark.slow
def test_portable_graphs_hold_the_operator_only_in_the_fused_form(fused_bundle: Path, matmul_bundle: Path) -> None:
    fused, matmul = read_manifest(fused_bundle), read_manifest(matmul_bundle)
    assert (fused.attention, matmul.attention) == ("fused", "matmul")
    parts = {name: operations(matmul_bundle, matmul.graphs[name].file) for name in REQUIRED_GRAPHS}
    assert [name for name in REQUIRED_GRAPHS if parts[name][OPERATOR]] == []
    for name in WITHOUT_FULL_STEP:
        whole = operations(fused_bundle, fused.graphs[name].file)
        assert whole[OPERATOR] > 0
        assert parts[name]["Softmax"] == whole[OPERATOR] + whole["Softmax"]
        assert parts[name]["MatMul"] == whole["MatMul"] + 2 * whole[OPERATOR]


@pytest.mark.slow
def test_graphs_for_cuda_are_the_same_in_both_forms(fused_bundle: Path, matmul_bundle: Path) -> None:
    whole, parts = (
        operations(folder, read_manifest(folder).graphs["denoise_step_cached"].forms["cuda"])
        for folder in (fused_bundle, matmul_bundle)
    )
    assert whole[OPERATOR] > 0
    assert parts == whole


@pytest.mark.slow
def test_products_without_the_operator_agree_with_pytorch(matmul_bundle: Path) -> None:
    verification = Bundle.load(matmul_bundle).manifest.verification
    assert verification.keys() == set(REQUIRED_GRAPHS)
    assert max(verification.values()) <= TOLERANCE["fp16"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_tensorrt_compiles_every_graph_without_the_operator(matmul_bundle: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="the compiler has wheels for Linux and Windows only")
    bundle = Bundle.load(matmul_bundle)
    with ThreadPoolExecutor(2) as pool:
        verdicts = list(pool.map(lambda name: compile_graph(bundle.graph_path(name), {}), REQUIRED_GRAPHS))
    assert [verdict.reason for verdict in verdicts] == [""] * len(REQUIRED_GRAPHS)


@pytest.mark.slow
def test_in_eight_bits_the_form_stays_and_its_products_are_exact(matmul_bundle: Path, tmp_path: Path) -> None:
    folder = quantize_bundle(matmul_bundle, _ranges(matmul_bundle), QuantizeOptions("int8"), tmp_path / "int8")
    made = Bundle.load(folder)
    assert made.manifest.attention == "matmul"
    for name in STEPS:
        graph = onnx.load(made.graph_path(name), load_external_data=False).graph
        makers = {output: node.op_type for node in graph.node for output in node.output}
        weights = {initializer.name for initializer in graph.initializer}
        read_rounded = [
            [makers.get(value) == "DequantizeLinear" for value in node.input]
            for node in graph.node
            if node.op_type == "MatMul" and node.input[1] not in weights
        ]
        products = read_rounded.count([False, False])
        assert products == 2 * sum(node.op_type == "Softmax" for node in graph.node)
        assert read_rounded.count([True, True]) == len(read_rounded) - products > 0


def _ranges(folder: Path) -> Ranges:
    """As if no input of a layer had exceeded 4."""
    found = {}
    for name in STEPS:
        model = onnx.load(folder / f"{name}.onnx", load_external_data=False)
        shapes = {initializer.name: initializer.dims for initializer in model.graph.initializer}
        for layer in layers_of(model):
            amax = np.full(shapes[layer.weight][int(layer.convolution)], 4, np.float32)
            found[layer.weight] = observed(amax, amax, 1)
    return found


@pytest.mark.parametrize("form", ["fused", "matmul"])
def test_a_plan_decides_the_form(form: AttentionForm) -> None:
    inputs = {name: torch.randn(2, 4, 6, 40).half() for name in ("query", "key", "value")}
    model = build_graph(GraphPlan("product", "unet", _Product(), inputs, ("out",), attention=form))
    assert [node.op_type for node in model.graph] == ([OPERATOR] if form == "fused" else IN_PARTS)
    if form == "matmul":
        (softmax,) = (node for node in model.graph if node.op_type == "Softmax")
        assert softmax.inputs[0].dtype.numpy() == np.float32


def test_the_form_ends_with_its_context_and_stays_in_its_thread() -> None:
    def whole() -> bool:
        return exports_whole(torch.float16, 40)

    with pytest.raises(KeyError), traced_as("matmul"):
        with traced_as("fused"):
            assert whole()
        assert not whole()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(whole).result()
        raise KeyError
    assert whole()


def test_manifests_before_format_3_mean_the_operator(tmp_path: Path) -> None:
    manifest = dataclasses.replace(read_manifest(small_bundle()), attention="matmul", format_version=FORMAT_VERSION)
    path = write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path).attention == "matmul"
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["sha256"], content["attention"]
    content["format_version"] = 2
    seal = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(content | {"sha256": seal}), encoding="utf-8")
    assert read_manifest(tmp_path).attention == "fused"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, "1.6-512-fp16"),
        ({"attention": "matmul"}, "1.6-512-fp16-matmul"),
        ({"attention": "matmul", "dynamic": True}, "1.6-512-fp16-dynamic-matmul"),
    ],
)
def test_the_folder_is_named_after_the_form(
    fields: dict[str, object], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHECKPOINTS_VARIABLE, "somewhere")
    assert ExportOptions(precision="fp16", **fields).folder == Path("somewhere") / name


def test_the_flag_reaches_the_export(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[ExportOptions] = []

    def note(options: ExportOptions, _: object) -> Path:
        asked.append(options)
        return tmp_path

    monkeypatch.setattr(exporter, "export_bundle", note)
    assert CliRunner().invoke(main, ["export", "--attention", "matmul", "--quiet"]).exit_code == 0
    assert CliRunner().invoke(main, ["export", "--quiet"]).exit_code == 0
    assert [options.attention for options in asked] == ["matmul", "fused"]
    assert CliRunner().invoke(main, ["export", "--attention", "flash"]).exit_code == 2
