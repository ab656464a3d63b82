"""What the service accepts: forms of jobs, limits, and files by URL. Knows nothing of HTTP."""

import asyncio
import ipaddress
import re
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from latentsync_trt.batch.remote_files import fetch, name_of, shown
from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.option_fields import check_limits, option

LIMITS = "Limits"
"""Heading of these options in the help text."""

RETRY_S = 30

OUTPUT, PAGE, INPUTS, PREVIEW = "output", "report.html", "inputs", "preview.jpg"
"""In a job's folder: stem of the video, page of `report`, folder of the uploads, the newest frame."""

FILE_FIELDS = ("video", "audio", "mix", "turns", "faces", "c2pa")
TEXT_FIELDS = ("options", "video_url", "audio_url", "label", "webhook")
SPEAKER = re.compile(r"speaker_(0|[1-9][0-9]{0,2})")
"""A file field with the recording of a face, by its number."""

STALL_S, LEAST_BYTES_PER_S = 60.0, 10_000
"""A transfer ends when nothing arrives for so long, or less than this on the whole after that."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_FOUR_IN_SIX = ipaddress.ip_network("::/96")
_NOT_PUBLIC = [
    ipaddress.ip_network(each)
    for each in ("168.63.129.16", "192.0.0.0/24", "192.88.99.0/24", "64:ff9b:1::/48", "fec0::/10")
]
"""Metadata services of clouds, and what Python takes for global though it leads into networks of one's own."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the service accepts. Raises `InputError` for values outside their limits."""

    max_upload_mb: float = option(
        2000.0, "Largest upload, all its files together, and largest file by URL, in MB.", group=LIMITS, minimum=0.001
    )
    max_clip_s: float = option(
        3600.0, "Longest video and recording that are accepted, in seconds.", group=LIMITS, minimum=0.1
    )
    max_queue: int = option(100, "Jobs that may wait; more are refused for the moment.", group=LIMITS, minimum=1)
    keep_hours: float = option(
        24.0, "Hours after their end at which jobs and their files are deleted.", group=LIMITS, minimum=0.0
    )
    allow_urls: bool = option(
        False,
        "Whether jobs may name http, https, s3 and gs addresses, which the service reads with its own rights.",
        group=LIMITS,
    )
    allow_private_urls: bool = option(
        False,
        "With --allow-urls: also http and https addresses in the service's own network, which are refused otherwise.",
        group=LIMITS,
    )

    def __post_init__(self) -> None:
        check_limits(self)
        if self.allow_private_urls and not self.allow_urls:
            raise InputError("--allow-private-urls: has no effect without --allow-urls; add it")

    @property
    def most_upload_bytes(self) -> float:
        return self.max_upload_mb * 1e6

    def check_size(self, size_bytes: int) -> None:
        """Raises `TooLarge` if an upload may not have so many bytes."""
        if size_bytes > self.most_upload_bytes:
            cure = "send a smaller or shorter file, or raise --max-upload-mb of the service"
            raise TooLarge(f"upload: has more than {self.max_upload_mb:g} MB, which is the most here; {cure}")


@dataclass(frozen=True, slots=True)
class LiveLimits:
    """What the live service accepts. Raises `InputError` for values outside their limits."""

    max_sessions: int = option(
        8, "Viewers at once, if the GPU can paint for so many; more are refused.", group=LIMITS, minimum=1, maximum=64
    )
    max_session_s: float = option(
        3600.0, "Seconds after which a session ends.", group=LIMITS, minimum=1.0, maximum=86_400.0
    )
    connect_s: float = option(30.0, "Seconds in which a viewer must connect.", group=LIMITS, minimum=1.0, maximum=600.0)

    def __post_init__(self) -> None:
        check_limits(self)


class TooLarge(InputError):
    """A file is larger, or takes more memory or time, than allowed."""


class UnknownJob(LatentSyncError, LookupError):
    """No job has this id."""


