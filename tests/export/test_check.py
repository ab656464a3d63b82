"""`latentsync-trt check` with NVIDIA's real compiler for TensorRT-RTX: what it accepts, and what it refuses and why."""

import collections
import dataclasses
import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from latentsync_trt.bundle.find import demo_folder
from latentsync_trt.bundle.manifest import Bundle, DimensionRange, FileEntry, read_manifest, sha256_file, write_manifest
from latentsync_trt.cli import main
from latentsync_trt.errors import InputError, MissingDependency, OutOfMemory
from latentsync_trt.runtime.compiler import rtx
from latentsync_trt.runtime.compiler.process import Answer
from latentsync_trt.runtime.compiler.profiles import InputShapes
from latentsync_trt.runtime.compiler.rtx import compile_graph, compiler_version, plan_trials
from tests.small import small_bundle

pytestmark = pytest.mark.integration

pytest.importorskip("tensorrt_rtx", reason="the compiler has wheels for Linux and Windows only")

COMPILERS = 2
"""Compilations at once; each takes one core."""
WEIGHTS_KEPT = 0.9
"""Least part of the weights file that an engine contains: the compiler folds some constants away."""
SMALL_GRAPH = "vae_encoder"
GENERATIONS = ("7.5", "8.0", "8.6", "8.9", "12.0")
SLOW = pytest.mark.slow


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["check", *arguments])
    return result.exit_code, result.stdout, result.stderr


