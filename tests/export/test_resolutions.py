"""`export --min-resolution`: graphs of several resolutions compute what those exported at one do."""

from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latentsync_trt.bundle.manifest import (
    CACHED_STEP,
    FULL_STEP,
    VAE_DECODER,
    VAE_ENCODER,
    Bundle,
    read_manifest,
)
from latentsync_trt.errors import InputError
from latentsync_trt.export import exporter
from latentsync_trt.export.export_options import ExportOptions
from latentsync_trt.export.exporter import plan_graphs
from latentsync_trt.export.graphs import GraphPlan
from latentsync_trt.export.networks import load_networks
from latentsync_trt.quantize.steps import multiply_adds, write_observed
from latentsync_trt.runtime.engines.session import Array, Session, SessionSettings
from tests import narrow

pytestmark = pytest.mark.integration

GRAPHS = (VAE_ENCODER, VAE_DECODER, FULL_STEP, CACHED_STEP)
LEAST_PX, MIDDLE_PX, MOST_PX = 64, 128, 192
TOLERANCE = 1e-5
"""Relative, in float32: at a size of its own a graph may use another norm (see `GroupNorm`)."""


def options(folder: Path, out: Path, **fields: Any) -> ExportOptions:
    """Of the narrowest networks, whose checkpoints are seeded."""
    return narrow.narrow_options(narrow.write_sources(folder), out, **fields)


def plans(given: ExportOptions) -> dict[str, GraphPlan]:
    networks = load_networks(exporter.find_sources(given), given, torch.float32)
    return {plan.name: plan for plan in plan_graphs(networks, given) if plan.name in GRAPHS}


def run(path: Path, inputs: dict[str, torch.Tensor]) -> list[Array]:
    return Session(path, SessionSettings(intra_op_threads=1)).run(
        {name: value.numpy() for name, value in inputs.items()}
    )


def largest_difference(found: list[Array], wanted: list[Array]) -> float:
    assert [each.shape for each in found] == [each.shape for each in wanted]
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("name", GRAPHS)
def test_height_and_width_vary_separately(several: Path, name: str, tmp_path: Path) -> None:
    plan = plans(options(tmp_path / "sources", tmp_path / "out", resolution=MOST_PX))[name]
    wide = {
        key: value[..., : value.shape[-1] // 3 * 2, :] if value.ndim > 3 and key != "audio" else value
        for key, value in plan.inputs.items()
    }
    with torch.inference_mode():
        made = plan.module(*wide.values())
    wanted = [each.numpy() for each in (made if isinstance(made, tuple) else (made,))]
    assert largest_difference(run(several / f"{name}.onnx", wide), wanted) <= TOLERANCE


def test_the_manifest_names_sizes_and_their_ranges(several: Path) -> None:
    manifest = read_manifest(several)
    for side in ("height", "width"):
        assert astuple(manifest.ranges[side]) == (64, 192, 192)
        assert astuple(manifest.ranges[f"latent_{side}"]) == (8, 24, 24)
    assert (manifest.resolution_px, list(manifest.resolutions_px)) == (192, [64, 128, 192])
    tensors = {t.name: t.shape for entry in manifest.graphs.values() for t in (*entry.inputs, *entry.outputs)}
    assert tensors["image"][2:] == ("height", "width")
    latents = ("latents", "conditioning", "history", "hidden", "latent", "next_latents", "next_history")
    assert {tensors[name][-2:] for name in latents} == {("latent_height", "latent_width")}
    assert replace(manifest, ranges={}).resolutions_px == range(192, 193, 64)


@pytest.mark.parametrize(
    "name", [VAE_ENCODER, VAE_DECODER, CACHED_STEP, pytest.param(FULL_STEP, marks=pytest.mark.slow)]
)
def test_one_engine_compiles_for_all_resolutions(several: Path, name: str) -> None:
    pytest.importorskip("tensorrt_rtx", reason="the compiler has wheels for Linux and Windows only")
    from scripts.check_graphs import compile_graph, plan_trials

    (trial,) = plan_trials(read_manifest(several), (name,), True)
    shapes = next(iter(trial.profile.values()))
    least, optimum, most = (shape[-1] for shape in shapes)
    assert least * 3 == optimum == most
    assert compile_graph(several / f"{name}.onnx", trial.profile).reason == ""


def test_calibration_knows_the_sizes_of_every_layer(several: Path, tmp_path: Path) -> None:
    opened = Bundle.load(several)
    assert min(multiply_adds(opened, FULL_STEP).values()) > 0
    assert write_observed(opened, CACHED_STEP, tmp_path).dimensions["latent_height"] == MOST_PX // 8


def test_the_smallest_and_a_middle_resolution_are_verified(tmp_path: Path) -> None:
    given = options(tmp_path / "sources", tmp_path / "out", resolution=MOST_PX, min_resolution=LEAST_PX, dynamic=True)
    for name, plan in plans(given).items():
        scale = 1 if name == VAE_ENCODER else 8
        sizes = {next(iter(inputs.values())).shape[-1] * scale for inputs in (plan.inputs, *plan.further_inputs)}
        assert sizes == {LEAST_PX, MIDDLE_PX, MOST_PX}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"min_resolution": 64}, "--min-resolution 64: .* add `--dynamic`"),
        ({"min_resolution": 512, "dynamic": True, "resolution": 256}, "--min-resolution 512: .*above the largest, 256"),
        ({"min_resolution": 100, "dynamic": True}, "--min-resolution 100: .*divisible by 64"),
    ],
)
def test_wrong_resolutions_are_refused_with_the_cure(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ExportOptions(**fields)
    named = ExportOptions(dynamic=True, min_resolution=256).folder.name
    assert named == "1.6-256-512-fp32-dynamic"
