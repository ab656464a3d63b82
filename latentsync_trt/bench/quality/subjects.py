"""The clips that two bundles are compared on, and what must be known of them before anything is run."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from latentsync_trt.errors import InputError, MediaError
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.demo_clip import SPEECH, SpokenMouth, spoken_mouth
from latentsync_trt.media.reader import probe
from latentsync_trt.quantize.clips import SILENCE_DBFS, silent_share

_MOUTH_COLUMNS = 3


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A clip, the speech that it is dubbed with, and the mouth that belongs to that speech, where it is known."""

    video: Path
    audio: Path
    mouth: SpokenMouth | None = None

    @property
    def name(self) -> str:
        """What the report calls it."""
        return self.video.name


def built_in(video: Path) -> Subject:
    """The built-in sentence, whose mouth is known, to be spoken by `video`."""
    return Subject(video, SPEECH, spoken_mouth())


def check(subject: Subject) -> None:
    """Raises what can be known before a run.

    Raises:
        MediaError: the video or the sound cannot be read. InputError: nothing is said in it.
    """
    probe(subject.video)
    try:
        silent = silent_share(read_audio_blocks(subject.audio))
    except MediaError as error:
        if subject.audio != subject.video:
            raise
        raise MediaError(f"{error}; name the speech with --audio") from error
    if silent == 1.0:
        raise InputError(
            f"{subject.audio}: silent (never above {SILENCE_DBFS:.0f} dB of full scale): lips have nothing to follow; "
            "give speech with --audio"
        )


def read_mouth(path: Path) -> SpokenMouth:
    """The mouth of a recording, from CSV: a header, then for each frame (25 a second) opening (0 = shut to about 1),
    whether the lips must touch (0 or 1), whether nothing is said (0 or 1).

    Raises:
        InputError: it cannot be read, or holds something else.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()[1:]
        rows = np.array([[float(cell) for cell in line.split(",")] for line in lines], np.float32)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as the mouth of a recording ({error})") from error
    if rows.shape[1:] != (_MOUTH_COLUMNS,) or not np.isfinite(rows).all():
        raise InputError(f"{path}: a line for each frame is needed, with opening, shut and silent as numbers")
    return SpokenMouth(rows[:, 0], rows[:, 1] > 0, rows[:, 2] > 0)
