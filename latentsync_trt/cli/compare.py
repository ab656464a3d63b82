"""`latentsync-trt compare`: what changes where one bundle replaces another, in pictures and on the lips."""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from latentsync_trt.cli.options import build, options_from, provider_option
from latentsync_trt.config import RuntimeOptions, SyncOptions

if TYPE_CHECKING:
    from latentsync_trt.bench.quality.clip import Subject
    from latentsync_trt.bench.quality.results import Comparison
    from latentsync_trt.bench.quality.run import Plan

_NOT_OF_SYNC = ("crf", "encoder", "lossless")
"""Results are always lossless: an encoder's loss would look like a bundle's."""

_NOT_OF_RUNTIME = ("build", "profile")

_SUFFIX = ".html"

F = TypeVar("F", bound=Callable[..., Any])


def _repeated(flag: str, about: str) -> Callable[[F], F]:
    """An option that names one file each time it is given; the command gets all of them, named in the plural."""
    return click.option(flag, f"{flag.lstrip('-')}s", multiple=True, type=click.Path(path_type=Path), help=about)


@click.command("compare")
@click.argument("a")
@click.argument("b")
@_repeated("--clip", "A video of a face to dub; repeat it for several.  [default: the built-in portrait]")
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
    provider: str,
    quiet: bool,
    as_json: bool,
    **fields: Any,
) -> None:
    """Compare bundle B with bundle A, or a finished video B with A: what each makes of the same clips."""
    from latentsync_trt.bench.quality.report import show_comparison, write_report
    from latentsync_trt.bench.quality.run import Plan
    from latentsync_trt.cli.show import progress_bar, say

    _check_usage(a, b, clips, audios, mouths, out)
    options = build(SyncOptions, fields), build(RuntimeOptions, fields)
    silent = quiet or as_json
    _make_folder(out.parent)
    with tempfile.TemporaryDirectory(prefix="latentsync-compare-") as folder, progress_bar(hidden=silent) as moved:
        subjects = _subjects(clips, audios, mouths, Path(folder))
        tell = (lambda _: None) if silent else say
        plan = Plan(out, provider, *options, tell, moved, ["latentsync-trt", *sys.argv[1:]])
        found = _compare(a, b, subjects, plan)
    write_report(found, out)
    if as_json:
        click.echo(json.dumps(found.to_json(), allow_nan=False, ensure_ascii=False))
    elif not quiet:
        show_comparison(found)
        for note in found.notes:
            click.echo(f"note: {note}", err=True)
        for clip in found.clips:
            click.echo(f"{out.parent / clip.video}: {clip.name} side by side")
        click.echo(f"{out}: all of it, with plots")


def _check_usage(
    a: str, b: str, clips: tuple[Path, ...], audios: tuple[Path, ...], mouths: tuple[Path, ...], out: Path
) -> None:
    if out.suffix.lower() != _SUFFIX:
        raise click.UsageError(f"--out {out}: a name that ends in {_SUFFIX} is needed")
    for flag, given in (("--audio", audios), ("--mouth", mouths)):
        if given and len(given) != max(len(clips), 1):
            raise click.UsageError(f"{flag} is given {len(given)} times, --clip {len(clips)} times")
    if mouths and not audios and not clips:
        raise click.UsageError("--mouth: the built-in sentence has its own; give it with --audio or --clip")
    if _is_video(a) != _is_video(b):
        raise click.UsageError(f"give two bundles or two videos: {a} and {b} are not")
    if _is_video(a) and len(clips) > 1:
        raise click.UsageError("two videos are compared on the one --clip that both were made of")


def _make_folder(folder: Path) -> None:
    from latentsync_trt.errors import OutputError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()  # permissions alone do not tell
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written ({error.strerror})") from error


def _subjects(
    clips: tuple[Path, ...], audios: tuple[Path, ...], mouths: tuple[Path, ...], folder: Path
) -> list["Subject"]:
    """The clips, as many as videos were given, or the built-in one, which is written to `folder`."""
    from latentsync_trt.bench.material import choose_clip
    from latentsync_trt.bench.quality.clip import Subject, read_mouth
    from latentsync_trt.media.demo_clip import SpokenMouth, spoken_mouth

    known: list[SpokenMouth | None] = [read_mouth(path) for path in mouths]
    if clips:
        return [Subject(*three) for three in zip(clips, audios or clips, known or [None] * len(clips), strict=True)]
    built_in = choose_clip(None, audios[0] if audios else None, folder)
    mouth = known[0] if known else None if audios else spoken_mouth()
    return [Subject(built_in.video, built_in.audio, mouth)]


def _compare(a: str, b: str, subjects: list["Subject"], plan: "Plan") -> "Comparison":
    from latentsync_trt.bench.quality.run import compare_bundles, compare_videos
    from latentsync_trt.bundle.find import find_bundle
    from latentsync_trt.bundle.manifest import Bundle

    if _is_video(a):
        return compare_videos(Path(a), Path(b), subjects[0], plan)
    ours, theirs = (Bundle.load(find_bundle(name)[0]) for name in (a, b))
    return compare_bundles(ours, theirs, subjects, plan)


def _is_video(name: str) -> bool:
    return Path(name).is_file()
