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
from torch import nn

from latentsync_trt.audio.mel import MEL_FILTERS, computed_filters
from latentsync_trt.bundle.manifest import (
    CACHED_STEP,
    FULL_STEP,
    HIDDEN,
    REQUIRED_GRAPHS,
    STEP_GRAPHS,
    UNGUIDED_GRAPHS,
    VAE_DECODER,
    VAE_ENCODER,
    Bundle,
    read_manifest,
)
from latentsync_trt.bundle.weights import ALIGNMENT_BYTES, INLINE_BELOW_BYTES
from latentsync_trt.diffusion import cache_plan, denoise, dpmpp_schedule
from latentsync_trt.errors import EngineBuildError, ExportMismatch
from latentsync_trt.export import cuda_ops
from latentsync_trt.export.cuda_ops import Sum, group_norm
from latentsync_trt.export.export_options import TOOLS, ExportOptions, Sources
from latentsync_trt.export.exporter import cuda_obstacles, plan_graphs
from latentsync_trt.export.graphs import GraphPlan, build_cuda_graph
from latentsync_trt.export.layers import GroupNorm
from latentsync_trt.export.networks import Networks, load_networks
from latentsync_trt.export.unet import UNet
from latentsync_trt.export.verify import verify_graph
from latentsync_trt.runtime.denoiser import GraphDenoiser
from latentsync_trt.runtime.engines.session import Session
from latentsync_trt.runtime.providers.select import Selection
from tests import narrow
from tests.export.conftest import UNET, VAE_WIDTHS, export_only
from tests.export.test_export_solver import SOLVER_TOLERANCE, deprecated, diffusers_solver
from tests.written_out import written_out

pytestmark = pytest.mark.integration

SAME = 1e-5
"""Relative, of whole networks in float32: other orders of summation make less than 3e-6."""

GRAPHS = (VAE_ENCODER, VAE_DECODER, *STEP_GRAPHS)

GRAPH_FILE_LIMIT_BYTES = 1_000_000
"""A graph without its weights: node list, shapes and small constants."""


WELL_CONDITIONED = {"fp32": 1e-5, "fp16": 1e-2}
"""Largest errors of the narrow networks' graphs: a few times PyTorch's own."""


def test_bundle_is_complete_and_its_manifest_correct(bundle: Path) -> None:
    manifest = Bundle.load(bundle).manifest
    assert set(manifest.graphs) == {*REQUIRED_GRAPHS, *UNGUIDED_GRAPHS}
    assert np.array_equal(np.load(bundle / MEL_FILTERS), computed_filters())
    assert MEL_FILTERS in manifest.files
    assert manifest.shapes == "static"
    assert (manifest.audio_layers, manifest.audio_width) == (narrow.WHISPER.layers, narrow.AUDIO_WIDTH)
    assert manifest.verification.keys() == manifest.graphs.keys()
    assert max(manifest.verification.values()) <= WELL_CONDITIONED["fp32"]
    assert manifest.tools.keys() == {"latentsync-trt", *TOOLS}
    assert manifest.sources.keys() == {"unet", "vae", "whisper"}
    assert not [path for path in bundle.parent.iterdir() if path.name.startswith(".")]


def test_step_inputs_and_outputs(bundle: Path) -> None:
    manifest = Bundle.load(bundle).manifest
    frames, size = manifest.frames, manifest.latent_px
    latents = (1, 4, frames, size, size)
    wanted = {
        "latents": latents,
        "conditioning": (1, 9, frames, size, size),
        "audio": (1, frames, 10 * manifest.audio_layers, manifest.audio_width),
        "timestep": (),
        "guidance": (),
        "history": latents,
        "coefficients": (5,),
    }
    for name, halves in (("denoise_step", 2), ("denoise_step_unguided", 1)):
        hidden = (halves, 1, frames, UNET.widths[0], size, size)
        full, cached = manifest.graphs[name], manifest.graphs[f"{name}_cached"]
        assert {entry.name: entry.shape for entry in full.inputs} == wanted
        assert {entry.name: entry.shape for entry in cached.inputs} == {**wanted, HIDDEN: hidden}
        assert {entry.name: entry.shape for entry in full.outputs} == {
            "next_latents": latents,
            "next_history": latents,
            HIDDEN: hidden,
        }
        assert [entry.name for entry in cached.outputs] == ["next_latents", "next_history"]
        assert {entry.name for entry in cached.inputs if entry.dtype != "float32"} == {"timestep"}


