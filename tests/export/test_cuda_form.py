"""The CUDA form computes what PyTorch does and adds nothing to the weights: in float32, at narrow widths."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn

from latentsync_trt.bundle.manifest import read_manifest
from latentsync_trt.bundle.weights import WeightsFile
from latentsync_trt.errors import EngineBuildError
from latentsync_trt.export import cuda_ops, exporter
from latentsync_trt.export.checkpoint import LoadedUNet
from latentsync_trt.export.cuda_form import CudaForm, group_norm_obstacle
from latentsync_trt.export.cuda_graph import take_stored
from latentsync_trt.export.cuda_ops import CudaOps, Sum
from latentsync_trt.export.graphs import GraphPlan, build_cuda_graph, build_graph
from latentsync_trt.export.layers import FrameNorm, WindowNorm
from latentsync_trt.export.options import ExportOptions
from latentsync_trt.export.plans import Networks, cuda_module, cuda_obstacles, plan_graphs
from latentsync_trt.export.unet import UNet
from latentsync_trt.export.vae import ImageAttention
from latentsync_trt.export.whisper import WhisperEncoder
from latentsync_trt.runtime.sessions.session import Session
from tests import narrow
from tests.written_out import written_out

TOLERANCE = 1e-5
"""Relative, of whole networks in float32: other orders of summation make less than 3e-6."""

WIDE_ENOUGH = replace(narrow.UNET, widths=(64, 128), motion_down=(True, False), motion_up=(False, True))
"""Two channels in a group of the norms, the fewest that the kernel takes; and no more parts than must be traced."""

PLAIN = CudaForm(
    geglu=False,
    skip_layer_norm=False,
    skip_group_norm=False,
    bias_add=False,
    nhwc_conv=False,
    attention="Attention",
    temporal_attention="MultiHeadAttention",
    packed_pixels=1,
)
"""Everything that the default form is not."""

FULL, CACHED = "denoise_step", "denoise_step_cached"
STEPS = (FULL, CACHED, "denoise_step_unguided", "denoise_step_unguided_cached")
GRAPHS = ("vae_encoder", "vae_decoder", *STEPS)

Plans = Mapping[str, GraphPlan]


def make_vae(widths: tuple[int, ...] = (16, 16, 32, 32), **config: Any) -> Any:
    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=widths,
        layers_per_block=1,
        norm_num_groups=8,
        latent_channels=4,
        **config,
    )
    narrow.randomize(vae)
    vae.set_attn_processor(ImageAttention())
    return vae.eval().requires_grad_(False)


def make_networks(unet: UNet, vae: Any) -> Networks:
    whisper = WhisperEncoder(narrow.WHISPER)
    narrow.randomize(whisper)
    return Networks(LoadedUNet(unet, 0), vae, whisper)


def options_of(**fields: Any) -> ExportOptions:
    return ExportOptions(resolution=narrow.RESOLUTION_PX, frames=narrow.FRAMES, **fields)


@pytest.fixture(scope="module", autouse=True)
def narrow_kernels() -> Iterator[None]:
    """BiasSplitGelu and BiasAdd exist for a few widths alone, none of which is narrow; here, for narrow ones, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_ops, "SPLIT_GELU_WIDTHS", {8 * width for width in WIDE_ENOUGH.widths})
        patch.setattr(cuda_ops, "BIAS_ADD_WIDTHS", set(WIDE_ENOUGH.widths))
        yield


@pytest.fixture(scope="module")
def networks() -> Networks:
    unet = UNet(WIDE_ENOUGH).eval().requires_grad_(False)
    narrow.randomize(unet)
    return make_networks(unet, make_vae())


@pytest.fixture(scope="module")
def plans(networks: Networks) -> Plans:
    return {plan.name: plan for plan in plan_graphs(networks, options_of())}


@pytest.fixture(scope="module")
def models(plans: Plans) -> Mapping[str, ir.Model]:
    """The default form of every graph."""
    return {name: build_cuda_graph(plans[name], cuda(plans[name])) for name in GRAPHS}


def cuda(plan: GraphPlan, form: CudaForm | None = None) -> nn.Module:
    """The plan's module in a form, its own if none is given."""
    made = plan.cuda_module if form is None else cuda_module(plan.module, form)
    assert made is not None
    return made


