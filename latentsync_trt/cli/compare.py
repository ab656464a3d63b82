"""`latentsync-trt compare`: what changes where one bundle takes the place of another, in pictures and on the lips."""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from latentsync_trt.cli.options import build, options_from, provider_option
from latentsync_trt.config import RuntimeOptions, SyncOptions

if TYPE_CHECKING:
    from latentsync_trt.bench.quality.results import Comparison
    from latentsync_trt.bench.quality.run import Audience, Plan
    from latentsync_trt.bench.quality.subjects import Subject

_NOT_OF_SYNC = ("crf", "encoder", "lossless")
"""Results are always lossless: an encoder's loss would count as a bundle's."""

_NOT_OF_RUNTIME = ("build", "profile")

_SUFFIX = ".html"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class _Clips:
    """What was given to say which clips are compared."""

    videos: tuple[Path, ...]
    audios: tuple[Path, ...]
    mouths: tuple[Path, ...]

    def __post_init__(self) -> None:
        for flag, given in (("--audio", self.audios), ("--mouth", self.mouths)):
            if given and len(given) != max(len(self.videos), 1):
                raise click.UsageError(f"{flag} is given {len(given)} times, --clip {len(self.videos)} times")
        if self.mouths and not self.audios and not self.videos:
            raise click.UsageError("--mouth: the built-in sentence has its own; give it with --audio or --clip")

    @contextmanager
    def subjects(self) -> Iterator[list["Subject"]]:
        """The clips; the built-in ones are there as long as the context."""
        from latentsync_trt.bench.material import choose_clip
        from latentsync_trt.bench.quality.subjects import Subject, built_in, read_mouth

        known = tuple(read_mouth(path) for path in self.mouths)
        mouths = known or (None,) * max(len(self.videos), 1)
        with tempfile.TemporaryDirectory(prefix="latentsync-compare-") as folder:
            if self.videos:
                sounds = self.audios or self.videos
                yield [Subject(*three) for three in zip(self.videos, sounds, mouths, strict=True)]
            elif self.audios:
                clip = choose_clip(None, self.audios[0], Path(folder))
                yield [Subject(clip.video, clip.audio, mouths[0])]
            else:
                yield [built_in(choose_clip(None, None, Path(folder)).video)]


def _repeated(flag: str, about: str) -> Callable[[F], F]:
    """An option that names a file each time it is given; the command takes them all, in the plural."""
    return click.option(flag, f"{flag.lstrip('-')}s", multiple=True, type=click.Path(path_type=Path), help=about)


@click.command("compare")
@click.argument("a")
@click.argument("b")
@_repeated("--clip", "A video of a face to dub; several times for several.  [default: the built-in portrait]")
@_repeated(
    "--audio",
    "The speech, once for each clip.  [default: the clip's own sound; the built-in sentence without a clip]",
)
@_repeated(
    "--mouth", "What the mouth does in the speech, once for each clip: CSV of opening, shut, silent for each frame."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default="compare.html",
    show_default=True,
    help="The report; picture and video of each clip go beside it.",
)
@click.option("--layers/--no-layers", default=True, show_default=True, help="Look into the networks, too.")
@provider_option
@options_from(SyncOptions, leave_out=_NOT_OF_SYNC)
@options_from(RuntimeOptions, leave_out=_NOT_OF_RUNTIME)
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object with all numbers, or the error, to stdout."
)
def command(
    a: str,
    b: str,
    clips: tuple[Path, ...],
    audios: tuple[Path, ...],
    mouths: tuple[Path, ...],
    out: Path,
    layers: bool,
    provider: str,
    quiet: bool,
    as_json: bool,
    **fields: Any,
) -> None:
    """Compare bundle B with bundle A, or a finished video B with A: what each makes of the same clips."""
    from latentsync_trt.bench.quality.report import write_report
    from latentsync_trt.bench.quality.run import Audience, Plan
    from latentsync_trt.cli.show import progress_bar, say

    report = _checked(out)
    plan = Plan(report, provider, build(SyncOptions, fields), build(RuntimeOptions, fields), layers)
    silent = quiet or as_json
    with _Clips(clips, audios, mouths).subjects() as subjects, progress_bar(hidden=silent) as on_progress:
        audience = Audience(_ignore if silent else say, on_progress, ["latentsync-trt", *sys.argv[1:]])
        found = _compare(a, b, subjects, plan, audience)
    write_report(found, report)
    if as_json:
        click.echo(json.dumps(found.to_json(), allow_nan=False, ensure_ascii=False))
    elif not quiet:
        _show(found, report)


def _compare(a: str, b: str, subjects: list["Subject"], plan: "Plan", audience: "Audience") -> "Comparison":
    from latentsync_trt.bench.quality.run import compare_bundles, compare_videos
    from latentsync_trt.bundle.find import find_bundle
    from latentsync_trt.bundle.manifest import Bundle

    if _is_video(a) != _is_video(b):
        raise click.UsageError(f"{a} and {b}: give two bundles or two videos")
    if not _is_video(a):
        ours, theirs = (Bundle.load(find_bundle(name)[0]) for name in (a, b))
        return compare_bundles(ours, theirs, subjects, plan, audience)
    if len(subjects) != 1:
        raise click.UsageError("two videos are compared on the one --clip that both were made of")
    return compare_videos(Path(a), Path(b), subjects[0], plan.report, audience)


def _is_video(name: str) -> bool:
    return Path(name).is_file()


def _checked(out: Path) -> Path:
    """The report's file; its folder is made. Raises `OutputError` where nothing can be written."""
    from latentsync_trt.errors import OutputError

    if out.suffix.lower() != _SUFFIX:
        raise click.UsageError(f"--out {out}: a name that ends in {_SUFFIX} is needed")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out.parent).close()  # permissions alone do not tell
    except OSError as error:
        raise OutputError(f"{out.parent}: cannot be written ({error.strerror})") from error
    return out


def _show(found: "Comparison", report: Path) -> None:
    from latentsync_trt.bench.quality.table import show_comparison

    show_comparison(found)
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    for clip in found.clips:
        click.echo(f"{report.parent / clip.video}: {clip.name} side by side")
    click.echo(f"{report}: all of it, with plots")


def _ignore(_: str) -> None:
    """Nobody watches."""
