"""Compares two bundles that sync one clip, or two finished videos of it: numbers and a page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from latentsync_trt.bench.rows import bundle_facts, to_json
from latentsync_trt.bundle.manifest import Bundle, resolution_of
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.measure.compare import (
    COMPARISON_HEADS,
    ClipResults,
    compare_results,
    labeled,
)
from latentsync_trt.measure.page import write_page
from latentsync_trt.measure.syncnet import SyncNet
from latentsync_trt.media.demo_clip import SpokenClip
from latentsync_trt.media.encoders import CONTAINERS
from latentsync_trt.media.files import check_file
from latentsync_trt.option_fields import command_line
from latentsync_trt.paths import path_exists
from latentsync_trt.sync.api import LipSync
from latentsync_trt.types import ProgressCallback, SyncReport
from latentsync_trt.unexpected import without_paths

_MIN_FACE_PX = 256
"""Faces are compared at this resolution, or at the networks' where that is higher."""


@dataclass(frozen=True, slots=True)
class SideOptions:
    """How both sides run."""

    provider: str
    sync: SyncOptions
    runtime: RuntimeOptions


@dataclass(frozen=True, slots=True)
class Sides:
    """Two finished videos of one clip, and how they came about: A's first, then B's."""

    clip: SpokenClip
    videos: tuple[Path, Path]
    settings: str
    """The options of both, as text."""
    bundles: Sequence[Mapping[str, Any]] = ()
    """Facts of the bundles that made them; empty for videos from elsewhere."""
    reports: Sequence[SyncReport] = ()
    """Empty for videos from elsewhere."""

    @property
    def names(self) -> list[str]:
        if not self.bundles:
            return [video.name for video in self.videos]
        return [f"{bundle['name']} ({bundle['precision']})" for bundle in self.bundles]

    def lines(self) -> Iterator[tuple[str, ...]]:
        """Yields what the bundles are, as lines of a table below `COMPARISON_HEADS`."""
        if self.bundles:
            a, b = self.bundles
            yield "precision", a["precision"], b["precision"], ""
            yield "resolution", f"{a['resolution_px']} px", f"{b['resolution_px']} px", ""
            sizes = [f"{bundle['size_bytes'] / 1e6:.1f} MB" for bundle in self.bundles]
            yield "size", *sizes, f"{b['size_bytes'] / a['size_bytes']:.2f}×"

    def notes(self) -> Iterator[str]:
        """Yields what else the videos differ by, as the pictures show, too, and notices of both
        runs.
        """
        if not self.reports:
            yield "finished videos: what their encoders lost is part of the difference"
            return
        on_a, on_b = (report.provider for report in self.reports)
        if on_a != on_b:
            yield f"A ran on {on_a}, B on {on_b}: part of the difference is the providers'"
        a_px, b_px = (bundle["resolution_px"] for bundle in self.bundles)
        if a_px != b_px:
            yield (
                f"A works at {a_px} px, B at {b_px} px, so they start from different noise: look "
                "at the lips' numbers and at the video rather than at PSNR"
            )
        notices = [without_paths(text) for report in self.reports for text in report.notices]
        yield from dict.fromkeys(notices)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both videos, measured."""

    sides: Sides
    results: ClipResults
    facts: Mapping[str, str]
    """Facts of the machine, as `environment` returns them."""

    @property
    def lines(self) -> list[tuple[str, ...]]:
        """Lines of a table below `COMPARISON_HEADS`."""
        return [*self.sides.lines(), *self.results.lines()]

    def to_json(self) -> str:
        about = self.sides.bundles or [{"name": name} for name in self.sides.names]
        content = {
            "environment": self.facts,
            "a": about[0],
            "b": about[1],
            "settings": self.sides.settings,
            "clip": asdict(self.results),
            "notes": [*self.sides.notes()],
        }
        return to_json("compare", 7, content)


def are_finished_videos(a: str, b: str) -> bool:
    """Returns whether these are two finished videos; False for names of bundles.

    Raises:
        InputError: only one is a video, or cannot be read.
    """
    suffixes = {suffix for several in CONTAINERS.values() for suffix in several}
    paths = [Path(a), Path(b)]
    if not any(
        path.suffix.lower() in suffixes or (path_exists(path) and path.is_file()) for path in paths
    ):
        return False
    for path in paths:
        check_file(path)
    return True


def run_sides(
    bundles: Sequence[Bundle],
    clip: SpokenClip,
    folder: Path,
    options: SideOptions,
    on_progress: ProgressCallback,
) -> Sides:
    """Syncs the clip with both bundles, into `folder`, without loss. Raises as `LipSync.sync`."""
    runtime = replace(options.runtime, syncnet=None)
    lossless = replace(options.sync, codec="ffv1")
    videos = (folder / "a.mkv", folder / "b.mkv")
    reports = []
    for side, bundle, video in zip("AB", bundles, videos, strict=True):
        on_side_progress = labeled(on_progress, side)
        with LipSync.from_bundle(bundle.folder, options.provider, runtime) as lip_sync:
            report = lip_sync.sync(
                clip.video, clip.audio, video, lossless, on_progress=on_side_progress
            )
        reports.append(report)
    settings = " ".join(command_line(options.sync)) or "all options at their defaults"
    return Sides(clip, videos, settings, _facts_of(bundles, options), reports)


def _facts_of(bundles: Sequence[Bundle], options: SideOptions) -> list[dict[str, Any]]:
    """Returns facts of the bundles as they run; where both have one name, that of their folder."""
    facts = []
    for bundle in bundles:
        resolution_px = resolution_of(bundle.manifest, options.sync, options.runtime)
        facts.append(bundle_facts(bundle.manifest, resolution_px))
    if facts[0]["name"] == facts[1]["name"]:
        for side, bundle in zip(facts, bundles, strict=True):
            side["name"] = bundle.folder.resolve().name
    return facts


def write_comparison(
    sides: Sides,
    facts: Mapping[str, str],
    page: Path,
    network: SyncNet | None,
    on_progress: ProgressCallback,
) -> Comparison:
    """Measures both videos and writes the page, with a picture and a video beside it. Raises as
    `compare_results`.
    """
    face_px = max([_MIN_FACE_PX, *(bundle["resolution_px"] for bundle in sides.bundles)])
    results, figures = compare_results(
        sides.videos, sides.clip, page, face_px, network, on_progress
    )
    comparison = Comparison(sides, results, facts)
    named_facts = [(name.replace("_", " "), text) for name, text in facts.items()]
    write_page(
        page,
        "compare.html.j2",
        title=f"{sides.names[1]} against {sides.names[0]}",
        names=sides.names,
        heads=COMPARISON_HEADS,
        lines=comparison.lines,
        settings=sides.settings,
        clip=results,
        facts=named_facts,
        notes=[*sides.notes()],
        finished=not sides.bundles,
        **figures,
    )
    return comparison
