"""`export --min-resolution`: graphs of several resolutions compute what those exported at one
do.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from latentsync_trt import LipSync, RuntimeOptions, SyncOptions
from latentsync_trt.bundle.manifest import (
    CACHED_STEP,
    FULL_STEP,
    REQUIRED_GRAPHS,
    SIZE_STEPS,
    VAE_DECODER,
    VAE_ENCODER,
    read_manifest,
    write_manifest,
)
from latentsync_trt.errors import InputError
from latentsync_trt.export.checkpoints import Networks, load_networks
from latentsync_trt.export.export_options import ExportOptions, Sources
from latentsync_trt.export.exporter import plan_graphs
from latentsync_trt.export.graphs import GraphPlan, verify_graph
from latentsync_trt.types import UInt8Array
from tests import narrow
from tests.clips import LOSSLESS, decoded, write_clip
from tests.export.conftest import SIZES, export_only
from tests.tensorrt_stand_in.stand_in import StandIn

pytestmark = pytest.mark.integration

GRAPHS = (VAE_ENCODER, VAE_DECODER, FULL_STEP, CACHED_STEP)
EACH_GRAPH = [
    *((name, "resizable") for name in (VAE_ENCODER, CACHED_STEP)),
    *(pytest.param(name, "several", marks=pytest.mark.slow) for name in (VAE_DECODER, FULL_STEP)),
]
"""With the fixture of its bundle."""
LEAST_PX = 64
MIDDLE_PX = 128
MOST_PX = 192
SAME = 1e-5
"""Relative, in float32: graphs are optimized differently, and at a size of its own one may use
another norm (see `GroupNorm`).
"""

Synced = Callable[..., UInt8Array]


@pytest.fixture(scope="module")
def networks(one_level: Sources) -> Networks:
    return load_networks(one_level, ExportOptions(frames=narrow.FRAMES), torch.float32)


def plans(networks: Networks, **fields: Any) -> dict[str, GraphPlan]:
    options = ExportOptions(frames=narrow.FRAMES, resolution=MOST_PX, cuda_form=False, **fields)
    return {plan.name: plan for plan in plan_graphs(networks, options) if plan.name in GRAPHS}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bundle"), EACH_GRAPH)
def test_height_and_width_vary_separately(
    name: str, bundle: str, networks: Networks, request: pytest.FixtureRequest
) -> None:
    plan = plans(networks)[name]
    wide = {
        key: value[..., : value.shape[-1] // 3 * 2, :]
        if value.ndim > 3 and key != "audio"
        else value
        for key, value in plan.inputs.items()
    }
    graph = request.getfixturevalue(bundle) / f"{name}.onnx"
    assert verify_graph(graph, replace(plan, inputs=wide), plan.module, "fp32") <= SAME


@pytest.mark.slow
def test_two_levels_are_exported_and_verified(sources: Sources, tmp_path: Path) -> None:
    export_only(
        (FULL_STEP,),
        narrow.narrow_options(sources, tmp_path / "bundle", **SIZES | {"resolution": 128}),
    )


def test_the_manifest_names_sizes_and_their_ranges(resizable: Path) -> None:
    manifest = read_manifest(resizable)
    for side in ("height", "width"):
        assert astuple(manifest.ranges[side]) == (64, 192, 192)
        assert astuple(manifest.ranges[f"latent_{side}"]) == (8, 24, 24)
    assert (manifest.resolution_px, list(manifest.resolutions_px)) == (192, [64, 128, 192])


@pytest.mark.parametrize("name", [VAE_ENCODER, CACHED_STEP])
def test_graphs_do_not_name_the_symbols_of_the_tracer(name: str, resizable: Path) -> None:
    """Their names come from hashes, and the tracer writes them in any order: the same export would
    give other bytes each time.
    """
    graph = ir.load(resizable / f"{name}.onnx").graph
    assert not re.search(r"\bs\d+\b", str(graph.metadata_props))


@pytest.mark.parametrize(("name", "bundle"), EACH_GRAPH)
def test_one_engine_compiles_for_all_resolutions(
    name: str, bundle: str, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="the compiler has wheels for Linux and Windows only")
    from scripts.check_graphs import compile_graph, plan_trials

    folder = request.getfixturevalue(bundle)
    (trial,) = plan_trials(read_manifest(folder), (name,), True)
    shapes = next(iter(trial.profile.values()))
    least, optimum, most = (shape[-1] for shape in shapes)
    assert least * 3 == optimum == most
    assert compile_graph(folder / f"{name}.onnx", trial.profile).reason == ""


def test_the_smallest_and_a_middle_resolution_are_verified(networks: Networks) -> None:
    for name, plan in plans(networks, min_resolution=LEAST_PX, dynamic=True).items():
        scale = 1 if name == VAE_ENCODER else 8
        sizes = {
            next(iter(inputs.values())).shape[-1] * scale
            for inputs in (plan.inputs, *plan.further_inputs)
        }
        assert sizes == {LEAST_PX, MIDDLE_PX, MOST_PX}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"min_resolution": 64}, "--min-resolution 64: .* add `--dynamic`"),
        (
            {"min_resolution": 512, "dynamic": True, "resolution": 256},
            "--min-resolution 512: .*above the largest, 256",
        ),
    ],
)
def test_wrong_resolutions_are_refused_with_the_cure(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ExportOptions(**fields)


# At run time


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two windows of a face."""
    return write_clip(tmp_path_factory.mktemp("clip"), 2 * narrow.FRAMES)


