"""The CUDA form computes what PyTorch does and adds nearly nothing to the weights: in float32, at narrow widths."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

from latentsync_trt.bundle.manifest import FULL_STEP, STEP_GRAPHS, VAE_DECODER, VAE_ENCODER
from latentsync_trt.errors import EngineBuildError
from latentsync_trt.export import cuda_ops, exporter
from latentsync_trt.export.cuda_ops import Sum, group_norm
from latentsync_trt.export.export_options import ExportOptions
from latentsync_trt.export.exporter import cuda_obstacles, plan_graphs
from latentsync_trt.export.graphs import GraphPlan, build_cuda_graph
from latentsync_trt.export.layers import GroupNorm
from latentsync_trt.export.networks import ImageAttention, Networks, WhisperEncoder
from latentsync_trt.export.unet import UNet
from latentsync_trt.runtime.engines.session import Session, SessionSettings
from tests import narrow
from tests.exports import ExportCache
from tests.written_out import written_out

pytestmark = pytest.mark.integration

TOLERANCE = 1e-5
"""Relative, of whole networks in float32: other orders of summation make less than 3e-6."""

WIDE_ENOUGH = replace(narrow.UNET, widths=(64, 128), motion_down=(True, False), motion_up=(False, True))
"""Two channels in a group of the norms, the fewest that the kernel takes; and no more parts than must be traced."""

GRAPHS = (VAE_ENCODER, VAE_DECODER, *STEP_GRAPHS)

Plans = Mapping[str, GraphPlan]


def make_vae(widths: tuple[int, ...] = (16, 16, 32, 32), **config: Any) -> Any:
    vae = narrow.make_vae(widths, **config)
    vae.set_attn_processor(ImageAttention())
    return vae.eval().requires_grad_(False)


def make_networks(unet: UNet, vae: Any) -> Networks:
    whisper = WhisperEncoder(narrow.WHISPER)
    narrow.randomize(whisper)
    return Networks(unet, vae, whisper)


def options_of(**fields: Any) -> ExportOptions:
    return ExportOptions(resolution=narrow.RESOLUTION_PX, frames=narrow.FRAMES, **fields)


@pytest.fixture(scope="module", autouse=True)
def narrow_kernels() -> Iterator[None]:
    """BiasSplitGelu and BiasAdd exist for a few widths only, none of which is narrow; here, for narrow ones, too. And
    few keys are fewer than these networks have pixels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_ops, "SPLIT_GELU_WIDTHS", {8 * width for width in WIDE_ENOUGH.widths})
        patch.setattr(cuda_ops, "BIAS_ADD_WIDTHS", set(WIDE_ENOUGH.widths))
        patch.setattr(cuda_ops, "FEW_KEYS", 32)
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
def bundle(exports: ExportCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same networks with every graph in both forms; not verified."""

    def make(out: Path) -> None:
        sources = narrow.write_sources(tmp_path_factory.mktemp("sources"), WIDE_ENOUGH)
        make_vae().save_pretrained(sources.vae)
        exporter.export_bundle(narrow.narrow_options(sources, out, verify=False))

    return exports.bundle("both_forms", make)


def load(bundle: Path, name: str) -> onnx.ModelProto:
    """A graph in the CUDA form, without weights."""
    return onnx.load(bundle / f"{name}.cuda.onnx", load_external_data=False)


@pytest.mark.parametrize("name", GRAPHS)
def test_cuda_graph_computes_the_same_as_pytorch(bundle: Path, plans: Plans, name: str, tmp_path: Path) -> None:
    path = tmp_path / "written_out.onnx"
    onnx.save(written_out(onnx.load(bundle / f"{name}.cuda.onnx")), path)
    plan = plans[name]
    outputs = Session(path, SessionSettings(intra_op_threads=1)).run(
        {name: value.numpy() for name, value in plan.inputs.items()}
    )
    with torch.inference_mode():
        found = plan.module(*plan.inputs.values())
    truths = [truth.numpy() for truth in (found if isinstance(found, tuple) else (found,))]
    assert [output.shape for output in outputs] == [truth.shape for truth in truths]
    norms = [(np.linalg.norm(a - b), np.linalg.norm(b)) for a, b in zip(outputs, truths, strict=True)]
    assert max(float(difference / size) for difference, size in norms) <= TOLERANCE


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
        {
            (tensor.offset, tensor.length): tuple(tensor.shape)
            for name in names
            for value in ir.load(bundle / f"{name}{form}.onnx").graph.initializers.values()
            if isinstance(tensor := value.const_value, ir.ExternalTensor)
        }
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
    np.testing.assert_allclose(found, wanted, atol=TOLERANCE)


def test_networks_that_the_kernels_do_not_take_are_portable_only(networks: Networks) -> None:
    assert cuda_obstacles(networks, options_of()) == {}
    assert cuda_obstacles(networks, options_of(dynamic=True)) == {"unet": "shapes vary", "vae": "shapes vary"}
    narrower = make_networks(UNet(narrow.UNET), make_vae((8, 8, 16, 16)))
    found = cuda_obstacles(narrower, options_of())
    assert found["unet"].endswith("not 32 channels in 32")
    assert found["vae"].endswith("not 8 channels in 8")
    assert {plan.cuda_module for plan in plan_graphs(narrower, options_of())} == {None}
    assert {plan.cuda_module for plan in plan_graphs(networks, options_of(cuda_form=False))} == {None}
    other = make_networks(networks.unet, make_vae(act_fn="mish"))
    assert cuda_obstacles(other, options_of()) == {"vae": "its act_fn is mish, not silu"}
    formed = {plan.name for plan in plan_graphs(other, options_of()) if plan.cuda_module is not None}
    assert formed == set(STEP_GRAPHS)
