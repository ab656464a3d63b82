"""Submits what the page received to the service: the people of a video, jobs and their files. Needs no Gradio."""

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import compare_digest
from typing import Any

from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.track_file import Tracks, save_tracks
from latentsync_trt.measure.page import summaries
from latentsync_trt.serve.admission import OUTPUT, SPEAKER, Form, Limits, UnknownJob, stored_name
from latentsync_trt.serve.checks import check_media
from latentsync_trt.serve.service import JobStatus, Service
from latentsync_trt.sync.faces import analyze
from latentsync_trt.types import ProgressCallback, UInt8Array

_SOURCE, _SENT = "source", "sent.json"
"""In a job's folder: stem of the video that was sent, to compare; names of the files, and the sending browser."""
_UNKNOWN = {"browser": "", "video": "video", "names": {}}
"""Of a job that came another way."""


@dataclass(frozen=True, slots=True, eq=False)
class People:
    """The people in a video: `portraits`, uint8 `(160, 160, 3)` RGB, each with the seconds seen, by number."""

    tracks: Tracks
    portraits: list[tuple[UInt8Array, float]]


def find_people(video: str, limits: Limits, on_progress: ProgressCallback) -> People:
    """Tracks all faces of a video.

    Raises:
        MediaError: the video cannot be read. InputError: it is too large or too long. NoFaceError: it shows none.
    """
    path = Path(video)
    limits.check_size(path.stat().st_size)
    check_media("video", path, limits)
    with MediaPipeDetector() as detector:
        tracks, portraits = analyze(path, detector, on_progress)
    return People(tracks, [(portraits[one.number], one.seen_s) for one in summaries(tracks)])


def submit(
    service: Service,
    sent: Mapping[str, str | None],
    options: dict[str, Any],
    people: People | None = None,
    browser: str = "",
    bundle: str | None = None,
) -> JobStatus:
    """Queues a job with copies of uploaded files.

    Args:
        sent: uploaded files by field. people: of this video, if they are known. browser: the one that gets the job's
            files. bundle: its folder; by default the one that the workers have open.

    Raises:
        LatentSyncError: as `Service.receiving` and `Service.submit`; files have the names that users gave them.
    """
    files = {name: Path(path) for name, path in sent.items() if path is not None}
    if "video" not in files:
        raise InputError("video: is missing; choose or record one")
    if "audio" not in files and not any(map(SPEAKER.fullmatch, files)):
        raise InputError("speech: is missing; choose or record one")
    service.limits.check_size(sum(path.stat().st_size for path in files.values()))
    texts = {"options": json.dumps(options)} | ({} if bundle is None else {"bundle": bundle})
    names = {stored_name(field, path.name): path.name for field, path in files.items()}
    with service.receiving() as (job_id, folder):
        copies = {name: copy(path, folder / stored_name(name, path.name)) for name, path in files.items()}
        copy(files["video"], folder.parent / stored_name(_SOURCE, files["video"].name))
        mark = {"browser": browser, "video": files["video"].name, "names": names}
        (folder.parent / _SENT).write_text(json.dumps(mark), "utf-8")
        if people is not None:
            copies["faces"] = save_tracks(people.tracks, folder / "faces.json")
        try:
            return service.submit(job_id, Form(copies, texts))
        except LatentSyncError as error:
            error.args = (_renamed(str(error), mark),)
            raise


def status(service: Service, job_id: str) -> JobStatus:
    """Returns a job's state, in which files have the names that users gave them; raises `UnknownJob`."""
    job, mark = service.job(job_id), _sent(service, job_id)
    report = job.report and {**job.report, "notices": [_renamed(each, mark) for each in job.report.get("notices", ())]}
    return replace(job, error=job.error and _renamed(job.error, mark), report=report)


def is_of(service: Service, job_id: str, browser: str) -> bool:
    """Returns whether a browser sent a job."""
    try:
        mark = str(_sent(service, job_id)["browser"])
    except UnknownJob:
        return False
    return bool(mark) and compare_digest(mark.encode(), browser.encode())


def source(service: Service, job_id: str) -> Path:
    """Returns the video that was sent; raises `UnknownJob`."""
    # Not its copy for browsers, which lies beside it.
    return min(service.folder(job_id).glob(f"{_SOURCE}*"), key=lambda path: len(path.name))


def download(service: Service, job_id: str) -> tuple[Path, str]:
    """Returns the result, and its name, after that of the video; raises `UnknownJob`, or `NotNow` if there is none."""
    path = service.result(job_id)
    return path, _result_name(_sent(service, job_id), path.suffix)


def copy(path: Path, target: Path) -> Path:
    """Links or copies an uploaded file, which is never written to, to `target`; returns that."""
    try:
        os.link(path, target)
    except OSError:  # another disk, or one without links
        shutil.copyfile(path, target)
    return target


def _sent(service: Service, job_id: str) -> dict[str, Any]:
    path = service.folder(job_id) / _SENT
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else _UNKNOWN
    return found


def _result_name(mark: Mapping[str, Any], suffix: str) -> str:
    return f"{Path(mark['video']).stem}-synced{suffix}"


def _renamed(text: str, mark: Mapping[str, Any]) -> str:
    """Returns a message with the names of users in place of those of the service."""

    def name(found: re.Match[str]) -> str:
        return str(mark["names"].get(found[0])) if found[1] is None else _result_name(mark, found[1])

    stored = "|".join([*map(re.escape, mark["names"]), rf"{OUTPUT}(\.\w+)"])
    return re.sub(rf"(?<![\w./-])(?:{stored})(?![\w.-]\w)", name, text)
