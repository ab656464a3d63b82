"""Fixtures of the export's tests."""

import dataclasses
from pathlib import Path

import pytest

from latentsync_trt.bundle.manifest import REQUIRED_GRAPHS
from latentsync_trt.export import exporter
from latentsync_trt.export.exporter import export_bundle
from tests import narrow
from tests.exports import ExportCache

HALF_UNET = dataclasses.replace(narrow.UNET, widths=(128, 64))
"""Heads of 16 and of 8: in half precision the former export as whole `Attention` ops, the latter in parts."""


@pytest.fixture(scope="session")
def narrow_bundle(exports: ExportCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 bundle of fixed shapes, exported once from the narrowest real networks."""

    def make(out: Path) -> None:
        export_bundle(narrow.narrow_options(narrow.write_sources(tmp_path_factory.mktemp("sources")), out))

    return exports.bundle("narrow", make)


@pytest.fixture(scope="session")
def several(exports: ExportCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 bundle for 64 to 192 px, not verified and without the unguided steps, which cost the most time."""

    def make(out: Path) -> None:
        planned, sources = exporter.plan_graphs, narrow.write_sources(tmp_path_factory.mktemp("sources"))
        with pytest.MonkeyPatch.context() as patch:
            required = lambda *given: [plan for plan in planned(*given) if plan.name in REQUIRED_GRAPHS]  # noqa: E731
            patch.setattr(exporter, "plan_graphs", required)
            sizes = {"resolution": 192, "min_resolution": 64}
            export_bundle(narrow.narrow_options(sources, out, dynamic=True, verify=False, **sizes))

    return exports.bundle("several_resolutions", make)


@pytest.fixture(scope="session")
def dynamic_half_bundle(exports: ExportCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float16 bundle of variable shapes with both forms of attention."""

    def make(out: Path) -> None:
        sources = narrow.write_sources(tmp_path_factory.mktemp("sources"), HALF_UNET)
        export_bundle(narrow.narrow_options(sources, out, dynamic=True, precision="fp16"))

    return exports.bundle("dynamic_half", make)
