"""Files by path or URL, through fsspec: fetched into a folder, delivered whole, and known by a fingerprint.

A URL is whatever fsspec knows, such as `s3://bucket/clip.mp4`, `gs://` and `https://`; one with `file://` is a path.
Credentials and endpoints come from the environment, as the libraries of each store document them. Messages show URLs
without user, password and query, which may be secrets.
"""

import errno
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from filelock import FileLock

from latentsync_trt.bundle.manifest import MANIFEST_NAME, Bundle, manifest_sha256, read_manifest
from latentsync_trt.errors import BundleError, InputError, LatentSyncError, MediaError, MissingDependency, OutputError
from latentsync_trt.temporary import temporary_folder, whole_file

Check = Callable[[], None]
"""Called between pieces of a transfer; what it raises stops that."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_SECRET_PARTS = re.compile(r"(://)[^/\s'\"@]*@|[?#][^\s'\"]*")
_QUOTED_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^\s'\"]+")

_READ_ONLY = ("http", "https")
# Their objects appear when the last byte has arrived, or never.
_WHOLE = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "r2"})

_EXTRA = 'pip install "latentsync-trt[cluster]"'
_LONGEST_NAME = 60  # in UTF-8 at most 240 bytes
# The default of aiohttp ends a download after five minutes.
_CONNECT_S, _READ_S = 30, 60
_LOCK_POLL_S = 0.2

_TRIES = 3
_PAUSE_S = 1.0
_DENIED = (401, 403)
_DIGITS = 12


def is_url(text: str) -> bool:
    """Whether `text` is a URL, rather than a path such as "C:/clips"."""
    return _URL.match(text) is not None


def local_of(text: str) -> Path | None:
    """The path that a path or a `file://` URL names; None for other URLs."""
    if not is_url(text):
        return Path(text)
    parts = urlsplit(text)
    if parts.scheme != "file":
        return None
    host = f"//{parts.netloc}" if parts.netloc not in ("", "localhost") else ""  # of a share on Windows
    return Path(url2pathname(host + parts.path))


def shown(text: str) -> str:
    """A URL, or a text with URLs, without what may be secret: user, password and query."""
    return _QUOTED_URL.sub(lambda url: _SECRET_PARTS.sub(r"\1", url[0]), text)


def name_of(url: str) -> str:
    """A name for the file of a URL on any disk, with its suffix."""
    path = urlsplit(url).path if _protocol(url) in _READ_ONLY else url
    name = re.sub(r"[^\w.()+ -]", "_", unquote(path.rstrip("/").rpartition("/")[2])).strip(". ") or "file"
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME // 2] + name[-_LONGEST_NAME // 2 :]


def exists(text: str) -> bool:
    """Whether there is a file; errors as `fetch`, but for a missing one."""
    path = local_of(text)
    if path is not None:
        return path.exists()
    with _reading(text):
        system, remote = _open(text)
        return bool(system.exists(remote))


def fingerprint(target: str) -> str | None:
    """What changes whenever `target` is written again; None if it does not exist. Errors as `fetch`."""
    path = local_of(target)
    if path is not None:
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return f"{found.st_size} {found.st_mtime_ns} {found.st_ino}"
    with _reading(target):
        system, remote = _open(target)
        try:
            info = system.info(remote)
        except FileNotFoundError:
            return None
    tags = ("ETag", "etag", "LastModified", "Last-Modified", "mtime", "updated", "created")
    return " ".join(str(info[name]) for name in ("size", *tags) if info.get(name) is not None)


def check_target(target: str) -> None:
    """Raises `InputError` if `target` is a URL that cannot be written, or `MissingDependency`."""
    if local_of(target) is None:
        if _protocol(target) in _READ_ONLY:
            raise InputError(f"{shown(target)}: https can only be read; give a path, or a URL as s3:// or gs://")
        with _reading(target):
            _open(target)


def fetch(text: str, folder: Path, check: Check = lambda: None, *, get_client: Any = None) -> Path:
    """The local file of a path or URL; a URL is downloaded into `folder`, which must exist, under its own name.

    `get_client`: makes the session for http and https, as fsspec's argument of that name.

    Raises:
        MediaError: it cannot be read, or not all of it arrived. InputError: nothing knows such URLs.
        MissingDependency: the extra is not installed. OutputError: `folder` cannot be written.
    """
    if (path := local_of(text)) is not None:
        return path
    target = folder / name_of(text)
    for left in reversed(range(_TRIES)):
        try:
            _download(text, target, check, get_client)
            break
        except MediaError as error:
            if error.usage or not left:
                raise
        time.sleep(_PAUSE_S)
    return target


def _download(text: str, target: Path, check: Check, get_client: Any) -> None:
    with _reading(text, target.parent):
        system, remote = _open(text, get_client)
        # HTTP servers may send it compressed, and aiohttp compares what arrives with the announced size.
        size_bytes = None if _protocol(text) in _READ_ONLY else system.size(remote)
        try:
            system.get_file(remote, str(target), callback=_callback(check))
        except BaseException:
            target.unlink(missing_ok=True)
            raise
    arrived_bytes = target.stat().st_size
    if size_bytes not in (None, arrived_bytes):
        target.unlink()
        raise MediaError(f"{shown(text)}: {arrived_bytes} of {size_bytes} bytes arrived; try again")


def deliver(path: Path, target: str, check: Check = lambda: None) -> None:
    """Copies `path` to `target`, which appears complete or not at all; what was there is replaced.

    Raises:
        OutputError: it cannot be written. InputError, MissingDependency: as `fetch`.
    """
    place = local_of(target)
    if place is not None:
        with _writing(target), whole_file(place) as part_path:
            shutil.copyfile(path, part_path)
        return
    check_target(target)
    with _writing(target):
        system, remote = _open(target)
        if _protocol(target) in _WHOLE:
            system.put_file(str(path), remote, callback=_callback(check))
            return
        parent, _, name = remote.rpartition("/")
        part = f"{parent}/.{name}.{secrets.token_hex(4)}.part"
        try:
            system.put_file(str(path), part, callback=_callback(check))
            system.mv(part, remote)
        except BaseException:
            with suppress(Exception):  # the first error is the one to report
                system.rm_file(part)
            raise


def fetch_folder(url: str, cache: Path, check: Check = lambda: None) -> Path:
    """The local folder of a bundle at `url`: downloaded into `cache` once per machine, while other processes wait.

    It is known by the SHA-256 of its manifest, which names those of all files.

    Raises:
        BundleError: there is no bundle at `url`, or a file differs from its manifest. Others as `fetch`.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with temporary_folder(cache) as folder:
            staged = folder / "bundle"
            staged.mkdir()
            fetch(f"{url.rstrip('/')}/{MANIFEST_NAME}", staged, check)
            target = cache / f"{name_of(url)}-{manifest_sha256(staged)[:_DIGITS]}"
            if _is_bundle(target):
                return target
            with FileLock(cache / ".download.lock", poll_interval=_LOCK_POLL_S):
                if not _is_bundle(target):
                    _fetch_bundle(url, staged, check)
                    if target.exists():  # damaged
                        target.rename(folder / "damaged")
                    staged.rename(target)
            return target
    except MediaError as error:
        raise BundleError(f"{error}; {shown(url)} is not the folder of a bundle", usage=error.usage) from error
    except BundleError as error:
        raise BundleError(f"{shown(url)}: {error}; upload the bundle again", usage=error.usage) from error
    except LatentSyncError:
        raise
    except OSError as error:
        raise OutputError(f"{cache}: cannot be written ({error.strerror or error})") from error


