"""Downloads the published weights from the Hugging Face hub, or from the mirror that `$HF_ENDPOINT` names.

A file is written under another name, which a later call goes on with, and gets its own when its checksum is right.
"""

import errno
import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,  # type: ignore[attr-defined]  # that of the HTTP library which the installed version uses
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.hf_api import ModelInfo, RepoSibling
from huggingface_hub.utils import build_hf_headers

from latentsync_trt.bundle.manifest import FileEntry, sha256_file
from latentsync_trt.errors import CheckpointError, LatentSyncError, OutputError
from latentsync_trt.export.published import Record, Repository, is_there, read_record, write_record
from latentsync_trt.paths import check_folder_to_write, exists

# Else each request names the versions of other packages, and a list of programs is fetched to look for them here.
constants.HF_HUB_DISABLE_TELEMETRY = True

_AGAIN = "run the same command again, which goes on there"
_LOGIN = "log in with `hf auth login`, or set $HF_TOKEN"
_UNAUTHORIZED = (401, 403)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to download: its name in the repository, where it goes, its size, and its SHA-256 or git's SHA-1."""

    name: str
    path: Path
    bytes: int
    digest: str

    @property
    def part(self) -> Path:
        """What has been downloaded so far."""
        return self.path.with_name(f"{self.path.name}.part")

    @property
    def left_bytes(self) -> int:
        """What is still to download; nothing if the file is there, which `fetch` then only checks."""
        there = next((path for path in (self.path, self.part) if path.is_file()), None)
        return max(self.bytes - (there.stat().st_size if there else 0), 0)


@dataclass(frozen=True, slots=True)
class Download:
    """What the hub says about one repository. `license`: as its model card states it. `files`: all that are needed."""

    repository: Repository
    folder: Path
    revision: str
    license: str
    files: tuple[Wanted, ...]

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def left_bytes(self) -> int:
        """What is still to download."""
        return sum(file.left_bytes for file in self.files)

    def __str__(self) -> str:
        name = self.repository.name
        return (
            f"{name}@{self.revision[:7]}: {gigabytes(self.left_bytes)} to download to {self.folder}; "
            f"license {self.license}, by its model card at {constants.ENDPOINT}/{name}"
        )


def gigabytes(size_bytes: float) -> str:
    """ "5.15 GB", or "0.3 MB"."""
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 1e7 else f"{size_bytes / 1e6:.1f} MB"


def downloaded(repository: Repository, revision: str | None = None) -> Record | None:
    """What is in the repository's folder, if all of it is there, of `revision` if given; needs no network.

    Raises:
        CheckpointError: the record in the folder is damaged.
    """
    record = read_record(repository.folder)
    if record is None or record.repository != repository.name or not record.is_complete(repository.folder):
        return None
    return record if set(record.files) >= set(repository.files) and revision in (None, record.revision) else None


def ask_hub(repository: Repository, revision: str | None = None) -> Download:
    """Sizes, checksums and license of the needed files at `revision`, by default the repository's own.

    Raises:
        CheckpointError: the hub cannot be reached, or does not give them; the message says what to do.
    """
    wanted = revision or repository.revision
    with _translated(repository, wanted):
        api = HfApi()
        info = api.model_info(
            repository.name, revision=wanted, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT
        )
        known = {file.rfilename: file for file in info.siblings or ()}
        missing = [name for name in repository.files if name not in known]
        if missing or info.sha is None:
            raise CheckpointError(f"{_place(repository, wanted)}: has no {missing or 'commit'}; try another --revision")
        checksums = repository.files if info.sha == repository.revision else {}
        files = tuple(_wanted(known[name], repository.folder, checksums.get(name, "")) for name in repository.files)
        return Download(repository, repository.folder, info.sha, _license(info), files)


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


def fetch(download: Download, notice: Callable[[str], None]) -> Record:
    """Downloads and checks what is not there yet, and writes `download.json`; `notice` gets a line for each file.

    Raises:
        CheckpointError: a file cannot be downloaded or its checksum is wrong; the message says what to do.
        OutputError: the disk is full.
    """
    entries = {}
    for file in download.files:
        if not (is_there(file.path, file.bytes) and _digest(file.path, file) == file.digest):
            _fetch(download, file, notice)
        entries[file.name] = FileEntry(sha256_file(file.path), file.bytes)
    record = Record(download.repository.name, download.revision, entries)
    with _translated(download.repository, download.revision):
        write_record(download.folder, record)
    return record


