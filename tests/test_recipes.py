"""What TensorRT and the RTX plug-in are asked for, and what is made of what they leave: with sessions that only act
like theirs, as both need their own GPU."""

import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from latentsync_trt.bundle import Bundle
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import EngineBuildError, OutputError
from latentsync_trt.runtime import engines as engines_module
from latentsync_trt.runtime import recipes
from latentsync_trt.runtime.cache import EngineCache
from latentsync_trt.runtime.engines import Engines
from latentsync_trt.runtime.gpu import Gpu
from latentsync_trt.runtime.providers import Selection
from latentsync_trt.runtime.session import SessionSettings
from tests.small import small_bundle
from tests.toy import FRAMES, write_toy

ADA = Gpu(0, "NVIDIA GeForce RTX 4090", "8.9", 24 * 1024**3, "0000:01:00.0")
TIMINGS = "TensorrtExecutionProvider_cache_sm89.timing"
PROFILES = ("trt_profile_min_shapes", "trt_profile_opt_shapes", "trt_profile_max_shapes")


@dataclass
class Provider:
    """Stands for ONNX Runtime with a GPU: what it was asked for, and what it does when it builds."""

    leaves_context: bool = True
    leaves_engine: bool = True
    asked: list[tuple[Path, SessionSettings]] = field(default_factory=list)
    timings_seen: list[str] = field(default_factory=list)

    def session(self, path: Path, settings: SessionSettings) -> Any:
        """Acts like a session: builds where the options say so."""
        self.asked.append((path, settings))
        options = self.options()
        if "trt_dump_ep_context_model" in options:
            self._build(options)
        name = "NvTensorRTRTXExecutionProvider" if settings.plugin_devices else settings.providers[0][0]
        return types.SimpleNamespace(
            name=path.stem,
            path=path,
            ort=types.SimpleNamespace(get_providers=lambda: [name]),
            nodes_by_provider=lambda: {name: 3},
            close=lambda: None,
        )

    def compile_graph(self, path: Path, settings: SessionSettings, target: Path) -> None:
        """Acts like the compile interface."""
        self.asked.append((path, settings))
        target.write_bytes(b"context")

    def options(self, index: int = -1) -> dict[str, str]:
        """What the first provider of a session was given."""
        settings = self.asked[index][1]
        return dict(settings.plugin_options if settings.plugin_devices else settings.providers[0][1])

    def _build(self, options: dict[str, str]) -> None:
        timings = Path(options["trt_timing_cache_path"])
        self.timings_seen += sorted(path.name for path in timings.iterdir())
        (timings / TIMINGS).write_bytes(b"timings")
        context = Path(options["trt_ep_context_file_path"])
        if self.leaves_engine:
            # As the provider does it: the folder's name is relative to the context model.
            (context.parent / options["trt_engine_cache_path"] / "all_sm89.engine").write_bytes(b"engine")
        if self.leaves_context:
            context.write_bytes(b"context")


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Provider:
    made = Provider()
    monkeypatch.setattr(recipes, "Session", made.session)
    monkeypatch.setattr(recipes, "compile_graph", made.compile_graph)
    monkeypatch.setattr(engines_module, "tensorrt_version", lambda: "10.14.1")
    monkeypatch.setattr(engines_module, "rtx_version", lambda: "0.5")
    monkeypatch.setattr(engines_module, "rtx_devices", lambda device: [f"device {device}"])
    return made


def engines(tmp_path: Path, name: str = "tensorrt", bundle: Bundle | None = None, **options: Any) -> Engines:
    """On an Ada GPU; of the demo bundle, if no other is given."""
    bundle = bundle or Bundle.load(small_bundle(), verify=False)
    selection = Selection(name, gpu=ADA)  # type: ignore[arg-type]
    return Engines(bundle, selection, RuntimeOptions(**options), EngineCache(tmp_path / "cache"), lambda text: None)


def entry_of(made: Engines, graph: str) -> Path:
    folder = made.cache.find(made.key(graph))
    assert folder is not None
    return folder


