"""`latentsync-trt sync`: lip-syncs a clip."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from latentsync_trt.cli import BEGAN_S, interruption
from latentsync_trt.cli import options as flags
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.errors import LatentSyncError, Notices
from latentsync_trt.option_fields import FILES

if TYPE_CHECKING:
    from latentsync_trt.sync.api import LipSync
    from latentsync_trt.sync.inputs import Inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    files: tuple[Path, ...] = flags.argument("[VIDEO] [AUDIO]", nargs=-1)
    video: Path | None = flags.command_field(
        None, "Video with a face; also a picture or a GIF.", group=FILES
    )
    audio: Path | None = flags.command_field(
        None,
        "File with the speech that the lips follow; for several people --speaker.",
        group=FILES,
        names=("--audio", "--voice"),
    )
    output: Path | None = flags.command_field(
        None,
        "File to write (.mp4, .mov, .mkv).  [default: <video>-synced.mp4]",
        group=FILES,
        names=("--output", "-o"),
        written=True,
    )
    bundle: str | None = flags.bundle_option()
    sync: SyncOptions = flags.options_of()
    provider: str = flags.provider_option()
    runtime: RuntimeOptions = flags.options_of(leave_out=("verify",))
    verbose: bool = flags.command_field(False, "Print the figures behind the verdict, too.")
    quiet: bool = flags.quiet_option()
    as_json: bool = flags.json_option()

    @property
    def silent(self) -> bool:
        return self.quiet or self.as_json


@click.command("sync")
@flags.takes(SyncRequest)
def sync(request: SyncRequest) -> None:
    """VIDEO and AUDIO may also be given as --video and --audio."""
    video, audio = _clip_of(request)
    from latentsync_trt.cli.show import new_notices, print_json, progress_bar, show_report
    from latentsync_trt.runtime.stages import results

    notices = new_notices()
    with meanwhile(lambda: _open_model(request, notices)) as opening:
        inputs = _check_request(request, video, audio)
        from latentsync_trt.sync import api  # noqa: F401 -- else only after libraries are loaded
    (lip_sync,) = results([opening])
    with lip_sync:
        with progress_bar(hidden=request.silent) as on_progress:
            report = lip_sync.run(inputs, on_progress=on_progress)
        if request.as_json:
            print_json({**asdict(report), "total_s": time.monotonic() - BEGAN_S})
        elif not request.quiet:
            show_report(report, notices, inputs.page, verbose=request.verbose)
        if lip_sync.build is not None:
            _wait_for_engines(lip_sync.build, silent=request.silent)


_BASIC_OPTIONS = (
    *("video", "audio", "output", "preview_s", "overwrite", "resume", "redo", "report"),
    *("bundle", "preset", "face", "start", "end", "codec", "provider"),
)
"""Options that `sync --help` shows; the others are for `--help-all`."""

for _param in sync.params:
    if isinstance(_param, click.Option):
        _param.hidden = _param.name not in _BASIC_OPTIONS


def _clip_of(request: SyncRequest) -> tuple[Path, Path | None]:
    """Returns video and audio by their options, or else by the arguments, in their order."""
    files = [*request.files]
    video = request.video
    audio = request.audio
    if video is None and files:
        video = files.pop(0)
    if audio is None and files:
        audio = files.pop(0)
    if video is None:
        raise click.UsageError(
            "no video; give one and its speech, as in `latentsync-trt sync in.mp4 speech.wav`"
        )
    if files:
        raise click.UsageError(f"{files[0]}: is one file too many; give VIDEO and AUDIO")
    return video, audio


def _open_model(request: SyncRequest, notices: Notices) -> "LipSync":
    from latentsync_trt.bundle.find import describe_choice, find_bundle
    from latentsync_trt.cli.show import notices_to
    from latentsync_trt.runtime.providers.choice import select_provider

    # loads libraries while modules are imported; `from_bundle` reports its errors
    with suppress(LatentSyncError):
        select_provider(request.provider, request.runtime.one_device)
    from latentsync_trt.sync.api import LipSync
    from latentsync_trt.sync.threads import tune_process

    tune_process()
    folder, why = find_bundle(request.bundle)
    if request.bundle is None:
        notices_to(silent=request.silent)(describe_choice(folder, why))
    on_notice = None if request.silent else notices.add
    return LipSync.from_bundle(folder, request.provider, request.runtime, on_notice=on_notice)


def _check_request(request: SyncRequest, video: Path, audio: Path | None) -> "Inputs":
    from latentsync_trt.media.encoder_choice import default_suffix
    from latentsync_trt.sync.inputs import check_inputs

    kind = "synced" if request.sync.preview_s is None else "preview"
    default_name = f"{video.stem}-{kind}{default_suffix(request.sync)}"
    target = request.output or video.parent / default_name
    return check_inputs(video, audio, target, request.sync)


@contextmanager
def meanwhile(action: Callable[[], "LipSync"]) -> "Iterator[Future[LipSync]]":
    """Runs `action` in a thread. An error of the block does not wait for it; what it returns later
    is closed then.
    """

    def close(result: "Future[LipSync]") -> None:
        if result.exception() is None:
            result.result().close()

    thread = ThreadPoolExecutor(1, thread_name_prefix="open")
    result = thread.submit(action)
    thread.shutdown(wait=False)
    try:
        yield result
    except BaseException:
        result.add_done_callback(close)
        raise


def _wait_for_engines(building: Future[str], *, silent: bool) -> None:
    """Waits until engines for the next run are built, whose output is complete."""
    from latentsync_trt.cli.show import notices_to
    from latentsync_trt.runtime.stages import POLL_S

    on_notice = notices_to(silent=silent)
    if not building.done():
        on_notice(
            "engines for the next run are still being built; Ctrl-C stops that, the output is "
            "complete"
        )
    with interruption(
        "interrupted while engines were built for the next run; the output is complete"
    ):
        while wait([building], POLL_S).not_done:
            pass
    problem = building.result()
    if problem:
        on_notice(f"building engines failed: {problem}")
