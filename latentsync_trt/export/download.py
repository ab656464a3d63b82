"""Downloads the published weights from the Hugging Face hub, or from the mirror that `$HF_ENDPOINT` names.

A file is written under another name, where a later call goes on, and gets its own when its checksum is right.
"""

import errno
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RevisionNotFoundError
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers

from latentsync_trt.bundle.manifest import FileEntry, sha256_file
from latentsync_trt.errors import CheckpointError, LatentSyncError, OutputError
from latentsync_trt.export.published import LATENTSYNC, RECORD_NAME, VAE, Record, Repository, read_record
from latentsync_trt.paths import check_folder_to_write, exists
from latentsync_trt.temporary import whole_file

# Else each request names the versions of other packages, and a list of programs is fetched to look for them here.
constants.HF_HUB_DISABLE_TELEMETRY = True

HTTPError: type[Exception] = HfHubHTTPError.__bases__[0]
"""That of httpx or its successor, which the versions of huggingface_hub choose."""

_AGAIN = "run the same command again, which goes on there"
_LOGIN = "accept its terms on that page if it has any, log in with `hf auth login`, and check $HF_ENDPOINT"


@dataclass(frozen=True, slots=True)
class Download:
    """The needed files of a repository. `license`: by its model card; empty if `complete`: all files are there."""

    repository: Repository
    record: Record
    license: str = ""
    complete: bool = False

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(entry.bytes for entry in self.record.files.values())

    @property
    def left_bytes(self) -> int:
        """What is still to download."""
        sizes = {self.repository.folder / name: entry.bytes for name, entry in self.record.files.items()}
        return sum(size - _size(_part(path)) for path, size in sizes.items() if _size(path) != size)

    def __str__(self) -> str:
        return (
            f"{self.repository.name}@{self.record.revision[:7]}: {gigabytes(self.left_bytes)} to "
            f"{self.repository.folder}; license {self.license}, says {constants.ENDPOINT}/{self.repository.name}"
        )


def gigabytes(size_bytes: float) -> str:
    """ "5.15 GB", or "0.3 MB"."""
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 1e7 else f"{size_bytes / 1e6:.1f} MB"


def find_downloads(model: str, revision: str | None = None) -> tuple[Download, ...]:
    """What `export` needs for a model; what is there by its record, of `revision` if given, needs no network.

    Raises:
        CheckpointError: the hub cannot be reached, or lacks something; the message says what to do.
    """
    return _find(LATENTSYNC[model], revision), _find(VAE, None)


def _find(repository: Repository, revision: str | None) -> Download:
    record, wanted = read_record(repository.folder), revision or repository.revision
    if (
        record is not None
        and record.files.keys() >= repository.files.keys()
        and revision in (None, record.revision)
        and all(_size(repository.folder / name) == entry.bytes for name, entry in record.files.items())
    ):
        return Download(repository, record, complete=True)
    with _translated(repository, wanted):
        info = HfApi().model_info(
            repository.name, revision=wanted, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT
        )
        known = {file.rfilename: file for file in info.siblings or ()}
        files = {}
        for name, sha256 in repository.files.items():
            file = known.get(name)
            if repository.revision not in (wanted, info.sha):  # what is pinned does not depend on a mirror's word
                sha256 = file.lfs.sha256 if file and file.lfs else ""
            if file is None or file.size is None or not sha256:
                raise CheckpointError(f"{_place(repository, wanted)}: has no {name}; try another --revision")
            files[name] = FileEntry(sha256, file.size)
        stated = info.card_data.license if info.card_data is not None else None
        return Download(repository, Record(repository.name, info.sha or wanted, files), str(stated or "not stated"))


def check_space(folder: Path, downloads: Iterable[Download], more_bytes: int = 0) -> None:
    """Raises `InputError` or `OutputError` if `folder` cannot take the downloads and `more_bytes`."""
    check_folder_to_write(folder)
    existing = next(place for place in (folder, *folder.absolute().parents) if exists(place))
    free_bytes = shutil.disk_usage(existing).free
    needed_bytes = sum(download.left_bytes for download in downloads) + more_bytes
    if free_bytes < needed_bytes:
        raise OutputError(
            f"{folder}: {gigabytes(needed_bytes)} are needed, {gigabytes(free_bytes)} are free; free some space, or "
            "name a folder on another disk in $LATENTSYNC_TRT_CHECKPOINTS"
        )


