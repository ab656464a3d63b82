"""The fidelity that each optimization costs: one table from the full float32 loop to the fastest preset.

    python -m scripts.train_demo export --precision fp32 …      # the same networks in both precisions
    python scripts/fidelity_ladder.py FP32_BUNDLE FP16_BUNDLE   # needs the dev extra; half an hour on two cores

Held-out sentences are dubbed once with every variant. The generated part of each face is compared with that of the
reference (float32, 20 DDIM steps, all full); the lips with the mouth that belongs to the sentence. Costs are in guided
full steps; an unguided step counts half, a cached one what it took here. Writes FILE.json and FILE.md after each line.
"""

import argparse
import json
import math
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import onnxruntime

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from latentsync_trt import LipSync, SyncOptions, __version__  # noqa: E402
from latentsync_trt.bundle.manifest import read_manifest  # noqa: E402
from latentsync_trt.diffusion import plan_for  # noqa: E402
from latentsync_trt.face.detector import MediaPipeDetector  # noqa: E402
from latentsync_trt.face.mask import mouth_mask  # noqa: E402
from latentsync_trt.measure.clips import mouth_gaps  # noqa: E402
from latentsync_trt.measure.pictures import likeness  # noqa: E402
from latentsync_trt.media.reader import read_frames  # noqa: E402
from latentsync_trt.types import Float32Array, SyncReport, UInt8Array  # noqa: E402
from scripts.plan_costs import full_step_equivalents  # noqa: E402
from scripts.train_demo.held_out import Case, aligned_faces, held_out_cases, lip_scores, write_inputs  # noqa: E402
from scripts.train_demo.scene import PortraitRenderer  # noqa: E402

OUT = ROOT / "benchmarks" / "fidelity-demo"
SENTENCES = 2
"""One of each held-out language."""

FULL = {"preset": "quality"}
PLANS: dict[str, dict[str, object]] = {
    "20 DDIM, all full (`quality`)": FULL,
    "every 2nd full": {"cache_interval": 2},
    "every 3rd full (`balanced`)": {"cache_interval": 3},
    "every 5th full": {"cache_interval": 5},
    "10 DDIM": {"steps": 10, "cache_interval": 1},
    "20 DPM++": {"solver": "dpmpp", "cache_interval": 1},
    "10 DPM++": {"solver": "dpmpp", "steps": 10, "cache_interval": 1},
    "8 DPM++": {"solver": "dpmpp", "steps": 8, "cache_interval": 1},
    "8 DPM++, every 2nd full": {"solver": "dpmpp", "steps": 8, "cache_interval": 2},
    "8 DPM++, steps 0, 3, 5, 7 full": {"solver": "dpmpp", "steps": 8, "cache_interval": (0, 3, 5, 7)},
    "8 DPM++, steps 0, 3, 7 full": {"solver": "dpmpp", "steps": 8, "cache_interval": (0, 3, 7)},
    "6 DPM++, steps 0, 3, 5 full": {"solver": "dpmpp", "steps": 6, "cache_interval": (0, 3, 5)},
    "5 DPM++": {"solver": "dpmpp", "steps": 5, "cache_interval": 1},
    "4 DPM++": {"solver": "dpmpp", "steps": 4, "cache_interval": 1},
    "4 DPM++, steps 0, 1, 3 full": {"solver": "dpmpp", "steps": 4, "cache_interval": (0, 1, 3)},
    "3 DPM++": {"solver": "dpmpp", "steps": 3, "cache_interval": 1},
    "2 DPM++": {"solver": "dpmpp", "steps": 2, "cache_interval": 1},
    "4 DDIM": {"steps": 4, "cache_interval": 1},
}
"""Tried in the lower precision; the reference is the first in float32."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A rung: a bundle's name in the table, and how it is run."""

    bundle: str
    plan: str
    options: SyncOptions

    @property
    def name(self) -> str:
        """In the table."""
        return f"{self.bundle}: {self.plan}"