def test_tensorrt_builds_a_context_model_and_opens_it(tmp_path: Path, provider: Provider) -> None:
    made = engines(tmp_path, workspace_gb=4.0, optimization_level=5)
    opened = made.open("vae_encoder")
    assert opened.built
    assert opened.placed == 1.0
    entry = entry_of(made, "vae_encoder")
    assert sorted(path.name for path in entry.rglob("*") if path.is_file()) == [
        "all_sm89.engine",
        "context.onnx",
        "engine.json",
    ]
    (built_from, _), (opened_from, opened_with) = provider.asked
    build, warm = provider.options(0), provider.options(1)
    assert built_from == small_bundle() / "vae_encoder.onnx"
    assert build["trt_engine_cache_path"] == "engine"  # ONNX Runtime takes a relative folder only
    assert build["trt_engine_cache_prefix"] == made.key("vae_encoder").digest
    assert build["trt_ep_context_embed_mode"] == "0"
    assert (build["trt_max_workspace_size"], build["trt_builder_optimization_level"]) == ("4000000000", "5")
    assert opened_from == entry / "context.onnx"
    assert not {"trt_engine_cache_path", "trt_dump_ep_context_model", "trt_timing_cache_path"} & set(warm)
    assert opened_with.dimensions == {}
    assert [name for name, _ in opened_with.providers] == [
        "TensorrtExecutionProvider",
        "CUDAExecutionProvider",
        "CPUExecutionProvider",
    ]
    again = engines(tmp_path, workspace_gb=4.0, optimization_level=5).open("vae_encoder")
    assert not again.built
    assert len(provider.asked) == 3


def test_where_tensorrt_takes_parts_the_graph_is_opened_with_its_engines(tmp_path: Path, provider: Provider) -> None:
    provider.leaves_context = False
    made = engines(tmp_path)
    made.open("vae_encoder")
    path, _ = provider.asked[-1]
    assert path == small_bundle() / "vae_encoder.onnx"
    warm = provider.options()
    assert warm["trt_engine_cache_path"] == str(entry_of(made, "vae_encoder") / "engine")
    assert warm["trt_engine_cache_prefix"] == made.key("vae_encoder").digest
    assert "trt_dump_ep_context_model" not in warm


def test_tensorrt_that_takes_nothing_is_an_error_and_leaves_nothing(tmp_path: Path, provider: Provider) -> None:
    provider.leaves_engine = False
    made = engines(tmp_path)
    with pytest.raises(EngineBuildError, match="TensorRT built no engine; see `latentsync-trt check`"):
        made.open("vae_encoder")
    assert made.cache.find(made.key("vae_encoder")) is None


def test_timings_of_one_build_shorten_the_next(tmp_path: Path, provider: Provider) -> None:
    made = engines(tmp_path)
    made.build("vae_encoder")
    assert provider.timings_seen == []
    (shared,) = (tmp_path / "cache" / ".shared").iterdir()
    assert [path.name for path in shared.iterdir()] == [TIMINGS]
    (shared / ".half-written.1").write_bytes(b"of a process that was killed")
    made.build("vae_decoder")
    assert provider.timings_seen == [TIMINGS]
    other = engines(tmp_path, optimization_level=1)
    other.build("vae_encoder")
    assert provider.timings_seen == [TIMINGS, TIMINGS]  # kernels serve every engine of one GPU and version
    assert not list(entry_of(made, "vae_decoder").glob("timing*"))


def test_without_a_cache_tensorrt_builds_in_memory(tmp_path: Path, provider: Provider) -> None:
    (tmp_path / "cache").write_text("")
    made = engines(tmp_path)
    opened = made.open("vae_encoder")
    assert (opened.built, opened.size_bytes) == (True, 0)
    path, _ = provider.asked[-1]
    assert path == small_bundle() / "vae_encoder.onnx"
    assert not {"trt_engine_cache_path", "trt_dump_ep_context_model", "trt_timing_cache_path"} & set(provider.options())
    with pytest.raises(OutputError, match="a file is in the place"):
        made.build("vae_encoder")


