"""Values beyond float16's end in a VAE are found before the export, and the parts that have them stay in float32."""

import copy
import logging
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch import Tensor

from latentsync_trt.bundle.manifest import read_manifest
from latentsync_trt.errors import CheckpointError, ExportMismatch, InputError
from latentsync_trt.export import exporter
from latentsync_trt.export.graphs import GraphPlan, build_graph
from latentsync_trt.export.options import ExportOptions, Sources
from latentsync_trt.export.plans import cuda_obstacles, load_networks, plan_graphs
from latentsync_trt.export.vae import VaeDecoder, VaeEncoder
from latentsync_trt.export.vae_overflow import (
    LARGEST_HALF,
    LIMIT,
    keep_wide,
    largest_values,
    load_half_vae,
    parts_of,
    trial_pictures,
    wide_note,
)
from latentsync_trt.export.verify import FLOOR, verify_graph
from latentsync_trt.media import demo_clip as demo
from latentsync_trt.runtime.compiler.rtx import compile_graph
from latentsync_trt.runtime.sessions.session import Session
from tests import narrow
from tests.export.test_cuda_form import make_vae

pytestmark = pytest.mark.integration

HALF_TOLERANCE = 1e-2
"""Of the picture's range, to float32, with every value rounded to half precision: measured 3e-3."""
SINGLE_TOLERANCE = 1e-5
"""Of the picture's range, for weights that are scaled up here and down there in float32: measured 1.4e-6."""

LARGE = 2e5
"""By how much values grow in a part of the VAE; elsewhere in a narrow one they stay below 25."""
GROWN = {"decoder.up_blocks.1", "decoder.up_blocks.2"}

SIDE_PX = narrow.RESOLUTION_PX


def overflowing(vae: Any) -> Any:
    """`vae`, whose values are `LARGE` times as large between the decoder's second and third block; its pictures are the
    same, as a norm or a smaller weight follows on every way."""
    grown = vae.decoder.up_blocks[1].upsamplers[0].conv
    grown.weight.mul_(LARGE)
    grown.bias.mul_(LARGE)
    vae.decoder.up_blocks[2].resnets[0].conv_shortcut.weight.div_(LARGE)
    return vae


@pytest.fixture(scope="module", autouse=True)
def quiet_diffusers() -> Iterator[None]:
    """It says of every pass that `ImageAttention` has no use for one of its arguments."""
    logger = logging.getLogger("diffusers")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


@pytest.fixture(scope="module")
def pictures() -> Mapping[str, Tensor]:
    return trial_pictures(SIDE_PX)


@pytest.fixture(scope="module")
def latent(pictures: Mapping[str, Tensor]) -> Tensor:
    """Of the face."""
    return VaeEncoder(make_vae())(pictures["face"])


@pytest.fixture(scope="module")
def truth(latent: Tensor) -> np.ndarray:
    """What an ordinary VAE makes of the latent, in float32."""
    return VaeDecoder(make_vae())(latent).numpy()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """Checkpoints with a VAE that overflows, and which kernels of the CUDA form would take."""
    written = narrow.write_sources(tmp_path_factory.mktemp("overflow"))
    overflowing(make_vae()).save_pretrained(written.vae)
    return written


def options_of(sources: Sources, **fields: object) -> ExportOptions:
    return narrow.narrow_options(sources, sources.vae.parent / "bundle", precision="fp16", **fields)


def half(vae: Any, wide: Collection[str]) -> Any:
    """A copy in half precision, but for `wide`."""
    made = copy.deepcopy(vae)
    keep_wide(made, wide)
    return made


def graph_of(vae: Any, latent: Tensor) -> ir.Model:
    return build_graph(GraphPlan("vae_decoder", "vae", VaeDecoder(vae), {"latent": latent}, ("image",)))


@pytest.fixture(scope="module")
def half_graph(latent: Tensor) -> ir.Model:
    """The decoder of a VAE that overflows, all of it in half precision."""
    return graph_of(half(overflowing(make_vae()), ()), latent)


@pytest.fixture(scope="module")
def mixed_graph(latent: Tensor) -> ir.Model:
    """The same with the parts in float32 that need it."""
    return graph_of(half(overflowing(make_vae()), GROWN), latent)


def rounded(graph: ir.Model, latent: Tensor, path: Path) -> np.ndarray:
    """The picture from a graph, saved to `path`, by an interpreter that rounds whatever float16 stores."""
    ir.save(graph, path)
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(str(path)).run(None, {"latent": latent.numpy()})[0]


def distance(image: np.ndarray, truth: np.ndarray) -> float:
    """Of the range of `truth`."""
    return float(np.abs(image - truth).max() / np.abs(truth).max())


