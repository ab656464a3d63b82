"""A worker: holds one open `LipSync`, and syncs tasks: fetch, sync, deliver."""

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from filelock import FileLock

from latentsync_trt.batch import remote_files
from latentsync_trt.batch.tasks import ReportValues, Task, TaskError, WorkerLost, WorkerSettings
from latentsync_trt.bundle.manifest import MANIFEST_NAME, Bundle, manifest_sha256, read_manifest
from latentsync_trt.child_main import CallCanceled
from latentsync_trt.errors import BundleError, InferenceError, InputError, OutputError
from latentsync_trt.files import (
    KEPT_NAME,
    published_folder,
    temporary_folder,
    whole_file,
    work_folder_of,
)
from latentsync_trt.option_fields import command_line
from latentsync_trt.paths import make_folder
from latentsync_trt.types import NoticeCallback, Progress, ProgressCallback, SyncReport, UInt8Array
from latentsync_trt.unexpected import one_line

if TYPE_CHECKING:
    from latentsync_trt.sync.api import LipSync

_PICTURE_EVERY_S = 1.0
"""How often the preview of a task is replaced."""
_TOLERANCE_S = 0.5
"""How much longer than allowed a clip may be: its sound may end after its picture."""
_CANCEL_POLL_S = 0.1
"""How often a task that waits asks whether it is canceled."""


class Worker:
    """Runs tasks in this process on an open bundle; `run` may be called from several threads, for a
    task each.
    """

    def __init__(
        self, settings: WorkerSettings, on_notice: NoticeCallback = lambda _: None
    ) -> None:
        """Opens the bundle and runs each network once, so that the first clip is fast; raises as
        `run`.
        """
        self._settings = settings
        self._on_notice = on_notice
        self._ended = threading.Condition()
        self._running = 0
        self._scratch = Path(settings.scratch or tempfile.gettempdir())
        make_folder(self._scratch)
        try:
            self._bundle = settings.bundle
            self._lip_sync = self._open(settings.bundle)
            self._lip_sync.warm_up()
            self.provider = self._lip_sync.provider
        except InferenceError as error:
            raise WorkerLost(str(error)) from error

    def run(self, task: Task, on_progress: ProgressCallback) -> ReportValues:
        """Syncs a clip, until `on_progress` raises `CallCanceled`; returns its report.

        Finished parts of a clip that does not end are kept beside its output, and so is what cannot
        be uploaded.

        Raises:
            TaskError: the clip failed; the worker can go on.
            WorkerLost: the provider failed, after which a GPU may be unusable in this process:
                start another.
        """
        pictured_s = 0.0

        def report(progress: Progress) -> None:
            nonlocal pictured_s
            if task.most_s is not None and progress.written_s > task.most_s + _TOLERANCE_S:
                raise InputError(
                    f"{task.video}: lasts longer than {task.most_s:g} s; send a shorter one"
                )
            on_progress(replace(progress, picture=None))  # a child cannot send it
            is_due = monotonic() >= pictured_s + _PICTURE_EVERY_S
            if task.preview and progress.picture and is_due:
                _write_picture(Path(task.preview), progress.picture())
                pictured_s = monotonic()

        files = _Files(report)
        try:
            bundle = task.bundle or self._settings.bundle
            with temporary_folder(self._scratch) as files.folder, self._opened(bundle, report):
                result = self._sync(task.with_files(files.local), report)
                files.deliver()
        except InferenceError as error:
            raise WorkerLost(files.named(str(error))) from error
        except CallCanceled:
            raise
        except Exception as error:  # whatever is wrong with a clip must not end the worker
            command = [remote_files.without_secrets(word) for word in command_line(task.options)]
            message, usage = one_line(error, ["sync", *command])
            raise TaskError(files.named(message), usage=usage) from error
        notices = tuple(files.named(text) for text in result.notices)
        return asdict(replace(result, output=task.output, notices=notices))

    def _open(self, bundle: str) -> "LipSync":
        from latentsync_trt.runtime.engines.cache import cache_folder
        from latentsync_trt.sync.api import LipSync

        runtime = self._settings.runtime
        if remote_files.is_url(bundle):
            cache = cache_folder(runtime.engine_cache).absolute() / "bundles"
            bundle = str(fetch_bundle(bundle, cache))
        return LipSync.from_bundle(
            bundle, self._settings.provider, runtime, on_notice=self._on_notice
        )

    @contextmanager
    def _opened(self, bundle: str, report: ProgressCallback) -> Iterator[None]:
        """Holds a bundle open within the block; first waits for tasks with another one."""
        with self._ended:
            while bundle != self._bundle and self._running:
                report(Progress("waiting for clips with another bundle", 0, None))
                self._ended.wait(_CANCEL_POLL_S)
            if bundle != self._bundle:
                report(Progress("opening networks", 0, None))
                self._lip_sync.close()
                self._bundle = ""  # where it cannot be opened, none is
                self._lip_sync = self._open(bundle)
                self._bundle = bundle
            self._running += 1
        try:
            yield
        finally:
            with self._ended:
                self._running -= 1

    def _sync(self, task: Task, report: ProgressCallback) -> SyncReport:
        """Syncs local files; goes on with the finished parts that an earlier run of the same clip
        kept.
        """
        # Who gave the task has checked the output; since then, a worker that was lost may have
        # written it.
        options = replace(task.options, overwrite=True)
        run = partial(self._lip_sync.sync, task.video, task.audio, task.output, on_progress=report)
        if (work_folder_of(Path(task.output)) / KEPT_NAME).exists():
            # An error says that the parts are of another clip, or is raised again below.
            with suppress(InputError):
                return run(options=replace(options, resume=True))
        return run(options=options)