def test_profiles_are_for_variable_shapes_only(tmp_path: Path, provider: Provider) -> None:
    engines(tmp_path).open("denoise_step")
    assert not set(PROFILES) & set(provider.options(0))
    toy = write_toy(tmp_path / "toy")
    dynamic = engines(tmp_path, bundle=toy, max_windows=3)
    dynamic.open("denoise_step")
    for options in (provider.options(-2), provider.options(-1)):
        shapes = [dict(item.split(":") for item in options[name].split(",")) for name in PROFILES]
        assert [ends["latents"] for ends in shapes] == ["1x4x2x2x2", f"1x4x{FRAMES}x2x2", "3x4x8x2x2"]
        assert set(shapes[0]) == {"latents", "conditioning", "audio", "history"}
        assert options["trt_cuda_graph_enable"] == "0"
    assert provider.asked[-2][1].dimensions == {}
    fixed = engines(tmp_path, bundle=toy, dynamic=False)
    fixed.open("denoise_step")
    assert not set(PROFILES) & set(provider.options(-2))
    assert provider.asked[-2][1].dimensions == {"windows": 1, "frames": FRAMES}
    assert provider.asked[-1][1].dimensions == {}  # a context model has no dimension left to set
    assert fixed.key("denoise_step").digest != dynamic.key("denoise_step").digest


def test_a_cuda_graph_is_replayed_by_the_steps_only(tmp_path: Path, provider: Provider) -> None:
    made = engines(tmp_path)
    for graph, wanted in (("denoise_step", "1"), ("denoise_step_unguided_cached", "1"), ("vae_decoder", "0")):
        made.open(graph)
        assert provider.options()["trt_cuda_graph_enable"] == wanted
    without = engines(tmp_path, cuda_graph=False)
    without.open("denoise_step")
    assert provider.options()["trt_cuda_graph_enable"] == "0"
    on_cuda = engines(tmp_path, "cuda")
    assert not on_cuda.cuda_graph
    assert engines(tmp_path, "cuda", cuda_graph=True).cuda_graph


def test_the_plug_in_compiles_ahead_and_keeps_its_kernels(tmp_path: Path, provider: Provider) -> None:
    toy = write_toy(tmp_path / "toy")
    made = engines(tmp_path, "rtx", bundle=toy, device=1)
    opened = made.open("denoise_step")
    assert opened.built
    (graph, compiled), (context, warm) = provider.asked
    assert graph == toy.folder / "denoise_step.onnx"
    assert context == entry_of(made, "denoise_step") / "context.onnx"
    assert compiled.plugin_devices == warm.plugin_devices == ("device 1",)
    assert "nv_runtime_cache_path" not in compiled.plugin_options
    kernels = Path(warm.plugin_options["nv_runtime_cache_path"])
    assert kernels.is_dir()
    assert kernels.parent == tmp_path / "cache" / ".shared"
    assert compiled.plugin_options["nv_profile_max_shapes"].startswith("latents:4x4x8x2x2,")
    assert made.key("denoise_step").versions["onnxruntime-ep-nv-tensorrt-rtx"] == "0.5"


def test_what_decides_over_an_engine_is_in_its_key(tmp_path: Path, provider: Provider) -> None:
    toy = write_toy(tmp_path / "toy")
    plain = engines(tmp_path, bundle=toy).key("denoise_step")
    assert (plain.gpu, plain.compute_capability) == ("NVIDIA GeForce RTX 4090", "8.9")
    assert plain.profile == {"frames": (2, FRAMES, 8), "windows": (1, 1, 4)}
    assert plain.versions["tensorrt"] == "10.14.1"
    changes: list[dict[str, Any]] = [
        {"dynamic": False},
        {"max_windows": 2},
        {"workspace_gb": 1.0},
        {"optimization_level": 2},
    ]
    digests = {engines(tmp_path, bundle=toy, **change).key("denoise_step").digest for change in changes}
    assert len(digests | {plain.digest}) == len(changes) + 1
    same: list[dict[str, Any]] = [{"build": "background"}, {"low_memory": True}, {"profile": "x"}]
    assert {engines(tmp_path, bundle=toy, **change).key("denoise_step").digest for change in same} == {plain.digest}
    assert str(tmp_path) not in str(plain)
