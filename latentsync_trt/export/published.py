"""Where the weights are published, the checksums that tell them from others, and their download.

They come from the Hugging Face hub, or from the mirror that `$HF_ENDPOINT` names.
"""

import errno
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from latentsync_trt.bundle.find import checkpoints_folder
from latentsync_trt.bundle.manifest import sha256_file
from latentsync_trt.environment import changed_environment
from latentsync_trt.errors import CheckpointError, OutputError
from latentsync_trt.paths import check_folder_to_write, nearest_existing

# Else each request to the hub names the versions of other packages. Its library reads the variable
# when it is imported.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

PublishedModel = Literal["1.6", "1.5"]

UNET_FILE = "latentsync_unet.pt"
WHISPER_FILE = "whisper/tiny.pt"

_WHISPER_SHA256 = "65147644a518d12f04e32d6f3b26facc3f8dd46e5390956a9424a650c0ce22b9"
"""Also part of the address at which OpenAI publishes the file."""

_ANSWER_S = 5.0
"""How long the hub may take to answer."""

_REFUSED = (401, 403)
"""HTTP statuses of files for which one must log in or accept terms."""

_NETWORK = {"ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"}
"""Variables of the environment, in any case, that say how the hub is reached."""


@dataclass(frozen=True, slots=True)
class Repository:
    """What to download from the hub."""

    name: str
    revision: str
    """The commit."""
    license: str
    """As the model card names it."""
    size_bytes: int
    files: Mapping[str, str]
    """The SHA-256 of each needed file, by its path."""

    @property
    def folder(self) -> Path:
        """Where the files go to."""
        return checkpoints_folder() / self.name.partition("/")[2].lower()

    @property
    def summary(self) -> str:
        size = gigabytes(self.size_bytes)
        return f"{self.name}@{self.revision[:7]}: {size} to {self.folder}; license {self.license}"

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}"


def _latentsync(model: PublishedModel, revision: str, unet_sha256: str) -> Repository:
    files = {UNET_FILE: unet_sha256, WHISPER_FILE: _WHISPER_SHA256}
    return Repository(f"ByteDance/LatentSync-{model}", revision, "openrail++", 5_150_000_000, files)


LATENTSYNC = {
    "1.6": _latentsync(
        "1.6",
        "c42c7e6c8e9c213626389fa7d9a3c444b8536353",
        "0a478e89eb660f82da4c35dbdde8a5adfb27f99d1b4e50edd03729e1e98316d3",
    ),
    "1.5": _latentsync(
        "1.5",
        "32a20d29aead0498e3e885e90dbbe8027da1b61b",
        "6440b49a7ccceff56cdc001f5f17605216337f5bbd66fa360139768926e23f51",
    ),
}
"""The repositories of the published models."""

VAE = Repository(
    "stabilityai/sd-vae-ft-mse",
    "31f26fdeee1355a5c34592e401dd41e45d25a493",
    "mit",
    335_000_000,
    {
        "config.json": "92d3dfb746fca211a2c9e019e285f8597412211728dce3c5bcf4eda0f2d62e7e",
        "diffusion_pytorch_model.safetensors": (
            "a1d993488569e928462932c8c38a0760b874d166399b14414135bd9c42df5815"
        ),
    },
)


def origin(sha256: str, model: str) -> str:
    """Returns where a file is published, as "ByteDance/LatentSync-1.6@c42c7e6c…", or "".

    Of several places, that of `model` is returned.
    """
    for repository in (LATENTSYNC[model], VAE, *LATENTSYNC.values()):
        if sha256 in repository.files.values():
            return str(repository)
    return ""


def gigabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.2f} GB"


def find_downloads(model: str) -> list[Repository]:
    """Returns what `export` needs for a model and is not all there; checks files that are there.

    Raises:
        CheckpointError: another file has the name of one.
    """
    return [repository for repository in (LATENTSYNC[model], VAE) if _missing(repository)]


def _missing(repository: Repository) -> list[str]:
    """Returns the names of files that are not there; raises as `find_downloads`."""
    missing = []
    for name, sha256 in repository.files.items():
        path = repository.folder / name
        if not path.exists():
            missing.append(name)
        elif sha256_file(path) != sha256:
            raise CheckpointError(
                f"{path}: is not the published file; move or delete it, and run it again"
            )
    return missing


