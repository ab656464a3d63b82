"""Mixed precision search: the fewest layers to keep so that an 8-bit bundle stays close to its parent.

Sensitivity: each group of layers alone is put into 8 bits, and the error of single steps ranks the groups as whole
loops would, at a twentieth of the time. Errors of groups add as powers, so one whole loop scales a prediction of how
many of the worst groups to keep; whole loops then confirm it by bisection.
"""

import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from latentsync_trt.errors import InputError
from latentsync_trt.quantize.layers import eight_bit_share, multiply_adds
from latentsync_trt.quantize.options import CalibrateOptions
from latentsync_trt.quantize.ranges import Ranges
from latentsync_trt.quantize.replay import Replay, decibel
from latentsync_trt.quantize.steps import QuantizedSteps
from latentsync_trt.types import Progress, ProgressCallback

_USUAL_TRIALS = 4


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What a group of layers does alone in 8 bits.

    `group`: the kind of layers. `layers`: their names. `share`: of the full step's multiply-adds, 0 to 1. `noise`:
    power of a full step's error relative to the change it makes, averaged over the probed steps; `worst_noise`: their
    maximum.
    """

    group: str
    layers: tuple[str, ...]
    share: float
    noise: float
    worst_noise: float

    @property
    def step_db(self) -> float:
        """Signal-to-noise ratio of a full step's change."""
        return decibel(1.0, self.noise)

    @property
    def worst_db(self) -> float:
        """The same at the worst of the probed steps."""
        return decibel(1.0, self.worst_noise)


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of whole loops: names of the layers `kept`, the `share` of multiply-adds in 8 bits, and `psnr_db`."""

    kept: tuple[str, ...]
    share: float
    psnr_db: float


@dataclass(frozen=True, slots=True)
class SearchResult:
    """`best`: the trial with the fewest layers kept that reaches the target. `table`: groups in the order in which they
    are kept. `trials`: all whole loops that were run, in their order."""

    best: Trial
    table: tuple[Sensitivity, ...]
    trials: tuple[Trial, ...]


def group_of(layer: str) -> str:
    """The kind of a layer, the last two parts of its name: "unet.mid_block.resnets.0.conv1.weight" → "resnets.conv1".

    Layers of one kind read the same sort of input, wherever in the network they are.
    """
    parts = [part for part in layer.split(".") if not part.isdigit() and part not in ("unet", "weight")]
    return ".".join(parts[-2:])


def measure(ranges: Ranges, options: CalibrateOptions, replay: Replay, work: Path) -> float:
    """PSNR in dB of faces after whole loops with the options' choice of layers, against the bundle itself.

    Args:
        work: a folder for temporary files of a few times the size of the bundle's weights.
    """
    with _quantized_steps(ranges, options, replay, work) as steps:
        return _psnr_db(steps, replay, steps.kept())


def search(
    ranges: Ranges, options: CalibrateOptions, replay: Replay, work: Path, on_progress: ProgressCallback
) -> SearchResult:
    """The fewest layers to keep so that faces after whole loops reach `options.target_psnr`; `work` as in `measure`.

    Raises:
        InputError: the target is out of reach; the message says what was reached.
    """
    if options.target_psnr is None:
        raise InputError("--target-psnr is needed for a mixed precision search")
    with _quantized_steps(ranges, options, replay, work) as steps:
        return _Search(steps, replay, on_progress).run(options.target_psnr)


@contextmanager
def _quantized_steps(ranges: Ranges, options: CalibrateOptions, replay: Replay, work: Path) -> Iterator[QuantizedSteps]:
    with (
        tempfile.TemporaryDirectory(prefix="trials-", dir=work) as folder,
        QuantizedSteps(replay.bundle, ranges, options, Path(folder)) as steps,
    ):
        yield steps


class _Search:
    def __init__(self, steps: QuantizedSteps, replay: Replay, on_progress: Callable[[Progress], None]) -> None:
        self._steps, self._replay, self._on_progress = steps, replay, on_progress
        self._groups: dict[str, list[str]] = {}
        for layer in steps.layers:
            self._groups.setdefault(group_of(layer), []).append(layer)
        self._counts = multiply_adds(steps.bundle, replay.probed_graph)
        self._trials: dict[frozenset[str], Trial] = {}
        self._done = 0

    def run(self, target_db: float) -> SearchResult:
        """Ranks, predicts, confirms."""
        table = ranked([self._sensitivity(group) for group in self._groups])
        first = self._try(self._steps.kept())
        self._confirm(table, predicted(table, _loop_noise(table, first), target_db), target_db)
        trials = tuple(self._trials.values())
        good = [trial for trial in trials if trial.psnr_db >= target_db]
        if not good:
            best = max(trials, key=lambda trial: trial.psnr_db)
            raise InputError(
                f"--target-psnr {target_db:g}: out of reach, {best.psnr_db:.1f} dB was reached with {best.share:.0%} "
                "of the multiply-adds in 8 bits; lower the target or use the bundle as it is"
            )
        return SearchResult(min(good, key=lambda trial: (len(trial.kept), -trial.psnr_db)), table, trials)

    def _confirm(self, table: Sequence[Sensitivity], count: int, target_db: float) -> None:
        """Bisects how many of the worst groups must be kept, starting near `count`."""
        too_few, enough, stride = -1, len(table), 1  # keeping all would leave nothing in 8 bits
        while enough - too_few > 1:
            trial = self._try([layer for group in table[:count] for layer in group.layers])
            if trial.psnr_db >= target_db:
                enough, count = count, max(too_few + 1, count - stride)
            else:
                too_few, count = count, min(enough - 1, count + stride)
            stride *= 2

    def _sensitivity(self, group: str) -> Sensitivity:
        layers = tuple(self._groups[group])
        self._steps.write(self._replay.probed_graph, set(self._steps.layers) - set(layers))
        noises = self._replay.step_noise(self._steps.folder)
        self._report()
        share = 1 - eight_bit_share(self._counts, layers)
        return Sensitivity(group, layers, share, float(np.mean(noises)), max(noises))

    def _try(self, kept: Collection[str]) -> Trial:
        key = frozenset(kept)
        if key not in self._trials:
            reached_db = _psnr_db(self._steps, self._replay, key)
            self._trials[key] = Trial(tuple(sorted(key)), eight_bit_share(self._counts, key), reached_db)
            self._report()
        return self._trials[key]

    def _report(self) -> None:
        self._done += 1
        self._on_progress(Progress("search", self._done, max(self._done, len(self._groups) + _USUAL_TRIALS)))


def ranked(table: Sequence[Sensitivity]) -> tuple[Sensitivity, ...]:
    """The groups in the order in which to keep them, by the error per layer."""
    return tuple(sorted(table, key=lambda group: -group.noise / len(group.layers)))


def predicted(table: Sequence[Sensitivity], loop_noise: float, target_db: float) -> int:
    """How many groups to keep, from the first of the table on, to reach the target; at most all but one.

    Args:
        loop_noise: power of the error of whole loops, relative to the peak's, per unit of the groups' noise.
    """
    allowed = 10 ** (-target_db / 10)
    left = sum(group.noise for group in table)
    for count, group in enumerate(table[:-1]):
        if left * loop_noise <= allowed:
            return count
        left -= group.noise
    return len(table) - 1


def _loop_noise(table: Sequence[Sensitivity], trial: Trial) -> float:
    left = sum(group.noise for group in table if not set(trial.kept).issuperset(group.layers))
    return 10 ** (-trial.psnr_db / 10) / left if left else 0.0


def _psnr_db(steps: QuantizedSteps, replay: Replay, kept: Collection[str]) -> float:
    for graph in replay.loop_graphs:
        steps.write(graph, kept)
    return replay.psnr_db(steps.folder)
