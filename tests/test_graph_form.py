"""Which form of a graph is used where, and what happens when a provider does not take it: with sessions that only act
like those of a GPU."""

import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from latentsync_trt.bundle.manifest import Bundle, FileEntry, read_manifest, sha256_file, write_manifest
from latentsync_trt.cli import main
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import EngineBuildError, InferenceError, InputError, LatentSyncError, OutOfMemory
from latentsync_trt.runtime.cache.engine_cache import EngineCache
from latentsync_trt.runtime.compiler.failures import last_line
from latentsync_trt.runtime.providers.gpu import Gpu
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.runtime.sessions import engines as engines_module
from latentsync_trt.runtime.sessions import recipes
from latentsync_trt.runtime.sessions.engines import Engines
from latentsync_trt.runtime.sessions.session import Session, SessionSettings
from tests.small import small_bundle
from tests.toy import write_toy

ADA = Gpu(0, "NVIDIA GeForce RTX 4090", "8.9", 24 * 1024**3, "0000:01:00.0")
HOPPER = Gpu(0, "NVIDIA H100 80GB HBM3", "9.0", 80 * 1024**3, "0000:01:00.0")
FORM_OPTIONS = {"fuse_conv_bias": "1"}

WIDTH = 256
"""Of a weight that half a graph is made of."""

Make = Callable[..., Engines]


class Provider:
    """Stands for ONNX Runtime with a GPU. `asked` lists what was to be opened.

    `refuses`: to open the CUDA form. `fails`: with what the form's runs end, None for well.
    """

    def __init__(self) -> None:
        self.refuses = False
        self.fails: LatentSyncError | None = None
        self.asked: list[tuple[Path, SessionSettings]] = []

    def session(self, path: Path, settings: SessionSettings) -> Any:
        self.asked.append((path, settings))
        if self.refuses and settings.name.endswith(".cuda"):
            raise EngineBuildError(f"{settings.name}: Failed to find kernel for com.microsoft.GroupNorm(1)")
        if settings.optimized_copy is not None:
            settings.optimized_copy.write_bytes(path.read_bytes())
        name = settings.providers[0][0]
        session = types.SimpleNamespace(get_providers=lambda: [name])

        def run(inputs: dict[str, Any]) -> None:
            if self.fails is not None:
                raise self.fails

        return types.SimpleNamespace(
            name=settings.name, ort=session, nodes_by_provider=lambda: {name: 3}, close=lambda: None, inputs=(), run=run
        )


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Provider:
    made = Provider()
    monkeypatch.setattr(recipes, "Session", made.session)
    monkeypatch.setattr(engines_module, "tensorrt_version", lambda: "10.14.1")
    return made


@pytest.fixture
def both(tmp_path: Path) -> Bundle:
    """A bundle whose full step has both forms, and whose cached step only one."""
    plain = write_toy(tmp_path / "toy")
    graph = onnx.load(plain.graph_path("denoise_step"))
    graph.doc_string = "in another form"
    path = plain.folder / "denoise_step.cuda.onnx"
    onnx.save(graph, path)
    manifest = plain.manifest
    entry = replace(manifest.graphs["denoise_step"], forms={"cuda": path.name})
    files = {**manifest.files, path.name: FileEntry(sha256_file(path), path.stat().st_size)}
    return Bundle(plain.folder, replace(manifest, graphs={**manifest.graphs, "denoise_step": entry}, files=files))


@pytest.fixture
def notices() -> list[str]:
    return []


@pytest.fixture
def make(tmp_path: Path, both: Bundle, notices: list[str]) -> Make:
    def made(name: str = "cuda", gpu: Gpu = ADA, bundle: Bundle = both, **options: Any) -> Engines:
        selection = Selection(name, gpu=None if name == "cpu" else gpu)  # type: ignore[arg-type]
        asked = RuntimeOptions(**{"graph_form": "auto", **options})
        return Engines(bundle, selection, asked, EngineCache(tmp_path / "cache"), notices.append)

    return made


