"""Mixed precision search: ranking, prediction, and bisection."""

from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.errors import InputError
from latentsync_trt.quantize.options import CalibrateOptions
from latentsync_trt.quantize.replay import Replay, decibel
from latentsync_trt.quantize.search import SearchResult, Sensitivity, group_of, predicted, ranked, search
from latentsync_trt.quantize.steps import QuantizedSteps
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.types import Progress
from tests.quantize.eight_bit import small_loop, small_ranges, small_window
from tests.quantize.toys import CONVOLUTION, GRAPH, LINEAR, OTHER, layers_ranges, write_layers
from tests.small import small_bundle

pytestmark = pytest.mark.integration

LOOP_NOISE = 3.0
"""What the fake loop makes of a step's noise."""

NOISE = {CONVOLUTION: 1e-3, LINEAR: 1e-5, OTHER: 1e-6}
"""Of each layer alone in 8 bits."""


class FakeReplay:
    """Answers with the sum of the noise of the layers in 8 bits."""

    probed_graph = GRAPH

    def __init__(self, steps: QuantizedSteps) -> None:
        self.steps = steps
        self.loops = 0

    def step_noise(self, kept: Collection[str]) -> float:
        return sum(noise for layer, noise in NOISE.items() if layer not in kept)

    def psnr_db(self, kept: Collection[str]) -> float:
        self.loops += 1
        return decibel(LOOP_NOISE * self.step_noise(kept))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_layers(tmp_path_factory.mktemp("toy") / "bundle")


def run(
    bundle: Bundle, folder: Path, target_db: float, keep: tuple[str, ...] = ()
) -> tuple[SearchResult, FakeReplay, list[Progress]]:
    progress: list[Progress] = []
    with QuantizedSteps(bundle, layers_ranges(), CalibrateOptions(keep=keep), folder) as steps:
        replay: Any = FakeReplay(steps)
        return search(replay, target_db, progress.append), replay, progress


@pytest.mark.parametrize(
    ("target_db", "kept", "reached_db"),
    [
        (20, (), decibel(LOOP_NOISE * 1.011e-3)),
        (40, (CONVOLUTION,), decibel(LOOP_NOISE * 1.1e-5)),
        (50, (CONVOLUTION, LINEAR), decibel(LOOP_NOISE * 1e-6)),
    ],
)
def test_the_fewest_layers_that_reach_the_target_are_kept(
    bundle: Bundle, tmp_path: Path, target_db: float, kept: tuple[str, ...], reached_db: float
) -> None:
    result, _, progress = run(bundle, tmp_path, target_db)
    assert result.best.kept == kept
    assert result.best.psnr_db == pytest.approx(reached_db)
    assert [step.done for step in progress] == list(range(1, len(progress) + 1))
    assert all(step.total is not None and step.done <= step.total for step in progress)


def test_a_first_choice_that_keeps_too_much_is_reduced(bundle: Bundle, tmp_path: Path) -> None:
    assert run(bundle, tmp_path, 40, keep=("to_q", "conv"))[0].best.kept == (CONVOLUTION,)


def test_few_loops_are_run(bundle: Bundle, tmp_path: Path) -> None:
    result, replay, _ = run(bundle, tmp_path, 20, keep=("to_kv",))
    assert result.best.kept == ()
    assert replay.loops <= 3


def test_the_table_begins_with_the_most_sensitive_group(bundle: Bundle, tmp_path: Path) -> None:
    table = run(bundle, tmp_path, 40)[0].table
    assert [group.group for group in table] == ["net.conv", "net.to_q", "net.to_kv"]
    assert table[0].step_db == pytest.approx(30)
    assert sum(group.share for group in table) == pytest.approx(1)


def test_a_target_out_of_reach_says_what_was_reached(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--target-psnr 90: out of reach, 55\.2 dB was reached with"):
        run(bundle, tmp_path, 90)


def sensitivity(noise: float, layers: int = 1) -> Sensitivity:
    return Sensitivity(f"{noise}", tuple(f"{noise}.{index}" for index in range(layers)), 0.1, noise)


def test_groups_are_ranked_by_noise_per_layer() -> None:
    assert [group.noise for group in ranked([sensitivity(4, 8), sensitivity(2), sensitivity(1)])] == [2, 1, 4]


@pytest.mark.parametrize(("target_db", "count"), [(10, 0), (19.9, 1), (29.9, 2), (80, 2)])
def test_the_prediction_sums_the_noise_of_the_other_groups(target_db: float, count: int) -> None:
    table = [sensitivity(0.1), sensitivity(0.009), sensitivity(0.001)]
    assert predicted(table, 0.5, target_db) == count


@pytest.mark.parametrize(
    ("layer", "group"),
    [
        ("unet.conv_in.weight", "conv_in"),
        ("unet.mid_block.resnets.0.conv1.weight", "resnets.conv1"),
        ("unet.up_blocks.3.attentions.1.transformer_blocks.0.attn2.to_out.0.weight", "attn2.to_out"),
        ("unet.down_blocks.0.attentions.0.transformer_blocks.0.ff.net.2.weight", "ff.net"),
    ],
)
def test_groups_are_kinds_of_layers(layer: str, group: str) -> None:
    assert group_of(layer) == group


def test_distance_of_real_networks(tmp_path: Path) -> None:
    """Self-attention in 8 bits changes faces somewhat; keeping all layers changes nothing."""
    bundle = Bundle.load(small_bundle(), verify=False)
    with (
        QuantizedSteps(bundle, small_ranges(), CalibrateOptions(), tmp_path) as steps,
        closing(Networks(bundle, Selection("cpu"))) as networks,
    ):
        replay = Replay(steps, networks, [small_window(bundle)], small_loop())
        some_db = replay.psnr_db([name for name in steps.layers if "attn1" not in name])
        exact = replay.step_noise(steps.layers)
    assert 20 < some_db < 80
    assert exact == pytest.approx(0, abs=1e-9)