class _Files:
    """The local files of a task: those with a URL lie in `folder`, which exists before `local` is
    called.
    """

    def __init__(self, report: ProgressCallback) -> None:
        self.folder = Path()
        self._report = report
        self._paths: dict[tuple[str, bool], Path] = {}

    def local(self, file: str, written: bool) -> str:
        """Returns the local path of a file, which is fetched unless it is `written`."""
        if not remote_files.is_url(file):
            return file
        path = self._paths.get((file, written))
        if path is None:
            place = self.folder / str(len(self._paths))  # of its own, as names may be equal
            place.mkdir()
            path = self._paths[file, written] = place / remote_files.url_file_name(file)
            if not written:
                self._report(Progress("fetching", 0, None))
                remote_files.fetch(file, place)
        return str(path)

    def deliver(self) -> None:
        """Uploads what was written, the clip last. What cannot be uploaded is kept, which the
        `OutputError` says.
        """
        finished = {url: path for (url, written), path in self._paths.items() if written}
        try:
            for url, path in finished.items():
                self._report(Progress("delivering", 0, None))
                remote_files.deliver(path, url)
        except OutputError as error:
            kept = Path(tempfile.mkdtemp(prefix="latentsync-kept-", dir=self.folder.parent))
            files = [path.replace(kept / path.name) for path in finished.values()]
            names = ", ".join(path.name for path in files)
            raise OutputError(f"{error}; what is finished is kept in {kept}: {names}") from error

    def named(self, text: str) -> str:
        """Returns a message with URLs instead of the local paths of their files."""
        for (url, _), path in self._paths.items():
            text = text.replace(str(path), remote_files.without_secrets(url))
        return text


def _write_picture(preview: Path, picture: UInt8Array) -> None:
    """Replaces a JPEG, unless the disk is full."""
    from latentsync_trt.measure.page import jpeg

    with suppress(OSError), whole_file(preview) as part:
        part.write_bytes(jpeg(picture, len(picture)))


def fetch_bundle(url: str, cache: Path) -> Path:
    """Downloads a bundle into `cache` once per machine, while other processes wait; returns its
    folder, named by the manifest's SHA-256. Raises as `fetch`, or `BundleError`.
    """
    make_folder(cache)
    url = url.rstrip("/")
    with temporary_folder(cache) as folder, FileLock(cache / ".download.lock"):
        manifest = remote_files.fetch(f"{url}/{MANIFEST_NAME}", folder)
        target = cache / f"{remote_files.url_file_name(url)}-{manifest_sha256(folder)[:12]}"
        with suppress(BundleError):
            return Bundle.load(target).folder
        try:
            with published_folder(target) as staged:
                shutil.copy(manifest, staged)
                for file in read_manifest(staged).files:
                    remote_files.fetch(f"{url}/{file}", staged)
                Bundle.load(staged)
        except BundleError as error:
            place = remote_files.without_secrets(url)
            raise BundleError(f"{place}: {error}; upload the bundle again") from error
    return target
