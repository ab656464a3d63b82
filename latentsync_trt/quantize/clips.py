"""The clips that a bundle is calibrated on, and warnings about unsuitable ones."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import InputError
from latentsync_trt.media.audio import SPEECH_RATE_HZ
from latentsync_trt.paths import exists, why_missing
from latentsync_trt.types import Float32Array

VIDEO_SUFFIXES = (".mp4", ".mov", ".mkv", ".webm", ".avi")
AUDIO_SUFFIXES = (".wav", ".flac", ".mp3", ".m4a", ".ogg", ".opus", ".aac")

SILENCE_DBFS = -50.0
"""Sound of a video frame below this level is silent: above the noise of a quiet room, below a whisper."""

_MOSTLY = 0.5

_SAMPLES_PER_FRAME = SPEECH_RATE_HZ // MODEL_FPS


@dataclass(frozen=True, slots=True)
class Clip:
    """A video and its speech, an audio file or the video itself."""

    video: Path
    audio: Path


@dataclass(frozen=True, slots=True)
class ClipSummary:
    """Contents of a clip: frames, those with a face, recorded windows, and the silent share of its sound, 0 to 1."""

    frames: int
    with_face: int
    windows: int
    silent: float


def clips_in(folder: Path) -> tuple[Clip, ...]:
    """The videos in a folder, sorted by name, each with the audio file of the same name, else its own sound.

    Raises:
        InputError: no such folder, or no video in it.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: is a file; name a folder" if exists(folder) else why_missing(folder, "folder"))
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror})") from error
    audio = {path.stem: path for path in files if path.suffix.lower() in AUDIO_SUFFIXES}
    clips = tuple(Clip(path, audio.get(path.stem, path)) for path in files if path.suffix.lower() in VIDEO_SUFFIXES)
    if not clips:
        raise InputError(f"{folder}: no video in it (looked for {', '.join(VIDEO_SUFFIXES)})")
    return clips


def silent_share(blocks: Iterable[Float32Array]) -> float:
    """The silent share of a recording, 0 to 1.

    Args:
        blocks: float32 `(samples,)` each, mono, 16 kHz, full scale ±1.
    """
    floor = 10.0 ** (SILENCE_DBFS / 10)
    rest = np.zeros(0, np.float32)
    frames = silent = 0
    for block in blocks:
        rest = np.concatenate([rest, block])
        whole = rest[: len(rest) // _SAMPLES_PER_FRAME * _SAMPLES_PER_FRAME].reshape(-1, _SAMPLES_PER_FRAME)
        rest = rest[whole.size :]
        frames += len(whole)
        silent += int((np.square(whole, dtype=np.float64).mean(axis=1) < floor).sum())
    return silent / frames if frames else 1.0


def warnings_of(summaries: Mapping[str, ClipSummary], samples: int, frames: int) -> tuple[str, ...]:
    """Reasons why calibration ranges from these clips may be poor, a sentence each.

    Args:
        summaries: by path of the video. samples: total number of windows requested. frames: F of a window.
    """
    warnings: list[str] = []
    for name, clip in summaries.items():
        if clip.silent > _MOSTLY:
            warnings.append(f"{name}: {clip.silent:.0%} of its sound is silent; give a clip with more speech")
        if clip.with_face < _MOSTLY * clip.frames:
            warnings.append(f"{name}: a face in only {clip.with_face} of {clip.frames} frames")
    windows = sum(clip.windows for clip in summaries.values())
    if windows < samples:
        warnings.append(
            f"{windows} windows of the {samples} that --samples asks for, so ranges may be too narrow; give clips that "
            f"show a face for {samples * frames / MODEL_FPS:.0f} s in all"
        )
    return tuple(warnings)
