"""The clips that a calibration looks at: which they are, and how much is said in them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import InputError
from latentsync_trt.media.audio import SPEECH_RATE_HZ
from latentsync_trt.types import Float32Array

VIDEO_SUFFIXES = (".mp4", ".mov", ".mkv", ".webm", ".avi")
AUDIO_SUFFIXES = (".wav", ".flac", ".mp3", ".m4a", ".ogg", ".opus", ".aac")

SILENCE_DBFS = -50.0
"""Level of a video frame's sound below which nothing is said: room noise of a quiet recording lies under it, a
whisper above."""

_MOSTLY = 0.5

_SAMPLES_PER_FRAME = SPEECH_RATE_HZ // MODEL_FPS


@dataclass(frozen=True, slots=True)
class Clip:
    """A video, and the file whose sound its lips are to follow, which may be the video itself."""

    video: Path
    audio: Path


def clips_in(folder: Path) -> tuple[Clip, ...]:
    """The videos in a folder in the order of their names, each with the sound file of the same name, else its own.

    Raises:
        InputError: no such folder, or no video in it.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of clips")
    files = sorted(path for path in folder.iterdir() if path.is_file())
    sounds = {path.stem: path for path in files if path.suffix.lower() in AUDIO_SUFFIXES}
    clips = tuple(Clip(path, sounds.get(path.stem, path)) for path in files if path.suffix.lower() in VIDEO_SUFFIXES)
    if not clips:
        raise InputError(f"{folder}: no video in it (looked for {', '.join(VIDEO_SUFFIXES)})")
    return clips


def silent_share(blocks: Iterable[Float32Array]) -> float:
    """The share of a recording, in 0 to 1, in which nothing is said.

    Args:
        blocks: float32 `(samples,)` pieces, mono, 16 kHz, full scale ±1.
    """
    floor = 10.0 ** (SILENCE_DBFS / 10)
    left = np.zeros(0, np.float32)
    frames = silent = 0
    for block in blocks:
        left = np.concatenate([left, block])
        whole = left[: len(left) // _SAMPLES_PER_FRAME * _SAMPLES_PER_FRAME].reshape(-1, _SAMPLES_PER_FRAME)
        left = left[whole.size :]
        frames += len(whole)
        silent += int((np.square(whole, dtype=np.float64).mean(axis=1) < floor).sum())
    return silent / frames if frames else 1.0


@dataclass(frozen=True, slots=True)
class Findings:
    """What a clip was found to hold.

    `frames`, and those `with_face`; `windows` that were recorded of it; `silent`: the share, in 0 to 1, of its sound in
    which nothing is said.
    """

    frames: int
    with_face: int
    windows: int
    silent: float


def what_is_missing(findings: Mapping[str, Findings], samples: int, frames: int) -> tuple[str, ...]:
    """What clips lack to make good ranges, a sentence each.

    Args:
        findings: by what to call the clip. samples: windows that are wanted of all together. frames: F, of a window.
    """
    missing: list[str] = []
    for name, found in findings.items():
        if found.silent > _MOSTLY:
            missing.append(
                f"{name}: nothing is said in {found.silent:.0%} of its sound, so speech was hardly seen; "
                "give a clip in which somebody talks"
            )
        if found.with_face < _MOSTLY * found.frames:
            missing.append(f"{name}: a face in only {found.with_face} of {found.frames} frames")
    windows = sum(found.windows for found in findings.values())
    if windows < samples:
        missing.append(
            f"{windows} windows of the {samples} that --samples asks for: ranges of few may be too narrow; "
            f"give clips that show a face for {samples * frames / MODEL_FPS:.0f} s together"
        )
    return tuple(missing)