class NotNow(LatentSyncError):
    """The job's state does not allow it."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a client sent: files by field, texts by field, and the client's names of files, by field."""

    files: dict[str, Path]
    texts: dict[str, str]
    names: dict[str, str] = field(default_factory=dict)


def fetch_missing(form: Form, folder: Path, limits: Limits) -> None:
    """Fetches files that a form names by URL into `folder`; raises as `fetch_url`, and `InputError` without a video."""
    for name in ("video", "audio"):
        if url := form.texts.get(f"{name}_url", "").strip():
            if name in form.files:
                raise InputError(f"{name}_url: the file {name} was sent, too; send one of them")
            form.files[name] = fetch_url(name, url, folder, limits)
            form.names[name] = name_of(url)
    if "video" not in form.files:
        or_url = ", or its address in video_url" if limits.allow_urls else ""
        raise InputError(f"video: is missing; send the file in the field video{or_url}")


def fetch_url(name: str, url: str, folder: Path, limits: Limits) -> Path:
    """Downloads the file of the field `name` into `folder`; http and https only from public addresses, if not allowed.

    Raises:
        InputError: URLs are not allowed, or not this one. TooLarge: the file is. Others as `fetch`.
    """
    if not limits.allow_urls:
        raise InputError(f"{name}_url: addresses are not allowed here; send the file in the field {name}")
    scheme = urlsplit(url).scheme.lower()
    # fsspec would read "::" as one file system within another.
    if scheme not in ("http", "https", "s3", "gs") or not urlsplit(url).netloc or "::" in url:
        raise InputError(f"{name}_url: {shown(url)[:200]}: is no address that begins with http, https, s3 or gs")
    arriving = folder / "arriving"
    arriving.mkdir(exist_ok=True)
    began_s = time.monotonic()

    def check() -> None:
        size_bytes = sum(path.stat().st_size for path in arriving.iterdir())
        limits.check_size(size_bytes)
        if time.monotonic() - began_s > STALL_S + size_bytes / LEAST_BYTES_PER_S:
            slow = f"arrives with less than {LEAST_BYTES_PER_S // 1000} kB/s"
            raise InputError(f"{name}_url: {shown(url)[:200]}: {slow}; send the file in the field {name}")

    async def in_time(request: Any, send: Any) -> Any:
        """Waits for headers, which a server can send byte by byte, also those of redirects."""
        return await asyncio.wait_for(send(request), began_s + STALL_S - time.monotonic())

    async def client(**settings: Any) -> Any:
        import aiohttp

        settings.pop("loop", None)
        connector = aiohttp.TCPConnector(socket_factory=None if limits.allow_private_urls else public_socket)
        return aiohttp.ClientSession(connector=connector, middlewares=(in_time,), **settings)

    path = fetch(url, arriving, check, get_client=client)
    check()
    return path.rename(folder / f"{name}{Path(name_of(url)).suffix}")


def public_socket(address: Any) -> socket.socket:
    """Makes each connection, also to names and after redirects: only public addresses get one."""
    family, kind, protocol, _, place = address
    if not _is_public(place[0]):
        cure = "give a public address, or start the service with --allow-private-urls"
        raise InputError(f"address {place[0]}: is not on the public Internet; {cure}")
    return socket.socket(family, kind, protocol)


def _is_public(host: str) -> bool:
    """Whether an address, and each IPv4 address within one of IPv6, is on the public Internet."""
    found = ipaddress.ip_address(host.partition("%")[0])
    inner: list[Any] = [found]
    if isinstance(found, ipaddress.IPv6Address):
        inner = [found.ipv4_mapped or found, found.sixtofour, *(found.teredo or ())]
        if found in _NAT64 or found in _FOUR_IN_SIX:
            inner.append(ipaddress.IPv4Address(int(found) & 0xFFFF_FFFF))
    return all(
        each.is_global and not each.is_multicast and not any(each in network for network in _NOT_PUBLIC)
        for each in filter(None, inner)
    )
