"""Submits what the page received to the service: the people of a video, jobs and their files. Needs no Gradio."""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import compare_digest
from typing import Any

from latentsync_trt.errors import InputError
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.track_file import Tracks, save_tracks
from latentsync_trt.measure.page import summaries
from latentsync_trt.serve.admission import Form, Limits, UnknownJob, stored_name
from latentsync_trt.serve.checks import check_media
from latentsync_trt.serve.service import JobStatus, Service
from latentsync_trt.sync.faces import analyze
from latentsync_trt.types import ProgressCallback, UInt8Array

_SOURCE, _BROWSER = "source", "browser"
"""In a job's folder: stem of the video that was sent, to compare; the mark of the browser that sent it."""


@dataclass(frozen=True, slots=True, eq=False)
class People:
    """The people in a video: `portraits`, uint8 `(160, 160, 3)` RGB, each with the seconds seen, by number."""

    video: str
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
    return People(video, tracks, [(portraits[one.number], one.seen_s) for one in summaries(tracks)])


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
    """Returns whether a browser sent a job."""
    try:
        mark = (service.folder(job_id) / _BROWSER).read_text("utf-8")
    except (UnknownJob, FileNotFoundError):
        return False
    return compare_digest(mark.encode(), browser.encode())


def source(service: Service, job_id: str) -> Path:
    """Returns the video that was sent; raises `UnknownJob`."""
    return next(service.folder(job_id).glob(f"{_SOURCE}*"))


def copy(path: Path, target: Path) -> Path:
    """Links or copies an uploaded file, which is never written to, to `target`; returns that."""
    try:
        os.link(path, target)
    except OSError:  # another disk, or one without links
        shutil.copyfile(path, target)
    return target
