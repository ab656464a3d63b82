"""Hands what the page received to the service, and finds a job's files again."""

import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from latentsync_trt.errors import InputError
from latentsync_trt.face.track_file import save_tracks
from latentsync_trt.serve.admission import Form
from latentsync_trt.serve.form import stored_name
from latentsync_trt.serve.limits import UnknownJob, check_size
from latentsync_trt.serve.service import Job, Service
from latentsync_trt.web.people import People

_SOURCE, _BROWSER = "source", "browser"
"""In a job's folder: stem of the video that was sent, to compare; the mark of the browser that sent it."""


def submit(
    service: Service,
    video: str | None,
    speech: str | None,
    options: dict[str, Any],
    files: dict[str, Path] | None = None,
    people: People | None = None,
    browser: str | None = None,
) -> Job:
    """Queues a job with copies of uploaded files.

    Args:
        files: those of options. people: of this video, else ignored. browser: the one that gets the files of the job.

    Raises:
        LatentSyncError: as `Service.receiving` and `Service.submit`.
    """
    if video is None:
        raise InputError("video: is missing; choose or record one")
    if speech is None:
        raise InputError("speech: is missing; choose or record it")
    sent = {"video": Path(video), "audio": Path(speech), **(files or {})}
    check_size(sum(path.stat().st_size for path in sent.values()), service.limits)
    with service.receiving() as (job_id, folder):
        copies = {name: copy(path, folder / stored_name(name, path.name)) for name, path in sent.items()}
        copy(sent["video"], folder.parent / stored_name(_SOURCE, sent["video"].name))
        if browser is not None:
            (folder.parent / _BROWSER).write_text(browser, "utf-8")
        if people is not None and people.video == video:
            copies["faces"] = save_tracks(people.tracks, folder / "faces.json")
        return service.submit(job_id, Form(copies, {"options": json.dumps(options)}))


def is_of(service: Service, job_id: str, browser: str) -> bool:
    """Whether a browser sent a job."""
    try:
        mark = (service.folder(job_id) / _BROWSER).read_text("utf-8")
    except (UnknownJob, FileNotFoundError):
        return False
    return secrets.compare_digest(mark.encode(), browser.encode())


def source(service: Service, job_id: str) -> Path:
    """The video that was sent; raises `UnknownJob`."""
    return next(service.folder(job_id).glob(f"{_SOURCE}*"))


def copy(path: Path, target: Path) -> Path:
    """Another name for an uploaded file, which is never written to; returns it."""
    try:
        os.link(path, target)
    except OSError:  # another disk, or one without links
        shutil.copyfile(path, target)
    return target
