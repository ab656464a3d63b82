"""`scripts/check_graphs.py` with NVIDIA's real compiler for TensorRT-RTX: what it accepts, and what
it refuses.
"""

import collections
import dataclasses
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from latentsync_trt.bundle.find import demo_folder
from latentsync_trt.bundle.manifest import (
    Bundle,
    FileEntry,
    read_manifest,
    sha256_file,
    write_manifest,
)
from tests.small import small_bundle

pytestmark = pytest.mark.integration

pytest.importorskip("tensorrt_rtx", reason="the compiler has wheels for Linux and Windows only")

from scripts.check_graphs import compile_graph, main, plan_trials  # noqa: E402

COMPILERS = 2
"""Compilations at once; each takes one core."""
WEIGHTS_KEPT = 0.9
"""Least part of the weights file that an engine contains: the compiler folds some constants
away.
"""
SMALL_GRAPH = "vae_encoder"
GENERATIONS = ("7.5", "8.0", "8.6", "8.9", "12.0")


def write_graph(path: Path, *nodes: onnx.NodeProto, shape: tuple[int | str, ...] = (2, 3)) -> Path:
    """A graph from `x` float32 through `nodes` to `z`."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)]
    graph = helper.make_graph(list(nodes), "small", inputs, outputs)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10), path
    )
    return path


@pytest.mark.slow
@pytest.mark.timeout(1200)  # two exports, and 21 compilations on as few cores as there are
@pytest.mark.parametrize(
    ("fixture", "shapes"), [("bundle", {"static"}), ("dynamic_half_bundle", {"static", "dynamic"})]
)
def test_every_graph_compiles(
    fixture: str, shapes: set[str], request: pytest.FixtureRequest
) -> None:
    bundle = Bundle.load(request.getfixturevalue(fixture))
    trials = [*plan_trials(bundle.manifest)]
    assert collections.Counter(trial.graph for trial in trials) == dict.fromkeys(
        bundle.manifest.graphs, len(shapes)
    )
    assert {trial.shapes for trial in trials} == shapes
    with ThreadPoolExecutor(COMPILERS) as pool:
        verdicts = list(
            pool.map(
                lambda trial: compile_graph(bundle.graph_path(trial.graph), trial.profile), trials
            )
        )
    assert [verdict.reason for verdict in verdicts] == [""] * len(trials)
    for trial, verdict in zip(trials, verdicts, strict=True):
        if trial.graph == "denoise_step":
            assert verdict.engine_bytes > WEIGHTS_KEPT * bundle.manifest.files["unet.weights"].bytes


@pytest.mark.slow
@pytest.mark.parametrize("compute_capability", GENERATIONS)
def test_the_built_in_bundle_compiles_for_every_generation(compute_capability: str) -> None:
    bundle = Bundle.load(demo_folder())
    verdicts = [
        compile_graph(bundle.graph_path(graph), {}, compute_capability)
        for graph in bundle.manifest.graphs
    ]
    assert [verdict.reason for verdict in verdicts] == [""] * len(verdicts)


def test_attention_without_a_fused_kernel_is_compiled_in_parts(tmp_path: Path) -> None:
    """In float32, or with heads of more than 256."""
    nodes = [
        helper.make_node(kind, ["x"], [part])
        for kind, part in (("Relu", "q"), ("Neg", "k"), ("Abs", "v"))
    ]
    path = write_graph(
        tmp_path / "attention.onnx",
        *nodes,
        helper.make_node("Attention", ["q", "k", "v"], ["z"]),
        shape=(1, 2, 8, 512),
    )
    assert compile_graph(path, {}).reason == ""


def test_the_profile_reaches_the_compiler(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_graph(
        tmp_path / "any.onnx", helper.make_node("Relu", ["x"], ["z"]), shape=("n", 3)
    )
    for profile in ({"x": ((1, 3), (2, 3), (4, 3))}, {"x": ((2, 3), (2, 3), (2, 3))}):
        assert compile_graph(path, profile).accepted
    verdict = compile_graph(path, {})
    assert "no optimization profile" in verdict.reason
    assert not verdict.accepted
    assert capfd.readouterr() == ("", "")


def test_the_script_reports_a_refusal_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = helper.make_node("Relu", ["x"], ["y"], name="first")
    odd = write_graph(
        tmp_path / "odd ü.onnx", first, helper.make_node("Bernoulli", ["y"], ["z"], name="odd")
    )
    folder = shutil.copytree(small_bundle(), tmp_path / "bundle")
    manifest = read_manifest(folder)
    file = manifest.graphs[SMALL_GRAPH].file
    shutil.copyfile(odd, folder / file)
    entry = FileEntry(sha256_file(odd), odd.stat().st_size)
    write_manifest(folder, dataclasses.replace(manifest, files={**manifest.files, file: entry}))
    assert (
        main(
            [
                str(folder),
                "--graph",
                SMALL_GRAPH,
                "--graph",
                "vae_decoder",
                "--compute-capability",
                "8.6",
            ]
        )
        == 1
    )
    report = json.loads(capsys.readouterr().out)
    refused, accepted = report["graphs"]
    assert (report["accepted"], refused["accepted"], accepted["accepted"]) == (False, False, True)
    assert refused["reason"].startswith("Bernoulli (node odd): ")
    assert accepted["engine_bytes"] > 0
