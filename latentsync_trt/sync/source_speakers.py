"""Active speaker detection in the source: who of the people of a clip speaks when."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import MediaError
from latentsync_trt.face.active_speaker import Mouth, Voice, active_speakers
from latentsync_trt.face.track_file import Tracks
from latentsync_trt.measure.lips import loudness_of
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.reader import delays_of
from latentsync_trt.sync.speech import asking, speech_in

_MOUTHS_ALONE = "the mouths alone decide who speaks"


def detect_speakers(
    video: Path, tracks: Tracks, ask: Callable[[], object] = lambda: None
) -> tuple[Tracks, str | None]:
    """Returns the tracks of `analyze` with who speaks when; and a notice if no voice is heard.

    Args:
        ask: called often meanwhile; raises to stop.
    """
    notice = None
    voice = None
    try:
        voice = _voice_in(video, ask)
        if voice is None:
            notice = f"{video.name}: no voice is found in its sound, so {_MOUTHS_ALONE}"
    except MediaError as error:
        notice = f"{error}, so {_MOUTHS_ALONE}"
    mouths = [
        Mouth(span.person, span.rows[:, 0], span.mouth)
        for span in tracks.spans
        if span.mouth is not None
    ]
    return replace(tracks, turns=active_speakers(mouths, tracks.shots_s, voice)), notice


def _voice_in(video: Path, ask: Callable[[], object]) -> Voice | None:
    """Returns the voice in a video's own sound, in times of its picture; None without any."""
    speech = speech_in(video, ask)
    if not speech.spans_s:
        return None
    delays = delays_of(video, video)
    later_s = float(delays.sound_s - delays.picture_s)
    spans_s = [(start_s + later_s, end_s + later_s) for start_s, end_s in speech.spans_s]

    levels_db = loudness_of(asking(ask, read_audio_blocks(video)))[:, 2]
    levels_s = np.arange(len(levels_db)) / MODEL_FPS
    frames = len(levels_db) + max(0, round(later_s * MODEL_FPS))
    times_s = np.arange(frames) / MODEL_FPS - later_s
    return Voice(spans_s, np.interp(times_s, levels_s, levels_db))