def write_graph(path: Path, *nodes: onnx.NodeProto, shape: tuple[int | str, ...] = (2, 3), domain: str = "") -> Path:
    """A graph from `x` float32 through `nodes` to `z`."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)]
    opsets = [helper.make_opsetid("", 23), *([helper.make_opsetid(domain, 1)] if domain else [])]
    graph = helper.make_graph(list(nodes), "small", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def refused_graph(path: Path) -> Path:
    """A graph with an operation that TensorRT lacks."""
    return write_graph(
        path,
        helper.make_node("Relu", ["x"], ["y"], name="first"),
        helper.make_node("Bernoulli", ["y"], ["z"], name="odd"),
    )


def bundle_with(folder: Path, graph: str, source: Path) -> Path:
    """A copy of the demo bundle whose `graph` is the file `source`."""
    shutil.copytree(small_bundle(), folder)
    manifest = read_manifest(folder)
    file = manifest.graphs[graph].file
    shutil.copyfile(source, folder / file)
    entry = FileEntry(sha256_file(source), source.stat().st_size)
    write_manifest(folder, dataclasses.replace(manifest, files={**manifest.files, file: entry}))
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1200)  # three exports, and 26 compilations on as few cores as there are
@pytest.mark.parametrize(
    ("fixture", "dynamic", "shapes"),
    [
        ("narrow_bundle", None, {"static"}),
        ("dynamic_single_bundle", True, {"dynamic"}),
        ("dynamic_half_bundle", None, {"static", "dynamic"}),
    ],
)
def test_every_graph_compiles(
    fixture: str, dynamic: bool | None, shapes: set[str], request: pytest.FixtureRequest
) -> None:
    bundle = Bundle.load(request.getfixturevalue(fixture))
    trials = plan_trials(bundle.manifest, (), dynamic)
    assert collections.Counter(trial.graph for trial in trials) == dict.fromkeys(bundle.manifest.graphs, len(shapes))
    assert {trial.shapes for trial in trials} == shapes
    with ThreadPoolExecutor(COMPILERS) as pool:
        verdicts = list(pool.map(lambda trial: compile_graph(bundle.graph_path(trial.graph), trial.profile), trials))
    assert [verdict for verdict in verdicts if not verdict.accepted] == []
    for trial, verdict in zip(trials, verdicts, strict=True):
        assert verdict.reason == ""
        assert verdict.layers > 0
        assert verdict.seconds > 0
        if trial.graph == "denoise_step":
            assert verdict.engine_bytes > WEIGHTS_KEPT * bundle.manifest.files["unet.weights"].bytes


@pytest.mark.parametrize("compute_capability", [pytest.param(each, marks=SLOW) for each in GENERATIONS])
def test_the_built_in_bundle_compiles_for_every_generation(compute_capability: str) -> None:
    bundle = Bundle.load(demo_folder())
    assert [
        verdict.reason
        for graph in bundle.manifest.graphs
        if not (verdict := compile_graph(bundle.graph_path(graph), {}, compute_capability)).accepted
    ] == []


def test_a_guided_step_compiles_for_turing() -> None:
    """Not if GEGLU cuts up the sum of product and bias."""
    assert compile_graph(Bundle.load(demo_folder()).graph_path("denoise_step_cached"), {}, "7.5").accepted


@pytest.mark.slow
def test_half_precision_is_compiled_with_whole_attention_and_in_parts(dynamic_half_bundle: Path) -> None:
    graph = onnx.load(dynamic_half_bundle / "denoise_step.onnx", load_external_data=False).graph
    operations = collections.Counter(node.op_type for node in graph.node)
    assert operations["Attention"] > 0
    assert operations["Softmax"] > 0


def test_an_operation_that_tensorrt_lacks_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    verdict = compile_graph(refused_graph(tmp_path / "with space ü.onnx"), {})
    assert not verdict.accepted
    assert verdict.reason == "Bernoulli (node odd): TensorRT has no such operation"
    assert (verdict.layers, verdict.engine_bytes) == (0, 0)
    assert capfd.readouterr() == ("", "")


def test_attention_without_a_fused_kernel_is_compiled_in_parts(tmp_path: Path) -> None:
    """In float32, or with heads of more than 256."""
    nodes = [helper.make_node(kind, ["x"], [part]) for kind, part in (("Relu", "q"), ("Neg", "k"), ("Abs", "v"))]
    path = write_graph(
        tmp_path / "attention.onnx", *nodes, helper.make_node("Attention", ["q", "k", "v"], ["z"]), shape=(1, 2, 8, 512)
    )
    verdict = compile_graph(path, {})
    assert (verdict.accepted, verdict.reason) == (True, "")


def test_group_norm_of_the_graphs_is_one_that_tensorrt_computes_right() -> None:
    """From opset 21 on, scale and bias are per channel, which the parser has read since TensorRT 10.9. Up to 10.16 it
    takes one group for a group per channel: https://github.com/NVIDIA/TensorRT/issues/4756."""
    norms = []
    for path in small_bundle().glob("*.onnx"):
        model = onnx.load(path, load_external_data=False)
        assert model.opset_import[0].version >= 21
        norms += [node for node in model.graph.node if node.op_type == "GroupNormalization"]
    groups = [helper.get_node_attr_value(norm, "num_groups") for norm in norms]
    assert groups
    assert min(groups) > 1


def test_the_profile_reaches_the_compiler(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_graph(tmp_path / "any.onnx", helper.make_node("Relu", ["x"], ["z"]), shape=("n", 3))
    for profile in ({"x": InputShapes((1, 3), (2, 3), (4, 3))}, {"x": InputShapes((2, 3), (2, 3), (2, 3))}):
        assert compile_graph(path, profile).accepted
    verdict = compile_graph(path, {})
    assert "no optimization profile" in verdict.reason
    assert "CUDA driver" not in verdict.reason
    assert (verdict.accepted, verdict.layers > 0) == (False, True)
    assert capfd.readouterr() == ("", "")


def test_a_graph_without_its_weights_is_refused(tmp_path: Path) -> None:
    path = tmp_path / f"{SMALL_GRAPH}.onnx"
    shutil.copyfile(small_bundle() / path.name, path)
    verdict = compile_graph(path, {})
    assert not verdict.accepted
    assert "Failed to import initializer" in verdict.reason


def test_no_file_and_no_such_gpu_are_wrong_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        compile_graph(tmp_path / "none.onnx", {})
    for wrong in ("9.0", "89", "x"):
        with pytest.raises(InputError, match=rf"--compute-capability {wrong}: .* compiles for .*8\.6, 8\.9, .*12\.0"):
            compile_graph(refused_graph(tmp_path / "odd.onnx"), {}, wrong)


def test_without_the_extra_the_message_has_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    with pytest.raises(MissingDependency, match=r'pip install "latentsync-trt\[check\]"'):
        compiler_version()
    code, _, err = run("--bundle", str(small_bundle()))
    assert code == 1
    assert 'pip install "latentsync-trt[check]"' in err


def test_a_compiler_without_memory_has_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rtx, "run_compiler", lambda order: Answer(False, "std::bad_alloc"))
    with pytest.raises(OutOfMemory, match=r"odd\.onnx: the compiler ran out of memory \(std::bad_alloc\); close other"):
        compile_graph(refused_graph(tmp_path / "odd.onnx"), {})