def test_cuda_is_given_the_form_made_for_it(make: Make, both: Bundle, provider: Provider, notices: list[str]) -> None:
    made = make()
    assert [made.form(graph) for graph in ("denoise_step", "denoise_step_cached")] == ["cuda", "portable"]
    made.open("denoise_step")
    (path, trying), (kept, opening) = provider.asked
    assert path == both.folder / "denoise_step.cuda.onnx"
    assert kept.read_bytes() == path.read_bytes()
    for settings in (trying, opening):
        # Convolutions of com.microsoft go to the provider only with constant weights, which folding makes them.
        assert settings.fold_constants
        assert settings.optimized_copy is None
        assert FORM_OPTIONS.items() <= dict(settings.providers[0][1]).items()
    assert notices == []


def test_it_is_run_unasked_wherever_the_bundle_has_it(make: Make, both: Bundle) -> None:
    entry = both.manifest.graphs["denoise_step"]
    graphs = {**both.manifest.graphs, "vae_decoder": entry}
    made = make(bundle=replace(both, manifest=replace(both.manifest, graphs=graphs)))
    assert RuntimeOptions().graph_form == "auto"
    forms = [made.form(graph) for graph in ("denoise_step", "vae_decoder", "denoise_step_cached")]
    assert forms == ["cuda", "cuda", "portable"]


@pytest.mark.parametrize(("gpu", "kernels"), [(ADA, None), (HOPPER, "10")])
def test_cudnn_computes_attention_from_hopper_on(make: Make, gpu: Gpu, kernels: str | None) -> None:
    assert make(gpu=gpu).key("denoise_step").options.get("sdpa_kernel") == kernels


def test_what_is_portable_is_run_as_before(make: Make, both: Bundle, tmp_path: Path) -> None:
    before = write_toy(tmp_path / "before")
    for graph in ("denoise_step", "denoise_step_cached"):
        old = make(bundle=before).key(graph)
        assert make(graph_form="portable").key(graph).digest == old.digest
        assert not FORM_OPTIONS.keys() & old.options.keys()
        assert "form" not in old.to_json()


@pytest.mark.parametrize("name", ["tensorrt", "rtx", "cpu"])
def test_other_providers_keep_the_portable_form(make: Make, name: str) -> None:
    assert make(name).form("denoise_step") == "portable"
    with pytest.raises(InputError, match=f"--graph-form cuda: not with provider {name}; it is made for cuda alone"):
        make(name, graph_form="cuda")


def test_the_forms_have_engines_of_their_own(make: Make, provider: Provider) -> None:
    fast, plain = make().key("denoise_step"), make(graph_form="portable").key("denoise_step")
    assert (fast.form, plain.form) == ("cuda", "portable")
    assert fast.graph_sha256 != plain.graph_sha256
    assert fast.label == "denoise_step of toy for cuda (cuda form)"
    assert make().open("denoise_step").built
    assert not make().open("denoise_step").built
    assert make(graph_form="portable").open("denoise_step").built


@pytest.mark.parametrize("method", ["open", "build"])
def test_a_form_that_is_refused_is_told_and_replaced(
    make: Make, both: Bundle, provider: Provider, notices: list[str], method: str
) -> None:
    provider.refuses = True
    made = make()
    assert getattr(made, method)("denoise_step").built
    assert made.form("denoise_step") == "portable"
    assert provider.asked[-1][1].name == "denoise_step"
    (notice,) = notices
    assert notice.startswith("denoise_step: the CUDA form does not open here, going on with the portable one: ")
    assert notice.endswith("Failed to find kernel for com.microsoft.GroupNorm(1)")
    made.open("denoise_step")
    assert made.without_cuda_graph().form("denoise_step") == "portable"
    assert len(notices) == 1


def test_a_form_that_opens_and_does_not_run_is_replaced_too(
    make: Make, both: Bundle, provider: Provider, notices: list[str]
) -> None:
    """cuDNN looks for a plan when a convolution first runs."""
    provider.fails = InferenceError("denoise_step.cuda on CUDAExecutionProvider: no valid engine configs")
    made = make()
    assert made.open("denoise_step").built
    assert made.form("denoise_step") == "portable"
    assert [notice.endswith("no valid engine configs") for notice in notices] == [True]


def test_messages_leave_out_what_cudnn_dumps() -> None:
    error = RuntimeError(
        'Conv failed\nCUDNN_FE failure 11: no valid engine configs for Conv_Add_Add_\n{"context":{"nodes":[]}}\n'
    )
    assert last_line(error) == "CUDNN_FE failure 11: no valid engine configs for Conv_Add_Add_"


