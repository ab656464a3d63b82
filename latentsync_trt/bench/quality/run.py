"""The order of a comparison: A dubs every clip, then B does, then both results are measured."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from latentsync_trt.bench.machine import bundle_facts, environment, without_paths
from latentsync_trt.bench.quality.clip import Pair, Subject, measure
from latentsync_trt.bench.quality.results import ClipQuality, Comparison, Side
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.media.writer import TEMPORARY_PREFIX
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.providers.select import Selection, select_provider
from latentsync_trt.sync.api import LipSync
from latentsync_trt.types import ProgressCallback

LEAST_SIDE_PX = 256
"""Faces are compared at this resolution, or at the networks' where that is higher."""

LEAST_MOVED = 0.01
"""Lips that move less are still, as far as FaceMesh can tell: those that touch read 0.02 to 0.041."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How bundles are compared, where the report goes, and who follows the progress.

    `report`: pictures and videos are written beside it. `sync`: how clips are dubbed; always lossless. `say`: takes a
    sentence; `on_progress`: called after every frame. `command`: the command line, for the report.
    """

    report: Path
    provider: str = "auto"
    sync: SyncOptions = SyncOptions()
    runtime: RuntimeOptions = RuntimeOptions()
    say: Callable[[str], None] = lambda _: None
    on_progress: ProgressCallback | None = None
    command: Sequence[str] = ()

    def progress_of(self, part: str) -> ProgressCallback | None:
        """Progress of a part, whose name precedes the stage's."""
        report = self.on_progress
        if report is None:
            return None
        return lambda progress: report(replace(progress, stage=f"{part}: {progress.stage}"))

    def report_of(self, number: int, clips: int) -> Path:
        """What a clip's files are named after: the report, with a number where there are several clips."""
        return self.report if clips == 1 else self.report.with_stem(f"{self.report.stem}-{number + 1}")


def compare_bundles(a: Bundle, b: Bundle, subjects: Sequence[Subject], plan: Plan) -> Comparison:
    """Dubs every clip with both bundles and compares what comes out.

    Raises:
        InputError: a clip cannot be used. ProviderUnavailable: a named provider does not load. Else as `LipSync.sync`
        and `measure`.
    """
    for subject in subjects:
        subject.check()
    names = _names(a, b)
    side_px = max(LEAST_SIDE_PX, a.manifest.resolution_px, b.manifest.resolution_px)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=plan.report.parent) as folder:
        ours, theirs = (_dub(letter, side, subjects, plan, Path(folder)) for letter, side in (("A", a), ("B", b)))
        clips = tuple(
            measure(
                Pair(ours.videos[number], theirs.videos[number], names, side_px),
                subject,
                plan.report_of(number, len(subjects)),
                extend=plan.sync.extend,
                on_progress=plan.progress_of("measure"),
            )
            for number, subject in enumerate(subjects)
        )
    selections = ours.selection, theirs.selection
    notes = (
        *_differences(a, b, selections),
        *_still_lips(clips),
        *dict.fromkeys((*ours.notices, *theirs.notices)),
    )
    facts = environment(plan.command, selections)
    return Comparison(facts, _side(a, names[0]), _side(b, names[1]), _settings(plan.sync), clips, notes)


def compare_videos(a: Path, b: Path, subject: Subject, plan: Plan) -> Comparison:
    """Compares two finished results of one clip, without any network but the face detector's.

    Raises:
        InputError: the clip cannot be used. Else as `measure`.
    """
    subject.check()
    pair = Pair(a, b, (a.stem, b.stem), LEAST_SIDE_PX)
    clips = (measure(pair, subject, plan.report, on_progress=plan.progress_of("measure")),)
    notes = (*_still_lips(clips), "finished videos: what their encoders lost is part of the difference")
    return Comparison(environment(plan.command, ()), Side(a.name), Side(b.name), "finished videos", clips, notes)


@dataclass(frozen=True, slots=True)
class _Dubbed:
    """What one bundle made: a lossless video for each clip."""

    videos: tuple[Path, ...]
    selection: Selection
    notices: tuple[str, ...]


def _dub(letter: str, bundle: Bundle, subjects: Sequence[Subject], plan: Plan, folder: Path) -> _Dubbed:
    plan.say(f"{letter}: {bundle.manifest.name}")
    sync = replace(plan.sync, lossless=True)
    selection = select_provider(plan.provider, plan.runtime.device)
    networks = Networks(bundle, selection, plan.runtime, may_pass_over=plan.provider == "auto", on_notice=plan.say)
    videos, notices = list[Path](), list[str]()
    with LipSync(networks) as lip_sync:
        for number, subject in enumerate(subjects):
            videos.append(folder / f"{letter}-{number}.mkv")
            report = lip_sync.sync(subject.video, subject.audio, videos[-1], sync, on_progress=plan.progress_of(letter))
            notices += map(without_paths, report.notices)
        return _Dubbed(tuple(videos), networks.selection, tuple(notices))


def _names(a: Bundle, b: Bundle) -> tuple[str, str]:
    """Of the manifests; of the folders where those are the same."""
    if a.manifest.name != b.manifest.name:
        return a.manifest.name, b.manifest.name
    return a.folder.resolve().name, b.folder.resolve().name


def _side(bundle: Bundle, name: str) -> Side:
    facts = bundle_facts(bundle.manifest)
    size_bytes = sum(entry.bytes for entry in bundle.manifest.files.values())
    return Side(name, facts.precision, facts.resolution_px, size_bytes, facts.sha256)


def _settings(sync: SyncOptions) -> str:
    sampling = sync.sampling
    if sampling.full_steps is not None:
        full = f"steps {', '.join(map(str, sampling.full_steps))} full"
    else:
        full = "all full" if sampling.cache_interval == 1 else f"one in {sampling.cache_interval} full"
    interval = "" if sync.guidance_interval is None else " from {:g} to {:g}".format(*sync.guidance_interval)
    return f"{sampling.steps} {sampling.solver} steps, {full}, guidance {sync.guidance:g}{interval}, seed {sync.seed}"


def _differences(a: Bundle, b: Bundle, selections: Sequence[Selection]) -> Iterator[str]:
    """What else the two differ by, which the pictures show, too."""
    ran_on = [selection.name for selection in selections]
    if len(set(ran_on)) > 1:
        yield f"A ran on {ran_on[0]}, B on {ran_on[1]}: part of the difference is the providers'"
    sides_px = a.manifest.resolution_px, b.manifest.resolution_px
    if len(set(sides_px)) > 1:
        yield (
            f"A works at {sides_px[0]} px, B at {sides_px[1]} px, so they start from different noise: look at the "
            "lips' numbers and at the video rather than at PSNR"
        )


def _still_lips(clips: Sequence[ClipQuality]) -> Iterator[str]:
    for clip in clips:
        if clip.lips.moved_a < LEAST_MOVED:
            moved = f"{clip.lips.moved_a:.4f}"
            yield f"{clip.name}: A's lips hardly move ({moved}), so how lips follow the speech says little"
