"""Which variant of a graph is opened where, and with which options: with sessions that imitate
those of a GPU.
"""

import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from latentsync_trt.bundle.manifest import Bundle, FileEntry, sha256_file
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import EngineBuildError
from latentsync_trt.runtime.engines import session_factory
from latentsync_trt.runtime.engines.cache import EngineCache
from latentsync_trt.runtime.engines.session import SessionSettings
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.runtime.providers.devices import Gpu
from latentsync_trt.runtime.providers.selection import Selection
from tests.test_builders import ADA
from tests.toy import write_toy

HOPPER = Gpu(0, "NVIDIA H100 80GB HBM3", "9.0", 80 * 1024**3, "0000:01:00.0")

Make = Callable[..., SessionFactory]


class Provider:
    """Stands for ONNX Runtime with a GPU. `asked`: what was opened; `on_cpu`: how many of its ten
    nodes it leaves to the CPU.
    """

    def __init__(self) -> None:
        self.on_cpu = 0
        self.asked: list[tuple[Path, SessionSettings]] = []

    def session(self, path: Path, settings: SessionSettings) -> Any:
        self.asked.append((path, settings))
        name = settings.providers[0][0]
        return types.SimpleNamespace(
            name=settings.name,
            provider=name,
            nodes_by_provider=lambda: {name: 10 - self.on_cpu, "CPUExecutionProvider": self.on_cpu},
            close=lambda: None,
        )

    def options(self) -> dict[str, str]:
        """What the provider of the newest session was given."""
        return dict(self.asked[-1][1].providers[0][1])


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Provider:
    made = Provider()
    monkeypatch.setattr(session_factory, "Session", made.session)
    return made


@pytest.fixture
def both(tmp_path: Path) -> Bundle:
    """A bundle whose full step has both variants, and whose cached step only one."""
    plain = write_toy(tmp_path / "toy")
    graph = onnx.load(plain.graph_path("denoise_step"))
    graph.doc_string = "another variant"
    path = plain.folder / "denoise_step.cuda.onnx"
    onnx.save(graph, path)
    manifest = plain.manifest
    entry = replace(manifest.graphs["denoise_step"], forms={"cuda": path.name})
    files = {**manifest.files, path.name: FileEntry(sha256_file(path), path.stat().st_size)}
    return Bundle(
        plain.folder,
        replace(manifest, graphs={**manifest.graphs, "denoise_step": entry}, files=files),
    )


@pytest.fixture
def make(tmp_path: Path, both: Bundle) -> Make:
    def made(
        name: str = "cuda", gpu: Gpu = ADA, bundle: Bundle = both, **options: Any
    ) -> SessionFactory:
        selection = Selection(name, gpu=None if name == "cpu" else gpu)
        return SessionFactory(
            bundle, selection, RuntimeOptions(**options), EngineCache(tmp_path / "cache")
        )

    return made


@pytest.mark.parametrize(
    ("provider_name", "graph_variant", "opened"),
    [
        ("cuda", "auto", ("cuda", "portable")),
        ("cuda", "portable", ("portable", "portable")),
        ("tensorrt", "auto", ("portable", "portable")),
    ],
)
def test_cuda_takes_the_graphs_made_for_it(
    make: Make, provider_name: str, graph_variant: str, opened: tuple[str, ...]
) -> None:
    factory = make(provider_name, graph_variant=graph_variant)
    assert tuple(map(factory.variant, ("denoise_step", "denoise_step_cached"))) == opened


@pytest.mark.parametrize(("gpu", "kernels"), [(ADA, None), (HOPPER, "10")])
def test_the_variant_for_cuda_is_opened_with_its_options(
    make: Make, both: Bundle, provider: Provider, gpu: Gpu, kernels: str | None
) -> None:
    """From Hopper on, cuDNN computes attention."""
    factory = make(gpu=gpu)
    opened = factory.open("denoise_step")
    assert provider.asked[-1][0] == both.folder / "denoise_step.cuda.onnx"
    assert (provider.options()["fuse_conv_bias"], provider.options().get("sdpa_kernel")) == (
        "1",
        kernels,
    )
    assert (
        opened.costs.built,
        opened.costs.build_s,
        opened.size_bytes,
        opened.costs.node_share,
    ) == (
        False,
        0.0,
        0,
        1.0,
    )
    factory.open("denoise_step_cached")
    assert provider.asked[-1][0] == both.folder / "denoise_step_cached.onnx"
    assert "fuse_conv_bias" not in provider.options()
    assert not factory.cache.folder.exists()


def test_a_graph_that_runs_on_the_cpu_in_part_is_an_error(make: Make, provider: Provider) -> None:
    provider.on_cpu = 2
    with pytest.raises(EngineBuildError, match=r"cuda .* 80% .*2 on CPU"):
        make().open("denoise_step")


@pytest.mark.parametrize(
    ("name", "resolution_px", "options", "recorded"),
    [
        ("cuda", 256, {}, True),
        ("cuda", 512, {}, False),
        ("cuda", 512, {"cuda_graph": True}, True),
        ("cuda", 256, {"cuda_graph": False}, False),
        ("cuda", 256, {"graph_variant": "portable"}, False),
        ("tensorrt", 256, {}, True),
    ],
)
def test_cuda_graphs_are_recorded_by_default_at_low_resolutions_where_all_steps_have_the_variant(
    make: Make, both: Bundle, name: str, resolution_px: int, options: dict[str, Any], recorded: bool
) -> None:
    full, cached = (
        both.manifest.graphs[graph] for graph in ("denoise_step", "denoise_step_cached")
    )
    graphs = {"denoise_step": full, "denoise_step_cached": replace(cached, forms=full.forms)}
    bundle = Bundle(both.folder, replace(both.manifest, graphs=graphs, resolution_px=resolution_px))
    assert make(name, bundle=bundle, **{"dynamic": False, **options}).cuda_graph is recorded
    # one step lacks it
    assert name != "cuda" or options.get("cuda_graph") or not make(dynamic=False).cuda_graph
