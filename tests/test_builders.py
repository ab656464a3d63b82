"""What TensorRT's engines are built for and kept under; tests/test_tensorrt_stand_in.py has how
they are used.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import EngineBuildError
from latentsync_trt.runtime.compiler import CONTEXT_MODEL
from latentsync_trt.runtime.engines.cache import EngineCache
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.runtime.providers.devices import Gpu
from latentsync_trt.runtime.providers.selection import Selection
from tests.toy import FRAMES, write_toy

ADA = Gpu(0, "NVIDIA GeForce RTX 4090", "8.9", 24 * 1024**3, "0000:01:00.0")


@pytest.fixture
def toy(tmp_path: Path) -> Bundle:
    return write_toy(tmp_path / "toy")


def engines(bundle: Bundle, notices: list[str] | None = None, **options: Any) -> SessionFactory:
    say = ([] if notices is None else notices).append
    selection = Selection("tensorrt", gpu=replace(ADA, index=options.get("device", 0)))
    cache = EngineCache(bundle.folder.with_name("cache"), say)
    return SessionFactory(bundle, selection, RuntimeOptions(**options), cache)


@pytest.mark.parametrize(
    "name", ["../model.engine", "/tmp/model.engine", "C:\\model.engine", "other.engine", ""]
)
def test_an_engine_outside_of_its_folder_is_not_loaded_but_built_again(
    toy: Bundle, name: str
) -> None:
    node = helper.make_node(
        "EPContext", ["x"], ["y"], domain="com.microsoft", embed_mode=0, ep_cache_context=name
    )
    model = helper.make_model(helper.make_graph([node], "context", [], []))
    notices: list[str] = []
    planted = engines(toy)
    planted.cache.obtain(
        planted.key("denoise_step"), lambda folder: onnx.save(model, folder / CONTEXT_MODEL)
    )
    with pytest.raises(EngineBuildError):  # as there is no TensorRT to build it again
        engines(toy, notices).open("denoise_step")
    assert any("another engine than model.engine" in notice for notice in notices)


def test_eight_bits_are_built_at_a_higher_level_unless_one_is_named(toy: Bundle) -> None:
    eight = replace(toy, manifest=replace(toy.manifest, precision="int8"))
    named = ("trt_builder_optimization_level=1",)
    keys = [
        engines(bundle, provider_option=own).key("denoise_step")
        for bundle in (toy, eight)
        for own in ((), named)
    ]
    assert [key.options["optimization_level"] for key in keys] == ["3", "1", "4", "1"]


def test_the_key_holds_what_changes_an_engine_and_nothing_else(toy: Bundle) -> None:
    plain = engines(toy).key("denoise_step")
    assert (plain.gpu, plain.compute_capability) == ("NVIDIA GeForce RTX 4090", "8.9")
    assert plain.profile == {"frames": (FRAMES,) * 3, "windows": (1, 1, 1)}
    assert plain.options == {"optimization_level": "3"}
    assert set(plain.versions) == {"onnxruntime", "tensorrt"}
    assert str(toy.folder.parent) not in str(plain)
    same: list[dict[str, Any]] = [{"build": "background"}, {"low_memory": True}, {"device": 1}]
    assert {engines(toy, **change).key("denoise_step").digest for change in same} == {plain.digest}
