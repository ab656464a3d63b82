"""Fetches what a client names by URL, without letting it reach into the service's own network."""

import ipaddress
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from latentsync_trt.errors import InputError
from latentsync_trt.remote_files import fetch, name_of, shown
from latentsync_trt.serve.limits import Limits, check_size

_WEB = ("http", "https")
_STORES = ("s3", "gs")


def fetch_url(field: str, url: str, folder: Path, limits: Limits) -> Path:
    """Downloads the file of `field` into `folder`, under a name of our own with the suffix of the URL.

    Raises:
        InputError: URLs are not allowed, or not this one. TooLarge: the file is. Others as `fetch`.
    """
    if not limits.allow_urls:
        raise InputError(f"{field}_url: addresses are not allowed here; send the file in the field {field}")
    scheme = urlsplit(url).scheme.lower()
    # fsspec would read "::" as one file system within another.
    if scheme not in (*_WEB, *_STORES) or not urlsplit(url).netloc or "::" in url:
        raise InputError(f"{field}_url: {shown(url)[:200]}: is no address that begins with http, https, s3 or gs")
    arriving = folder / "arriving"
    arriving.mkdir(exist_ok=True)

    def check() -> None:
        check_size(sum(path.stat().st_size for path in arriving.iterdir()), limits)

    guarded = scheme in _WEB and not limits.allow_private_urls
    path = fetch(url, arriving, check, get_client=_public_client if guarded else None)
    check()
    return path.rename(folder / f"{field}{Path(name_of(url)).suffix}")


async def _public_client(**settings: Any) -> Any:
    """aiohttp's session, which connects to public addresses only, also for names and after redirects."""
    import aiohttp

    settings.pop("loop", None)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(socket_factory=_public_socket), **settings)


def _public_socket(address: Any) -> socket.socket:
    family, kind, protocol, _, place = address
    if not _is_public(place[0]):
        cure = "give a public address, or start the service with --allow-private-urls"
        raise InputError(f"address {place[0]}: is not on the public Internet; {cure}")
    return socket.socket(family, kind, protocol)


def _is_public(host: str) -> bool:
    found = ipaddress.ip_address(host.partition("%")[0])
    found = getattr(found, "ipv4_mapped", None) or found
    return found.is_global and not found.is_multicast
