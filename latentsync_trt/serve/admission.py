"""Turns the form of a job into a task: limits, files by URL, and all checks before it queues. Knows nothing of HTTP."""

import ipaddress
import re
import socket
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from latentsync_trt.batch.tasks import Task
from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import InputError, LatentSyncError, MediaError
from latentsync_trt.option_fields import check_limits, file_fields, from_texts, option
from latentsync_trt.remote_files import fetch, name_of, shown
from latentsync_trt.validation import from_json
from latentsync_trt.values import Speaker

LIMITS = "Limits"
"""Heading of these options in the help text."""

RETRY_S = 30

OUTPUT, PAGE, INPUTS, PREVIEW = "output", "report.html", "inputs", "preview.jpg"
"""In a job's folder: stem of the video, page of `report`, folder of the uploads, the newest frame."""

FILE_FIELDS = ("video", "audio", "mix", "turns", "faces", "c2pa")
TEXT_FIELDS = ("options", "video_url", "audio_url")
_SPEAKER = re.compile(r"speaker_(0|[1-9][0-9]{0,2})")
"""A file field with the recording of a face, by its number."""
_NO_MEDIA = {"turns", "faces", "c2pa"}

# FFmpeg would read other files of this machine that they name.
_PLAYLISTS = {"concat", "dash", "ffmetadata", "hls", "imf", "rtp", "rtsp", "sap", "sdp", "vobsub", "webm_dash_manifest"}

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_FOUR_IN_SIX = ipaddress.ip_network("::/96")
_NOT_PUBLIC = [
    ipaddress.ip_network(each)
    for each in ("168.63.129.16", "192.0.0.0/24", "192.88.99.0/24", "64:ff9b:1::/48", "fec0::/10")
]
"""Metadata services of clouds, and what Python takes for global though it leads into networks of one's own."""

_SUFFIX = re.compile(r".*(\.[a-z0-9]{1,5})", re.DOTALL)
_WEB = ("http", "https")
_STORES = ("s3", "gs")


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

    def check_size(self, size_bytes: int) -> None:
        """Raises `TooLarge` if an upload may not have so many bytes."""
        if size_bytes > self.max_upload_mb * 1e6:
            cure = "send a smaller or shorter file, or raise --max-upload-mb of the service"
            raise TooLarge(f"upload: has more than {self.max_upload_mb:g} MB, which is the most here; {cure}")


class UnknownJob(LatentSyncError, LookupError):
    """No job has this id."""


class NotNow(LatentSyncError):
    """The job's state does not allow it."""


class TryLater(LatentSyncError):
    """The queue is full, or the service stops; the request may come again after `RETRY_S` seconds."""


class DiskFull(LatentSyncError):
    """The service can store nothing."""


class TooLarge(InputError):
    """An upload is larger than allowed."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a client sent: files by field, and texts by field."""

    files: dict[str, Path]
    texts: dict[str, str]


def is_file_field(name: str) -> bool:
    """Returns whether a form may have a file of this name."""
    return name in FILE_FIELDS or _SPEAKER.fullmatch(name) is not None


def stored_name(name: str, sent: str) -> str:
    """Returns the service's own name for the file of a field, with the suffix of the name `sent` by the client."""
    suffix = _SUFFIX.fullmatch(sent.lower())
    return f"{name}{suffix[1] if suffix else ''}"


def admit(job_id: str, form: Form, folder: Path, limits: Limits) -> Task:
    """Returns the task of a form whose files are in `folder`; fetches those named by URL, and opens all of them.

    Raises:
        MediaError: a file cannot be read. InputError: options or files cannot be used, or are longer than allowed.
        TooLarge: a file named by URL is.
    """
    from latentsync_trt.media.codecs import default_suffix
    from latentsync_trt.sync.inputs import check_inputs

    for name in ("video", "audio"):
        if url := form.texts.get(f"{name}_url", "").strip():
            if name in form.files:
                raise InputError(f"{name}_url: the file {name} was sent, too; send one of them")
            form.files[name] = fetch_url(name, url, folder / INPUTS, limits)
    if "video" not in form.files:
        or_url = ", or its address in video_url" if limits.allow_urls else ""
        raise InputError(f"video: is missing; send the file in the field video{or_url}")
    options = _options(form, folder)
    for name in form.files.keys() - _NO_MEDIA:
        check_media(name, form.files[name], limits)
    audio = form.files.get("audio")
    target = folder / f"{OUTPUT}{default_suffix(options)}"
    check_inputs(form.files["video"], audio, target, options)
    speech, preview = None if audio is None else str(audio), str(folder / PREVIEW)
    return Task(job_id, str(form.files["video"]), speech, str(target), options, preview)


