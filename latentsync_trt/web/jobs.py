"""Uploads and jobs of a browser, on the service. Needs no Gradio: children look at videos."""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from latentsync_trt.bundle.find import demo_folder
from latentsync_trt.bundle.manifest import read_manifest
from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.face.track_file import Tracks, save_tracks
from latentsync_trt.measure.mismatch import ModelMismatchCheck
from latentsync_trt.media.writer import plays, write_preview
from latentsync_trt.serve.admission import Form, Limits
from latentsync_trt.serve.checks import check_media
from latentsync_trt.serve.service import JobStatus, Service
from latentsync_trt.types import Progress, UInt8Array

COOKIE = "latentsync_trt_browser"
"""Marks a browser, so that no other one gets its jobs, not even by their addresses."""
_MOST_JOBS = 20
_SETTINGS = "settings.json"
"""In a job's folder: the choices with which it was made."""


@dataclass(slots=True, eq=False)
class Upload:
    """A video that a page was given, and what is known of it.

    `state` of the search for its people: new, searching, over. `playable`: a copy for browsers that cannot play it.
    `built_in`: by person, whether the built-in model knows the face.
    """

    video: Path
    state: str = "new"
    progress: Progress = Progress("opening the video", 0, None)
    playable: Path | None = None
    tracks: Tracks | None = None
    built_in: Sequence[bool] = ()


def look_at(
    video: Path, copy: Path, limits: Limits, tell: Callable[[Any], None]
) -> tuple[Tracks, list[tuple[UInt8Array, str]], list[bool]]:
    """Tracks all faces of a video, and finds who speaks when; for a child.

    Before, writes `copy` if not all browsers can play the video, and tells its path. Returns the tracks and, by person,
    a portrait, uint8 `(256, 256, 3)` RGB, with a caption, and whether the built-in model knows the face.

    Raises:
        MediaError: the video cannot be read. InputError: it is too long. NoFaceError: it shows none.
    """
    from latentsync_trt.face.detector import MediaPipeDetector
    from latentsync_trt.face.people import summaries
    from latentsync_trt.measure.syncnet import open_syncnet
    from latentsync_trt.sync.faces import analyze
    from latentsync_trt.sync.speakers import with_speakers

    check_media("video", video, limits)
    if not plays(video):
        tell(Progress("making a copy that browsers can play", 0, None))
        with suppress(LatentSyncError):  # the search says what is wrong
            write_preview(video, copy)
            tell(copy)
    people, built_in, demo = list[tuple[UInt8Array, str]](), list[bool](), read_manifest(demo_folder())
    detector = MediaPipeDetector()
    tracks, portraits = analyze(video, detector, tell)
    for one in summaries(tracks):
        portrait = portraits[one.number]
        faces = detector.detect(portrait)
        check = ModelMismatchCheck(demo, 0, lambda _: None, strict=False)
        for face in faces[:1]:
            check.meet(portrait, face, detector)
        people.append((portrait, f"{one.number} · {one.seen_s:.1f} s" if one.seen_s else f"{one.number}"))
        built_in.append(bool(faces) and not check.text)
    return with_speakers(video, tracks, open_syncnet(None))[0], people, built_in


def submit(service: Service, settings: Mapping[str, Any], upload: Upload, browser: str) -> JobStatus:
    """Queues a job with copies of its files, which have the same names, so that messages have them, too.

    Args:
        settings: "files" by field, "options", "bundle", and what else `settings_of` shall return.
        browser: the value of its cookie.

    Raises:
        LatentSyncError: as `Service.receiving` and `Service.submit`.
    """
    files = {field: Path(path) for field, path in settings["files"].items()}
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
        shown = upload.playable or upload.video
        _copy(shown, folder.parent / f"before{shown.suffix}")
        (folder.parent / _SETTINGS).write_text(json.dumps(settings), "utf-8")
        if upload.tracks is not None:
            copies["faces"] = save_tracks(upload.tracks, folder / f"{job_id}.json")
        return service.submit(job_id, Form(copies, texts, {field: path.name for field, path in files.items()}))


def _mark(browser: str) -> str:
    """The label of a browser's jobs, from which its cookie cannot be found."""
    return sha256(browser.encode()).hexdigest()


def of_browser(service: Service, browser: str | None) -> dict[str | None, JobStatus]:
    """Returns the newest jobs of a browser by their ids, the newest first."""
    return {job.id: job for job in service.jobs(_MOST_JOBS, label=_mark(browser))} if browser else {}


def settings_of(service: Service, job_id: str) -> dict[str, Any]:
    """Returns the settings with which a job was submitted; empty where they cannot be read."""
    with suppress(LatentSyncError, OSError, ValueError, TypeError):
        return dict(json.loads((service.folder(job_id) / _SETTINGS).read_text("utf-8")))
    return {}


def before(service: Service, job_id: str) -> Path:
    """Returns what browsers can play of the video that was sent; raises `UnknownJob`."""
    folder = service.folder(job_id)
    return next(folder.glob("before.*"), folder)


def _copy(path: Path, target: Path) -> Path:
    """Links or copies a file, which is never written to, to `target`; returns that."""
    try:
        os.link(path, target)
    except OSError:  # another disk, or one without links
        shutil.copyfile(path, target)
    return target