def stored(graph: Path) -> dict[tuple[int | None, int | None], tuple[Any, ...]]:
    """Shapes of the tensors that a graph reads from its weights file, by offset and length."""
    tensors = (value.const_value for value in ir.load(graph).graph.initializers.values())
    return {(each.offset, each.length): tuple(each.shape) for each in tensors if isinstance(each, ir.ExternalTensor)}


def test_all_steps_share_one_weights_file(bundle: Path) -> None:
    manifest = Bundle.load(bundle).manifest
    entries = [manifest.graphs[name] for name in STEP_GRAPHS]
    assert {entry.weights for entry in entries} == {"unet.weights"}
    assert max(manifest.files[entry.file].bytes for entry in entries) < GRAPH_FILE_LIMIT_BYTES
    places = {name: stored(bundle / f"{name}.onnx").keys() for name in STEP_GRAPHS}
    assert {offset % ALIGNMENT_BYTES for offset, _ in places["denoise_step"]} == {0}
    assert min(length for _, length in places["denoise_step"]) >= INLINE_BELOW_BYTES
    assert places["denoise_step_unguided"] == places["denoise_step"]
    assert places["denoise_step_cached"] < places["denoise_step"]


def test_group_norm_of_the_graphs_is_one_that_tensorrt_computes_right(bundle: Path) -> None:
    """From opset 21 on, scale and bias are per channel, which the parser has read since TensorRT 10.9. Up to 10.16 it
    takes one group for a group per channel: https://github.com/NVIDIA/TensorRT/issues/4756."""
    norms = []
    for path in [bundle / f"{name}.onnx" for name in GRAPHS]:
        model = onnx.load(path, load_external_data=False)
        assert model.opset_import[0].version >= 21
        norms += [node for node in model.graph.node if node.op_type == "GroupNormalization"]
    assert min(helper.get_node_attr_value(norm, "num_groups") for norm in norms) > 1


def test_large_graphs_are_compared_at_a_lower_resolution(sources: Sources, tmp_path: Path) -> None:
    options = narrow.narrow_options(sources, tmp_path / "bundle", resolution=192, cuda_form=False)
    manifest = read_manifest(export_only((VAE_ENCODER,), options))
    assert manifest.resolution_px == 192
    assert manifest.graphs[VAE_ENCODER].inputs[0].shape[2:] == (192, 192)
    assert manifest.verification.keys() == manifest.graphs.keys()
    assert max(manifest.verification.values()) <= WELL_CONDITIONED["fp32"]
    assert any("at 128 px" in note for note in manifest.notes)
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


LARGE = 2e5
"""By how much values grow in a part of the VAE; elsewhere in a narrow one they stay below 25."""


def overflowing(vae: Any) -> Any:
    """`vae`, whose values are `LARGE` times as large between the decoder's second and third block; its pictures are the
    same, as a norm or a smaller weight follows on every way."""
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
    options = narrow.narrow_options(replace(sources, vae=tmp_path / "vae"), out, precision="fp16", cuda_form=False)
    stages: list[str] = []
    with pytest.raises(ExportMismatch, match=r"output image: .* are not finite; export with --precision fp32"):
        export_only((VAE_DECODER, CACHED_STEP), options, lambda stage, _: stages.append(stage))
    assert stages == ["loading checkpoints", "exporting vae_decoder (1 of 2)", "verifying vae_decoder (1 of 2)"]
    assert list(out.parent.iterdir()) == []


