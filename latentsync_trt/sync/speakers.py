"""`--face speaking`: who speaks in the source."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from itertools import groupby
from pathlib import Path

import numpy as np

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import MediaError
from latentsync_trt.face.people import PORTRAIT_PX
from latentsync_trt.face.speaking import Mouth, Speaks, Voice, speakers
from latentsync_trt.face.track_file import Tracks
from latentsync_trt.measure.lips import Loudness
from latentsync_trt.measure.syncnet import SyncMeter, SyncNet
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.reader import delays_of, probe, read_frames
from latentsync_trt.sync.faces import FaceFinder
from latentsync_trt.sync.speech import asking, speech_in


def with_speakers(
    video: Path,
    tracks: Tracks,
    network: SyncNet | None = None,
    ask: Callable[[], object] = lambda: None,
) -> tuple[Tracks, str | None]:
    """The tracks of `analyze` with who speaks when, and what to say about it. Where the mouths of
    two people move about alike while a voice is heard, `network` decides. `ask`: called often
    meanwhile; may raise to stop.
    """
    voice, notice = _voice_of(video, ask)
    mouths = [
        Mouth(span.person, span.rows[:, 0], span.mouth)
        for span in tracks.spans
        if span.mouth is not None
    ]
    speaks = speakers(mouths, tracks.shots_s, voice)
    if network is not None and voice is not None:
        speaks = _decided(video, tracks, speaks, network, ask)
    return replace(tracks, speaks=speaks), notice


def _decided(
    video: Path,
    tracks: Tracks,
    speaks: Sequence[Speaks],
    network: SyncNet,
    ask: Callable[[], object],
) -> tuple[Speaks, ...]:
    """`speaks`, with the rival where SyncNet has more confidence in that one; it needs two seconds
    of both.
    """
    close = [one for one in speaks if one.rival is not None]
    people = sorted(
        {person for one in close for person in (one.person, one.rival) if person is not None}
    )
    if not people:
        return tuple(speaks)

    def doubtful(time_s: Fraction) -> Speaks | None:
        return next((one for one in close if one.start_s <= time_s < one.end_s), None)

    sound_s = delays_of(video, video).sound_s
    meters = {person: SyncMeter(network, video, sound_s) for person in people}
    finder = FaceFinder(
        tracks,
        PORTRAIT_PX,
        choice=dict.fromkeys(people, 0),
        wanted=lambda time_s: doubtful(time_s) is not None,
        pixel_aspect=probe(video).sample_aspect_ratio,
    )
    decided = {}
    with closing(
        finder.cut_out(finder.find(frame for frame in asking(ask, read_frames(video))))
    ) as jobs:
        for one, part in groupby(jobs, key=lambda job: doubtful(job.frame.time_s)):
            for job in part:
                for target in job.targets:
                    if target.face is not None:
                        meters[target.person].add(job.frame.time_s, job.frame.picture, target.face)
            confidence = dict[int | None, float]()
            for person, meter in meters.items():
                if (found := meter.result()) is not None:
                    confidence[person] = found.lse_c
            if one is not None and {one.person, one.rival} <= confidence.keys():
                decided[one] = replace(
                    one, person=max(one.person, one.rival, key=confidence.__getitem__)
                )
    return tuple(decided.get(one, one) for one in speaks)


def _voice_of(video: Path, ask: Callable[[], object]) -> tuple[Voice | None, str | None]:
    """The voices in a video's own sound, in times of its picture; None without any, and why."""
    alone = "the mouths alone decide who speaks"
    try:
        speech = speech_in(video, ask)
        loudness = Loudness()
        for _ in loudness.passing(asking(ask, read_audio_blocks(video))):
            pass
        delays = delays_of(video, video)
    except MediaError as error:
        return None, f"{error}; so {alone}"
    if not speech.spans_s:
        return None, f"{video.name}: no voice is found in its sound, so {alone}"
    later_s = float(delays.sound_s - delays.picture_s)
    levels_db = loudness.levels_db()[:, 2]
    times_s = np.arange(len(levels_db) + max(0, round(later_s * MODEL_FPS))) / MODEL_FPS - later_s
    spans_s = [(start_s + later_s, end_s + later_s) for start_s, end_s in speech.spans_s]
    return Voice(
        spans_s, np.interp(times_s, np.arange(len(levels_db)) / MODEL_FPS, levels_db)
    ), None
