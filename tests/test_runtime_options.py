"""`RuntimeOptions`: command line and Python agree; values that bundle or provider do not support are refused."""

import dataclasses
from dataclasses import astuple
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from latentsync_trt.bundle.manifest import Bundle, DimensionRange
from latentsync_trt.cli import main
from latentsync_trt.cli.options import build, options_from
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import InputError
from latentsync_trt.option_fields import command_line
from latentsync_trt.runtime.cache import EngineCache
from latentsync_trt.runtime.providers.gpu import Gpu
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.runtime.sessions.engines import Engines
from latentsync_trt.runtime.sessions.profiles import engine_ranges
from tests.small import small_bundle
from tests.toy import write_toy

ADA = Gpu(1, "NVIDIA GeForce RTX 4090", "8.9", 24 * 1024**3, "0000:01:00.0")

# A value for every field that is not its default, and both values of those that have three.
VALUES: list[tuple[str, Any]] = [
    ("dynamic", True),
    ("dynamic", False),
    ("windows_per_batch", 2),
    ("device", 1),
    ("provider_option", ("trt_max_workspace_size=2500000000", "gpu_mem_limit=1")),
    ("cuda_graph", True),
    ("cuda_graph", False),
    ("graph_form", "portable"),
    ("build", "background"),
    ("low_memory", True),
    ("engine_cache", Path("a folder/für Ženy")),
    ("engine_store", "s3://bucket/engines"),
    ("syncnet", Path("syncnet.onnx")),
    ("verify", True),
]


def parsed(words: list[str]) -> RuntimeOptions:
    """What the command line makes of `words`."""
    found: list[RuntimeOptions] = []

    @click.command()
    @options_from(RuntimeOptions)
    def command(**fields: Any) -> None:
        found.append(build(RuntimeOptions, fields))

    result = CliRunner().invoke(command, words)
    assert result.exit_code == 0, result.output
    return found[0]


def test_an_option_comes_back_from_the_command_line() -> None:
    for name, value in VALUES:
        options = RuntimeOptions(**{name: value})
        assert parsed(command_line(options)) == options


def test_all_options_together_come_back_from_the_command_line() -> None:
    assert {name for name, _ in VALUES} == {spec.name for spec in dataclasses.fields(RuntimeOptions)}
    options = RuntimeOptions(**dict(VALUES))
    assert parsed(command_line(options)) == options
    assert command_line(RuntimeOptions()) == []
    assert parsed([]) == RuntimeOptions()
    assert command_line(RuntimeOptions(engine_cache=Path("cache"))) == ["--engine-cache", "cache"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"windows_per_batch": 0}, "--windows-per-batch 0: not a whole number from 1 to 64"),
        ({"device": -1}, "--device -1: not different numbers of GPUs from 0 to 63"),
        ({"device": "0,1,0"}, "--device 0,1,0: not different numbers"),
        ({"device": "every"}, "--device every: not"),
        ({"provider_option": "level"}, "--provider-option level: not KEY=VALUE"),
        ({"build": "later"}, "--build later: not one of now, background"),
    ],
)
def test_values_outside_their_limits_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        RuntimeOptions(**fields)
    (name,) = fields
    command = ["sync", "--video", "a.mp4", "--audio", "b.wav", f"--{name.replace('_', '-')}", str(fields[name])]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("provider", "options", "words"),
    [
        ("cpu", {"dynamic": True}, "bundle demo has fixed shapes; export it with --dynamic, or leave --dynamic out"),
        ("rtx", {"cuda_graph": True}, "--cuda-graph: not with provider rtx; tensorrt and cuda have it"),
        ("rtx", {"graph_form": "cuda"}, "--graph-form cuda: not with provider rtx; it is made for cuda alone"),
        ("cuda", {"graph_form": "cuda"}, "bundle demo has no graphs in it; export it again, --static and without"),
        ("toy", {"cuda_graph": True, "windows_per_batch": 2}, "--cuda-graph goes with fixed shapes: use --static"),
    ],
)
def test_what_a_bundle_or_provider_lacks(tmp_path: Path, provider: str, options: dict[str, Any], words: str) -> None:
    dynamic = provider == "toy"
    bundle = write_toy(tmp_path / "toy") if dynamic else Bundle.load(small_bundle(), verify=False)
    selection = Selection("tensorrt" if dynamic else provider, gpu=None if provider == "cpu" else ADA)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=words):
        Engines(bundle, selection, RuntimeOptions(**options), EngineCache(tmp_path / "cache"), lambda text: None)


def test_engines_cover_what_a_run_uses_of_a_dynamic_bundle() -> None:
    """An engine holds the memory of its largest shape."""
    names = ("windows", "frames", "images", "segments", "latent_height")
    spans = (
        DimensionRange(1, 1, 4),
        DimensionRange(2, 16, 24),
        *[DimensionRange(1, 4, 8)] * 2,
        DimensionRange(32, 64, 64),
    )
    bundle = dict(zip(names, spans, strict=True))
    used = engine_ranges(bundle, None)
    assert {name: astuple(span) for name, span in used.items()} == {
        "windows": (1, 1, 1),
        "frames": (16, 16, 16),
        "images": (4, 4, 4),
        "segments": (1, 1, 1),
        "latent_height": (32, 64, 64),
    }
    assert engine_ranges(bundle, 3)["windows"] == DimensionRange(1, 1, 3)
    assert engine_ranges(bundle, 9)["windows"] == DimensionRange(1, 1, 4)
    assert engine_ranges({}, 2) == {}