def _options(form: Form, folder: Path) -> SyncOptions:
    """Returns the options of a form. Files are those that were sent, never names within `options`."""
    values = from_json(dict[str, Any], form.texts.get("options") or "{}", "options", InputError)
    page = values.pop("report", False)
    if not isinstance(page, bool):
        raise InputError("report: is true for a page with measures and pictures, or false")
    options = from_texts(SyncOptions, values)
    names = file_fields(SyncOptions)
    files: dict[str, Any] = {name: str(form.files[name]) for name in names if name in form.files}
    named = [name for name in names if getattr(options, name) is not None]
    if options.speaker and "turns" not in files:
        named.append("speaker")
    if named:
        cure = "send the file in a field of that name, recordings in speaker_0, speaker_1, …"
        raise InputError(f"{named[0]}: cannot be named in options; {cure}")
    speakers = {int(found[1]): path for name, path in form.files.items() if (found := _SPEAKER.fullmatch(name))}
    if speakers:
        files["speaker"] = tuple(Speaker(face, str(path)) for face, path in sorted(speakers.items()))
    if page:
        files["report"] = str(folder / PAGE)
    return replace(options, **files, resume=False)


def check_media(name: str, path: Path, limits: Limits) -> None:
    """Refuses playlists, and clips that are too long by the stamps of their packets, whatever their header says.

    Raises:
        MediaError: the file of the field `name` cannot be read. InputError: it is too long.
    """
    from latentsync_trt.media.files import open_input, reading

    first_s, last_s = inf, -inf
    with open_input(path) as container:
        if _PLAYLISTS & set(container.format.name.split(",")):
            raise MediaError(f"{name}: is a list of other files ({container.format.name}); send the media file itself")
        streams = [stream for stream in container.streams if stream.type in ("video", "audio")]
        with reading(path):
            for packet in container.demux(streams) if streams else ():
                if packet.pts is not None:
                    first_s = min(first_s, float(packet.pts * packet.time_base))
                    last_s = max(last_s, float((packet.pts + (packet.duration or 0)) * packet.time_base))
                if last_s - first_s > limits.max_clip_s:
                    break
    if last_s - first_s > limits.max_clip_s:
        cure = "send a shorter one, or raise --max-clip-s of the service"
        raise InputError(f"{name}: lasts longer than {limits.max_clip_s:g} s, the most here; {cure}")


def fetch_url(name: str, url: str, folder: Path, limits: Limits) -> Path:
    """Downloads the file of the field `name` into `folder`; http and https only from public addresses, if not allowed.

    Raises:
        InputError: URLs are not allowed, or not this one. TooLarge: the file is. Others as `fetch`.
    """
    if not limits.allow_urls:
        raise InputError(f"{name}_url: addresses are not allowed here; send the file in the field {name}")
    scheme = urlsplit(url).scheme.lower()
    # fsspec would read "::" as one file system within another.
    if scheme not in (*_WEB, *_STORES) or not urlsplit(url).netloc or "::" in url:
        raise InputError(f"{name}_url: {shown(url)[:200]}: is no address that begins with http, https, s3 or gs")
    arriving = folder / "arriving"
    arriving.mkdir(exist_ok=True)

    def check() -> None:
        limits.check_size(sum(path.stat().st_size for path in arriving.iterdir()))

    guarded = scheme in _WEB and not limits.allow_private_urls
    path = fetch(url, arriving, check, get_client=_public_client if guarded else None)
    check()
    return path.rename(folder / f"{name}{Path(name_of(url)).suffix}")


async def _public_client(**settings: Any) -> Any:
    """Returns aiohttp's session; it connects to public addresses only, also for names and after redirects."""
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