def test_half_precision_overflows_which_a_run_on_the_cpu_does_not_show_but_verification_does(
    half_graph: ir.Model, latent: Tensor, truth: np.ndarray, tmp_path: Path
) -> None:
    vae = overflowing(make_vae())
    assert distance(VaeDecoder(vae)(latent).numpy(), truth) <= SINGLE_TOLERANCE
    assert not VaeDecoder(half(vae, ()))(latent).isfinite().any()
    assert not np.isfinite(rounded(half_graph, latent, tmp_path / "half.onnx")).any()
    (image,) = Session(tmp_path / "half.onnx").run({"latent": latent.numpy()})
    assert np.isfinite(image).all()
    plan = GraphPlan("vae_decoder", "vae", VaeDecoder(half(vae, ())), {"latent": latent}, ("image",))
    with pytest.raises(ExportMismatch, match=r"output image: .* are not finite; export with --precision fp32"):
        verify_graph(tmp_path / "half.onnx", plan, VaeDecoder(vae), "fp16")


def test_parts_in_float32_keep_the_picture(pictures: Mapping[str, Tensor], latent: Tensor, truth: np.ndarray) -> None:
    vae = overflowing(make_vae())
    wide = {name for name, value in largest_values(vae, pictures.values()).items() if value > LIMIT}
    assert wide == GROWN
    assert distance(VaeDecoder(half(vae, wide))(latent).numpy(), truth) <= HALF_TOLERANCE


def test_exported_graph_with_parts_in_float32_keeps_the_picture(
    mixed_graph: ir.Model, latent: Tensor, truth: np.ndarray, tmp_path: Path
) -> None:
    assert distance(rounded(mixed_graph, latent, tmp_path / "mixed.onnx"), truth) <= HALF_TOLERANCE


@pytest.mark.slow
def test_only_the_named_parts_are_stored_in_float32(mixed_graph: ir.Model) -> None:
    stored = {name: value.dtype for name, value in mixed_graph.graph.initializers.items() if "." in name}
    assert len(stored) > 50
    wide = tuple(f"{name}." for name in GROWN)
    assert {dtype for name, dtype in stored.items() if name.startswith(wide)} == {ir.DataType.FLOAT}
    assert {dtype for name, dtype in stored.items() if not name.startswith(wide)} == {ir.DataType.FLOAT16}


@pytest.mark.slow
def test_one_cast_before_and_after_neighboring_parts_in_float32(half_graph: ir.Model, mixed_graph: ir.Model) -> None:
    half_casts, mixed_casts = (
        sum(node.op_type == "Cast" for node in model.graph) for model in (half_graph, mixed_graph)
    )
    assert mixed_casts == half_casts + 2


@pytest.mark.slow
def test_tensorrt_compiles_both_precisions_in_one_graph(mixed_graph: ir.Model, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="the compiler has wheels for Linux and Windows only")
    ir.save(mixed_graph, tmp_path / "mixed.onnx")
    verdict = compile_graph(tmp_path / "mixed.onnx", {})
    assert verdict.accepted, verdict.reason


def test_parts_hold_every_parameter_once() -> None:
    for vae in (make_vae(), make_vae(use_quant_conv=False, use_post_quant_conv=False)):
        held = [id(p) for part in parts_of(vae).values() for p in part.parameters()]
        assert sorted(held) == sorted(map(id, vae.parameters()))


def test_largest_value_of_a_part_covers_inputs_outputs_and_parameters(pictures: Mapping[str, Tensor]) -> None:
    vae = make_vae()
    made = VaeEncoder(vae)(pictures["face"]) / vae.config.scaling_factor
    taken = vae.post_quant_conv(made)
    given = vae.decoder.conv_in(taken)
    found = largest_values(vae, [pictures["face"]])
    for name, values in (
        ("post_quant_conv", (made, taken, *vae.post_quant_conv.parameters())),
        ("decoder.conv_in", (taken, given, *vae.decoder.conv_in.parameters())),
    ):
        assert found[name] == pytest.approx(max(float(value.abs().max()) for value in values))
    vae.decoder.conv_in.weight[0, 0, 0, 0] = -LARGE
    assert largest_values(vae, [])["decoder.conv_in"] == LARGE


def test_measuring_all_pictures_finds_the_largest_of_each(pictures: Mapping[str, Tensor]) -> None:
    vae = make_vae()
    singly = [largest_values(vae, [picture]) for picture in pictures.values()]
    assert largest_values(vae, pictures.values()) == {name: max(one[name] for one in singly) for name in singly[0]}


def scale_hidden(vae: Any) -> None:
    """Between a convolution and the norm behind it, inside of a block."""
    vae.encoder.down_blocks[1].resnets[0].conv1.weight.mul_(LARGE)


def scale_residual(vae: Any) -> None:
    """A block's sum: convolution and shortcut fit, with `LIMIT` between them, what they add up to does not."""
    resnet = vae.decoder.up_blocks[3].resnets[1]
    for conv in (vae.decoder.up_blocks[3].resnets[0].conv2, resnet.conv2):
        conv.weight.zero_()
        conv.bias.fill_(0.7 * LIMIT)