def _fetch_bundle(url: str, staged: Path, check: Check) -> None:
    for file in read_manifest(staged).files:
        fetch(f"{url.rstrip('/')}/{file}", staged, check)
    Bundle.load(staged)


def _is_bundle(folder: Path) -> bool:
    with suppress(BundleError):
        Bundle.load(folder)
        return True
    return False


def _protocol(url: str) -> str:
    return url.partition("://")[0].lower()


def _open(url: str, get_client: Any = None) -> tuple[Any, str]:
    """The file system of a URL, without what it remembers of earlier calls, and the file's name there."""
    import fsspec

    options: dict[str, Any] = {}
    if _protocol(url) in _READ_ONLY:
        import aiohttp

        times = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_READ_S)
        options = {"client_kwargs": {"timeout": times}, **({"get_client": get_client} if get_client else {})}
    system, remote = fsspec.core.url_to_fs(url, **options)
    system.invalidate_cache()
    return system, remote


def _callback(check: Check) -> Any:
    from fsspec.callbacks import Callback

    class Checking(Callback):  # type: ignore[misc]  # without fsspec, its type is unknown
        def relative_update(self, inc: int = 1) -> None:
            check()
            super().relative_update(inc)

    return Checking()


@contextmanager
def _reading(url: str, folder: Path | None = None) -> Iterator[None]:
    with _translated(url, MediaError, "cannot be read", folder):
        yield


@contextmanager
def _writing(url: str) -> Iterator[None]:
    with _translated(url, OutputError, "cannot be written"):
        yield


@contextmanager
def _translated(url: str, kind: type[LatentSyncError], problem: str, folder: Path | None = None) -> Iterator[None]:
    """Turns any error of fsspec and of the libraries below it, which have no common base, into one line."""
    name = shown(url)
    try:
        yield
    except LatentSyncError:
        raise
    except ImportError as error:
        raise MissingDependency(f"{name}: needs the extra cluster; {_EXTRA} ({error})") from error
    except FileNotFoundError as error:
        raise kind(f"{name}: no such file or bucket; check the URL", usage=True) from error
    except Exception as error:
        if isinstance(error, PermissionError) or getattr(error, "status", None) in _DENIED:
            reason = f"no permission ({_reason(error)})"
            raise kind(f"{name}: {problem}: {reason}; check this machine's credentials", usage=True) from error
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and folder is not None:
            raise OutputError(f"{folder}: no space for {name}; free some, or choose another folder") from error
        if isinstance(error, ValueError) and "rotocol" in str(error):
            raise InputError(f"{name}: no known kind of URL ({_reason(error)})") from error
        raise kind(f"{name}: {problem} ({_reason(error)}); check connection and credentials") from error


def _reason(error: Exception) -> str:
    text = " ".join(shown(str(error)).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
