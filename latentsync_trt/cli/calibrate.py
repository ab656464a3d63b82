"""`latentsync-trt calibrate`: a bundle and clips of talking faces in, the same bundle in eight bits out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from latentsync_trt.bundle.find import checkpoints_folder, find_bundle
from latentsync_trt.bundle.manifest import PRECISIONS, read_manifest
from latentsync_trt.cli.options import build, bundle_option, options_from
from latentsync_trt.errors import LatentSyncError, MissingDependency, ProviderUnavailable
from latentsync_trt.quantize.settings import CalibrateOptions
from latentsync_trt.types import Progress

if TYPE_CHECKING:
    from latentsync_trt.quantize.calibrate import Calibrated
    from latentsync_trt.quantize.calibration import Calibration
    from latentsync_trt.quantize.clips import Clip
    from latentsync_trt.quantize.search import SearchResult
    from latentsync_trt.runtime.providers.select import Selection

_NEEDED = ("onnx", "onnx_ir", "ml_dtypes")

_WORK_FOLDER = ".calibration"
"""Below checkpoints/: what calibrations have seen so far."""


@click.command("calibrate")
@bundle_option
@click.option("--video", type=click.Path(path_type=Path), help="A video of a talking face.")
@click.option("--audio", type=click.Path(path_type=Path), help="Speech for it.  [default: the video's own]")
@click.option(
    "--clips",
    type=click.Path(path_type=Path),
    help="A folder of such videos, each with the sound file of its name beside it, else with its own sound.",
)
@click.option(
    "--provider",
    type=click.Choice(("auto", "cuda", "cpu")),
    default="auto",
    show_default=True,
    help="What denoises the clips; a named one is a demand.",
)
@options_from(CalibrateOptions)
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the result.  [default: below checkpoints/]")
@click.option(
    "--work",
    type=click.Path(path_type=Path),
    help=f"Folder to remember in what was seen.  [default: checkpoints/{_WORK_FOLDER}]",
)
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
def command(
    bundle: str | None,
    video: Path | None,
    audio: Path | None,
    clips: Path | None,
    provider: str,
    out: Path | None,
    work: Path | None,
    quiet: bool,
    **fields: Any,
) -> None:
    """Make an INT8 or FP8 bundle of a bundle, with ranges measured on clips. Goes on where it was interrupted."""
    _check_extra()
    from latentsync_trt.cli.show import say
    from latentsync_trt.quantize.bundle_out import check_target, open_parent
    from latentsync_trt.quantize.calibrate import calibrate
    from latentsync_trt.quantize.calibration import Calibration

    options, chosen = build(CalibrateOptions, fields), _clips(video, audio, clips)
    folder, why = find_bundle(bundle)
    notice = _ignore if quiet else say
    notice(f"bundle {folder.name} ({why})")
    parent = open_parent(folder)
    target = out or default_out(folder.name, options.precision)
    check_target(parent, target)
    calibration = Calibration(parent, chosen, options, _select(provider, notice), work or default_work())
    with _resumable(), _progress_bar(hidden=quiet) as on_progress:
        made = calibrate(calibration, target, on_progress, notice)
    if not quiet:
        _show(made, calibration)


def default_out(bundle: str, precision: str) -> Path:
    """ "1.6-512-fp16" → checkpoints/1.6-512-int8; a name without a precision gets one."""
    for name in PRECISIONS:
        if f"-{name}" in bundle:
            return checkpoints_folder() / bundle.replace(f"-{name}", f"-{precision}")
    return checkpoints_folder() / f"{bundle}-{precision}"


def default_work() -> Path:
    """Where it is remembered what calibrations have seen."""
    return checkpoints_folder() / _WORK_FOLDER


def _check_extra() -> None:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise MissingDependency(f"calibrate needs {', '.join(missing)}: pip install 'latentsync-trt[calibrate]'")


def _clips(video: Path | None, audio: Path | None, folder: Path | None) -> "tuple[Clip, ...]":
    from latentsync_trt.quantize.clips import Clip, clips_in

    if video is None and folder is None:
        raise click.UsageError("give clips to look at: --video with --audio, or --clips with a folder")
    if audio is not None and video is None:
        raise click.UsageError("--audio: belongs to a --video")
    single = () if video is None else (Clip(video, audio or video),)
    return single + (() if folder is None else clips_in(folder))


def _select(request: str, notice: Callable[[str], None]) -> "Selection":
    """CUDA where it runs: graphs that tell of themselves would take TensorRT minutes to build, for one use."""
    from latentsync_trt.runtime.providers.select import select_provider

    if request != "auto":
        return select_provider(request)
    try:
        return select_provider("cuda")
    except ProviderUnavailable as error:
        notice(f"on the CPU, which takes long at full size ({error})")
        return select_provider("cpu")


@contextmanager
def _resumable() -> Iterator[None]:
    """Says of an interruption that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        raise LatentSyncError("interrupted; the same command goes on from here") from None


@contextmanager
def _progress_bar(*, hidden: bool) -> Iterator[Callable[[Progress], None]]:
    """A bar on stderr with the stage, its count and the time left; yields what moves it."""
    if hidden:
        yield _ignore
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from latentsync_trt.cli.show import STDERR

    columns = (
        TextColumn("{task.description:<24}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=STDERR, expand=True, transient=True) as bar:
        task, stage = bar.add_task("starting", total=None), ""

        def move(progress: Progress) -> None:
            nonlocal stage
            if progress.stage != stage:
                stage = progress.stage
                bar.reset(task)
            bar.update(task, description=stage, completed=progress.done, total=progress.total)

        yield move


def _show(made: "Calibrated", calibration: "Calibration") -> None:
    from latentsync_trt.cli.show import say

    manifest, parent = read_manifest(made.folder), calibration.bundle.manifest
    if made.search is not None:
        _show_search(made.search)
    before, after = (bundle.files[bundle.graphs["denoise_step"].weights].bytes for bundle in (parent, manifest))
    share = "" if manifest.quantization is None else f"{manifest.quantization.share:.0%} of the U-Net's arithmetic, "
    click.echo(
        f"{made.folder}: {manifest.precision} in {share}U-Net weights {before / 1e6:.1f} → {after / 1e6:.1f} MB"
        + "".join(f", faces at {value:.1f} dB of {parent.precision}" for value in made.distance.values())
    )
    folder = calibration.work.folder
    size_bytes = sum(path.stat().st_size for path in folder.iterdir())
    say(
        f"note: {folder} ({size_bytes / 1e6:.0f} MB) holds what was seen; another --precision, --method, --keep or "
        "--target-psnr begins with it, else delete it"
    )


def _show_search(found: "SearchResult") -> None:
    """The groups of layers, worst first, as they were kept."""
    kept = set(found.kept)
    click.echo(f"{'layers':<28} {'arithmetic':>10} {'one step':>9} {'at worst':>9}")
    for group in found.table:
        word = "  kept" if kept.issuperset(group.weights) else ""
        click.echo(
            f"{f'{len(group.weights)} × {group.group}':<28} {group.share:>10.1%} {group.step_db:>6.1f} dB "
            f"{group.worst_db:>6.1f} dB{word}"
        )
    for trial in found.trials:
        click.echo(f"loop: {trial.psnr_db:.1f} dB with {trial.share:.1%} of the arithmetic in eight bits")


def _ignore(_: object) -> None:
    """Nobody watches."""