@pytest.fixture(scope="module")
def lip_sync(several: Path) -> Iterator[LipSync]:
    with LipSync.from_bundle(several, "cpu") as opened:
        yield opened


@pytest.fixture
def run(clip: tuple[Path, Path], tmp_path: Path) -> Synced:
    """Syncs the clip; its frames."""

    def synced(lip_sync: LipSync, resolution: int | None = None) -> UInt8Array:
        lip_sync.sync(
            *clip, tmp_path / "out.mkv", replace(LOSSLESS, resolution=resolution, overwrite=True)
        )
        return np.stack(decoded(tmp_path / "out.mkv")).astype(np.int16)

    return synced


@pytest.mark.slow
def test_a_clip_looks_as_from_a_bundle_of_that_resolution(
    lip_sync: LipSync, several: Path, run: Synced, tmp_path: Path
) -> None:
    folder = shutil.copytree(several, tmp_path / "fixed")
    manifest = read_manifest(folder)
    ranges = {
        name: replace(span, optimum=span.minimum, maximum=span.minimum)
        if name in SIZE_STEPS
        else span
        for name, span in manifest.ranges.items()
    }
    write_manifest(folder, replace(manifest, resolution_px=LEAST_PX, ranges=ranges))
    with LipSync.from_bundle(folder, "cpu") as fixed:
        wanted = run(fixed)
    largest = run(lip_sync)
    for frames in (run(lip_sync, LEAST_PX), run(lip_sync, LEAST_PX)):
        assert np.abs(frames - wanted).max() <= 4  # a level of luma and of chroma
    assert np.abs(largest - wanted).max() > 4
    assert np.array_equal(run(lip_sync, MOST_PX), largest)


@pytest.mark.slow
def test_fixed_engines_refuse_another_resolution(
    several: Path, clip: tuple[Path, Path], tmp_path: Path
) -> None:
    with (
        LipSync.from_bundle(several, "cpu", RuntimeOptions(dynamic=False)) as fixed,
        pytest.raises(InputError, match=r"--static .* 192 px"),
    ):
        fixed.sync(*clip, tmp_path / "out.mkv", SyncOptions(resolution=LEAST_PX))


@pytest.mark.slow
def test_one_engine_of_tensorrt_runs_all_of_them(several: Path, stand_in: StandIn) -> None:
    settings: list[dict[str, object]] = [
        {"resolutions": [192, 64, 128, 64]},
        {"resolutions": [64, 128], "faces": False, "low_memory": True},
    ]
    answers, ended = stand_in.scenario("pictures", bundle=str(several), settings=settings)
    for setting, answer in zip(settings, answers, strict=True):
        assert answer["difference"] <= SAME, setting
    # No resolution has engines of its own.
    assert (
        ended.count(r"build nodes=.* profiles=1 ")
        == ended.count(r"build nodes=")
        == len(REQUIRED_GRAPHS)
    )