def scale_logits(vae: Any) -> None:
    """Queries and keys that fit, whose products do not."""
    attention = vae.encoder.mid_block.attentions[0]
    attention.to_q.weight.mul_(200)
    attention.to_k.weight.mul_(200)


@pytest.mark.parametrize(
    ("scale", "parts"),
    [
        (scale_hidden, {"encoder.down_blocks.1"}),
        (scale_residual, {"decoder.up_blocks.3", "decoder.conv_norm_out"}),
        (scale_logits, {"encoder.mid_block"}),
    ],
)
def test_values_between_two_kernels_are_measured(scale: Any, parts: set[str], pictures: Mapping[str, Tensor]) -> None:
    vae = make_vae()
    scale(vae)
    found = largest_values(vae, [pictures["face"]])
    assert {name for name, value in found.items() if value > LIMIT} == parts


def test_measuring_leaves_the_vae_as_it_was(pictures: Mapping[str, Tensor]) -> None:
    vae = make_vae()
    before = copy.deepcopy(vae.state_dict())
    largest_values(vae, [pictures["face"]])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in vae.modules())
    assert all(torch.equal(value, before[name]) for name, value in vae.state_dict().items())


def test_an_ordinary_vae_is_entirely_in_half_precision(tmp_path: Path) -> None:
    vae, wide = load_half_vae(narrow.write_vae(tmp_path / "vae"), SIDE_PX)
    assert wide == {}
    assert {parameter.dtype for parameter in vae.parameters()} == {torch.float16}
    assert not any(module._forward_pre_hooks for module in vae.modules())


def test_mixed_vae_is_exported_verified_and_recorded(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    def decoder(*arguments: Any) -> list[GraphPlan]:
        return [plan for plan in plan_graphs(*arguments) if plan.name == "vae_decoder"]

    monkeypatch.setattr(exporter, "plan_graphs", decoder)
    manifest = read_manifest(exporter.export_bundle(options_of(sources)))
    assert 0 < manifest.verification["vae_decoder"] <= 10 * FLOOR["fp16"]
    assert manifest.graphs["vae_decoder"].forms == {}
    (kept,) = [note for note in manifest.notes if note.startswith("vae: in float32")]
    assert all(name in kept for name in GROWN)
    assert "vae: no graphs in the CUDA form, as parts of it are in float32" in manifest.notes


def test_overflow_is_searched_in_half_precision_only(sources: Sources) -> None:
    for dtype, wide in ((torch.float16, GROWN), (torch.float32, set())):
        assert load_networks(sources, options_of(sources), dtype).wide.keys() == wide


def test_parts_in_float32_exclude_the_cuda_form(sources: Sources) -> None:
    options = options_of(sources)
    mixed = load_networks(sources, options, torch.float16)
    assert cuda_obstacles(mixed, options)["vae"] == "parts of it are in float32"
    assert {plan.cuda_module for plan in plan_graphs(mixed, options) if plan.network == "vae"} == {None}
    assert "vae" not in cuda_obstacles(replace(mixed, wide={}), options)


def test_note_names_parts_values_and_the_reason() -> None:
    assert wide_note({"decoder.up_blocks.2": 123456.7, "decoder.conv_out": 2e4}) == (
        "vae: in float32, as float16 ends at 65,504: decoder.up_blocks.2 (values up to 123,457), decoder.conv_out "
        "(values up to 20,000)"
    )
    assert LIMIT < LARGEST_HALF == 65504


def test_a_vae_that_is_not_finite_in_float32_either_is_refused(tmp_path: Path) -> None:
    vae = make_vae()
    vae.decoder.up_blocks[0].resnets[0].conv1.bias[0] = math.nan
    vae.save_pretrained(tmp_path / "vae")
    with pytest.raises(CheckpointError, match=r"vae: .* not finite"):
        load_half_vae(tmp_path / "vae", SIDE_PX)


@pytest.mark.parametrize("side_px", [64, 128])
def test_trial_pictures(side_px: int) -> None:
    found = trial_pictures(side_px)
    for name, picture in found.items():
        assert picture.shape == (1, 3, *[side_px if "face" in name else side_px // 2] * 2)
        assert picture.dtype == torch.float32
        assert picture.abs().max() <= 1
    face, masked = found["face"], found["masked face"]
    assert face.std() > 0.3
    assert torch.equal(face[..., : side_px // 4, :], masked[..., : side_px // 4, :])
    assert not masked[..., side_px * 5 // 8, side_px // 2].any()
    assert {float(value) for value in found["noise"].unique()} == {-1, 1}
    assert (found["black"] == -1).all()
    assert (found["white"] == 1).all()


def test_missing_portrait_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_PORTRAIT", tmp_path / "portrait.jpg")
    with pytest.raises(InputError, match="install latentsync-trt again"):
        trial_pictures(SIDE_PX)