@pytest.mark.slow
def test_dynamic_half_precision(dynamic_half_bundle: Path) -> None:
    manifest = Bundle.load(dynamic_half_bundle).manifest
    assert manifest.ranges.keys() == {"segments", "images", "windows"}
    assert manifest.graphs[CACHED_STEP].inputs[-1].shape[:2] == (2, "windows")
    assert manifest.graphs[CACHED_STEP].inputs[-1].dtype == "float16"
    assert max(manifest.verification.values()) <= WELL_CONDITIONED["fp16"]


NOISE_ALONE = np.array([0, 1, 0, 0, 0], np.float32)
"""Coefficients that make `next_latents` the predicted noise."""


@deprecated
def test_a_loop_of_steps_agrees_with_the_diffusers_scheduler(bundle: Path) -> None:
    """The scheduler of diffusers on the host, with noise that the same graph predicts."""
    steps, guidance, side, random = 8, 1.5, narrow.RESOLUTION_PX // 8, np.random.default_rng(3)
    noise = random.standard_normal((1, 4, 1, side, side), np.float32)
    conditioning = random.standard_normal((9, narrow.FRAMES, side, side), np.float32)
    audio = random.standard_normal((narrow.FRAMES, 10 * narrow.WHISPER.layers, narrow.AUDIO_WIDTH), np.float32)
    session = Session(bundle / f"{FULL_STEP}.onnx")
    denoiser = GraphDenoiser(lambda _: session, Selection("cpu"))
    found = denoise(denoiser, noise, conditioning, audio, guidance, dpmpp_schedule(steps), cache_plan(steps, 1))
    solver = diffusers_solver(steps)
    latents = torch.from_numpy(noise).repeat(1, 1, narrow.FRAMES, 1, 1)
    for timestep in solver.timesteps:
        denoiser.begin(latents[0].numpy(), conditioning, audio, guidance)
        denoiser.step(int(timestep), NOISE_ALONE, cached=False)
        latents = solver.step(torch.from_numpy(denoiser.latents()[None]), timestep, latents).prev_sample
    wanted = latents[0].numpy()
    assert np.abs(found - wanted).max() <= SOLVER_TOLERANCE * np.abs(wanted).max()


# The form for the CUDA provider computes what PyTorch does, and adds nearly nothing to the weights.


def options_of(**fields: Any) -> ExportOptions:
    return ExportOptions(resolution=narrow.RESOLUTION_PX, frames=narrow.FRAMES, **fields)


@pytest.fixture(scope="module")
def networks(sources: Sources) -> Networks:
    return load_networks(sources, options_of(), torch.float32)


@pytest.fixture(scope="module")
def plans(networks: Networks) -> dict[str, GraphPlan]:
    return {plan.name: plan for plan in plan_graphs(networks, options_of())}


@pytest.mark.parametrize("name", GRAPHS)
def test_cuda_graph_computes_the_same_as_pytorch(
    bundle: Path, plans: dict[str, GraphPlan], name: str, tmp_path: Path
) -> None:
    path = tmp_path / "written_out.onnx"
    onnx.save(written_out(onnx.load(bundle / f"{name}.cuda.onnx")), path)
    assert verify_graph(path, plans[name], plans[name].module, "fp32") <= SAME


@pytest.mark.parametrize("name", GRAPHS)
def test_fused_operators_are_in_the_graphs_and_onnxruntime_lacks_only_their_kernels(bundle: Path, name: str) -> None:
    """Types, shapes and attributes are what the operators' schemas say, as far as a session gets on a CPU.

    Activations stay channels-last: cuDNN finds no plan for a fused convolution of four channels before the pixels.
    """
    nodes = onnx.load(bundle / f"{name}.cuda.onnx", load_external_data=False).graph.node
    fused = {"SkipGroupNorm", "MultiHeadAttention"}
    if name == FULL_STEP:
        fused |= {"GroupNorm", "BiasSplitGelu", "SkipLayerNormalization", "BiasAdd", "Attention"}
    if name in (VAE_ENCODER, FULL_STEP):
        assert fused <= {node.op_type for node in nodes}
    assert {node.domain for node in nodes if node.op_type == "Conv"} == {cuda_ops.LAYOUT_DOMAIN}
    with pytest.raises(EngineBuildError, match=r"Failed to find kernel|Could not find an implementation"):
        Session(bundle / f"{name}.cuda.onnx")


