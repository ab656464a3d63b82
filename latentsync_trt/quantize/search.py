"""Mixed precision search: the fewest layers to keep so that an 8-bit bundle stays close to its parent.

Sensitivity: each group of layers alone runs in 8 bits, and the error of single steps ranks the groups. Whole loops
would rank them alike but take twenty times as long. The error powers of groups add up, so one whole loop calibrates a
prediction of how many of the worst groups to keep; whole loops then confirm it by bisection.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from latentsync_trt.errors import InputError
from latentsync_trt.quantize.layers import eight_bit_share, multiply_adds
from latentsync_trt.quantize.replay import Replay, decibel
from latentsync_trt.types import Progress, ProgressCallback

_USUAL_TRIALS = 4


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The effect of the layers of one kind, `group`, when only they run in 8 bits.

    `share`: of the full step's multiply-adds, 0 to 1. `noise`: power of a full step's error relative to the change
    that the step makes.
    """

    group: str
    layers: tuple[str, ...]
    share: float
    noise: float

    @property
    def step_db(self) -> float:
        """Signal-to-noise ratio of a full step's change."""
        return decibel(self.noise)


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of whole loops: names of the layers `kept`, `share` of multiply-adds in 8 bits, and `psnr_db`."""

    kept: tuple[str, ...]
    share: float
    psnr_db: float


@dataclass(frozen=True, slots=True)
class SearchResult:
    """`best`: the trial that reaches the target with the fewest layers kept. `table`: the groups, in order of keeping.
    `trials`: all whole loops, in order of running."""

    best: Trial
    table: tuple[Sensitivity, ...]
    trials: tuple[Trial, ...]


def group_of(layer: str) -> str:
    """The kind of a layer, the last two parts of its name: "unet.mid_block.resnets.0.conv1.weight" → "resnets.conv1".

    Layers of one kind have similar inputs, wherever they are in the network.
    """
    parts = [part for part in layer.split(".") if not part.isdigit() and part not in ("unet", "weight")]
    return ".".join(parts[-2:])


def search(replay: Replay, target_db: float, on_progress: ProgressCallback) -> SearchResult:
    """Finds the fewest layers to keep so that the PSNR of faces after whole loops reaches `target_db`.

    Raises:
        InputError: the target cannot be reached; the message says what was.
    """
    counts = multiply_adds(replay.steps.bundle, replay.probed_graph)
    table = _sensitivities(replay, counts, on_progress)
    found: dict[frozenset[str], Trial] = {}

    def attempt(kept: Collection[str]) -> Trial:
        key = frozenset(kept)
        if key not in found:
            found[key] = Trial(tuple(sorted(key)), eight_bit_share(counts, key), replay.psnr_db(key))
            total = max(_USUAL_TRIALS, len(found))
            on_progress(Progress("search", len(table) + len(found), len(table) + total))
        return found[key]

    count = predicted(table, _loop_noise(table, attempt(replay.steps.kept())), target_db)
    too_few, enough, stride = -1, len(table), 1  # keeping all would leave nothing in 8 bits
    while enough - too_few > 1:
        if attempt([layer for group in table[:count] for layer in group.layers]).psnr_db >= target_db:
            enough, count = count, max(too_few + 1, count - stride)
        else:
            too_few, count = count, min(enough - 1, count + stride)
        stride *= 2
    trials = tuple(found.values())
    good = [trial for trial in trials if trial.psnr_db >= target_db]
    if good:
        return SearchResult(min(good, key=lambda trial: (len(trial.kept), -trial.psnr_db)), table, trials)
    best = max(trials, key=lambda trial: trial.psnr_db)
    raise InputError(
        f"--target-psnr {target_db:g}: out of reach, {best.psnr_db:.1f} dB was reached with {best.share:.0%} of the "
        "multiply-adds in 8 bits; lower the target or use the bundle as it is",
        usage=False,
    )


def _sensitivities(replay: Replay, counts: Mapping[str, int], on_progress: ProgressCallback) -> tuple[Sensitivity, ...]:
    groups: dict[str, list[str]] = {}
    for layer in replay.steps.layers:
        groups.setdefault(group_of(layer), []).append(layer)
    table: list[Sensitivity] = []
    for group, layers in groups.items():
        noise = replay.step_noise(set(replay.steps.layers) - set(layers))
        table.append(Sensitivity(group, tuple(layers), 1 - eight_bit_share(counts, layers), noise))
        on_progress(Progress("search", len(table), len(groups) + _USUAL_TRIALS))
    return ranked(table)


def ranked(table: Sequence[Sensitivity]) -> tuple[Sensitivity, ...]:
    """The groups in order of keeping: largest error per layer first."""
    return tuple(sorted(table, key=lambda group: -group.noise / len(group.layers)))


def predicted(table: Sequence[Sensitivity], loop_noise: float, target_db: float) -> int:
    """How many groups of the table to keep to reach the target, the first ones; at most all but one.

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
