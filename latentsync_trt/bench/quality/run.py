"""The order of a comparison: A dubs every clip, then B does, then both results are looked at. No arithmetic."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from latentsync_trt.bench.machine import bundle_facts, environment, without_paths
from latentsync_trt.bench.quality.faces import FaceStore
from latentsync_trt.bench.quality.layers import layer_noise
from latentsync_trt.bench.quality.lips import LEAST_MOVED
from latentsync_trt.bench.quality.look import Pair, look_at
from latentsync_trt.bench.quality.results import ClipQuality, Comparison, LayerNoise, Side
from latentsync_trt.bench.quality.steps import replayed, step_noise
from latentsync_trt.bench.quality.subjects import Subject, check
from latentsync_trt.bench.quality.taps import OnFaces, StepRecord, TappedNetworks
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.media.writer import TEMPORARY_PREFIX
from latentsync_trt.runtime.cache.engine_cache import Notice
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.sync.api import LipSync
from latentsync_trt.types import Float32Array, Progress, ProgressCallback

VIDEO_FACE_PX = 256
"""Of faces cut out of finished videos, whose network is not known."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How bundles are compared, and where the report goes, beside which pictures and videos are put.

    `sync`: how clips are dubbed; always lossless. `layers`: whether to look into the networks, too.
    """

    report: Path
    provider: str = "auto"
    sync: SyncOptions = SyncOptions()
    runtime: RuntimeOptions = RuntimeOptions()
    layers: bool = True


@dataclass(frozen=True, slots=True)
class Audience:
    """Who is told: `say` in a sentence, `on_progress` after every frame; `command`: the command line, to be noted."""

    say: Notice
    on_progress: ProgressCallback | None = None
    command: Sequence[str] = ()

    def during(self, what: str) -> ProgressCallback | None:
        """Progress of a part, whose name goes before the stage's."""
        tell = self.on_progress
        if tell is None:
            return None
        return lambda progress: tell(replace(progress, stage=f"{what}: {progress.stage}"))


@dataclass(frozen=True, slots=True, eq=False)
class _Dubbed:
    """What one bundle made: a video for each clip, the first window's steps and the same steps by themselves."""

    videos: tuple[Path, ...]
    record: StepRecord
    alone: list[Float32Array | None]
    selection: Selection
    notices: tuple[str, ...]


def compare_bundles(a: Bundle, b: Bundle, subjects: Sequence[Subject], plan: Plan, audience: Audience) -> Comparison:
    """Dubs every clip with both bundles and compares what comes out.

    Raises:
        InputError: the bundles' faces or windows differ in size, or a clip cannot be used.
        ProviderUnavailable: a named provider does not load. Else as `LipSync.sync` and `look_at`.
    """
    _check_pair(a, b)
    for subject in subjects:
        check(subject)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=plan.report.parent) as name:
        return _Comparer(a, b, subjects, plan, audience, Path(name)).compare()


def compare_videos(a: Path, b: Path, subject: Subject, report: Path, audience: Audience) -> Comparison:
    """Compares two finished results of one clip, without any network but FaceMesh.

    Raises:
        InputError: the clip cannot be used, or pictures differ in size. Else as `look_at`.
    """
    check(subject)
    pair = Pair(a, b, (a.stem, b.stem), VIDEO_FACE_PX)
    clip = look_at(pair, subject, report, on_progress=audience.during("look"))
    notes = (
        *_still_lips([clip]),
        f"faces are cut out of the videos at {VIDEO_FACE_PX} px: what their encoders lost counts, too",
        "no bundles, so steps and layers are not measured",
    )
    return Comparison(
        environment(audience.command, ()), Side(a.name), Side(b.name), "finished videos", (clip,), notes=notes
    )