def test_want_of_memory_says_nothing_about_a_form(make: Make, both: Bundle, provider: Provider) -> None:
    provider.fails = OutOfMemory("denoise_step.cuda: out of memory for 1.00 GB more")
    made = make()
    assert made.open("denoise_step").built
    assert made.form("denoise_step") == "cuda"


def test_the_trial_is_a_run_and_what_is_kept_runs(tmp_path: Path) -> None:
    bundle = write_toy(tmp_path / "toy")
    place = recipes.Place(bundle.graph_path("denoise_step"), tmp_path, dimensions={"windows": 1, "frames": 2})
    recipe = recipes.FinishedGraph("CPUExecutionProvider")
    (tmp_path / "kept").mkdir()
    recipe.make(place, tmp_path / "kept")
    session = recipe.open(place, tmp_path / "kept")
    session.run({tensor.name: np.zeros([int(n) for n in tensor.shape], tensor.dtype) for tensor in session.inputs})
    assert session.runs == 1


def test_a_form_that_is_demanded_is_not_replaced(make: Make, both: Bundle, provider: Provider) -> None:
    provider.refuses = True
    with pytest.raises(EngineBuildError, match=r"denoise_step\.cuda: Failed to find kernel"):
        make(graph_form="cuda").open("denoise_step")


def test_a_bundle_without_the_form_cannot_be_asked_for_it(make: Make, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="bundle toy has no graphs in it; export it again, --static and without"):
        make(bundle=write_toy(tmp_path / "old"), graph_form="cuda")


def test_a_manifest_remembers_the_forms_and_reads_without_them(both: Bundle) -> None:
    write_manifest(both.folder, both.manifest)
    assert read_manifest(both.folder).graphs["denoise_step"].forms == {"cuda": "denoise_step.cuda.onnx"}
    assert '"forms"' not in (small_bundle() / "manifest.json").read_text(encoding="utf-8")
    assert read_manifest(small_bundle()).graphs["denoise_step"].forms == {}


def test_a_copy_holds_no_parts_of_weights(tmp_path: Path) -> None:
    """An optimized graph whose constants are left alone reads the weights where they are, and computes the same."""
    weight = np.random.default_rng(1).standard_normal((WIDTH, 2 * WIDTH), np.float32)
    nodes = [
        helper.make_node("Slice", ["weight", "start", "end", "axis"], ["part"]),
        helper.make_node("MatMul", ["x", "part"], ["y"]),
    ]
    numbers = {"start": [WIDTH], "end": [2 * WIDTH], "axis": [1]}
    constants = [numpy_helper.from_array(np.array(value), name) for name, value in numbers.items()]
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, WIDTH]) for name in "xy"]
    graph = helper.make_graph(
        nodes, "parts", shapes[:1], shapes[1:], [*constants, numpy_helper.from_array(weight, "weight")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "parts.onnx", save_as_external_data=True, location="parts.weights")
    sizes = {}
    for fold in (True, False):
        copy = tmp_path / f"copy_{fold}.onnx"
        Session(tmp_path / "parts.onnx", SessionSettings(optimized_copy=copy, fold_constants=fold)).close()
        sizes[fold] = copy.stat().st_size
        x = np.ones((1, WIDTH), np.float32)
        (y,) = Session(copy, SessionSettings(weights_folder=tmp_path)).run({"x": x})
        np.testing.assert_allclose(y, x @ weight[:, WIDTH:], rtol=1e-4)
    assert sizes[True] > weight.nbytes // 2 > 20 * sizes[False]


def test_commands_show_the_form(make: Make, both: Bundle, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    write_manifest(both.folder, both.manifest)
    make().open("denoise_step")
    cache = str(make().cache.folder)
    listed = CliRunner().invoke(main, ["cache", "ls", "--engine-cache", cache])
    assert "denoise_step (cuda form)" in listed.output
    monkeypatch.setenv("LATENTSYNC_TRT_CHECKPOINTS", str(both.folder.parent))
    monkeypatch.setattr("latentsync_trt.bundle.manifest.REQUIRED_GRAPHS", ())
    assert "dynamic, portable and cuda form, " in CliRunner().invoke(main, ["doctor"]).output
