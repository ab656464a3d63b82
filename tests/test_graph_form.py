"""Which form of a graph is opened where, and what happens when a provider does not run it: with sessions that imitate
those of a GPU."""

import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from latentsync_trt.bundle.manifest import Bundle, FileEntry, sha256_file
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import EngineBuildError, InferenceError, LatentSyncError, OutOfMemory
from latentsync_trt.runtime.engines.cache import EngineCache
from latentsync_trt.runtime.providers.gpu import Gpu
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.runtime.engines import engines as engines_module
from latentsync_trt.runtime.engines import trial
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.runtime.engines.session import SessionSettings, TensorInfo
from latentsync_trt.runtime.engines.output_comparison import random_inputs
from tests.toy import FRAMES, write_toy

ADA = Gpu(0, "NVIDIA GeForce RTX 4090", "8.9", 24 * 1024**3, "0000:01:00.0")
HOPPER = Gpu(0, "NVIDIA H100 80GB HBM3", "9.0", 80 * 1024**3, "0000:01:00.0")
FORM_OPTIONS = {"fuse_conv_bias": "1"}

Make = Callable[..., Engines]


class Provider:
    """Stands for ONNX Runtime with a GPU. `asked`: what was opened; `runs`: names of the sessions that ran.

    `refuses`: to open the CUDA form. `fails`: the error that ends runs of that form, None for none. `off_by`: what its
    values differ by.
    """

    def __init__(self) -> None:
        self.refuses = False
        self.fails: LatentSyncError | None = None
        self.off_by = 0.001
        self.asked: list[tuple[Path, SessionSettings]] = []
        self.runs: list[str] = []

    def session(self, path: Path, settings: SessionSettings) -> Any:
        self.asked.append((path, settings))
        if self.refuses and settings.name.endswith(".cuda"):
            raise EngineBuildError(f"{settings.name}: Failed to find kernel for com.microsoft.GroupNorm(1)")
        name = settings.providers[0][0]

        def run(inputs: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
            self.runs.append(settings.name)
            assert {name: values.shape for name, values in inputs.items()} == {"latents": (1, 4, FRAMES, 2, 2)}
            values = inputs["latents"] / np.abs(inputs["latents"]).max()
            assert values.any()  # zeros would be equal in any form
            if not settings.name.endswith(".cuda"):
                return (values,)
            if self.fails is not None:
                raise self.fails
            return (values + np.float32(self.off_by),)

        return types.SimpleNamespace(
            name=settings.name,
            ort=types.SimpleNamespace(get_providers=lambda: [name]),
            nodes_by_provider=lambda: {name: 3},
            close=lambda: None,
            inputs=(TensorInfo("latents", ("windows", 4, "frames", 2, 2), np.dtype(np.float32)),),
            run=run,
        )

    def options(self, number: int) -> dict[str, str]:
        """What the provider of a session was given."""
        return dict(self.asked[number][1].providers[0][1])


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Provider:
    made = Provider()
    monkeypatch.setattr(engines_module, "Session", made.session)
    monkeypatch.setattr(
        trial, "outputs_of", lambda session, ranges, *_, runs: session.run(random_inputs(session.inputs, ranges))
    )
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
        asked = RuntimeOptions(**{"graph_variant": "auto", **options})
        return SessionFactory(bundle, selection, asked, EngineCache(tmp_path / "cache"), notices.append)

    return made


COMPARED = ["denoise_step.cuda", "denoise_step"]
COMPARING = "comparing the CUDA form of this bundle with the portable one, once for this GPU"


def test_cuda_opens_the_form_made_for_it_after_comparing_its_values(
    make: Make, both: Bundle, provider: Provider, notices: list[str]
) -> None:
    made = make()
    assert [made.form(graph) for graph in ("denoise_step", "denoise_step_cached")] == ["cuda", "portable"]
    assert make("tensorrt").form("denoise_step") == "portable"
    opened = made.open("denoise_step")
    assert provider.runs == COMPARED
    path, _ = provider.asked[-1]
    assert path == both.folder / "denoise_step.cuda.onnx"
    assert FORM_OPTIONS.items() <= provider.options(-1).items()
    assert (opened.built, opened.build_s, opened.size_bytes, opened.node_share) == (False, 0.0, 0, 1.0)
    made.open("denoise_step")  # opened again where memory is short: compared already
    made.open("denoise_step_cached")
    assert provider.runs == COMPARED
    assert not made.cache.folder.exists()
    assert notices == [COMPARING]


def test_forms_that_were_equal_are_not_compared_again_under_the_same_circumstances(
    make: Make, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines_module, "driver_version", lambda: "580.65")
    for _ in range(2):
        make(dynamic=False).open("denoise_step")
    assert provider.runs == COMPARED
    monkeypatch.setattr(engines_module, "driver_version", lambda: "590.1")
    make(dynamic=False).open("denoise_step")
    make(dynamic=False, gpu=HOPPER).open("denoise_step")
    make(dynamic=False, cuda_graph=True).open("denoise_step")
    assert provider.runs == COMPARED * 3


def test_cuda_graphs_are_recorded_by_default_where_all_steps_have_the_form(make: Make, both: Bundle) -> None:
    assert not make(dynamic=False).cuda_graph
    full, cached = (both.manifest.graphs[graph] for graph in ("denoise_step", "denoise_step_cached"))
    graphs = {**both.manifest.graphs, "denoise_step_cached": replace(cached, forms=full.forms)}
    steps = {graph: entry for graph, entry in graphs.items() if "unguided" not in graph}
    whole = Bundle(both.folder, replace(both.manifest, graphs=steps))
    assert make(bundle=whole, dynamic=False).cuda_graph
    assert not make(bundle=whole, dynamic=False, cuda_graph=False).cuda_graph
    assert not make(bundle=whole, dynamic=False, graph_variant="portable").cuda_graph
    assert not make(bundle=whole).cuda_graph  # of variable shapes


@pytest.mark.parametrize(("gpu", "kernels"), [(ADA, None), (HOPPER, "10")])
def test_cudnn_computes_attention_from_hopper_on(make: Make, provider: Provider, gpu: Gpu, kernels: str | None) -> None:
    make(gpu=gpu).open("denoise_step")
    assert provider.options(0).get("sdpa_kernel") == kernels


@pytest.mark.parametrize("problem", ["refused", "does not run", "other values"])
def test_a_form_that_does_not_open_run_or_agree_is_replaced_with_a_notice(
    make: Make, both: Bundle, provider: Provider, notices: list[str], problem: str
) -> None:
    if problem == "refused":
        provider.refuses, reason = True, "Failed to find kernel for com.microsoft.GroupNorm(1)"
    elif problem == "other values":
        provider.off_by, reason = np.nan, "its values differ from those of the portable form"
    else:  # cuDNN looks for a plan when a convolution first runs
        reason = "no valid engine configs"
        provider.fails = InferenceError(f"denoise_step.cuda on CUDAExecutionProvider: {reason}")
    made = make()
    made.open("denoise_step")
    assert made.form("denoise_step") == "portable"
    assert provider.asked[-1][1].name == "denoise_step"
    made.open("denoise_step")
    assert made.without_cuda_graph().form("denoise_step") == "portable"
    _, notice = notices
    assert "continuing with the portable one: " in notice
    assert reason in notice


def test_too_little_memory_for_the_comparison_does_not_change_the_form(
    make: Make, provider: Provider, notices: list[str]
) -> None:
    provider.fails = OutOfMemory("denoise_step.cuda: out of memory for 1.00 GB more")
    made = make()
    made.open("denoise_step")
    assert made.form("denoise_step") == "cuda"
    # What cuDNN chose for lack of memory stays with a session.
    assert [settings.name for _, settings in provider.asked] == ["denoise_step.cuda"] * 2
    assert notices == [COMPARING]
    provider.fails = None
    make().open("denoise_step")
    assert provider.runs == ["denoise_step.cuda", *COMPARED]  # left to the next run
