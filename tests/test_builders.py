"""What TensorRT is given, and how its results are used: with a compiler and sessions that imitate its own, which need
a GPU. tests/test_tensorrt_stand_in.py has ONNX Runtime's real TensorRT provider."""

import types
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from latentsync_trt.bundle.manifest import Bundle, TensorEntry
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import EngineBuildError
from latentsync_trt.runtime import compiler
from latentsync_trt.runtime.compiler import CONTEXT_MODEL, ENGINE, Answer, CompileOrder
from latentsync_trt.runtime.engines import builders, session_factory
from latentsync_trt.runtime.engines.cache import EngineCache
from latentsync_trt.runtime.engines.session import SessionSettings
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.runtime.providers.gpu import Gpu
from latentsync_trt.runtime.providers.select import Selection
from tests.small import small_bundle
from tests.toy import FRAMES, write_toy

ADA = Gpu(0, "NVIDIA GeForce RTX 4090", "8.9", 24 * 1024**3, "0000:01:00.0")
TENSORRT, CUDA, CPU = "TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"
LOADED = "10.14.1.48"
"""The TensorRT that ONNX Runtime loads."""


@dataclass
class Provider:
    """Stands for TensorRT's compiler and for ONNX Runtime with a GPU: what both were asked for.

    `engine`: as the context model names it.
    """

    engine: str = ENGINE
    orders: list[CompileOrder] = field(default_factory=list)
    asked: list[tuple[Path, SessionSettings]] = field(default_factory=list)

    def compile(self, order: CompileOrder, _: Mapping[str, str] | None) -> Answer:
        """Acts like `run_compiler`."""
        self.orders.append(order)
        assert order.folder
        Path(order.folder, ENGINE).write_bytes(b"built")
        with patch.object(compiler, "ENGINE", self.engine):
            compiler._write_context_model(order, Path(order.folder, CONTEXT_MODEL))
        return Answer(True, "", version=LOADED)

    def session(self, path: Path, settings: SessionSettings) -> Any:
        """Acts like a session, which reads its model now, and an engine beside it."""
        assert path.is_file()
        assert (path.parent / "model.engine").is_file()
        self.asked.append((path, settings))
        name = settings.providers[0][0]
        return types.SimpleNamespace(
            name=path.stem,
            path=path,
            ort=types.SimpleNamespace(get_providers=lambda: [name]),
            nodes_by_provider=lambda: {name: 3},
            close=lambda: None,
        )


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Provider:
    made = Provider()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(builders, "run_compiler", made.compile)
    monkeypatch.setattr(builders, "Session", made.session)
    monkeypatch.setattr(session_factory, "tensorrt_version", lambda: LOADED)
    return made


def engines(
    tmp_path: Path,
    name: str = "tensorrt",
    bundle: Bundle | None = None,
    **options: Any,
) -> SessionFactory:
    """On an Ada GPU; of the demo bundle, if no other is given."""
    bundle = bundle or Bundle.load(small_bundle(), verify=False)
    selection = Selection(name, gpu=replace(ADA, index=options.get("device", 0)))  # type: ignore[arg-type]
    return SessionFactory(bundle, selection, RuntimeOptions(**options), EngineCache(tmp_path / "cache"), [].append)


def described(entries: tuple[TensorEntry, ...], **sizes: int) -> tuple[tuple[str, str, tuple[int | str, ...]], ...]:
    """Tensors as a context model describes them, with variable dimensions at `sizes`."""
    return tuple(
        (
            entry.name,
            entry.dtype,
            tuple(sizes.get(size, size) if isinstance(size, str) else size for size in entry.shape),
        )
        for entry in entries
    )


@pytest.mark.parametrize("dynamic", [True, False])
def test_the_profile_and_the_context_model_have_the_sizes_of_the_engine(
    tmp_path: Path, provider: Provider, dynamic: bool
) -> None:
    toy = write_toy(tmp_path / "toy")
    engines(tmp_path, bundle=toy, dynamic=dynamic).open("denoise_step")
    (order,) = provider.orders
    usual = (1, 4, FRAMES, 2, 2)
    # Nothing of what the bundle allows but a run does not use: an engine holds memory for its largest shape.
    assert order.profile["latents"] == (usual, usual, usual)
    assert set(order.profile) == {"latents", "conditioning", "audio", "history"}
    assert order.optimization_level == 3
    entry, sizes = toy.manifest.graphs["denoise_step"], {"frames": FRAMES, "windows": 1}
    assert order.inputs == described(entry.inputs, **sizes)
    assert order.outputs == described(entry.outputs, **sizes)
    assert ("timestep", "int64", ()) in order.inputs
    assert ("next_latents", "float32", usual) in order.outputs
    assert provider.asked[0][1].dimensions == {}  # a context model has no dimension left to set


@pytest.mark.parametrize("name", ["../model.engine", "/tmp/model.engine", "C:\\model.engine", "other.engine", ""])
def test_an_engine_outside_of_its_folder_is_not_loaded_and_built_again(
    tmp_path: Path, provider: Provider, name: str
) -> None:
    provider.engine = name
    with pytest.raises(EngineBuildError, match=r"context\.onnx: loads another engine than model\.engine beside it"):
        engines(tmp_path).open("denoise_step")
    assert provider.asked == []
    provider.engine = ENGINE
    assert engines(tmp_path).open("denoise_step").built
    assert len(provider.asked) == 1


def test_eight_bits_are_built_at_a_higher_level_unless_one_is_named(tmp_path: Path, provider: Provider) -> None:
    toy = write_toy(tmp_path / "toy")
    eight = replace(toy, manifest=replace(toy.manifest, precision="int8"))
    named = "trt_builder_optimization_level=1"
    made = [engines(tmp_path, bundle=bundle, provider_option=own) for bundle in (toy, eight) for own in ((), (named,))]
    levels = [each.key("denoise_step").options["optimization_level"] for each in made]
    assert levels == ["3", "1", "4", "1"]
    made[2].build("denoise_step")
    assert provider.orders[-1].optimization_level == 4


def test_the_key_holds_what_changes_an_engine_and_nothing_else(
    tmp_path: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = write_toy(tmp_path / "toy")
    plain = engines(tmp_path, bundle=toy).key("denoise_step")
    assert (plain.gpu, plain.compute_capability) == ("NVIDIA GeForce RTX 4090", "8.9")
    assert plain.profile == {"frames": (FRAMES,) * 3, "windows": (1, 1, 1)}
    assert plain.options == {"optimization_level": "3"}
    assert plain.versions["tensorrt"] == LOADED
    assert set(plain.versions) == {"onnxruntime", "tensorrt"}
    assert str(tmp_path) not in str(plain)

    def digests(bundle: Bundle | None, changes: list[dict[str, Any]]) -> set[str]:
        return {engines(tmp_path, bundle=bundle, **change).key("denoise_step").digest for change in changes}

    changes: list[dict[str, Any]] = [
        {"provider_option": ("trt_builder_optimization_level=2",)},
    ]
    assert len(digests(toy, changes) | {plain.digest}) == len(changes) + 1
    same: list[dict[str, Any]] = [{"build": "background"}, {"low_memory": True}, {"device": 1}]
    assert digests(toy, same) == {plain.digest}
    assert len(digests(None, [{"cuda_graph": True}, {"cuda_graph": False}])) == 1
    monkeypatch.setattr(session_factory, "tensorrt_version", lambda: "10.15.0.1")
    assert engines(tmp_path, bundle=toy).key("denoise_step").digest != plain.digest
