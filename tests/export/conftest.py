"""Bundles that the export's tests share, and how to make them in little time."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.onnx._internal.exporter._registration import ONNXRegistry

from latentsync_trt.bundle.manifest import CACHED_STEP, REQUIRED_GRAPHS, VAE_ENCODER, step_graph
from latentsync_trt.export import cuda_ops, exporter
from latentsync_trt.export.export_options import ExportOptions, Sources
from latentsync_trt.export.exporter import export_bundle
from latentsync_trt.types import ProgressCallback
from tests import narrow
from tests.exports import ExportCache

UNET = replace(narrow.UNET, widths=(64, 128), motion_down=(False, False), motion_up=(False, True))
"""Two channels in a group of the norms, the fewest that the CUDA form's kernel takes; and no more
parts than must be traced, which is what costs time.
"""

ONE_LEVEL = replace(narrow.ONE_LEVEL, widths=(64,))

SIZES = {"dynamic": True, "resolution": 192, "min_resolution": 64}

VAE_WIDTHS = 16, 16, 32, 32

UNGUIDED_CACHED = step_graph(guided=False, cached=True)

HALF_UNET = replace(narrow.UNET, widths=(128, 64))
"""Heads of 16 and of 8: in half precision the former export as whole `Attention` ops, the latter in
parts.
"""


@pytest.fixture(scope="package", autouse=True)
def patched() -> Iterator[None]:
    """Kernels for narrow networks, and a table of the exporter's that is made once instead of for
    each graph.

    BiasSplitGelu and BiasAdd exist for a few widths only, none of which is narrow; here, for narrow
    ones, too. And few keys are fewer than these networks have pixels. PyTorch's table of operators
    takes a second, longer than tracing a small graph.
    """
    made_once = staticmethod(functools.cache(ONNXRegistry.from_torchlib))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", made_once)
        patch.setattr(cuda_ops, "SPLIT_GELU_WIDTHS", {8 * width for width in UNET.widths})
        patch.setattr(cuda_ops, "BIAS_ADD_WIDTHS", set(UNET.widths))
        patch.setattr(cuda_ops, "FEW_KEYS", 32)
        yield


def export_only(
    graphs: Sequence[str], options: ExportOptions, on_progress: ProgressCallback | None = None
) -> Path:
    """As `export_bundle`, of some of the graphs."""
    planned = exporter.plan_graphs

    def chosen(*arguments: Any) -> list[Any]:
        return [plan for plan in planned(*arguments) if plan.name in graphs]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporter, "plan_graphs", chosen)
        return export_bundle(options, on_progress)


@pytest.fixture(scope="package")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """Checkpoints of the shared networks."""
    return narrow.write_sources(tmp_path_factory.mktemp("sources"), UNET, VAE_WIDTHS)


@pytest.fixture(scope="package")
def bundle(exports: ExportCache, one_level: Sources) -> Path:
    """A verified float32 bundle of fixed shapes in both forms, without the full unguided step."""

    def make(out: Path) -> None:
        export_only((*REQUIRED_GRAPHS, UNGUIDED_CACHED), narrow.narrow_options(one_level, out))

    return exports.bundle("both_forms", make)


@pytest.fixture(scope="package")
def one_level(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """Checkpoints with a U-Net of one level."""
    return narrow.write_sources(tmp_path_factory.mktemp("sources"), ONE_LEVEL, VAE_WIDTHS)


@pytest.fixture(scope="package")
def resizable(exports: ExportCache, one_level: Sources) -> Path:
    """Two networks for 64 to 192 px, not verified: of each kind one that is traced soon."""

    def make(out: Path) -> None:
        export_only(
            (VAE_ENCODER, CACHED_STEP), narrow.narrow_options(one_level, out, verify=False, **SIZES)
        )

    return exports.bundle("resizable", make)


@pytest.fixture(scope="package")
def several(exports: ExportCache, one_level: Sources) -> Path:
    """A bundle for 64 to 192 px, not verified and without the unguided steps."""

    def make(out: Path) -> None:
        export_only(REQUIRED_GRAPHS, narrow.narrow_options(one_level, out, verify=False, **SIZES))

    return exports.bundle("several_resolutions", make)


@pytest.fixture(scope="package")
def dynamic_half_bundle(exports: ExportCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float16 bundle of variable shapes with both forms of attention."""

    def make(out: Path) -> None:
        sources = narrow.write_sources(tmp_path_factory.mktemp("sources"), HALF_UNET)
        export_bundle(narrow.narrow_options(sources, out, dynamic=True, precision="fp16"))

    return exports.bundle("dynamic_half", make)
