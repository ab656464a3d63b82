"""Videos and speech that a browser has sent. Needs no Gradio: children look at them."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from latentsync_trt.bundle.find import demo_folder
from latentsync_trt.bundle.manifest import read_manifest
from latentsync_trt.child_main import OnProgress
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.face.track_file import Tracks
from latentsync_trt.files import link_or_copy
from latentsync_trt.measure.mismatch import ModelMismatchCheck
from latentsync_trt.media.audio import open_audio
from latentsync_trt.media.previews import plays, write_preview
from latentsync_trt.serve.admission import Limits
from latentsync_trt.serve.checks import check_media, check_search
from latentsync_trt.types import Progress, UInt8Array

_COPY_SUFFIX = ".preview.mp4"
"""What follows the name of a video in that of its copy for browsers."""


@dataclass(frozen=True, slots=True, eq=False)
class UploadedPerson:
    """A person of a video that was sent."""

    portrait: UInt8Array
    """`(256, 256, 3)` RGB."""
    caption: str
    fits_demo: bool
    """Whether the built-in model knows the face."""


@dataclass(frozen=True, slots=True, eq=False)
class UploadAnalysis:
    """The people of a video that was sent."""

    tracks: Tracks
    people: tuple[UploadedPerson, ...]


@dataclass(slots=True, weakref_slot=True, eq=False)
class Upload:
    """A video that a page was given, and the state of the search for its people."""

    video: Path
    state: str = "new"
    """New, searching, replaced (by another search of the same browser) or over."""
    progress: Progress = Progress("opening the video", 0, None)
    playable: Path | None = None
    """A copy for browsers that cannot play the video."""
    analysis: UploadAnalysis | None = None
    """What the search came to."""


def source_of(path: Path) -> Path:
    """Returns the video that a page plays from a file: the file itself, or what it is a copy of."""
    return path.with_name(path.name.removesuffix(_COPY_SUFFIX))


def copy_of(video: Path) -> Path:
    """Returns the path of a video's copy for browsers, which may not have been written."""
    return video.with_name(f"{video.name}{_COPY_SUFFIX}")


def fits_demo(upload: Upload | None, face: str) -> bool:
    """Returns whether the built-in model knows the face that is chosen, as far as people are known;
    without a choice, any of theirs.
    """
    if upload is None or upload.analysis is None or not upload.analysis.people:
        return True
    people = upload.analysis.people
    for number, person in enumerate(people):
        if face == f"index:{number}":
            return person.fits_demo
    return any(person.fits_demo for person in people)


def check_speech(speech: Path, limits: Limits) -> None:
    """Raises `InputError` if a recording is too long, and `MediaError` if it cannot be read; for a
    child.
    """
    check_media("speech", speech, limits)
    with open_audio(speech):
        pass


def analyze_upload(video: Path, limits: Limits, on_progress: OnProgress) -> UploadAnalysis:
    """Tracks all faces of a video, and finds who speaks when; for a child.

    Before, writes a copy if not all browsers can play the video, and gives its path to
    `on_progress`.

    Raises:
        MediaError: the video cannot be read.
        InputError: it is too long, or too large to be searched (`TooLarge`).
        NoFaceError: it shows none.
    """
    from latentsync_trt.face.detector import MediaPipeDetector
    from latentsync_trt.face.people import summaries
    from latentsync_trt.sync.faces import analyze
    from latentsync_trt.sync.source_speakers import detect_speakers

    check_search(video, limits, on_progress)
    if not plays(video):
        on_progress(Progress("making a copy that browsers can play", 0, None))
        copy = copy_of(video)
        with suppress(LatentSyncError):  # the search says what is wrong
            if not copy.exists():
                write_preview(video, copy)
            on_progress(copy)
    demo = read_manifest(demo_folder())
    detector = MediaPipeDetector()
    tracks, portraits = analyze(video, detector, on_progress)
    people = []
    for person in summaries(tracks):
        portrait = portraits[person.number]
        faces = detector.detect(portrait)
        check = ModelMismatchCheck(demo, 0, lambda _: None, strict=False)
        if faces:
            check.check_source_face(portrait, faces[0], detector)
        caption = f"Person {person.number}"
        if person.seen_s:
            caption += f" · {person.seen_s:.1f}\N{NO-BREAK SPACE}s"
        people.append(UploadedPerson(portrait, caption, bool(faces) and not check.text))
    return UploadAnalysis(detect_speakers(video, tracks)[0], tuple(people))


def link_once(path: Path, target: Path) -> Path:
    """Links or copies a file, which is never written to, to `target` unless it exists; returns
    `target`.
    """
    with suppress(FileExistsError):  # made for another request
        link_or_copy(path, target)
    return target
