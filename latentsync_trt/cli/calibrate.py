"""`latentsync-trt calibrate`: a bundle and clips of talking faces in, the same bundle in INT8 or FP8 out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from latentsync_trt.bundle.find import checkpoints_folder, find_bundle
from latentsync_trt.bundle.manifest import PRECISIONS, read_manifest
from latentsync_trt.cli.options import build, bundle_option, options_from
from latentsync_trt.config import FILES, HARDWARE
from latentsync_trt.errors import LatentSyncError, MissingDependency, ProviderUnavailable
from latentsync_trt.quantize.options import CalibrateOptions
from latentsync_trt.types import Progress

if TYPE_CHECKING:
    from latentsync_trt.quantize.calibrate import Calibrated, Calibration
    from latentsync_trt.quantize.clips import Clip
    from latentsync_trt.quantize.search import SearchResult
    from latentsync_trt.runtime.providers.select import Selection

_NEEDED = ("onnx", "onnx_ir", "ml_dtypes")

_WORK_FOLDER = ".calibration"


@click.command("calibrate")
@bundle_option
@click.option("--video", type=click.Path(path_type=Path), panel=FILES, help="A video of a talking face.")
@click.option(
    "--audio",
    type=click.Path(path_type=Path),
    panel=FILES,
    help="Speech for --video.  [default: the video's own sound]",
)
@click.option(
    "--clips",
    type=click.Path(path_type=Path),
    panel=FILES,
    help="A folder of such videos, each with an audio file of the same name beside it, else with its own sound.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    panel=FILES,
    help="Folder of the new bundle.  [default: below checkpoints/]",
)
@click.option(
    "--work",
    type=click.Path(path_type=Path),
    panel=FILES,
    help=f"Folder for intermediate results, to resume from.  [default: checkpoints/{_WORK_FOLDER}]",
)
@options_from(CalibrateOptions)
@click.option(
    "--provider",
    type=click.Choice(("auto", "cuda", "cpu")),
    default="auto",
    show_default=True,
    panel=HARDWARE,
    help="Execution provider that denoises the clips; naming one disables fallback.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
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
    """Make an INT8 or FP8 bundle from a bundle, calibrated on clips. Resumes after an interruption."""
    _check_extra()
    from latentsync_trt.cli.show import say
    from latentsync_trt.quantize.bundle import check_target, open_parent
    from latentsync_trt.quantize.calibrate import Calibration

    options, chosen = build(CalibrateOptions, fields), _clips(video, audio, clips)
    folder, why = find_bundle(bundle)
    notice = (lambda _: None) if quiet else say
    notice(f"bundle {folder.name} ({why})")
    parent = open_parent(folder)
    target = out or default_out(folder.name, options.precision)
    check_target(parent, target)
    root = work or checkpoints_folder() / _WORK_FOLDER
    calibration = Calibration(parent, chosen, options, _select(provider, notice), root)
    with _stages(hidden=quiet) as on_progress:
        try:
            made = calibration.run(target, on_progress, notice)
        except KeyboardInterrupt:
            raise LatentSyncError("interrupted; the same command resumes from here") from None
    if not quiet:
        _show(made, calibration)


def default_out(bundle: str, precision: str) -> Path:
    """ "1.6-512-fp16" → checkpoints/1.6-512-int8; a name without a precision gets it appended."""
    for name in PRECISIONS:
        if f"-{name}" in bundle:
            return checkpoints_folder() / bundle.replace(f"-{name}", f"-{precision}")
    return checkpoints_folder() / f"{bundle}-{precision}"


def _check_extra() -> None:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise MissingDependency(f"calibrate needs {', '.join(missing)}: pip install 'latentsync-trt[calibrate]'")


def _clips(video: Path | None, audio: Path | None, folder: Path | None) -> "tuple[Clip, ...]":
    from latentsync_trt.quantize.clips import Clip, clips_in

    if video is None and folder is None:
        raise click.UsageError("no clips to calibrate on: give --video with --audio, or --clips with a folder")
    if audio is not None and video is None:
        raise click.UsageError("--audio: needs --video")
    single = () if video is None else (Clip(video, audio or video),)
    return single + (() if folder is None else clips_in(folder))


def _select(request: str, notice: Callable[[str], None]) -> "Selection":
    """auto: CUDA, else the CPU. TensorRT would take minutes to build observed graphs that are used once."""
    from latentsync_trt.runtime.providers.select import select_provider

    if request != "auto":
        return select_provider(request)
    try:
        return select_provider("cuda")
    except ProviderUnavailable as error:
        notice(f"calibrating on the CPU, which takes hours at full size ({error})")
        return select_provider("cpu")


@contextmanager
def _stages(*, hidden: bool) -> Iterator[Callable[[Progress], None]]:
    """A progress bar that starts again with each stage; yields what moves it."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from latentsync_trt.cli.show import STDERR

    columns = (TextColumn("{task.description:<24}"), BarColumn(bar_width=None), MofNCompleteColumn())
    times = TimeElapsedColumn(), TimeRemainingColumn()
    with Bar(*columns, *times, console=STDERR, expand=True, transient=True, disable=hidden) as bar:
        task = bar.add_task("starting", total=None)

        def move(progress: Progress) -> None:
            if progress.stage != bar.tasks[0].description:
                bar.reset(task)
            bar.update(task, description=progress.stage, completed=progress.done, total=progress.total)

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
        + "".join(f", PSNR of faces against {parent.precision} {value:.1f} dB" for value in made.distance.values())
    )
    folder = calibration.work.folder
    size_bytes = sum(path.stat().st_size for path in folder.iterdir())
    say(
        f"note: {folder} ({size_bytes / 1e6:.0f} MB) holds the calibration ranges; runs with another --precision, "
        "--keep, --target-psnr, --percentile or --smooth reuse them, else delete it"
    )


def _show_search(found: "SearchResult") -> None:
    """The table of sensitivities, worst first, and the trials."""
    kept = set(found.best.kept)
    click.echo(f"{'layers':<28} {'arithmetic':>10} {'one step':>9} {'worst':>9}")
    for group in found.table:
        note = "  kept" if kept.issuperset(group.layers) else ""
        click.echo(
            f"{f'{len(group.layers)} × {group.group}':<28} {group.share:>10.1%} {group.step_db:>6.1f} dB "
            f"{group.worst_db:>6.1f} dB{note}"
        )
    for trial in found.trials:
        click.echo(f"whole loop: {trial.psnr_db:.1f} dB with {trial.share:.1%} of the arithmetic in 8 bits")
