"""Uploads and jobs of a browser, on the service. Needs no Gradio: children look at videos."""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

from latentsync_trt.bundle.find import demo_folder
from latentsync_trt.bundle.manifest import read_manifest
from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.face.track_file import Tracks, save_tracks
from latentsync_trt.measure.mismatch import ModelMismatchCheck
from latentsync_trt.media.audio import open_audio
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.previews import keeps_time, plays, write_preview
from latentsync_trt.serve.admission import Form, Limits
from latentsync_trt.serve.checks import Pool, check_media, check_search
from latentsync_trt.serve.jobs import JobStatus
from latentsync_trt.serve.service import Service
from latentsync_trt.types import Progress, UInt8Array

COOKIE = "latentsync_trt_browser"
"""Marks a browser, so that no other one gets its jobs, not even by their addresses."""
_MOST_JOBS = 20
_SETTINGS = "settings.json"
_SENT = "sent"
_BESIDE = "before"
"""In a job's folder: the choices with which it was made, and stems of what browsers can play of the
video: as it was sent, and at the times of the result.
"""
_DENOMINATOR = 1_000_000
"""Of exact times, at most."""
_COPY = ".preview.mp4"
"""After the name of a video: its copy for browsers."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class Upload:
    """A video that a page was given, and what is known of it.

    `state` of the search for its people: new, searching, replaced (by one of the same browser),
    over. `playable`: a copy for browsers that cannot play it. `built_in`: by person, whether the
    built-in model knows the face.
    """

    video: Path
    state: str = "new"
    progress: Progress = Progress("opening the video", 0, None)
    playable: Path | None = None
    tracks: Tracks | None = None
    built_in: Sequence[bool] = ()


def source_of(shown: Path) -> Path:
    """Returns the video of which a page shows a file: itself, or a copy for browsers."""
    return shown.with_name(shown.name.removesuffix(_COPY))


def copy_of(video: Path) -> Path:
    """Returns the path of a video's copy for browsers, which may not have been written."""
    return video.with_name(f"{video.name}{_COPY}")


def check_speech(speech: Path, limits: Limits) -> None:
    """For a child; raises `InputError` if a recording is too long, and as `MediaError` if it cannot
    be read.
    """
    check_media("speech", speech, limits)
    with open_audio(speech):
        pass


def look_at(
    video: Path, limits: Limits, tell: Callable[[Any], None]
) -> tuple[Tracks, list[tuple[UInt8Array, str]], list[bool]]:
    """Tracks all faces of a video, and finds who speaks when; for a child.

    Before, writes a copy if not all browsers can play the video, and tells its path. Returns the
    tracks and, by person, a portrait, uint8 `(256, 256, 3)` RGB, with a caption, and whether the
    built-in model knows the face.

    Raises:
        MediaError: the video cannot be read. InputError: it is too long, or too large to be
            searched (`TooLarge`).
        NoFaceError: it shows none.
    """
    from latentsync_trt.face.detector import MediaPipeDetector
    from latentsync_trt.face.people import summaries
    from latentsync_trt.sync.faces import analyze
    from latentsync_trt.sync.source_speakers import detect_speakers

    check_search(video, limits, tell)
    if not plays(video):
        tell(Progress("making a copy that browsers can play", 0, None))
        copy = copy_of(video)
        with suppress(LatentSyncError):  # the search says what is wrong
            if not copy.exists():
                write_preview(video, copy)
            tell(copy)
    people = list[tuple[UInt8Array, str]]()
    built_in = list[bool]()
    demo = read_manifest(demo_folder())
    detector = MediaPipeDetector()
    tracks, portraits = analyze(video, detector, tell)
    for one in summaries(tracks):
        portrait = portraits[one.number]
        faces = detector.detect(portrait)
        check = ModelMismatchCheck(demo, 0, lambda _: None, strict=False)
        for face in faces[:1]:
            check.check_source_face(portrait, face, detector)
        seen = f" · {one.seen_s:.1f} s" if one.seen_s else ""
        people.append((portrait, f"Person {one.number}{seen}"))
        built_in.append(bool(faces) and not check.text)
    return detect_speakers(video, tracks)[0], people, built_in


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
    texts = {"options": json.dumps(settings["options"]), "label": _mark(browser)}
    texts |= {"bundle": settings["bundle"]} if settings["bundle"] else {}
    with service.intake.receiving() as (job_id, folder):
        copies = dict[str, Path]()
        for field, path in files.items():
            again = (folder / path.name).exists()
            copies[field] = _copy(path, folder / (f"{field} {path.name}" if again else path.name))
        shown = upload.playable or upload.video
        _copy(shown, folder.parent / f"{_SENT}{shown.suffix}")
        (folder.parent / _SETTINGS).write_text(json.dumps(settings), "utf-8")
        if upload.tracks is not None:
            copies["faces"] = save_tracks(upload.tracks, folder / f"{job_id}.json")
        names = {field: path.name for field, path in files.items()}
        service.intake.submit(job_id, Form(copies, texts, names))
        return job_id