@dataclass(frozen=True, slots=True)
class Rung:
    """A line of the table; see `SyncScore` for the lips' numbers, `wrong` is with another sentence's mouth.

    `psnr_db` is None where every pixel is equal. `amplitude`: how far the lips move, relative to the reference's: the
    ratio of the standard deviations of their gaps. `gaps`: the correlation of these with the reference's.
    """

    variant: str
    cost_full_steps: float
    psnr_db: float | None
    ssim: float
    amplitude: float
    gaps: float
    opening: float
    lag_frames: float
    wrong: float
    closures: float
    silence: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("fp32", type=Path, help="bundle of the reference")
    parser.add_argument("fp16", type=Path, nargs="?", help="bundle of all other lines; by default the reference's")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=BUNDLE", help="one more precision")
    parser.add_argument("--sentences", type=int, default=SENTENCES)
    parser.add_argument("--plans", type=int, nargs="*", default=range(len(PLANS)), help="their numbers, from 0")
    parser.add_argument("--provider", default="cpu")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE", help="without ending")
    arguments = parser.parse_args()
    bundles = {read_manifest(arguments.fp32).precision: arguments.fp32}
    bundles |= {"fp16": arguments.fp16} if arguments.fp16 else {}
    bundles |= dict(also.split("=", 1) for also in arguments.also)
    variants = list(ladder(tuple(bundles), arguments.plans))
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench({name: Path(path) for name, path in bundles.items()}, arguments.provider, Path(folder))
        for rungs in bench.climb(variants, held_out_cases(arguments.sentences)):
            rows = setting(arguments.fp32, arguments.provider, bench) | {"rungs": [asdict(rung) for rung in rungs]}
            arguments.out.with_suffix(".json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
            arguments.out.with_suffix(".md").write_text(table(rungs) + "\n", encoding="utf-8")
            print(rungs[-1], flush=True)
    print(table(rungs))


def ladder(bundles: tuple[str, ...], plans: Sequence[int]) -> Iterator[Variant]:
    """The reference, every plan in the second bundle, and the full loop of all further bundles."""
    reference, lower, *further = bundles if len(bundles) > 1 else 2 * bundles
    full = next(iter(PLANS))
    yield Variant(reference, full, _options(full))
    for plan in (list(PLANS)[number] for number in plans):
        yield Variant(lower, plan, _options(plan))
    for name in further:
        yield Variant(name, full, _options(full))


def _options(plan: str) -> SyncOptions:
    return SyncOptions(codec="ffv1", **PLANS[plan])  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Dubbed:
    """What a variant made of all cases: the generated parts of all faces, and the gaps of the lips, case by case."""

    faces: list[UInt8Array]
    gaps: list[Float32Array]


class Bench:
    """Dubs with each variant and compares; `cached_share` is what a cached step took of a full one, so far."""

    def __init__(self, bundles: dict[str, Path], provider: str, folder: Path) -> None:
        self.bundles, self.provider, self.folder = bundles, provider, folder
        self.side_px = read_manifest(next(iter(bundles.values()))).resolution_px
        self.cases: list[Case] = []
        self._renderer, self._detector = PortraitRenderer(), MediaPipeDetector()
        self._reports: list[SyncReport] = []

    @property
    def cached_share(self) -> float:
        """Measured; the share of the reference release's table, 0.12, where nothing cached was run."""
        mean_ms = {
            graph: [time.mean_ms for report in self._reports for time in report.engines if time.graph == graph]
            for graph in ("denoise_step", "denoise_step_cached")
        }
        full, cached = mean_ms.values()
        return float(np.median(cached) / np.median(full)) if cached else 0.12

    def climb(self, variants: list[Variant], cases: list[Case]) -> Iterator[list[Rung]]:
        """After each variant, the rungs so far; the first is the reference."""
        self.cases = cases
        inputs = [write_inputs(case, self._renderer, self.folder) for case in cases]
        first: Dubbed | None = None
        rungs = list[Rung]()
        for count, variant in enumerate(variants, 1):
            with LipSync.from_bundle(self.bundles[variant.bundle], self.provider) as lip_sync:
                outs = [self.folder / f"{case.number}-out.mkv" for case in cases]
                for clip, out in zip(inputs, outs, strict=True):
                    self._reports.append(lip_sync.sync(*clip, out, replace(variant.options, overwrite=True)))
            gaps = [mouth_gaps(_frames(out, case), self._detector) for case, out in zip(cases, outs, strict=True)]
            made = Dubbed(self._generated(inputs, outs), gaps)
            first = first or made
            rungs.append(self._rung(variant, made, first))
            costs = map(self._cost, variants[:count])  # what a cached step takes is known better after each variant
            yield [replace(rung, cost_full_steps=cost) for rung, cost in zip(rungs, costs, strict=True)]

    def _cost(self, variant: Variant) -> float:
        return round(full_step_equivalents(plan_for(variant.options), self.cached_share), 2)

    def _generated(self, inputs: list[tuple[Path, Path]], outs: list[Path]) -> list[UInt8Array]:
        """The generated part of every face, cut out where the source's face is; what lies beside it is gray."""
        kept = mouth_mask(self.side_px) >= 0.5
        rows, columns = (np.flatnonzero(~kept.all(axis=axis)) for axis in (1, 0))
        faces: list[UInt8Array] = []
        for case, (video, _), out in zip(self.cases, inputs, outs, strict=True):
            (made,) = aligned_faces(_frames(video, case), [_frames(out, case)], self.side_px, self._detector)
            made[:, kept] = 127
            faces += list(made[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1])
        return faces

    def _rung(self, variant: Variant, made: Dubbed, reference: Dubbed) -> Rung:
        alike = likeness(made.faces, reference.faces)
        numbers = [lip_scores(gaps, case) for gaps, case in zip(made.gaps, self.cases, strict=True)]
        scores = [score for score, _ in numbers]
        lips = list(zip(made.gaps, reference.gaps, strict=True))
        return Rung(
            variant=variant.name,
            cost_full_steps=self._cost(variant),
            psnr_db=None if alike.psnr_db is None else round(alike.psnr_db, 2),
            ssim=round(alike.ssim, 4),
            amplitude=_mean([float(np.std(gaps) / np.std(right)) for gaps, right in lips]),
            gaps=_mean([float(np.corrcoef(gaps, right)[0, 1]) for gaps, right in lips]),
            opening=_mean([score.opening for score in scores]),
            lag_frames=_mean([float(score.lag_frames) for score in scores]),
            wrong=_mean([wrong for _, wrong in numbers]),
            closures=_mean([score.closures for score in scores]),
            silence=_mean([score.silence for score in scores]),
        )


def setting(reference: Path, provider: str, bench: Bench) -> dict[str, object]:
    """What the numbers were measured with."""
    manifest = read_manifest(reference)
    return {
        "command": "python scripts/fidelity_ladder.py",
        "latentsync_trt": __version__,
        "onnxruntime": onnxruntime.__version__,
        "python": platform.python_version(),
        "provider": provider,
        "bundle": manifest.name,
        "resolution_px": manifest.resolution_px,
        "sentences": [{"text": case.text, "voice": case.voice, "frames": len(case)} for case in bench.cases],
        "cached_share": round(bench.cached_share, 3),
    }


def table(rungs: list[Rung]) -> str:
    """In Markdown."""
    lines = [
        "| | full steps | amplitude | gaps | PSNR | SSIM | opening | lag | wrong audio | m, b, p shut | silence shut |",
        "|---|" + "---:|" * 10,
    ]
    for rung in rungs:
        psnr = "equal" if rung.psnr_db is None else f"{rung.psnr_db:.1f} dB"
        lines.append(
            f"| {rung.variant} | {rung.cost_full_steps:.1f} | {rung.amplitude:.2f} | {rung.gaps:.3f} | {psnr} "
            f"| {rung.ssim:.3f} | {rung.opening:.2f} | {rung.lag_frames:+.1f} | {rung.wrong:.2f} "
            f"| {_percent(rung.closures)} | {_percent(rung.silence)} |"
        )
    return "\n".join(lines)


def _frames(path: Path, case: Case) -> Iterator[UInt8Array]:
    for frame, _ in zip(read_frames(path), range(len(case)), strict=False):
        yield frame.rgb


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{share:.0%}"


def _mean(values: list[float]) -> float:
    return round(float(np.nanmean(values)), 4)


if __name__ == "__main__":
    main()