@pytest.mark.parametrize("names", [(VAE_ENCODER, VAE_DECODER), STEP_GRAPHS], ids=["vae", "unet"])
def test_both_forms_read_the_same_weights(bundle: Path, names: tuple[str, ...]) -> None:
    """But for the first convolution's kernel, padded to the channels that Hopper's kernels take, doubling ones, biases
    of gated projections, which the portable form has in halves, parts of stacked projections, and positions and masks
    of packed pixels."""
    portable, cuda = (
        dict(place for name in names for place in stored(bundle / f"{name}{form}.onnx").items())
        for form in ("", ".cuda")
    )
    assert len(cuda) > 10
    matrices = {shape for shape in portable.values() if len(shape) == 2}
    stacked = {width for _, width in matrices}
    own = [shape for place, shape in cuda.items() if place not in portable]
    assert own
    for shape in own:
        if len(shape) == 4 and shape[0] > 1:
            assert shape[2:] == (4, 4) or (shape[1] % 8 == 0 and shape[2:] == (3, 3))
        elif len(shape) == 2:
            is_part = not stacked.isdisjoint({2 * shape[1], 3 * shape[1]})
            assert is_part or shape[::-1] in matrices or shape[0] == cuda_ops.PACKED_PIXELS * narrow.FRAMES


@pytest.mark.parametrize("name", GRAPHS)
def test_what_follows_from_weights_alone_is_stored(bundle: Path, name: str) -> None:
    """But zeros in the shape of features: a graph is opened as it is."""
    graph = ir.load(bundle / f"{name}.cuda.onnx").graph
    computed = [
        node
        for node in graph
        if node.inputs and all(value is None or value.const_value is not None for value in node.inputs)
    ]
    assert {node.op_type for node in computed} <= {"ConstantOfShape", "Expand"}


class _CudaSum(nn.Module):
    """The norm of a window of a sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.window = GroupNorm(width)
        narrow.randomize(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return group_norm(self.window, Sum(x, base=2 * x), frames=2, silu=False)[0]


def test_images_of_one_pixel_have_a_residual_each(tmp_path: Path) -> None:
    """At 64 px those of the lowest level are of one pixel."""
    module, x = _CudaSum(64), torch.randn(4, 1, 1, 64, generator=torch.Generator().manual_seed(0))
    path = tmp_path / "norm.onnx"
    model = ir.to_proto(build_cuda_graph(GraphPlan("norm", "unet", module, {"x": x}, ("y",)), module))
    onnx.save(written_out(model), path)
    (found,) = Session(path).run({"x": x.numpy()})
    wanted = module.window(3 * x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1).detach().numpy()
    np.testing.assert_allclose(found, wanted, atol=SAME)


def test_networks_that_the_kernels_do_not_take_are_portable_only(networks: Networks) -> None:
    assert cuda_obstacles(networks, options_of()) == {}
    assert cuda_obstacles(networks, options_of(dynamic=True)) == {"unet": "shapes vary", "vae": "shapes vary"}
    narrower = replace(networks, unet=UNet(narrow.UNET), vae=narrow.make_vae())
    found = cuda_obstacles(narrower, options_of())
    assert found["unet"].endswith("not 32 channels in 32")
    assert found["vae"].endswith("not 8 channels in 8")
    assert {plan.cuda_module for plan in plan_graphs(narrower, options_of())} == {None}
    assert {plan.cuda_module for plan in plan_graphs(networks, options_of(cuda_form=False))} == {None}
    other = replace(networks, vae=narrow.make_vae(VAE_WIDTHS, act_fn="mish"))
    assert cuda_obstacles(other, options_of()) == {"vae": "its act_fn is mish, not silu"}
    formed = {plan.name for plan in plan_graphs(other, options_of()) if plan.cuda_module is not None}
    assert formed == set(STEP_GRAPHS)
