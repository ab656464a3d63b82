"""Uploads and jobs of a browser, on the service. Needs no Gradio: children look at videos."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from secrets import compare_digest
from typing import Any

from latentsync_trt.bundle.find import demo_folder
from latentsync_trt.bundle.manifest import read_manifest
from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.face.track_file import save_tracks
from latentsync_trt.measure.mismatch import ModelMismatchCheck
from latentsync_trt.media.preview import plays, write_preview
from latentsync_trt.serve.admission import Form, Limits
from latentsync_trt.serve.checks import People, check_media, find_people
from latentsync_trt.serve.service import JobStatus, Service
from latentsync_trt.types import Progress

COOKIE = "latentsync_trt_browser"
"""Marks a browser, so that no other one gets its jobs, not even by their addresses."""
_KEPT = "video", "audio"
_PLAYABLE, _SETTINGS = "playable.mp4", "settings.json"
"""In a job's folder, beside the files of `_KEPT`: a copy for browsers that cannot play the video, and the choices."""


@dataclass(slots=True, eq=False)
class Upload:
    """A video that a page was given, and what is known of it.

    `state` of the search for its people: new, searching, stopped (for a job), replaced (by another video), over.
    `playable`: a copy for browsers that cannot play it. `built_in`: by person, whether the built-in model knows the
    face. `problem`: why a job would fail.
    """

    video: Path
    state: str = "new"
    progress: Progress = Progress("opening the video", 0, None)
    playable: Path | None = None
    people: People | None = None
    built_in: tuple[bool, ...] = ()
    problem: str = ""


def look_at(video: Path, copy: Path, limits: Limits, tell: Callable[[Any], None]) -> tuple[People, tuple[bool, ...]]:
    """Returns the people of a video, and of each, whether the built-in model knows the face; for a child.

    Before, writes `copy` if not all browsers can play the video, and tells its path. Raises as `find_people`.
    """
    from latentsync_trt.face.detector import MediaPipeDetector

    check_media("video", video, limits)
    if not plays(video):
        tell(Progress("making a copy that browsers can play", 0, None))
        with suppress(LatentSyncError):  # the search says what is wrong
            write_preview(video, copy)
            tell(copy)
    people, manifest, built_in = find_people(video, limits, tell), read_manifest(demo_folder()), []
    with MediaPipeDetector() as detector:
        for portrait, _ in people.portraits:
            check, faces = ModelMismatchCheck(manifest, 0, lambda _: None, strict=False), detector.detect(portrait)
            for face in faces[:1]:
                check.meet(portrait, face, detector)
            built_in.append(bool(faces) and not check.text)
    return people, tuple(built_in)


def submit(
    service: Service, files: Mapping[str, Path], settings: Mapping[str, Any], upload: Upload, browser: str
) -> JobStatus:
    """Queues a job with copies of its files, which have the same names, so that messages have them, too.

    Args:
        files: by field. settings: "options" and "bundle" of the job, and what else `settings_of` shall return.
        browser: the value of its cookie.

    Raises:
        LatentSyncError: as `Service.receiving` and `Service.submit`.
    """
    for path in files.values():
        if not path.is_file():
            raise InputError(f"{path.name}: is not kept any longer; upload it again")
    service.limits.check_size(sum(path.stat().st_size for path in files.values()))
    texts = {"options": json.dumps(settings["options"]), "label": _mark(browser)}
    texts |= {"bundle": settings["bundle"]} if settings["bundle"] else {}
    with service.receiving() as (job_id, folder):
        copies = dict[str, Path]()
        for field, path in files.items():
            again = (folder / path.name).exists()
            copies[field] = _copy(path, folder / (f"{field} {path.name}" if again else path.name))
        for field in _KEPT:
            _copy(files[field], folder.parent / f"sent-{field}{files[field].suffix}")
        if upload.playable is not None:
            _copy(upload.playable, folder.parent / _PLAYABLE)
        (folder.parent / _SETTINGS).write_text(json.dumps(settings), "utf-8")
        if upload.people is not None:
            copies["faces"] = save_tracks(upload.people.tracks, folder / f"{job_id}.json")
        return service.submit(job_id, Form(copies, texts, {field: path.name for field, path in files.items()}))


def _mark(browser: str) -> str:
    """The label of a browser's jobs, from which its cookie cannot be found."""
    return sha256(browser.encode()).hexdigest()


def own(service: Service, job_id: str, browser: str | None) -> JobStatus | None:
    """Returns the state of a job; None if it was deleted, cannot be read, or belongs to another browser."""
    with suppress(LatentSyncError, ValueError):
        job = service.job(job_id)
        return job if browser and compare_digest(job.label.encode(), _mark(browser).encode()) else None
    return None


def settings_of(service: Service, job_id: str) -> dict[str, Any]:
    """Returns the settings with which a job was submitted; empty where they cannot be read."""
    with suppress(LatentSyncError, OSError, ValueError, TypeError):
        return dict(json.loads((service.folder(job_id) / _SETTINGS).read_text("utf-8")))
    return {}


def sent(service: Service, job: JobStatus, field: str) -> Path:
    """Returns the file of a field, "video" or "audio"; raises `UnknownJob`."""
    return service.folder(job.id) / f"sent-{field}{Path(job.files[field]).suffix}"


def sent_again(service: Service, job: JobStatus, uploads: Path) -> tuple[Path, Path]:
    """Puts video and speech of a job among the uploads; raises OSError, `UnknownJob`."""
    for field in _KEPT:
        (uploads / job.id / field).mkdir(parents=True, exist_ok=True)
    video, speech = (_copy(sent(service, job, each), uploads / job.id / each / job.files[each]) for each in _KEPT)
    return video, speech


def before(service: Service, job_id: str) -> Path:
    """Returns what browsers can play of the video that was sent; raises `UnknownJob`."""
    playable = service.folder(job_id) / _PLAYABLE
    return playable if playable.is_file() else sent(service, service.job(job_id), "video")


def download(service: Service, job_id: str) -> tuple[Path, str]:
    """Returns the result, and its name, after that of the video; raises `UnknownJob`, or `NotNow` if there is none."""
    path = service.result(job_id)
    return path, f"{Path(service.job(job_id).files['video']).stem}-synced{path.suffix}"


def _copy(path: Path, target: Path) -> Path:
    """Links or copies a file, which is never written to, to `target`, unless that exists; returns that."""
    if not target.exists():
        try:
            os.link(path, target)
        except OSError:  # another disk, or one without links
            shutil.copyfile(path, target)
    return target
