"""Hands what the page received to the service, and finds a job's files again."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from secrets import compare_digest
from typing import Any

from latentsync_trt.errors import InputError
from latentsync_trt.face.track_file import save_tracks
from latentsync_trt.serve.admission import Form, UnknownJob, stored_name
from latentsync_trt.serve.service import JobStatus, Service
from latentsync_trt.web.people import People

_SOURCE, _BROWSER = "source", "browser"
"""In a job's folder: stem of the video that was sent, to compare; the mark of the browser that sent it."""


def submit(
    service: Service,
    sent: Mapping[str, str | None],
    options: dict[str, Any],
    people: People | None = None,
    browser: str | None = None,
) -> JobStatus:
    """Queues a job with copies of uploaded files.

    Args:
        sent: uploaded files by field. people: of this video, else ignored. browser: the one that gets the job's files.

    Raises:
        LatentSyncError: as `Service.receiving` and `Service.submit`.
    """
    for name, label in ("video", "video"), ("audio", "speech"):
        if sent[name] is None:
            raise InputError(f"{label}: is missing; choose or record one")
    files = {name: Path(path) for name, path in sent.items() if path is not None}
    service.limits.check_size(sum(path.stat().st_size for path in files.values()))
    with service.receiving() as (job_id, folder):
        copies = {name: copy(path, folder / stored_name(name, path.name)) for name, path in files.items()}
        copy(files["video"], folder.parent / stored_name(_SOURCE, files["video"].name))
        if browser is not None:
            (folder.parent / _BROWSER).write_text(browser, "utf-8")
        if people is not None and people.video == sent["video"]:
            copies["faces"] = save_tracks(people.tracks, folder / "faces.json")
        return service.submit(job_id, Form(copies, {"options": json.dumps(options)}))


def is_of(service: Service, job_id: str, browser: str) -> bool:
    """Whether a browser sent a job."""
    try:
        mark = (service.folder(job_id) / _BROWSER).read_text("utf-8")
    except (UnknownJob, FileNotFoundError):
        return False
    return compare_digest(mark.encode(), browser.encode())


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