def relative_difference(model: ir.Model, plan: GraphPlan, folder: Path) -> float:
    """The largest of all outputs, to PyTorch's."""
    path = folder / "written_out.onnx"
    onnx.save(written_out(ir.to_proto(model)), path)
    outputs = Session(path, intra_op_threads=1).run({name: value.numpy() for name, value in plan.inputs.items()})
    with torch.inference_mode():
        found = plan.module(*plan.inputs.values())
    truths = [truth.numpy() for truth in (found if isinstance(found, tuple) else (found,))]
    assert [output.shape for output in outputs] == [truth.shape for truth in truths]
    norms = [(np.linalg.norm(a - b), np.linalg.norm(b)) for a, b in zip(outputs, truths, strict=True)]
    return max(float(difference / size) for difference, size in norms)


def ops_of(model: ir.Model) -> set[str]:
    return {node.op_type for node in model.graph}


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_the_form_computes_what_pytorch_does(
    plans: Plans, models: Mapping[str, ir.Model], name: str, tmp_path: Path
) -> None:
    assert relative_difference(models[name], plans[name], tmp_path) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", [FULL, "vae_encoder"])
def test_every_switch_changes_ops_and_not_the_result(
    plans: Plans, models: Mapping[str, ir.Model], name: str, tmp_path: Path
) -> None:
    plain = build_cuda_graph(plans[name], cuda(plans[name], PLAIN))
    assert relative_difference(plain, plans[name], tmp_path) <= TOLERANCE
    switched = {"SkipGroupNorm", "NhwcConv", *(("BiasSplitGelu", "SkipLayerNormalization", "BiasAdd") * (name == FULL))}
    assert switched <= ops_of(models[name])
    assert not switched & ops_of(plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_pictures_stay_channels_last(models: Mapping[str, ir.Model], name: str) -> None:
    """And cuDNN finds no plan for a fused convolution of four channels that come before the pixels."""
    assert "Conv" not in ops_of(models[name])


@pytest.mark.slow
def test_frames_of_several_pixels_make_one_sequence(models: Mapping[str, ir.Model]) -> None:
    lengths = {node.inputs[0].shape[1] for node in models[FULL].graph if node.op_type == "Attention"}
    assert lengths == {CudaForm().packed_pixels * narrow.FRAMES}


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_onnxruntime_lacks_nothing_but_kernels(models: Mapping[str, ir.Model], name: str, tmp_path: Path) -> None:
    """Types, shapes and attributes are what the ops' schemas say, as far as a session gets on a CPU."""
    path = tmp_path / f"{name}.onnx"
    ir.save(ir.from_proto(ir.to_proto(models[name])), path)
    with pytest.raises(EngineBuildError, match=r"Failed to find kernel|Could not find an implementation"):
        Session(path)


@pytest.mark.slow
@pytest.mark.parametrize("names", [("vae_encoder", "vae_decoder"), (CACHED,)], ids=["vae", "unet"])
def test_the_form_reads_the_weights_of_the_portable_graphs(
    plans: Plans, models: Mapping[str, ir.Model], names: tuple[str, ...], tmp_path: Path
) -> None:
    """Which cuts this network's models off from their weights: the last of its tests."""
    with WeightsFile(tmp_path / "weights") as weights:
        for name in names:
            weights.move_out(build_graph(plans[name]))
        before = weights.path.read_bytes()
        for name in names:
            weights.move_out(models[name])
            stored = [value.const_value for value in models[name].graph.initializers.values()]
            assert sum(isinstance(tensor, ir.ExternalTensor) for tensor in stored) > 10
    assert weights.path.read_bytes() == before


class _Norms(nn.Module):
    """A norm whose float32 weights the portable graph holds, and one whose it does not; in half precision."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.window, self.frame = WindowNorm(width), FrameNorm(width)
        narrow.randomize(self)
        self.half()

    def forward(self, x: Tensor) -> Tensor:
        return self.frame(self.window(x, 2))


class _CudaNorms(_Norms):
    def forward(self, x: Tensor) -> Tensor:
        made = CudaOps(CudaForm(), frames=2)
        normed, _ = made.group_norm(self.window, Sum(x.permute(0, 2, 3, 1)), silu=False)
        return made.group_norm(self.frame, Sum(normed), silu=False)[0].permute(0, 3, 1, 2)


def test_half_precision_norms_take_the_float32_weights_that_are_there(tmp_path: Path) -> None:
    width = 640
    plan = GraphPlan("norms", "unet", _Norms(width), {"x": torch.ones(2, width, 4, 4).half()}, ("y",))
    made = build_cuda_graph(plan, _CudaNorms(width))
    assert sum(node.op_type == "Cast" for node in made.graph) == 4
    with WeightsFile(tmp_path / "weights") as weights:
        weights.move_out(build_graph(plan))
        before = weights.path.read_bytes()
        take_stored(made, weights)
        weights.move_out(made)
    assert weights.path.read_bytes() == before
    window, frame = (node for node in made.graph if node.op_type == "GroupNorm")
    assert all(value.producer() is None for value in window.inputs[1:])
    assert [value.producer().op_type for value in frame.inputs[1:]] == ["Cast", "Cast"]


@pytest.mark.parametrize(
    ("channels", "groups", "fits"), [(320, 32, True), (960, 32, True), (64, 32, True), (32, 32, False), (96, 32, False)]
)
def test_norms_need_groups_of_an_even_number_of_channels(channels: int, groups: int, fits: bool) -> None:
    assert (group_norm_obstacle(channels, groups) is None) == fits


def test_widths_for_which_no_kernel_is_compiled_keep_the_ops_of_onnx(
    networks: Networks, plans: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_ops, "SPLIT_GELU_WIDTHS", frozenset({2560}))
    monkeypatch.setattr(cuda_ops, "BIAS_ADD_WIDTHS", frozenset({320}))
    ops = ops_of(build_cuda_graph(plans[CACHED], cuda(plans[CACHED])))
    assert "GroupNorm" in ops
    assert not {"BiasSplitGelu", "BiasAdd"} & ops


def test_networks_that_the_kernels_do_not_take_stay_portable(networks: Networks) -> None:
    assert cuda_obstacles(networks, options_of()) == {}
    assert cuda_obstacles(networks, options_of(dynamic=True)) == {"unet": "shapes vary", "vae": "shapes vary"}
    narrower = make_networks(UNet(narrow.UNET), make_vae((8, 8, 16, 16)))
    found = cuda_obstacles(narrower, options_of())
    assert found["unet"].endswith("not 32 channels in 32")
    assert found["vae"].endswith("not 8 channels in 8")
    assert {plan.cuda_module for plan in plan_graphs(narrower, options_of())} == {None}
    assert {plan.cuda_module for plan in plan_graphs(networks, options_of(cuda_form=False))} == {None}
    other = make_networks(networks.unet.network, make_vae(act_fn="mish"))
    assert cuda_obstacles(other, options_of()) == {"vae": "its act_fn is mish, not silu"}
    formed = {plan.name for plan in plan_graphs(other, options_of()) if plan.cuda_module is not None}
    assert formed == set(STEPS)


@pytest.mark.slow
def test_a_bundle_lists_the_forms_that_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = narrow.write_sources(tmp_path / "sources", WIDE_ENOUGH)

    def quick(*arguments: Any) -> list[GraphPlan]:
        return [plan for plan in plan_graphs(*arguments) if plan.name in ("vae_encoder", CACHED)]

    monkeypatch.setattr(exporter, "plan_graphs", quick)
    manifest = read_manifest(exporter.export_bundle(narrow.narrow_options(sources, tmp_path / "bundle", verify=False)))
    assert manifest.graphs[CACHED].forms == {"cuda": f"{CACHED}.cuda.onnx"}
    assert manifest.graphs["vae_encoder"].forms == {}
    assert f"{CACHED}.cuda.onnx" in manifest.files
    assert [note for note in manifest.notes if "CUDA" in note] == [
        "vae: no graphs in the CUDA form, as GroupNorm's kernel takes groups of an even number of channels, not 8 "
        "channels in 8"
    ]
