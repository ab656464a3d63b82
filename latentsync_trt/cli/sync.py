"""`latentsync-trt sync`: lip-syncs a clip."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from latentsync_trt.cli import BEGAN_S, interruption
from latentsync_trt.cli import options as flags
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.option_fields import FILES

if TYPE_CHECKING:
    from latentsync_trt.sync.api import LipSync


@click.command("sync")
@click.argument("files", nargs=-1, type=flags.LocalPath(), metavar="[VIDEO] [AUDIO]")
@flags.path_option("--video", panel=FILES, help="Video with a face; also a picture or a GIF.")
@flags.path_option(
    "--audio",
    "--voice",
    panel=FILES,
    help="File with the speech that the lips follow; for several people --speaker.",
)
@flags.path_option(
    "--output",
    "-o",
    panel=FILES,
    written=True,
    help="File to write (.mp4, .mov, .mkv).  [default: <video>-synced.mp4]",
)
@flags.bundle_option
@flags.options_from(SyncOptions)
@flags.provider_option
@flags.options_from(RuntimeOptions, leave_out=("verify",))
@click.option("--verbose", is_flag=True, help="Print the figures behind the verdict, too.")
@flags.quiet_option
@flags.json_option
def sync(
    files: tuple[Path, ...], bundle: str | None, quiet: bool, as_json: bool, **fields: Any
) -> None:
    """VIDEO and AUDIO may also be given as --video and --audio."""
    video, audio = _clip_of([*files], fields["video"], fields["audio"])
    options = flags.build(SyncOptions, fields)
    runtime = flags.build(RuntimeOptions, fields)
    from latentsync_trt.cli.show import (
        new_notices,
        notices_to,
        print_json,
        progress_bar,
        show_report,
    )
    from latentsync_trt.runtime.stages import POLL_S, results

    silent = quiet or as_json
    notices = new_notices()
    say = notices_to(silent=silent)

    def opened() -> "LipSync":
        from latentsync_trt.bundle.find import describe_choice, find_bundle
        from latentsync_trt.runtime.providers.choice import select_provider

        # loads libraries while modules are imported; `from_bundle` tells errors
        with suppress(LatentSyncError):
            select_provider(fields["provider"], runtime.one_device)
        from latentsync_trt.sync.api import LipSync
        from latentsync_trt.sync.threads import tune_process

        tune_process()
        folder, why = find_bundle(bundle)
        if bundle is None:
            say(describe_choice(folder, why))
        return LipSync.from_bundle(
            folder, fields["provider"], runtime, on_notice=None if silent else notices.add
        )

    with meanwhile(opened) as opening:
        from latentsync_trt.media.encoder_choice import default_suffix
        from latentsync_trt.sync.inputs import check_inputs

        what = "synced" if options.preview_s is None else "preview"
        target = fields["output"] or video.parent / f"{video.stem}-{what}{default_suffix(options)}"
        inputs = check_inputs(video, audio, target, options)
        from latentsync_trt.sync import api  # noqa: F401 -- else only after libraries are loaded
    (lip_sync,) = results([opening])
    with lip_sync:
        with progress_bar(hidden=silent) as on_progress:
            report = lip_sync.run(inputs, on_progress=on_progress)
        if as_json:
            print_json({**asdict(report), "total_s": time.monotonic() - BEGAN_S})
        elif not quiet:
            show_report(report, notices, inputs.page, verbose=fields["verbose"])
        if (building := lip_sync.build) is not None:
            if not building.done():
                say(
                    "engines for the next run are still being "
                    "built; Ctrl-C stops that, the output is complete"
                )
            with interruption(
                "interrupted while engines were built for the next run; the output is complete"
            ):
                while wait([building], POLL_S).not_done:
                    pass
            if problem := building.result():
                say(f"building engines failed: {problem}")


_FIRST = {  # options that `--help` shows; the others are for `--help-all`
    *("video", "audio", "output", "preview_s", "overwrite", "resume", "report"),
    *("bundle", "preset", "face", "start", "end", "codec", "provider"),
}


for _each in sync.params:
    if isinstance(_each, click.Option):
        _each.hidden = _each.name not in _FIRST


def _clip_of(files: list[Path], video: Path | None, audio: Path | None) -> tuple[Path, Path | None]:
    """Video and audio by their options, or else by the arguments `files`, in their order."""
    given = [video, audio]
    left = iter(files)
    video, audio = (next(left, None) if file is None else file for file in given)
    if video is None:
        raise click.UsageError(
            "no video; give one and its speech, as in `latentsync-trt sync in.mp4 speech.wav`"
        )
    if (superfluous := next(left, None)) is not None:
        raise click.UsageError(f"{superfluous}: is one file too many; give VIDEO and AUDIO")
    return video, audio


@contextmanager
def meanwhile(action: Callable[[], "LipSync"]) -> "Iterator[Future[LipSync]]":
    """Runs `action` in a thread. An error of the block does not wait for it; what it returns later
    is closed then.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="open")
    result = thread.submit(action)
    thread.shutdown(wait=False)
    try:
        yield result
    except BaseException:
        result.add_done_callback(lambda done: None if done.exception() else done.result().close())
        raise