def _fetch(download: Download, file: Wanted, notice: Callable[[str], None]) -> None:
    notice(f"{file.path}: {gigabytes(file.bytes)}")
    with _translated(download.repository, download.revision):
        if file.part.is_file() and file.part.stat().st_size > file.bytes:
            file.part.unlink()
        file.part.parent.mkdir(parents=True, exist_ok=True)
        _fill(file, hf_hub_url(download.repository.name, file.name, revision=download.revision))
        right = _digest(file.part, file) == file.digest
        if right:
            file.part.replace(file.path)
        else:
            file.part.unlink()
    if not right:
        raise CheckpointError(f"{file.path}: what was downloaded has a wrong checksum and was removed; run it again")


def _fill(file: Wanted, url: str) -> None:
    """Downloads what is left. The library tries again where a server ends or does not answer; where the connection
    breaks, this does, as long as bytes arrive."""
    with file.part.open("ab") as part:
        while (before := part.tell()) < file.bytes:
            try:
                http_get(
                    url,
                    part,
                    resume_size=before,
                    headers=build_hf_headers(),
                    expected_size=file.bytes,
                    displayed_filename=file.name,
                )
            except HTTPError as error:
                if isinstance(error, HfHubHTTPError) or part.tell() == before:
                    raise


def _wanted(known: RepoSibling, folder: Path, sha256: str) -> Wanted:
    stored = known.lfs.sha256 if known.lfs is not None else known.blob_id
    if known.size is None or stored is None:
        raise ValueError(f"no size or checksum of {known.rfilename}")
    return Wanted(known.rfilename, folder / known.rfilename, known.size, sha256 or stored)


def _digest(path: Path, wanted: Wanted) -> str:
    """The digest of the same kind as `wanted.digest`; git has SHA-1 of small files only."""
    if len(wanted.digest) == hashlib.sha256().digest_size * 2:
        return sha256_file(path)
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _license(info: ModelInfo) -> str:
    stated = info.card_data.license if info.card_data is not None else None
    return ", ".join(stated) if isinstance(stated, list) else stated or "not stated"


def _place(repository: Repository, revision: str) -> str:
    return f"{constants.ENDPOINT}/{repository.name}, revision {revision}"


@contextmanager
def _translated(repository: Repository, revision: str) -> Iterator[None]:
    """Turns errors of the hub's library and of the disk into this package's."""
    try:
        yield
    except LatentSyncError:
        raise
    except (HTTPError, OSError, ValueError, TypeError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise OutputError(f"{repository.folder}: the disk is full; free some space and {_AGAIN}") from error
        raise CheckpointError(f"{_place(repository, revision)}: {_explained(error)}") from error


def _explained(error: Exception) -> str:
    """What the error means and what to do."""
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if isinstance(error, OfflineModeIsEnabled):
        return "not all of it is here, and $HF_HUB_OFFLINE forbids to download; unset it"
    if isinstance(error, RevisionNotFoundError):
        return "there is no such revision; give another --revision, or none"
    if isinstance(error, GatedRepoError) or status in _UNAUTHORIZED:
        return f"access is restricted; accept its terms on that page if it has any, and {_LOGIN}"
    if isinstance(error, RepositoryNotFoundError):
        return f"there is no such repository; check $HF_ENDPOINT, or {_LOGIN}"
    if status is not None:
        return f"the server answered with status {status}; wait or set $HF_ENDPOINT to a mirror, and {_AGAIN}"
    reason = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, HTTPError):
        return f"cannot be reached ({reason}); check the network, or set $HF_ENDPOINT to a mirror, and {_AGAIN}"
    if isinstance(error, OSError):
        return f"the download failed ({reason}); {_AGAIN}"
    return (
        f"the answer is not that of a Hugging Face hub ({reason:.80}); check $HF_ENDPOINT and the network's log-in page"
    )