class _Comparer:
    """One comparison on its way; `folder` takes what it needs meanwhile."""

    def __init__(
        self, a: Bundle, b: Bundle, subjects: Sequence[Subject], plan: Plan, audience: Audience, folder: Path
    ) -> None:
        self._a, self._b, self._subjects, self._plan, self._audience = a, b, subjects, plan, audience
        self._folder = folder
        self._sync = replace(plan.sync, lossless=True)
        resolution_px = a.manifest.resolution_px
        self._stores = [FaceStore(folder / f"faces-{number}", resolution_px) for number in range(len(subjects))]

    def compare(self) -> Comparison:
        ours = self._dub("A", self._a, [store.keep for store in self._stores])
        theirs = self._dub("B", self._b, [store.compare for store in self._stores], ours.record)
        names = _names(self._a, self._b)
        clips = [
            look_at(
                Pair(ours.videos[number], theirs.videos[number], names, self._a.manifest.resolution_px),
                subject,
                self._beside(number),
                self._stores[number].result(),
                extend=self._sync.extend,
                on_progress=self._audience.during("look"),
            )
            for number, subject in enumerate(self._subjects)
        ]
        layers, layer_notes = self._layers(ours)
        return Comparison(
            environment(self._audience.command, (ours.selection, theirs.selection)),
            _side(self._a, names[0]),
            _side(self._b, names[1]),
            _in_words(self._sync),
            tuple(clips),
            step_noise(ours.record, theirs.record, ours.alone, theirs.alone),
            layers,
            (
                *_provider_note(ours, theirs),
                *_still_lips(clips),
                *dict.fromkeys((*ours.notices, *theirs.notices)),
                *layer_notes,
            ),
        )

    def _dub(self, letter: str, bundle: Bundle, takes: Sequence[OnFaces], record: StepRecord | None = None) -> _Dubbed:
        """All clips with one bundle; `takes` get their faces. `record`: whose steps to take alone, its own if None."""
        plan, audience = self._plan, self._audience
        audience.say(f"{letter}: {bundle.manifest.name}")
        networks = TappedNetworks(bundle, plan.provider, plan.runtime, audience.say, takes[0])
        videos, notices = list[Path](), list[str]()
        with LipSync(networks) as lip_sync:
            for number, (subject, take) in enumerate(zip(self._subjects, takes, strict=True)):
                networks.on_faces = take
                videos.append(self._folder / f"{letter}-{number}.mkv")
                report = lip_sync.sync(
                    subject.video, subject.audio, videos[-1], self._sync, on_progress=audience.during(letter)
                )
                notices += map(without_paths, report.notices)
            alone = replayed(networks.denoiser(), record or networks.record)
            return _Dubbed(tuple(videos), networks.record, alone, networks.selection, tuple(notices))

    def _beside(self, number: int) -> Path:
        """What the files of a clip are named after: the report, with a number where there are several clips."""
        report = self._plan.report
        return report if len(self._subjects) == 1 else report.with_stem(f"{report.stem}-{number + 1}")

    def _layers(self, ours: _Dubbed) -> tuple[tuple[LayerNoise, ...], tuple[str, ...]]:
        if not self._plan.layers:
            return (), ("layers were left out",)
        if self._audience.on_progress is not None:
            self._audience.on_progress(Progress("layers", 0, None))
        try:
            return layer_noise(self._a, self._b, ours.record, ours.selection), ()
        except LatentSyncError as error:  # all else was measured, and took long
            return (), (f"layers not measured: {without_paths(str(error))}",)


def _check_pair(a: Bundle, b: Bundle) -> None:
    ours, theirs = a.manifest, b.manifest
    if (ours.resolution_px, ours.frames) != (theirs.resolution_px, theirs.frames):
        raise InputError(
            f"{ours.name} makes windows of {ours.frames} faces of {ours.resolution_px} px, {theirs.name} of "
            f"{theirs.frames} faces of {theirs.resolution_px} px: give two bundles of one resolution, or two finished "
            "videos"
        )


def _names(a: Bundle, b: Bundle) -> tuple[str, str]:
    """Of the manifests; of the folders where those are the same."""
    if a.manifest.name != b.manifest.name:
        return a.manifest.name, b.manifest.name
    return a.folder.resolve().name, b.folder.resolve().name


def _side(bundle: Bundle, name: str) -> Side:
    facts = bundle_facts(bundle.manifest)
    size_bytes = sum(entry.bytes for entry in bundle.manifest.files.values())
    return Side(name, facts.precision, facts.resolution_px, size_bytes, facts.sha256)


def _in_words(sync: SyncOptions) -> str:
    sampling = sync.sampling
    if sampling.full_steps is not None:
        full = f"steps {', '.join(map(str, sampling.full_steps))} full"
    else:
        full = "all full" if sampling.cache_interval == 1 else f"one in {sampling.cache_interval} full"
    interval = "" if sync.guidance_interval is None else " from {:g} to {:g}".format(*sync.guidance_interval)
    return f"{sampling.steps} {sampling.solver} steps, {full}, guidance {sync.guidance:g}{interval}, seed {sync.seed}"


def _still_lips(clips: Iterable[ClipQuality]) -> Iterator[str]:
    for clip in clips:
        moved = clip.lips.moved_a
        if moved < LEAST_MOVED:
            yield f"{clip.name}: A's lips hardly move ({moved:.4f}), so that how lips follow the speech says little"


def _provider_note(ours: _Dubbed, theirs: _Dubbed) -> tuple[str, ...]:
    if ours.selection.name == theirs.selection.name:
        return ()
    return (f"A ran on {ours.selection.name}, B on {theirs.selection.name}: what the providers differ by counts, too",)
