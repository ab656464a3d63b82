"""Downloads the published weights from the Hugging Face hub, or from the mirror that `$HF_ENDPOINT` names.

A file is written under another name, where a later call goes on, and gets its own when its checksum is right.
"""

import errno
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from latentsync_trt.bundle.manifest import sha256_file
from latentsync_trt.errors import CheckpointError, LatentSyncError, OutputError
from latentsync_trt.export.published import LATENTSYNC, VAE, Repository
from latentsync_trt.paths import check_folder_to_write, nearest_existing

# Else each request names the versions of other packages, and a list of programs is fetched to look for them here.
constants.HF_HUB_DISABLE_TELEMETRY = True

HTTPError: type[Exception] = HfHubHTTPError.__bases__[0]
"""That of httpx or its successor, which the versions of huggingface_hub choose."""

_AGAIN = "run the same command again, which goes on there"
_LOGIN = "accept its terms on that page if it has any, log in with `hf auth login`, and check $HF_ENDPOINT"


@dataclass(frozen=True, slots=True)
class Download:
    """The missing files of a repository, with their sizes in bytes, and its license by the model card."""

    repository: Repository
    missing: Mapping[Path, int]
    license: str

    @property
    def left_bytes(self) -> int:
        """What is still to download."""
        parts = (_part(path) for path in self.missing)
        return sum(self.missing.values()) - sum(part.stat().st_size for part in parts if part.exists())

    def __str__(self) -> str:
        repository = self.repository
        return (
            f"{repository.name}@{repository.revision[:7]}: {gigabytes(self.left_bytes)} to {repository.folder}; "
            f"license {self.license}, says {constants.ENDPOINT}/{repository.name}"
        )


def gigabytes(size_bytes: float) -> str:
    """ "5.15 GB", or "0.3 MB"."""
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 1e7 else f"{size_bytes / 1e6:.1f} MB"


def find_downloads(model: str) -> list[Download]:
    """What `export` needs for a model and is not there; files that are there are checked, which needs no network.

    Raises:
        CheckpointError: another file has the name of one, or the hub cannot be reached; the message says what to do.
    """
    return [download for repository in (LATENTSYNC[model], VAE) if (download := _find(repository)) is not None]


def _find(repository: Repository) -> Download | None:
    with _translated(repository):
        missing = {}
        for name, sha256 in repository.files.items():
            path = repository.folder / name
            if not path.exists():
                missing[path] = name
            elif sha256_file(path) != sha256:
                raise CheckpointError(
                    f"{path}: is not the published file; move or delete it, and run the same command again"
                )
        if not missing:
            return None
        timeout_s = constants.HF_HUB_ETAG_TIMEOUT
        info = HfApi().model_info(repository.name, revision=repository.revision, files_metadata=True, timeout=timeout_s)
        sizes: dict[str, Any] = {file.rfilename: file.size for file in info.siblings or ()}
        stated = info.card_data.license if info.card_data is not None else None
        return Download(repository, {path: int(sizes[missing[path]]) for path in missing}, str(stated or "not stated"))


def check_space(folder: Path, downloads: Iterable[Download], more_bytes: int = 0) -> None:
    """Raises `InputError` or `OutputError` if `folder` cannot take the downloads and `more_bytes`."""
    check_folder_to_write(folder)
    free_bytes = shutil.disk_usage(nearest_existing(folder)).free
    needed_bytes = sum(download.left_bytes for download in downloads) + more_bytes
    if free_bytes < needed_bytes:
        raise OutputError(
            f"{folder}: {gigabytes(needed_bytes)} are needed, {gigabytes(free_bytes)} are free; free some space, or "
            "name a folder on another disk in $LATENTSYNC_TRT_CHECKPOINTS"
        )


def fetch(download: Download, notice: Callable[[str], None]) -> None:
    """Downloads what is not there; `notice` gets a line for each file.

    Raises:
        CheckpointError: a file cannot be downloaded, or its checksum is wrong; the message says what to do.
        OutputError: the disk is full, or another process downloads to this folder.
    """
    repository, folder = download.repository, download.repository.folder
    with _translated(repository):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".download.lock", timeout=0):
            for path, size_bytes in download.missing.items():
                name, part = path.relative_to(folder).as_posix(), _part(path)
                notice(f"{path}: {gigabytes(size_bytes)}")
                _fill(part, size_bytes, hf_hub_url(repository.name, name, revision=repository.revision))
                if sha256_file(part) != repository.files[name]:
                    part.unlink()
                    raise CheckpointError(f"{path}: was downloaded with a wrong checksum and removed; run it again")
                part.replace(path)


def _part(path: Path) -> Path:
    """What has been downloaded of a file."""
    return path.with_name(f"{path.name}.part")


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


@contextmanager
def _translated(repository: Repository) -> Iterator[None]:
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
        place = f"{constants.ENDPOINT}/{repository.name}, revision {repository.revision}"
        raise CheckpointError(f"{place}: {_explained(error)}") from error


def _explained(error: Exception) -> str:
    """What the error means and what to do."""
    reason = " ".join(str(error).split())[:120] or type(error).__name__
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if isinstance(error, OfflineModeIsEnabled):
        return "not all of it is here, and $HF_HUB_OFFLINE forbids to download; unset it"
    if status in (401, 403, 404):
        return f"no access, or no such repository (status {status}); {_LOGIN}"
    if status is not None:
        return f"answered with status {status}; wait or set $HF_ENDPOINT to a mirror, and {_AGAIN}"
    if isinstance(error, HTTPError):
        return f"cannot be reached ({reason}); check the network, or set $HF_ENDPOINT to a mirror, and {_AGAIN}"
    if isinstance(error, OSError):
        return f"the download failed ({reason}); {_AGAIN}"
    return f"its answer is not that of a Hugging Face hub ({reason}); check $HF_ENDPOINT and the network"
