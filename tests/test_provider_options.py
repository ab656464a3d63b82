"""Every option name that we give a provider is one that the installed provider knows."""

import mmap
from pathlib import Path

import pytest

from latentsync_trt.runtime import libraries
from latentsync_trt.runtime.options import CpuOptions, CudaOptions, ProviderOptions, RtxOptions, TensorRTOptions
from latentsync_trt.runtime.profiles import InputShapes

SHAPES = {"latents": InputShapes((1, 4), (2, 4), (3, 4))}

# With every field set, so that every name is emitted.
OPTIONS: dict[str, ProviderOptions] = {
    "cuda": CudaOptions(device=1, cuda_graph=True, fused_bias=True, cudnn_attention=True),
    "tensorrt": TensorRTOptions(
        device=1,
        shapes=SHAPES,
        workspace_gb=1.0,
        optimization_level=5,
        cuda_graph=True,
        prefix="a",
        engine_folder="b",
        context_model="c.onnx",
        timing_folder="d",
    ),
    "rtx": RtxOptions(shapes=SHAPES, workspace_gb=1.0, runtime_cache_folder="e"),
}

# A provider's own option names that we use beside the option objects.
PROBE_OPTIONS = ("device_id", "trt_op_types_to_exclude")


def library_of(provider: str) -> Path:
    if provider != "rtx":
        path = libraries.provider_library(provider)
        if not path.is_file():
            pytest.skip("this onnxruntime is a build without GPU providers")
        return path
    folder = libraries.package_folder(libraries.RTX_PACKAGE)
    if folder is None:
        pytest.skip('the TensorRT-RTX plug-in is not installed: pip install "latentsync-trt[dev]"')
    found = [path for path in folder.iterdir() if "onnxruntime_providers_nv_tensorrt_rtx" in path.name]
    assert len(found) == 1, found
    return found[0]


def unknown_names(path: Path, names: tuple[str, ...]) -> list[str]:
    """Those of `names` that are no string in a library: text that a zero byte ends."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return [name for name in names if content.find(name.encode() + b"\0") < 0]


@pytest.mark.parametrize("provider", OPTIONS)
def test_a_provider_knows_every_option_that_it_is_given(provider: str) -> None:
    names = tuple(OPTIONS[provider].to_ort())
    assert len(names) >= 5
    assert unknown_names(library_of(provider), names) == []


@pytest.mark.parametrize("provider", OPTIONS)
def test_a_name_that_nobody_knows_is_found_out(provider: str) -> None:
    made_up = tuple(f"{name}_renamed" for name in OPTIONS[provider].to_ort())
    assert unknown_names(library_of(provider), made_up) == list(made_up)


def test_the_options_of_the_trial_session_exist() -> None:
    assert unknown_names(library_of("tensorrt"), PROBE_OPTIONS) == []


def test_every_field_of_the_options_is_set_here() -> None:
    for options in OPTIONS.values():
        plain = type(options)()
        unset = [
            name
            for name in type(options).__slots__  # type: ignore[attr-defined]
            if name != "search" and getattr(options, name) == getattr(plain, name)
        ]
        assert unset == []
    assert CpuOptions().to_ort() == {}
