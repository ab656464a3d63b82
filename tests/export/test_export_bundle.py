"""The bundle that an export writes, its verification, and what it refuses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper

from latentsync_trt.audio.mel import MEL_FILTERS, computed_filters
from latentsync_trt.bundle.external import ALIGNMENT_BYTES, INLINE_BELOW_BYTES
from latentsync_trt.bundle.manifest import (
    CACHED_STEP,
    FULL_STEP,
    REQUIRED_GRAPHS,
    UNGUIDED_GRAPHS,
    VAE_DECODER,
    VAE_ENCODER,
    Bundle,
    read_manifest,
)
from latentsync_trt.diffusion import DenoisingPlan, cache_plan, denoise, dpmpp_schedule
from latentsync_trt.errors import EngineBuildError, ExportMismatch
from latentsync_trt.export import cuda_ops
from latentsync_trt.export.checkpoints import Networks, load_networks
from latentsync_trt.export.export_options import EXPORT_TOOLS, ExportOptions, Sources
from latentsync_trt.export.exporter import cuda_obstacles, plan_graphs
from latentsync_trt.export.graphs import GraphPlan, verify_graph
from latentsync_trt.export.unet import UNet
from latentsync_trt.runtime.denoiser import GraphDenoiser
from latentsync_trt.runtime.engines.session import Session
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.types import Progress
from tests import narrow
from tests.export.conftest import UNGUIDED_CACHED, VAE_WIDTHS, export_only
from tests.export.test_export_solver import SOLVER_TOLERANCE, deprecated, diffusers_solver
from tests.written_out import written_out

pytestmark = pytest.mark.integration

SAME = 1e-5
"""Relative, of whole networks in float32: other orders of summation make less than 3e-6."""

STEPS = (FULL_STEP, CACHED_STEP, UNGUIDED_CACHED)
GRAPHS = (VAE_ENCODER, VAE_DECODER, *STEPS)

GRAPH_FILE_LIMIT_BYTES = 1_000_000
"""A graph without its weights: node list, shapes and small constants."""

WELL_CONDITIONED = 1e-5
"""Largest error of the narrow networks' graphs: a few times PyTorch's own."""


def test_bundle_is_complete_and_its_manifest_correct(bundle: Path) -> None:
    manifest = Bundle.load(bundle).manifest
    assert np.array_equal(np.load(bundle / MEL_FILTERS), computed_filters())
    assert (manifest.audio_layers, manifest.audio_width) == (
        narrow.WHISPER.layers,
        narrow.AUDIO_WIDTH,
    )
    assert manifest.verification.keys() == manifest.graphs.keys()
    assert max(manifest.verification.values()) <= WELL_CONDITIONED
    assert manifest.tools.keys() == {"latentsync-trt", *EXPORT_TOOLS}
    assert manifest.sources.keys() == {"unet", "vae", "whisper"}
    assert not [path for path in bundle.parent.iterdir() if path.name.startswith(".")]


def stored(graph: Path) -> set[tuple[int, int]]:
    """Offset and length of each tensor that a graph reads from its weights file."""
    tensors = (value.const_value for value in ir.load(graph).graph.initializers.values())
    return {
        (each.offset or 0, each.length or 0)
        for each in tensors
        if isinstance(each, ir.ExternalTensor)
    }


def test_all_steps_share_one_weights_file(bundle: Path) -> None:
    manifest = Bundle.load(bundle).manifest
    entries = [manifest.graphs[name] for name in STEPS]
    assert {entry.weights for entry in entries} == {"unet.weights"}
    assert max(manifest.files[entry.file].bytes for entry in entries) < GRAPH_FILE_LIMIT_BYTES
    places = {name: stored(bundle / f"{name}.onnx") for name in STEPS}
    assert {offset % ALIGNMENT_BYTES for offset, _ in places[FULL_STEP]} == {0}
    assert min(length for _, length in places[FULL_STEP]) >= INLINE_BELOW_BYTES
    assert places[UNGUIDED_CACHED] == places[CACHED_STEP] < places[FULL_STEP]


@pytest.mark.parametrize("names", [(VAE_ENCODER, VAE_DECODER), STEPS], ids=["vae", "unet"])
def test_both_forms_read_the_same_weights(bundle: Path, names: tuple[str, ...]) -> None:
    """But for padded, doubled and divided ones, which are a sixth in networks as narrow as
    these.
    """
    portable, cuda = (
        set.union(*(stored(bundle / f"{name}{form}.onnx") for name in names))
        for form in ("", ".cuda")
    )
    assert (
        0
        < sum(length for _, length in cuda - portable)
        < 0.2 * sum(length for _, length in portable)
    )


def test_group_norm_of_the_graphs_is_one_that_tensorrt_computes_right(bundle: Path) -> None:
    """From opset 21 on, scale and bias are per channel, which the parser has read since TensorRT
    10.9. Up to 10.16 it takes one group for a group per channel:
    https://github.com/NVIDIA/TensorRT/issues/4756.
    """
    norms = []
    for path in [bundle / f"{name}.onnx" for name in GRAPHS]:
        model = onnx.load(path, load_external_data=False)
        assert model.opset_import[0].version >= 21
        norms += [node for node in model.graph.node if node.op_type == "GroupNormalization"]
    assert min(helper.get_node_attr_value(norm, "num_groups") for norm in norms) > 1


@pytest.mark.slow
def test_large_graphs_are_compared_at_a_lower_resolution(sources: Sources, tmp_path: Path) -> None:
    options = narrow.narrow_options(sources, tmp_path / "bundle", resolution=192, cuda_form=False)
    manifest = read_manifest(export_only((VAE_ENCODER,), options))
    assert manifest.resolution_px == 192
    assert manifest.graphs[VAE_ENCODER].inputs[0].shape[2:] == (192, 192)
    assert max(manifest.verification.values()) <= WELL_CONDITIONED
    assert any("at 128 px" in note for note in manifest.notes)
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


LARGE = 2e5
"""By how much values grow in a part of the VAE; elsewhere in a narrow one they stay below 25."""


def overflowing(vae: Any) -> Any:
    """`vae`, whose values are `LARGE` times as large between the decoder's second and third block;
    its pictures are the same, as a norm or a smaller weight follows on every way.
    """
    grown = vae.decoder.up_blocks[1].upsamplers[0].conv
    with torch.no_grad():
        grown.weight.mul_(LARGE)
        grown.bias.mul_(LARGE)
        vae.decoder.up_blocks[2].resnets[0].conv_shortcut.weight.div_(LARGE)
    return vae


def test_values_beyond_half_precision_end_the_export_at_once_and_leave_nothing(
    sources: Sources, tmp_path: Path
) -> None:
    """Though verification runs on a CPU, whose pictures are right."""
    overflowing(narrow.make_vae(VAE_WIDTHS)).save_pretrained(tmp_path / "vae")
    out = tmp_path / "out" / "bundle"
    options = narrow.narrow_options(
        replace(sources, vae=tmp_path / "vae"), out, precision="fp16", cuda_form=False
    )
    stages: list[str] = []

    def keep_stage(progress: Progress) -> None:
        stages.append(progress.stage)

    with pytest.raises(ExportMismatch, match=r"output image: .*--precision fp32"):
        export_only((VAE_DECODER, CACHED_STEP), options, keep_stage)
    assert stages == [
        "loading checkpoints",
        "exporting vae_decoder (1 of 2)",
        "verifying vae_decoder (1 of 2)",
    ]
    assert list(out.parent.iterdir()) == []


NOISE_ALONE = np.array([0, 1, 0, 0, 0], np.float32)
"""Coefficients that make `next_latents` the predicted noise."""


@deprecated
def test_a_loop_of_steps_agrees_with_the_diffusers_scheduler(bundle: Path) -> None:
    """The scheduler of diffusers on the host, with noise that the same graph predicts."""
    steps = 8
    guidance = 1.5
    side = narrow.RESOLUTION_PX // 8
    random = np.random.default_rng(3)
    noise = random.standard_normal((1, 4, 1, side, side), np.float32)
    conditioning = random.standard_normal((9, narrow.FRAMES, side, side), np.float32)
    audio = random.standard_normal(
        (narrow.FRAMES, 10 * narrow.WHISPER.layers, narrow.AUDIO_WIDTH), np.float32
    )
    session = Session(bundle / f"{FULL_STEP}.onnx")
    denoiser = GraphDenoiser(lambda _: session, Selection("cpu"))
    plan = DenoisingPlan(guidance, dpmpp_schedule(steps), cache_plan(steps, 1))
    by_graph = denoise(denoiser, noise, conditioning, audio, plan)
    solver = diffusers_solver(steps)
    latents = torch.from_numpy(noise).repeat(1, 1, narrow.FRAMES, 1, 1)
    for timestep in solver.timesteps:
        denoiser.begin(latents[0].numpy(), conditioning, audio, guidance)
        denoiser.step(int(timestep), NOISE_ALONE, cached=False)
        latents = solver.step(
            torch.from_numpy(denoiser.latents()[None]), timestep, latents
        ).prev_sample
    wanted = latents[0].numpy()
    assert np.abs(by_graph - wanted).max() <= SOLVER_TOLERANCE * np.abs(wanted).max()


# The form for the CUDA provider computes what PyTorch does, and adds nearly nothing to the weights.


def options_of(**fields: Any) -> ExportOptions:
    return ExportOptions(resolution=narrow.RESOLUTION_PX, frames=narrow.FRAMES, **fields)


@pytest.fixture(scope="module")
def networks(one_level: Sources) -> Networks:
    return load_networks(one_level, options_of(), torch.float32)


def plans_of(networks: Networks) -> dict[str, GraphPlan]:
    return {plan.name: plan for plan in plan_graphs(networks, options_of())}


@pytest.fixture(scope="module")
def plans(networks: Networks) -> dict[str, GraphPlan]:
    return plans_of(networks)


def error_of(cuda_graph: Path, plan: GraphPlan, folder: Path) -> float:
    """The largest error beside PyTorch of the graph, written out in operators that the CPU has."""
    path = folder / "written_out.onnx"
    onnx.save(written_out(onnx.load(cuda_graph)), path)
    return verify_graph(path, plan, plan.module, "fp32")


@pytest.mark.parametrize("name", GRAPHS)
def test_cuda_graph_computes_the_same_as_pytorch(
    bundle: Path, plans: dict[str, GraphPlan], name: str, tmp_path: Path
) -> None:
    assert error_of(bundle / f"{name}.cuda.onnx", plans[name], tmp_path) <= SAME


@pytest.mark.slow
def test_cuda_graph_of_two_levels_computes_the_same_as_pytorch(
    sources: Sources, tmp_path: Path
) -> None:
    folder = export_only((FULL_STEP,), narrow.narrow_options(sources, tmp_path / "bundle"))
    plan = plans_of(load_networks(sources, options_of(), torch.float32))[FULL_STEP]
    assert error_of(folder / f"{FULL_STEP}.cuda.onnx", plan, tmp_path) <= SAME


@pytest.mark.parametrize("name", GRAPHS)
def test_fused_operators_are_in_the_graphs_and_onnxruntime_lacks_only_their_kernels(
    bundle: Path, name: str
) -> None:
    """Types, shapes and attributes are what the operators' schemas say, as far as a session gets on
    a CPU.

    Activations stay channels-last: cuDNN finds no plan for a fused convolution of four channels
    before the pixels.
    """
    nodes = onnx.load(bundle / f"{name}.cuda.onnx", load_external_data=False).graph.node
    fused = {"SkipGroupNorm", "MultiHeadAttention"}
    if name == FULL_STEP:
        fused |= {"GroupNorm", "BiasSplitGelu", "SkipLayerNormalization", "BiasAdd", "Attention"}
    if name in (VAE_ENCODER, FULL_STEP):
        assert fused <= {node.op_type for node in nodes}
    assert {node.domain for node in nodes if node.op_type == "Conv"} == {cuda_ops.LAYOUT_DOMAIN}
    with pytest.raises(EngineBuildError, match=r"find kernel|find an implementation"):
        Session(bundle / f"{name}.cuda.onnx")


def test_networks_that_the_kernels_do_not_take_are_portable_only(networks: Networks) -> None:
    assert {plan.name for plan in plan_graphs(networks, options_of())} == {
        *REQUIRED_GRAPHS,
        *UNGUIDED_GRAPHS,
    }
    assert cuda_obstacles(networks, options_of()) == {"unet": None, "vae": None}
    assert cuda_obstacles(networks, options_of(dynamic=True)) == {
        "unet": "shapes vary",
        "vae": "shapes vary",
    }
    narrower = replace(networks, unet=UNet(narrow.UNET), vae=narrow.make_vae())
    obstacles = cuda_obstacles(narrower, options_of())
    assert obstacles["unet"].endswith("not 32 channels in 32")
    assert obstacles["vae"].endswith("not 8 channels in 8")
    assert cuda_obstacles(networks, options_of(cuda_form=False)) == {}