def test_trials_follow_the_bundle_and_the_flags() -> None:
    manifest = read_manifest(small_bundle())
    assert [trial.graph for trial in plan_trials(manifest, ("vae_decoder",), None)] == ["vae_decoder"]
    assert {trial.shapes for trial in plan_trials(manifest, (), None)} == {"static"}
    with pytest.raises(InputError, match=r"--graph vae: .* only audio_encoder, vae_encoder"):
        plan_trials(manifest, ("vae",), None)
    with pytest.raises(InputError, match="fixed shapes"):
        plan_trials(manifest, (), True)


def test_a_dynamic_bundle_is_tried_with_both_kinds_of_shapes() -> None:
    manifest = read_manifest(small_bundle())
    entry = manifest.graphs[SMALL_GRAPH]
    image = dataclasses.replace(entry.inputs[0], shape=("images", *entry.inputs[0].shape[1:]))
    manifest = dataclasses.replace(
        manifest,
        shapes="dynamic",
        ranges={"images": DimensionRange(1, 16, 64)},
        graphs={SMALL_GRAPH: dataclasses.replace(entry, inputs=(image,))},
    )
    fixed, free = plan_trials(manifest, (SMALL_GRAPH,), None)
    assert (fixed.shapes, free.shapes) == ("static", "dynamic")
    assert [sizes[0] for sizes in dataclasses.astuple(fixed.profile["image"])] == [16, 16, 16]
    assert [sizes[0] for sizes in dataclasses.astuple(free.profile["image"])] == [1, 16, 64]
    assert plan_trials(manifest, (SMALL_GRAPH,), False) == (fixed,)


def test_the_command_shows_a_table() -> None:
    targets = "--compute-capability", "12.0", "--compute-capability", "8.6"
    code, out, err = run("--bundle", str(small_bundle()), "--graph", SMALL_GRAPH, *targets)
    assert code == 0, err
    assert "small_bundle (named)" in err
    rows = [line.split() for line in out.splitlines() if SMALL_GRAPH in line]
    assert [row[:3] for row in rows] == [["12.0", SMALL_GRAPH, "static"], ["8.6", SMALL_GRAPH, "static"]]
    assert {row[-1] for row in rows} == {"accepted"}
    for target in targets[1::2]:
        assert f"{compiler_version()} accepts 1 of 1 for compute capability {target}" in out


def test_the_command_shows_a_refusal_and_fails(tmp_path: Path) -> None:
    odd = refused_graph(tmp_path / "odd.onnx")
    bundle = bundle_with(tmp_path / "bundle", SMALL_GRAPH, odd)
    arguments = ("--bundle", str(bundle), "--graph", SMALL_GRAPH, "--graph", "vae_decoder")
    code, out, _ = run(*arguments, "--json")
    assert code == 1
    report = json.loads(out)
    assert report["accepted"] is False
    assert [(entry["compute_capability"], entry["graph"], entry["accepted"]) for entry in report["graphs"]] == [
        ("8.9", SMALL_GRAPH, False),
        ("8.9", "vae_decoder", True),
    ]
    assert report["graphs"][0]["reason"].startswith("Bernoulli (node odd)")
    assert report["graphs"][1]["engine_bytes"] > 0
    code, out, _ = run(*arguments[:4])
    assert code == 1
    assert "Bernoulli" in out
    assert "accepts 0 of 1" in out
