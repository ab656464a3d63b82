"""`latentsync-trt compare`: how the results of two bundles differ, in pictures and lip movement."""

import json
import sys
from pathlib import Path
from typing import Any

import rich_click as click

from latentsync_trt.cli.options import LocalPath, build, options_from, provider_option
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.option_fields import QUALITY

_NOT_OF_RUNTIME = ("build", "verify")

_SUFFIX = ".html"


@click.command("compare")
@click.argument("a")
@click.argument("b")
@click.option("--clip", type=LocalPath(), help="A face to dub.  [default: the built-in portrait]")
@click.option(
    "--audio",
    type=LocalPath(),
    help="The speech.  [default: the clip's own sound; the built-in sentence without a clip]",
)
@click.option(
    "--out",
    type=LocalPath(),
    default="compare.html",
    show_default=True,
    help="The report; picture and video go beside it.",
)
@provider_option
@options_from(SyncOptions, groups=(QUALITY,))
@options_from(RuntimeOptions, leave_out=_NOT_OF_RUNTIME)
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object with all numbers, or the error, to stdout."
)
def command(
    a: str,
    b: str,
    clip: Path | None,
    audio: Path | None,
    out: Path,
    provider: str,
    quiet: bool,
    as_json: bool,
    **fields: Any,
) -> None:
    """Compare bundle B with bundle A, or a finished video B with A: what each makes of the same clip."""
    from latentsync_trt.bench.compare.report import show_comparison, write_report
    from latentsync_trt.bench.compare.run import Plan, compare_bundles, compare_videos
    from latentsync_trt.bench.files import make_folder
    from latentsync_trt.bench.material import choose_clip
    from latentsync_trt.bundle.find import find_bundle
    from latentsync_trt.bundle.manifest import Bundle
    from latentsync_trt.cli.show import progress_bar, say
    from latentsync_trt.paths import check_file_to_write, exists
    from latentsync_trt.temporary import temporary_folder

    if out.suffix.lower() != _SUFFIX:
        raise click.UsageError(f"--out {out}: a name that ends in {_SUFFIX} is needed")
    videos, others = (exists(name) and Path(name).is_file() for name in (a, b))
    if videos != others:
        raise click.UsageError(f"give two bundles or two videos: {a} and {b} are not")
    options = build(SyncOptions, fields), build(RuntimeOptions, fields)
    folders = () if videos else tuple(find_bundle(name)[0] for name in (a, b))
    silent = quiet or as_json
    check_file_to_write(out, "--out")
    make_folder(out.parent)
    with temporary_folder() as folder, progress_bar(hidden=silent) as moved:
        chosen = choose_clip(clip, audio or clip, folder)
        tell = (lambda _: None) if silent else say
        plan = Plan(out, provider, *options, tell, moved, ["latentsync-trt", *sys.argv[1:]])
        if videos:
            found = compare_videos(Path(a), Path(b), chosen, plan)
        else:
            ours, theirs = map(Bundle.load, folders)
            found = compare_bundles(ours, theirs, chosen, plan)
    write_report(found, out)
    if as_json:
        click.echo(json.dumps(found.to_json(), allow_nan=False))
    elif not quiet:
        show_comparison(found)
        for note in found.notes:
            click.echo(f"note: {note}", err=True)
        click.echo(f"{out.parent / found.clip.video}: side by side")
        click.echo(f"{out}: all of it, with plots")
