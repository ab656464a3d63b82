"""Which layers must keep their precision for a bundle in eight bits to stay near its parent.

Each group of layers is put into eight bits alone, and single steps say what that does: it ranks groups as whole loops
do, at a twentieth of the time. Errors of groups add as powers, so one whole loop says what all rankings mean for loops,
and how many of the worst groups to keep is predicted; whole loops then confirm it, halving what is left to choose from.
"""

import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from latentsync_trt.errors import InputError
from latentsync_trt.quantize.mixed import MixedSteps
from latentsync_trt.quantize.options import QuantizeOptions
from latentsync_trt.quantize.ranges import Ranges
from latentsync_trt.quantize.replay import Replay, decibel
from latentsync_trt.quantize.share import multiply_adds, share_in_eight_bits
from latentsync_trt.types import Progress

_STAGE = "search"

_USUAL_TRIALS = 4


@dataclass(frozen=True, slots=True)
class GroupDamage:
    """What a group of layers does when it alone is in eight bits.

    `group`: what its layers have in common in their names. `weights`: their names. `share`: of the full step's
    multiply-adds, 0 to 1. `noise`: power of the error of a full step, over that of its change, on average over the
    probed steps; `worst_noise`: in the worst of them.
    """

    group: str
    weights: tuple[str, ...]
    share: float
    noise: float
    worst_noise: float

    @property
    def step_db(self) -> float:
        """How far a full step's change is above its error."""
        return decibel(1.0, self.noise)

    @property
    def worst_db(self) -> float:
        """The same at the step where it is the least."""
        return decibel(1.0, self.worst_noise)


@dataclass(frozen=True, slots=True)
class Trial:
    """Whole loops: `kept`, names of weights; the `share` of multiply-adds in eight bits; `psnr_db` that was reached."""

    kept: tuple[str, ...]
    share: float
    psnr_db: float


@dataclass(frozen=True, slots=True)
class SearchResult:
    """`kept`: names of weights that stay as they are, the fewest that were found to do; `reached_db`: with them.
    `table`: groups in the order in which they are kept. `trials`: the whole loops that were run, in their order."""

    kept: tuple[str, ...]
    reached_db: float
    table: tuple[GroupDamage, ...]
    trials: tuple[Trial, ...]


def group_of(weight: str) -> str:
    """The kind of a layer by the last two words of its name: "unet.mid_block.resnets.0.conv1.weight" → "resnets.conv1".

    Layers of one kind read the same sort of input, wherever in the network they are.
    """
    words = [word for word in weight.split(".") if not word.isdigit()]
    return ".".join([word for word in words if word not in ("unet", "weight")][-2:])


def measure(ranges: Ranges, options: QuantizeOptions, replay: Replay, work: Path) -> float:
    """The PSNR in dB of faces after whole loops with the options' choice of layers, against the bundle itself.

    Args:
        work: a folder that takes a few times the bundle's weights for a while.
    """
    with _mixed_steps(ranges, options, replay, work) as steps:
        return _psnr_db(steps, replay, [layer.weight for layer in steps.all_layers() if options.keeps(layer.weight)])


def search(
    ranges: Ranges,
    options: QuantizeOptions,
    replay: Replay,
    target_psnr_db: float,
    work: Path,
    on_progress: Callable[[Progress], None],
) -> SearchResult:
    """The fewest layers to keep so that faces after whole loops reach `target_psnr_db` against the bundle itself.

    Args:
        options: all but `kept` holds; `kept` is the choice that is tried first. work: as in `measure`.

    Raises:
        InputError: the target is out of reach; the message says what was reached.
    """
    with _mixed_steps(ranges, options, replay, work) as steps:
        return _Search(steps, replay, on_progress).run(options, target_psnr_db)


@contextmanager
def _mixed_steps(ranges: Ranges, options: QuantizeOptions, replay: Replay, work: Path) -> Iterator[MixedSteps]:
    with (
        tempfile.TemporaryDirectory(prefix="trials-", dir=work) as folder,
        MixedSteps(replay.bundle, ranges, options, Path(folder)) as steps,
    ):
        yield steps


