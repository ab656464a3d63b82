"""Turns a form into a task, or says what is wrong with it: all that can be known before a worker has the job."""

import json
import re
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from latentsync_trt.batch.tasks import Task
from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import InputError, MediaError
from latentsync_trt.option_fields import file_fields, from_texts
from latentsync_trt.serve.limits import Limits
from latentsync_trt.serve.urls import fetch_url
from latentsync_trt.values import Speaker

OUTPUT, PAGE, INPUTS, PREVIEW = "output", "report.html", "inputs", "preview.jpg"
"""In a job's folder: stem of the video, name of the page of `report`, folder of what was sent, the newest frame."""

FILE_FIELDS = ("video", "audio", "mix", "turns", "faces", "c2pa_cert", "c2pa_key")
TEXT_FIELDS = ("options", "video_url", "audio_url")
_SPEAKER = re.compile(r"speaker_(0|[1-9][0-9]{0,2})")
"""A file field with the recording of a face, by its number."""
_NO_MEDIA = {"turns", "faces", "c2pa_cert", "c2pa_key"}

# FFmpeg would read other files of this machine that they name.
_PLAYLISTS = {"concat", "dash", "ffmetadata", "hls", "imf", "rtp", "rtsp", "sap", "sdp", "vobsub", "webm_dash_manifest"}


@dataclass(frozen=True, slots=True)
class Form:
    """What a client sent: files by field, and texts by field."""

    files: dict[str, Path]
    texts: dict[str, str]


def is_file_field(name: str) -> bool:
    """Whether a form may have a file of this name."""
    return name in FILE_FIELDS or _SPEAKER.fullmatch(name) is not None


def admit(job_id: str, form: Form, folder: Path, limits: Limits) -> Task:
    """The task of a form whose files are in `folder`; fetches those named by URL, and opens all of them.

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
    """The options of a form. Files are those that were sent, never names within `options`."""
    values = _object(form.texts.get("options", ""))
    page = values.pop("report", False)
    if not isinstance(page, bool):
        raise InputError("report: is true for a page with measures and pictures, or false")
    options = from_texts(SyncOptions, values)
    for name in file_fields(SyncOptions):
        if getattr(options, name) is not None:
            raise InputError(f"{name}: cannot be named in options; send the file in the field {name}")
    files: dict[str, Any] = {name: str(form.files[name]) for name in file_fields(SyncOptions) if name in form.files}
    speakers = {int(found[1]): path for name, path in form.files.items() if (found := _SPEAKER.fullmatch(name))}
    if options.speaker and "turns" not in files:
        raise InputError("speaker: cannot be named in options; send the recordings in the fields speaker_0, speaker_1")
    if speakers:
        files["speaker"] = tuple(Speaker(face, str(path)) for face, path in sorted(speakers.items()))
    if page:
        files["report"] = str(folder / PAGE)
    return replace(options, **files, resume=False)


def _object(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise InputError(f'options: is not JSON ({error}); send an object, as in {{"preset": "fast"}}') from error
    if not isinstance(values, dict):
        raise InputError('options: is not an object; send one, as in {"preset": "fast"}')
    return values


def check_media(name: str, path: Path, limits: Limits) -> None:
    """Refuses playlists, and clips longer than allowed by the stamps of their packets, whatever their header says.

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
