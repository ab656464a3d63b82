"""Files by URL, through fsspec. Messages show URLs without user, password and query, which may be
secrets.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from latentsync_trt.errors import (
    InputError,
    LatentSyncError,
    MediaError,
    MissingDependency,
    OutputError,
)

_URL_START = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_SECRET_PARTS = re.compile(r"(://)[^/\s'\"@]*@|[?#][^\s'\"]*")
"""User and password of a URL, or its query and fragment."""
_QUOTED_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^\s'\"]+")

_READ_ONLY = ("http", "https")
"""Protocols that take no files."""
_WHOLE = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "r2")
"""Protocols whose files appear when the last byte has arrived, or never."""
_LONGEST_NAME = 60
"""Characters of a file name: in UTF-8 at most 240 bytes, and file systems allow 255."""


def is_url(text: str) -> bool:
    """Returns whether `text` is a URL, rather than a path such as "C:/clips"."""
    return _URL_START.match(text) is not None


def without_secrets(text: str) -> str:
    """Returns a text without user, password and query of its URLs."""
    return _QUOTED_URL.sub(lambda url: _SECRET_PARTS.sub(r"\1", url[0]), text)


def parts_of(url: str) -> SplitResult:
    """Returns the parts of a URL; raises `InputError` for what only begins as one."""
    try:
        return urlsplit(url)
    except ValueError as error:
        raise InputError(
            f"{without_secrets(url)}: is no address that can be read ({error}); correct it"
        ) from error


def url_file_name(url: str) -> str:
    """Returns a file name for a URL that any disk takes, with its suffix; raises as `parts_of`."""
    path = url
    if _protocol(url) in _READ_ONLY:
        path = parts_of(url).path
    last = unquote(path.rstrip("/").rpartition("/")[2])
    name = re.sub(r"[^\w.()+ -]", "_", last).strip(". ") or "file"
    if len(name) <= _LONGEST_NAME:
        return name
    return name[: _LONGEST_NAME // 2] + name[-_LONGEST_NAME // 2 :]


def exists(url: str) -> bool:
    """Returns whether there is a file at a URL; errors as `fetch`."""
    # else a server that fails has no such file
    strict = {"strict": True} if _protocol(url) in _READ_ONLY else {}
    with _translate_file_errors(url, MediaError):
        system, remote = _file_system_of(url)
        return bool(system.exists(remote, **strict))


def check_writable_url(target: str) -> None:
    """Raises `InputError` or `OutputError` if a URL cannot be written, or `MissingDependency`."""
    if _protocol(target) in _READ_ONLY:
        raise InputError(
            f"{without_secrets(target)}: https can only be read; give a path, or a URL as s3:// or gs://"
        )
    with _translate_file_errors(target, OutputError):
        _file_system_of(target)


def fetch(url: str, folder: Path) -> Path:
    """Downloads a URL into `folder` and returns the path; raises `MediaError` or
    `MissingDependency`.
    """
    target = folder / url_file_name(url)
    with _translate_file_errors(url, MediaError):
        system, remote = _file_system_of(url)
        system.get_file(remote, str(target))
    return target


def deliver(path: Path, url: str) -> None:
    """Uploads `path` to `url`, where it appears complete or not at all; raises `OutputError` or
    `MissingDependency`.
    """
    with _translate_file_errors(url, OutputError):
        system, remote = _file_system_of(url)
        if _protocol(url) in _WHOLE:
            system.put_file(str(path), remote)
            return
        system.makedirs(remote.rpartition("/")[0], exist_ok=True)
        system.put_file(str(path), f"{remote}.part")
        system.mv(f"{remote}.part", remote)


def _protocol(url: str) -> str:
    return url.partition("://")[0].lower()


def _file_system_of(url: str) -> tuple[Any, str]:
    """Returns the file system of a URL, with an empty cache, and the file's name there."""
    import fsspec

    options: dict[str, Any] = {}
    if _protocol(url) in _READ_ONLY:
        from aiohttp import ClientTimeout

        # The default ends a download after five minutes.
        options["client_kwargs"] = {
            "timeout": ClientTimeout(total=None, sock_connect=30, sock_read=60)
        }
    system, remote = fsspec.core.url_to_fs(url, **options)
    system.invalidate_cache()
    return system, remote


@contextmanager
def _translate_file_errors(url: str, kind: type[LatentSyncError]) -> Iterator[None]:
    """Turns any error of fsspec and of the libraries below it, which have no common base, into one
    line.
    """
    try:
        yield
    except LatentSyncError:
        raise
    except ImportError as error:
        cure = 'needs the extra cluster; pip install "latentsync-trt[cluster]"'
        raise MissingDependency(f"{without_secrets(url)}: {cure} ({error})") from error
    except Exception as error:
        text = f"{type(error).__name__} {without_secrets(str(error))}"
        reason = " ".join(text.split())
        login = parts_of(url).netloc.rpartition("@")[0]
        if login:  # it may also occur apart from the URL
            reason = reason.replace(login, "…")
        problem = "cannot be written" if kind is OutputError else "cannot be read"
        cure = "check address, credentials, connection and free space"
        usage = isinstance(error, FileNotFoundError | PermissionError | ValueError)
        raise kind(f"{without_secrets(url)}: {problem} ({reason}); {cure}", usage=usage) from error
