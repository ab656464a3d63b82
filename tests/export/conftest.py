"""Fixtures of the export's tests."""

import dataclasses
from pathlib import Path

import pytest

from latentsync_trt.bundle.manifest import REQUIRED_GRAPHS
from latentsync_trt.export import exporter
from latentsync_trt.export.graphs import GraphPlan
from tests import narrow

HALF_UNET = dataclasses.replace(narrow.UNET, widths=(128, 64))
"""Heads of 16 and of 8: in half precision the former export as whole `Attention` ops, the latter in parts."""


@pytest.fixture(scope="session")
def narrow_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 bundle of fixed shapes, exported once from the narrowest real networks."""
    return narrow.export_narrow(tmp_path_factory.mktemp("narrow"))


@pytest.fixture(scope="session")
def dynamic_half_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float16 bundle of variable shapes with both forms of attention."""
    folder = tmp_path_factory.mktemp("dynamic_half")
    sources = narrow.write_sources(folder / "sources", HALF_UNET)
    return exporter.export_bundle(narrow.narrow_options(sources, folder / "bundle", dynamic=True, precision="fp16"))


@pytest.fixture(scope="session")
def dynamic_single_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 bundle of variable shapes, not verified and without the unguided steps, which cost the most time."""
    plan_graphs = exporter.plan_graphs

    def required(*arguments: object) -> list[GraphPlan]:
        return [plan for plan in plan_graphs(*arguments) if plan.name in REQUIRED_GRAPHS]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporter, "plan_graphs", required)
        return narrow.export_narrow(tmp_path_factory.mktemp("dynamic_single"), dynamic=True, verify=False)