def _mark(browser: str) -> str:
    """The label of a browser's jobs, from which its cookie cannot be found."""
    return sha256(browser.encode()).hexdigest()


def of_browser(service: Service, browser: str | None) -> dict[str | None, JobStatus]:
    """Returns the newest jobs of a browser by their ids, the newest first."""
    if browser:
        return {job.id: job for job in service.jobs.newest(_MOST_JOBS, label=_mark(browser))}
    return {}


def settings_of(service: Service, job_id: str) -> dict[str, Any]:
    """Returns the settings with which a job was submitted; empty where they cannot be read."""
    with suppress(LatentSyncError, OSError, ValueError, TypeError):
        return dict(json.loads((service.jobs.folder(job_id) / _SETTINGS).read_text("utf-8")))
    return {}


def before(service: Service, job_id: str, copies: Pool) -> Path:
    """Returns what is shown beside a result: the same moments of the video that was sent; made at
    the first call.

    Raises:
        LatentSyncError: as `Jobs.result`, or it cannot be made.
    """
    folder = service.jobs.result(job_id)[0].parent
    beside = next(folder.glob(f"{_BESIDE}.*"), None)
    if beside is None:
        sent = next(folder.glob(f"{_SENT}.*"), folder)
        playback = _playback(settings_of(service, job_id), service.jobs.status(job_id).report or {})
        beside = copies.call(write_beside, sent, folder / _BESIDE, playback)
    return Path(beside)


def _playback(settings: Mapping[str, Any], report: Mapping[str, Any]) -> Playback:
    """How a job has played its video."""
    options = settings.get("options", {})
    usual = SyncOptions()
    length_s = report.get("duration_s")
    fps = options.get("fps", usual.fps)
    delay_s = Fraction(report.get("picture_delay_s", 0.0)).limit_denominator(_DENOMINATOR)
    if length_s is None:  # a report of an earlier version
        return Playback(delay_s=delay_s)
    return Playback(
        None if fps == "source" else Fraction(fps),
        Fraction(length_s).limit_denominator(_DENOMINATOR),
        options.get("extend", usual.extend),
        delay_s,
    )


def write_beside(video: Path, stem: Path, playback: Playback) -> Path:
    """Makes a file that browsers can play, with the pictures of a video at the times of `playback`:
    a link where the video is one. Returns its path, `stem` with a suffix. For a child; raises
    `LatentSyncError`.
    """
    target = stem.with_suffix(video.suffix)
    if plays(video) and keeps_time(video, playback):
        return _copy(video, target)
    target = stem.with_suffix(".mp4")
    if not target.exists():
        write_preview(video, target, playback)
    return target


def _copy(path: Path, target: Path) -> Path:
    """Links or copies a file, which is never written to, to `target` unless it exists; returns
    that.
    """
    try:
        os.link(path, target)
    except FileExistsError:  # made for another request
        pass
    except OSError:  # another disk, or one without links
        shutil.copyfile(path, target)
    return target
