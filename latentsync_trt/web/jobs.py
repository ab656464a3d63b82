"""The jobs of a browser, on the service."""

import json
from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.face.track_file import save_tracks
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.previews import keeps_time, plays, write_preview
from latentsync_trt.serve.admission import Form
from latentsync_trt.serve.checks import Pool
from latentsync_trt.serve.jobs import JobStatus
from latentsync_trt.serve.service import Service
from latentsync_trt.web.uploads import Upload, link_once

COOKIE = "latentsync_trt_browser"
"""The cookie that marks a browser, so that no other one gets its jobs, not even by their
addresses.
"""

_MOST_JOBS = 20
"""The most jobs of a browser that the page lists."""

SETTINGS_FILE = "settings.json"
"""The file in a job's folder with the choices with which it was submitted."""

_SENT = "sent"
"""The stem, in a job's folder, of what browsers can play of the video as it was sent."""

_BESIDE = "before"
"""The stem, in a job's folder, of what browsers can play of the video at the result's times."""

_DENOMINATOR = 1_000_000
"""The largest denominator of exact times."""


def submit(service: Service, settings: Mapping[str, Any], upload: Upload, browser: str) -> str:
    """Queues a job with copies of its files, which have the same names, so that messages have them,
    too; returns its id.

    Args:
        settings: "files" by field, "options", "bundle", and what else `settings_of` shall return.
        browser: the value of its cookie.

    Raises:
        LatentSyncError: as `Intake.receiving` and `Intake.submit`.
    """
    files = {field: Path(path) for field, path in settings["files"].items()}
    for path in files.values():
        if not path.is_file():
            raise InputError(f"{path.name}: is not kept any longer; upload it again")
    service.limits.check_size(sum(path.stat().st_size for path in files.values()))
    texts = {"options": json.dumps(settings["options"]), "label": _label_of(browser)}
    if settings["bundle"]:
        texts["bundle"] = settings["bundle"]
    with service.intake.receiving() as (job_id, folder):
        copies = {}
        for field, path in files.items():
            target = folder / path.name
            if target.exists():
                target = folder / f"{field} {path.name}"
            copies[field] = link_once(path, target)
        playable = upload.playable or upload.video
        link_once(playable, folder.parent / f"{_SENT}{playable.suffix}")
        (folder.parent / SETTINGS_FILE).write_text(json.dumps(settings), "utf-8")
        if upload.analysis is not None:
            copies["faces"] = save_tracks(upload.analysis.tracks, folder / f"{job_id}.json")
        names = {field: path.name for field, path in files.items()}
        service.intake.submit(job_id, Form(copies, texts, names))
        return job_id


def _label_of(browser: str) -> str:
    """Returns the label of a browser's jobs, from which its cookie cannot be found."""
    return sha256(browser.encode()).hexdigest()


def jobs_of_browser(service: Service, cookies: Mapping[str, str]) -> dict[str | None, JobStatus]:
    """Returns the newest jobs of the browser with these cookies by their ids, the newest first."""
    browser = cookies.get(COOKIE)
    if browser:
        return {job.id: job for job in service.jobs.newest(_MOST_JOBS, label=_label_of(browser))}
    return {}


def settings_of(service: Service, job_id: str) -> dict[str, Any]:
    """Returns the settings with which a job was submitted; empty where they cannot be read."""
    with suppress(LatentSyncError, OSError, ValueError, TypeError):
        return dict(json.loads((service.jobs.folder(job_id) / SETTINGS_FILE).read_text("utf-8")))
    return {}


def video_before(service: Service, job_id: str, copies: Pool) -> Path:
    """Returns what is shown beside a result: the same moments of the video that was sent. It is
    made at the first call.

    Raises:
        LatentSyncError: as `Jobs.result`, or it cannot be made.
    """
    folder = service.jobs.result(job_id)[0].parent
    beside = next(folder.glob(f"{_BESIDE}.*"), None)
    if beside is None:
        sent = next(folder.glob(f"{_SENT}.*"), folder)
        report = service.jobs.status(job_id).report or {}
        playback = _playback(settings_of(service, job_id), report)
        beside = copies.call(write_beside, sent, folder / _BESIDE, playback)
    return Path(beside)


def _playback(settings: Mapping[str, Any], report: Mapping[str, Any]) -> Playback:
    """Returns how a job has played its video."""
    options = settings.get("options", {})
    usual = SyncOptions()
    fps = options.get("fps", usual.fps)
    length_s = report.get("duration_s")
    delay_s = _exact(report.get("picture_delay_s", 0.0))
    if length_s is None:  # a report of an earlier version
        return Playback(delay_s=delay_s)
    extend = options.get("extend", usual.extend)
    exact_fps = None if fps == "source" else Fraction(fps)
    return Playback(exact_fps, _exact(length_s), extend, delay_s)


def _exact(time_s: float) -> Fraction:
    """Returns the exact time that a report rounds."""
    return Fraction(time_s).limit_denominator(_DENOMINATOR)


def write_beside(video: Path, stem: Path, playback: Playback) -> Path:
    """Makes a file that browsers can play, with the pictures of a video at the times of `playback`:
    a link where the video is one. Returns its path, `stem` with a suffix. For a child; raises
    `LatentSyncError`.
    """
    target = stem.with_suffix(video.suffix)
    if plays(video) and keeps_time(video, playback):
        return link_once(video, target)
    target = stem.with_suffix(".mp4")
    if not target.exists():
        write_preview(video, target, playback)
    return target
