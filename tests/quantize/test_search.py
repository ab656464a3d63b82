"""Which layers are kept: the ranking, the prediction, and the search that confirms it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.diffusion.plan import cache_plan
from latentsync_trt.diffusion.scheduler import solver_schedule
from latentsync_trt.errors import InputError
from latentsync_trt.quantize.layers import layers_of
from latentsync_trt.quantize.options import QuantizeOptions
from latentsync_trt.quantize.ranges import Ranges, observed
from latentsync_trt.quantize.record import RecordedWindow
from latentsync_trt.quantize.replay import Loop, Replay, decibel
from latentsync_trt.quantize.search import GroupDamage, SearchResult, group_of, measure, predicted, ranked, search
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.types import Progress
from tests.quantize.toy_layers import CONVOLUTION, LINEAR, OTHER, write_layers
from tests.small import small_bundle
from tests.toy import DEPTH

LOOP_NOISE = 3.0
"""What the made-up loop makes of a step's noise."""

HARM = {CONVOLUTION: 1e-3, LINEAR: 1e-5, OTHER: 1e-6}
"""Noise of each layer alone in eight bits."""


class MadeUpReplay:
    """Looks which weights a graph has in eight bits, and answers with their noise together."""

    loop = Loop(1.5, solver_schedule("ddim", 2), cache_plan(2, 1))
    probed_graph = "denoise_step"

    def __init__(self, bundle: Bundle, harm: Mapping[str, float]) -> None:
        self.bundle, self._harm = bundle, harm
        self.loop = Loop(1.5, solver_schedule("ddim", 2), cache_plan(2, 1))
        self.loops = 0

    def step_noise(self, folder: Path) -> tuple[float, ...]:
        noise = self._noise(folder)
        return 0.5 * noise, 1.5 * noise

    def psnr_db(self, folder: Path) -> float:
        self.loops += 1
        return decibel(1.0, LOOP_NOISE * self._noise(folder))

    def _noise(self, folder: Path) -> float:
        model = onnx.load(folder / "denoise_step.onnx", load_external_data=False)
        held = {initializer.name for initializer in model.graph.initializer}
        return sum(noise for weight, noise in self._harm.items() if weight not in held)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return stated(write_layers(tmp_path_factory.mktemp("toy") / "bundle"))


def stated(bundle: Bundle) -> Bundle:
    """The toy with the shapes of its layers' outputs, as exported graphs have them."""
    path = bundle.graph_path("denoise_step")
    model = onnx.load(path)
    onnx.save(onnx.shape_inference.infer_shapes(model, data_prop=True), path)
    return bundle


def toy_ranges() -> Ranges:
    channels = {CONVOLUTION: 4, LINEAR: DEPTH, OTHER: DEPTH}
    return {name: observed(np.ones(count, np.float32), np.ones(9, np.float32), 1) for name, count in channels.items()}


def found(bundle: Bundle, folder: Path, target_db: float, kept: tuple[str, ...] = ()) -> tuple[SearchResult, Any]:
    replay: Any = MadeUpReplay(bundle, HARM)
    return search(toy_ranges(), QuantizeOptions(kept=kept), replay, target_db, folder, lambda _: None), replay


@pytest.mark.parametrize(
    ("target_db", "kept", "reached_db"),
    [
        (20, (), decibel(1, LOOP_NOISE * 1.011e-3)),
        (40, (CONVOLUTION,), decibel(1, LOOP_NOISE * 1.1e-5)),
        (50, (CONVOLUTION, LINEAR), decibel(1, LOOP_NOISE * 1e-6)),
    ],
)
def test_keeps_the_fewest_that_reach_the_target(
    bundle: Bundle, tmp_path: Path, target_db: float, kept: tuple[str, ...], reached_db: float
) -> None:
    result, _ = found(bundle, tmp_path, target_db)
    assert result.kept == kept
    assert result.reached_db == pytest.approx(reached_db)
    assert not list(tmp_path.iterdir())


def test_more_than_needed_is_given_back(bundle: Bundle, tmp_path: Path) -> None:
    result, _ = found(bundle, tmp_path, 40, kept=("to_q", "conv"))
    assert result.kept == (CONVOLUTION,)


def test_a_first_choice_that_serves_as_well_is_kept(bundle: Bundle, tmp_path: Path) -> None:
    """Of two choices with as many layers, the one that reaches more."""
    result, replay = found(bundle, tmp_path, 20, kept=("to_kv",))
    assert result.kept == ()
    assert replay.loops <= 3