class _Search:
    def __init__(self, steps: MixedSteps, replay: Replay, on_progress: Callable[[Progress], None]) -> None:
        self._steps, self._replay, self._on_progress = steps, replay, on_progress
        groups: dict[str, list[str]] = {}
        for layer in steps.all_layers():
            groups.setdefault(group_of(layer.weight), []).append(layer.weight)
        self._groups = {group: tuple(weights) for group, weights in groups.items()}
        graph = onnx.load(steps.bundle.graph_path(replay.probed_graph), load_external_data=False)
        self._counts = multiply_adds(graph, steps.bundle.manifest.ranges)
        self._reached: dict[frozenset[str], Trial] = {}
        self._done = 0

    def run(self, options: QuantizeOptions, target_db: float) -> SearchResult:
        """Ranks, predicts, confirms."""
        first = tuple(weight for weights in self._groups.values() for weight in weights if options.keeps(weight))
        table = ranked([self._damage(group) for group in self._groups])
        started = self._try(first)
        count = predicted(table, _loop_noise(table, started), target_db)
        self._confirm(table, count, target_db)
        trials = tuple(self._reached.values())
        good = [trial for trial in trials if trial.psnr_db >= target_db]
        if not good:
            best = max(trials, key=lambda trial: trial.psnr_db)
            raise InputError(
                f"--target-psnr {target_db:g}: out of reach; the most was {best.psnr_db:.1f} dB, with {best.share:.0%} "
                "of the multiply-adds in eight bits; lower it, or stay with the bundle as it is"
            )
        found = min(good, key=lambda trial: (len(trial.kept), -trial.psnr_db))
        return SearchResult(found.kept, found.psnr_db, table, trials)

    def _confirm(self, table: Sequence[GroupDamage], count: int, target_db: float) -> None:
        """Runs whole loops until it is known how many of the worst groups must be kept, near `count` first."""
        too_few, enough, stride = -1, len(table), 1  # with all of them kept there would be no eight bits
        while enough - too_few > 1:
            trial = self._try(tuple(weight for group in table[:count] for weight in group.weights))
            if trial.psnr_db >= target_db:
                enough, count = count, max(too_few + 1, count - stride)
            else:
                too_few, count = count, min(enough - 1, count + stride)
            stride *= 2

    def _damage(self, group: str) -> GroupDamage:
        weights = self._groups[group]
        others = [weight for name, of in self._groups.items() if name != group for weight in of]
        self._steps.write(self._replay.probed_graph, others)
        noises = self._replay.step_noise(self._steps.folder)
        self._count()
        share = 1 - share_in_eight_bits(self._counts, weights)
        return GroupDamage(group, weights, share, float(np.mean(noises)), max(noises))

    def _try(self, kept: tuple[str, ...]) -> Trial:
        """What whole loops reach with these weights kept."""
        key = frozenset(kept)
        if key not in self._reached:
            reached_db = _psnr_db(self._steps, self._replay, key)
            self._reached[key] = Trial(tuple(sorted(kept)), share_in_eight_bits(self._counts, key), reached_db)
            self._count()
        return self._reached[key]

    def _count(self) -> None:
        expected = len(self._groups) + _USUAL_TRIALS
        self._done += 1
        self._on_progress(Progress(_STAGE, self._done, max(self._done, expected)))


def ranked(damages: Sequence[GroupDamage]) -> tuple[GroupDamage, ...]:
    """The groups in the order in which to keep them: few layers that do much come before many that do as much."""
    return tuple(sorted(damages, key=lambda damage: -damage.noise / len(damage.weights)))


def predicted(table: Sequence[GroupDamage], loop_noise: float, target_db: float) -> int:
    """How many groups, from the first of the table on, to keep to reach the target; at most all but one.

    Args:
        loop_noise: what whole loops make of a unit of single steps' noise, over the faces' peak power.
    """
    allowed = 10 ** (-target_db / 10)
    left = sum(damage.noise for damage in table)
    for count, damage in enumerate(table[:-1]):
        if left * loop_noise <= allowed:
            return count
        left -= damage.noise
    return len(table) - 1


def _loop_noise(table: Sequence[GroupDamage], trial: Trial) -> float:
    kept = set(trial.kept)
    left = sum(damage.noise for damage in table if not kept.issuperset(damage.weights))
    return 10 ** (-trial.psnr_db / 10) / left if left else 0.0


def _psnr_db(steps: MixedSteps, replay: Replay, kept: Collection[str]) -> float:
    for graph in replay.loop.graphs:
        steps.write(graph, kept)
    return replay.psnr_db(steps.folder)