def check_downloads(downloads: Sequence[Repository], more_bytes: int = 0) -> None:
    """Raises `CheckpointError` if the hub does not answer, and `InputError` or `OutputError` if the
    checkpoints' folder cannot take the downloads and `more_bytes`.
    """
    if downloads:
        _check_answer(downloads)
    folder = checkpoints_folder()
    check_folder_to_write(folder)
    free_bytes = shutil.disk_usage(nearest_existing(folder)).free
    needed_bytes = sum(download.size_bytes for download in downloads) + more_bytes
    if free_bytes < needed_bytes:
        raise OutputError(
            f"{folder}: {gigabytes(needed_bytes)} are needed, "
            f"{gigabytes(free_bytes)} are free; free some space, or "
            "name a folder on another disk in $LATENTSYNC_TRT_CHECKPOINTS"
        )


def _check_answer(downloads: Sequence[Repository]) -> None:
    try:
        from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    except ValueError as error:
        raise CheckpointError(
            f"$HF_ENDPOINT: is no address ({error}); correct it, or unset it"
        ) from error

    http_error = _request_error()
    _check_network(http_error)
    first = downloads[0]
    address = hf_hub_url(first.name, next(iter(first.files)), revision=first.revision)
    try:  # without the retries of a download
        get_hf_file_metadata(address, timeout=_ANSWER_S)
    except (http_error, OSError) as error:
        answer = getattr(error, "response", None)
        if answer is not None and answer.status_code in _REFUSED:
            return  # `download_files` says what to do
        files = [f"{', '.join(each.files)} of {each} to {each.folder}" for each in downloads]
        raise CheckpointError(
            f"{constants.ENDPOINT}: cannot be reached "
            f"({_shortened(error)}); check the network, "
            f"$HF_ENDPOINT and $HF_HUB_OFFLINE, or bring by hand {'; '.join(files)}"
        ) from error


def _request_error() -> type[Exception]:
    """Returns the class of errors of requests to the hub: that of httpx, or of what its version
    uses.
    """
    from huggingface_hub.errors import HfHubHTTPError

    return HfHubHTTPError.__bases__[0]


def _check_network(http_error: type[Exception]) -> None:
    """Raises `CheckpointError` with the variable of the environment because of which the hub's
    library cannot open its HTTP client; with all of them, if several are wrong.
    """
    reason = _client_error(http_error)
    if not reason:
        return
    names = [name for name in os.environ if name.upper() in _NETWORK]
    wrong = [name for name in names if not _client_error(http_error, without=name)]
    which = ", ".join(f"${name}" for name in wrong or names) or "the system's proxy"
    raise CheckpointError(
        f"{which}: no connection can be made with it ({reason}); correct it, or unset it"
    )


def _client_error(http_error: type[Exception], without: str | None = None) -> str:
    """Returns why the hub's library cannot open its HTTP client, without a variable of the
    environment; empty if it can.
    """
    from huggingface_hub import close_session, get_session

    library = sys.modules[http_error.__module__.partition(".")[0]]
    invalid_url: type[Exception] = library.InvalidURL
    close_session()
    with changed_environment({without: None} if without else {}):
        try:
            get_session()
        except (ImportError, OSError, ValueError, invalid_url) as error:
            return _shortened(error).rstrip(".")
        finally:
            close_session()
    return ""


def _shortened(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def download_files(repository: Repository, on_notice: Callable[[str], None]) -> None:
    """Downloads the files that are not there, going on where an earlier call ended; gives
    `on_notice` the path of each.

    Raises:
        CheckpointError: a file cannot be downloaded, or its checksum is wrong; the message says
            what to do.
        OutputError: the disk is full.
    """
    from huggingface_hub import constants, hf_hub_download

    http_error = _request_error()
    folder = repository.folder
    for name in _missing(repository):
        path = folder / name
        on_notice(str(path))
        try:
            hf_hub_download(repository.name, name, revision=repository.revision, local_dir=folder)
        except (http_error, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise OutputError(
                    f"{folder}: the disk is full; free some space and run it again"
                ) from error
            raise CheckpointError(
                f"{constants.ENDPOINT}/{repository.name}, revision "
                f"{repository.revision}: {_shortened(error)}; check the network, "
                "$HF_ENDPOINT and $HF_HUB_OFFLINE, accept its "
                "terms on that page if it has any, log in with "
                "`hf auth login`, and run the same command again, which goes on there"
            ) from error
        if sha256_file(path) != repository.files[name]:
            path.unlink()
            raise CheckpointError(
                f"{path}: was downloaded with a wrong checksum and removed; run it again"
            )
