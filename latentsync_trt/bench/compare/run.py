"""The order of a comparison: A dubs the clip, then B does, then both results are measured."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from latentsync_trt.bench.compare.clip import ClipResults, check_speech, measure
from latentsync_trt.bench.files import plain
from latentsync_trt.bench.machine import bundle_facts, environment
from latentsync_trt.bench.material import Clip
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.privacy import without_paths
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.providers.select import Selection, select_provider
from latentsync_trt.sync.api import LipSync
from latentsync_trt.sync.inpaint import resolution_of
from latentsync_trt.temporary import temporary_folder
from latentsync_trt.types import ProgressCallback

KIND = "latentsync-trt compare"
FORMAT = 3

LEAST_SIDE_PX = 256
"""Faces are compared at this resolution, or at the networks' where that is higher."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two that are compared; of a finished video only the name is known. `size_bytes`: of all its files."""

    name: str
    precision: str | None = None
    resolution_px: int | None = None
    size_bytes: int | None = None
    sha256: str | None = None

    @property
    def title(self) -> str:
        """Name and precision."""
        return self.name if self.precision is None else f"{self.name} ({self.precision})"


@dataclass(frozen=True, slots=True)
class Comparison:
    """B against A."""

    environment: Mapping[str, str]
    a: Side
    b: Side
    settings: str
    clip: ClipResults
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """All numbers, rounded to six digits; null for what was not measured, and for the PSNR of equal pictures."""
        content: dict[str, Any] = plain({"kind": KIND, "format": FORMAT, **asdict(self)})
        return content


@dataclass(frozen=True, slots=True)
class Plan:
    """How bundles are compared, where the report goes, and who follows the progress.

    `report`: picture and video are written beside it. `sync`: how the clip is dubbed; always lossless. `say`: takes a
    sentence; `on_progress`: called after every frame. `command`: the command line, for the report.
    """

    report: Path
    provider: str = "auto"
    sync: SyncOptions = SyncOptions()
    runtime: RuntimeOptions = RuntimeOptions()
    say: Callable[[str], None] = lambda _: None
    on_progress: ProgressCallback | None = None
    command: Sequence[str] = ()


def compare_bundles(a: Bundle, b: Bundle, clip: Clip, plan: Plan) -> Comparison:
    """Dubs the clip with both bundles and compares the results.

    Raises:
        InputError: the clip cannot be used. ProviderUnavailable: a named provider does not load. Else as `LipSync.sync`
        and `measure`.
    """
    check_speech(clip.audio)
    names = a.manifest.name, b.manifest.name
    if names[0] == names[1]:
        names = a.folder.resolve().name, b.folder.resolve().name
    sides_px = [resolution_of(bundle.manifest, plan.sync, plan.runtime) for bundle in (a, b)]
    side_px = max(LEAST_SIDE_PX, *sides_px)
    with temporary_folder(plan.report.parent, plan.say) as folder:
        videos = folder / "a.mkv", folder / "b.mkv"
        (on_a, first), (on_b, second) = (_dub(*one, clip, plan) for one in zip((a, b), videos, strict=True))
        found = measure(videos, clip, plan.report, side_px, extend=plan.sync.extend, on_progress=plan.on_progress)
    notes = *_differences(on_a.name, on_b.name, *sides_px), *dict.fromkeys((*first, *second))
    facts = environment(plan.command, (on_a, on_b))
    a_side, b_side = map(_side, (a, b), names, sides_px)
    return Comparison(facts, a_side, b_side, _settings(plan.sync), found, notes)


def compare_videos(a: Path, b: Path, clip: Clip, plan: Plan) -> Comparison:
    """Compares two finished results of one clip, without any network but the face detector's.

    Raises:
        InputError: the clip cannot be used. Else as `measure`.
    """
    check_speech(clip.audio)
    found = measure((a, b), clip, plan.report, LEAST_SIDE_PX, on_progress=plan.on_progress)
    notes = ("finished videos: what their encoders lost is part of the difference",)
    return Comparison(environment(plan.command, ()), Side(a.name), Side(b.name), "finished videos", found, notes)


def _dub(bundle: Bundle, video: Path, clip: Clip, plan: Plan) -> tuple[Selection, tuple[str, ...]]:
    """Writes the clip as `bundle` paints it, lossless; what it ran on, and notices."""
    plan.say(f"{bundle.manifest.name} from {bundle.folder}")
    selection = select_provider(plan.provider, plan.runtime.one_device)
    networks = Networks(bundle, selection, plan.runtime, may_fall_back=plan.provider == "auto", on_notice=plan.say)
    with LipSync(networks) as lip_sync:
        options = replace(plan.sync, codec="ffv1")
        report = lip_sync.sync(clip.video, clip.audio, video, options, on_progress=plan.on_progress)
        return networks.selection, tuple(map(without_paths, report.notices))


def _side(bundle: Bundle, name: str, resolution_px: int) -> Side:
    facts = bundle_facts(bundle.manifest)
    size_bytes = sum(entry.bytes for entry in bundle.manifest.files.values())
    return Side(name, facts.precision, resolution_px, size_bytes, facts.sha256)


def _settings(sync: SyncOptions) -> str:
    chosen = {**asdict(sync.sampling), "guidance": sync.guidance, "guidance_interval": sync.guidance_interval}
    return ", ".join(f"{name} {value}" for name, value in {**chosen, "seed": sync.seed}.items() if value is not None)


def _differences(on_a: str, on_b: str, a_px: int, b_px: int) -> Iterator[str]:
    """What else the two differ by, which the pictures show, too."""
    if on_a != on_b:
        yield f"A ran on {on_a}, B on {on_b}: part of the difference is the providers'"
    if a_px != b_px:
        yield (
            f"A works at {a_px} px, B at {b_px} px, so they start from different noise: look at the "
            "lips' numbers and at the video rather than at PSNR"
        )