def test_the_table_names_the_worst_first(bundle: Bundle, tmp_path: Path) -> None:
    result, _ = found(bundle, tmp_path, 40)
    assert [damage.group for damage in result.table] == ["net.conv", "net.to_q", "net.to_kv"]
    worst = result.table[0]
    assert (worst.step_db, worst.worst_db) == (pytest.approx(30), pytest.approx(decibel(1, 1.5e-3)))
    assert sum(damage.share for damage in result.table) == pytest.approx(1)


def test_a_target_out_of_reach_says_what_was_reached(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--target-psnr 90: out of reach; the most was 55\.2 dB, with"):
        found(bundle, tmp_path, 90)


def test_progress_ends_where_it_says(bundle: Bundle, tmp_path: Path) -> None:
    told: list[Progress] = []
    replay: Any = MadeUpReplay(bundle, HARM)
    search(toy_ranges(), QuantizeOptions(kept=()), replay, 50, tmp_path, told.append)
    assert [progress.done for progress in told] == list(range(1, len(told) + 1))
    assert all(progress.total is not None and progress.done <= progress.total for progress in told)


def damage(noise: float, layers: int = 1) -> GroupDamage:
    return GroupDamage(f"{noise}", tuple(f"{noise}.{index}" for index in range(layers)), 0.1, noise, noise)


def test_few_layers_go_before_many_that_do_as_much() -> None:
    assert [group.noise for group in ranked([damage(4, 8), damage(2), damage(1)])] == [2, 1, 4]


@pytest.mark.parametrize(("target_db", "count"), [(10, 0), (19.9, 1), (29.9, 2), (80, 2)])
def test_prediction_sums_what_is_left(target_db: float, count: int) -> None:
    table = [damage(0.1), damage(0.009), damage(0.001)]
    assert predicted(table, 0.5, target_db) == count


@pytest.mark.parametrize(
    ("weight", "group"),
    [
        ("unet.conv_in.weight", "conv_in"),
        ("unet.mid_block.resnets.0.conv1.weight", "resnets.conv1"),
        ("unet.up_blocks.3.attentions.1.transformer_blocks.0.attn2.to_out.0.weight", "attn2.to_out"),
        ("unet.down_blocks.0.downsamplers.0.conv.weight", "downsamplers.conv"),
        ("unet.down_blocks.0.attentions.0.transformer_blocks.0.ff.net.0.proj.weight", "net.proj"),
        ("unet.down_blocks.0.attentions.0.transformer_blocks.0.ff.net.2.weight", "ff.net"),
    ],
)
def test_groups_are_kinds_of_layers(weight: str, group: str) -> None:
    assert group_of(weight) == group


def test_no_window_to_compare_with() -> None:
    with pytest.raises(InputError, match="no window was recorded"):
        Replay(Bundle.load(small_bundle(), verify=False), Selection("cpu"), [], MadeUpReplay.loop)


def small_window(bundle: Bundle) -> RecordedWindow:
    manifest, random = bundle.manifest, np.random.default_rng(2)
    side, frames = manifest.latent_px, manifest.frames
    noise = random.standard_normal((1, 4, 1, side, side), np.float32)
    return RecordedWindow(
        np.ascontiguousarray(np.broadcast_to(noise, (1, 4, frames, side, side))),
        random.standard_normal((1, 9, frames, side, side), np.float32),
        random.standard_normal((1, frames, 10 * manifest.audio_layers, manifest.audio_width), np.float32),
    )


def test_distance_of_real_networks(tmp_path: Path) -> None:
    """With a few layers in eight bits there is some; from the bundle's own steps, none."""
    bundle = Bundle.load(small_bundle(), verify=False)
    model = onnx.load(bundle.graph_path("denoise_step"), load_external_data=False)
    dims = {initializer.name: initializer.dims for initializer in model.graph.initializer}
    ranges = {
        layer.weight: observed(
            np.full(dims[layer.weight][1 if layer.convolution else 0], 8, np.float32), np.ones(2, np.float32), 1
        )
        for layer in layers_of(model)
    }
    loop = Loop(1.5, solver_schedule("ddim", 2), cache_plan(2, 2))
    with Replay(bundle, Selection("cpu"), [small_window(bundle)], loop) as replay:
        most = tuple(layer.weight for layer in layers_of(model) if "attn1" not in layer.weight)
        some_db = measure(ranges, QuantizeOptions(kept=most), replay, tmp_path)
        own = replay.step_noise(bundle.folder)
    assert 20 < some_db < 80
    assert own == pytest.approx((0, 0), abs=1e-9)
