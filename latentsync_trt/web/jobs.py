"""Submits what the page received to the service: jobs and their files. Needs no Gradio."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from secrets import compare_digest
from typing import Any

from latentsync_trt.errors import InputError
from latentsync_trt.face.track_file import save_tracks
from latentsync_trt.serve.admission import SPEAKER, Form, UnknownJob
from latentsync_trt.serve.checks import People
from latentsync_trt.serve.service import JobStatus, Service

_SOURCE, _BROWSER = "source", "browser"
"""In a job's folder: the video that was sent, to compare, and the mark of the browser that sent it."""


def submit(
    service: Service,
    sent: Mapping[str, str | None],
    options: dict[str, Any],
    people: People | None = None,
    browser: str = "",
    bundle: str | None = None,
) -> JobStatus:
    """Queues a job with copies of uploaded files, which have the same names, so that messages have them, too.

    Args:
        sent: uploaded files by field, as `check_sent` takes them. people: of this video, if they are known. browser:
            the one that gets the job's files. bundle: its folder; by default the one that the workers have open.

    Raises:
        LatentSyncError: as `Service.receiving` and `Service.submit`.
    """
    files = {name: Path(path) for name, path in sent.items() if path is not None}
    service.limits.check_size(sum(path.stat().st_size for path in files.values()))
    texts = {"options": json.dumps(options)} | ({} if bundle is None else {"bundle": bundle})
    with service.receiving() as (job_id, folder):
        copies = dict[str, Path]()
        for name, path in files.items():
            again = (folder / path.name).exists()
            copies[name] = copy(path, folder / (f"{name} {path.name}" if again else path.name))
        copy(files["video"], folder.parent / f"{_SOURCE}{files['video'].suffix}")
        (folder.parent / _BROWSER).write_text(browser, "utf-8")
        if people is not None:
            copies["faces"] = save_tracks(people.tracks, folder / f"{job_id}.json")
        return service.submit(job_id, Form(copies, texts, {name: path.name for name, path in files.items()}))


def check_sent(sent: Mapping[str, str | None]) -> None:
    """Raises `InputError` if there is no video or no speech among uploaded files, or one was deleted since."""
    given = {name: Path(path) for name, path in sent.items() if path is not None}
    speech = any(name == "audio" or SPEAKER.fullmatch(name) for name in given)
    for label, found in ("video", "video" in given), ("speech", speech):
        if not found:
            raise InputError(f"{label}: is missing; choose or record one")
    for path in given.values():
        if not path.is_file():
            raise InputError(f"{path.name}: is not kept any longer; upload it again")


def is_of(service: Service, job_id: str, browser: str) -> bool:
    try:
        mark = (service.folder(job_id) / _BROWSER).read_text("utf-8")
    except (UnknownJob, FileNotFoundError):
        return False
    return bool(mark) and compare_digest(mark.encode(), browser.encode())


def source(service: Service, job_id: str) -> Path:
    """Returns the video that was sent; raises `UnknownJob`."""
    return service.folder(job_id) / f"{_SOURCE}{Path(service.job(job_id).files['video']).suffix}"


def download(service: Service, job_id: str) -> tuple[Path, str]:
    """Returns the result, and its name, after that of the video; raises `UnknownJob`, or `NotNow` if there is none."""
    path = service.result(job_id)
    return path, f"{Path(service.job(job_id).files['video']).stem}-synced{path.suffix}"


def copy(path: Path, target: Path) -> Path:
    """Links or copies an uploaded file, which is never written to, to `target`; returns that."""
    try:
        os.link(path, target)
    except OSError:  # another disk, or one without links
        shutil.copyfile(path, target)
    return target