def fetch(download: Download, notice: Callable[[str], None]) -> None:
    """Downloads and checks what is not there yet, and writes `download.json`; `notice` gets a line for each file.

    Raises:
        CheckpointError: a file cannot be downloaded, its checksum is wrong, or another file has its name; the message
            says what to do.
        OutputError: the disk is full, or another process downloads to this folder.
    """
    repository, record = download.repository, download.record
    folder = repository.folder
    with _translated(repository, record.revision):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".download.lock", timeout=0):
            for name, entry in record.files.items():
                _fetch_file(folder / name, entry, hf_hub_url(repository.name, name, revision=record.revision), notice)
            with whole_file(folder / RECORD_NAME) as part:
                part.write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")


def _fetch_file(path: Path, wanted: FileEntry, url: str, notice: Callable[[str], None]) -> None:
    """Downloads a file that is not there; raises `CheckpointError` if another one is."""
    if path.exists():
        if sha256_file(path) != wanted.sha256:
            raise CheckpointError(
                f"{path}: its checksum is not that of the published file; move or delete it, {_AGAIN}"
            )
        return
    notice(f"{path}: {gigabytes(wanted.bytes)}")
    part = _part(path)
    _fill(part, wanted.bytes, url)
    if sha256_file(part) != wanted.sha256:
        part.unlink()
        raise CheckpointError(f"{path}: was downloaded with a wrong checksum and removed; run it again")
    part.replace(path)


def _part(path: Path) -> Path:
    """What has been downloaded of a file."""
    return path.with_name(f"{path.name}.part")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _fill(part: Path, size_bytes: int, url: str) -> None:
    """Downloads what is left. The library repeats a request that a server does not answer or ends early; where the
    connection is reset, this does, as long as bytes arrive."""
    part.parent.mkdir(exist_ok=True)
    with part.open("ab") as file:
        while (before := file.tell()) < size_bytes:
            try:
                http_get(url, file, resume_size=before, headers=build_hf_headers(), expected_size=size_bytes)
            except HTTPError as error:
                if isinstance(error, HfHubHTTPError) or file.tell() <= before:
                    raise


def _place(repository: Repository, revision: str) -> str:
    return f"{constants.ENDPOINT}/{repository.name}, revision {revision}"


@contextmanager
def _translated(repository: Repository, revision: str) -> Iterator[None]:
    """Turns errors of the hub's library and of the disk into this package's."""
    try:
        yield
    except LatentSyncError:
        raise
    except Timeout as error:
        raise OutputError(f"{repository.folder}: another process downloads to it; wait until it has ended") from error
    except (HTTPError, OSError, ValueError, TypeError, KeyError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise OutputError(f"{repository.folder}: the disk is full; free some space and {_AGAIN}") from error
        raise CheckpointError(f"{_place(repository, revision)}: {_explained(error)}") from error


def _explained(error: Exception) -> str:
    """What the error means and what to do."""
    reason = " ".join(str(error).split())[:120] or type(error).__name__
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if isinstance(error, OfflineModeIsEnabled):
        return "not all of it is here, and $HF_HUB_OFFLINE forbids to download; unset it"
    if isinstance(error, RevisionNotFoundError):
        return "there is no such revision; give another --revision, or none"
    if status in (401, 403, 404):
        return f"no access, or no such repository (status {status}); {_LOGIN}"
    if status is not None:
        return f"answered with status {status}; wait or set $HF_ENDPOINT to a mirror, and {_AGAIN}"
    if isinstance(error, HTTPError):
        return f"cannot be reached ({reason}); check the network, or set $HF_ENDPOINT to a mirror, and {_AGAIN}"
    if isinstance(error, OSError):
        return f"the download failed ({reason}); {_AGAIN}"
    return f"its answer is not that of a Hugging Face hub ({reason}); check $HF_ENDPOINT and the network"
