"""`--face speaking`: whose the speech of the dub is."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import NoFaceError
from latentsync_trt.face.active_speaker import Turn
from latentsync_trt.media.audio import audio_duration_s
from latentsync_trt.sync.faces import analyze
from latentsync_trt.sync.inputs import Inputs
from latentsync_trt.sync.model_slot import RunContext
from latentsync_trt.sync.source_speakers import detect_speakers
from latentsync_trt.sync.turns import MARGIN_S, SpeakerTurns
from latentsync_trt.types import Float64Array, runs_of_true, within

_FARTHEST_S = 0.6
"""A dub is spoken so much earlier or later than the source, at most."""

_NOBODY = -1


def who_speaks(run: RunContext) -> Inputs:
    """The inputs of a run with `--face speaking`, whose sound says which faces are painted when.

    Raises:
        NoFaceError: no one is seen, or none of several people to speak.
    """
    inputs = run.inputs
    tracks = run.inputs.tracks
    if tracks is None:
        tracks, _ = analyze(inputs.video, inputs.helpers.detector or run.detector, run.on_progress)
        tracks, notice = detect_speakers(inputs.video, tracks, run.ask)
        run.announce(() if notice is None else (notice,))
    if len(tracks.people) == 1:  # painted always, as by `--face largest`
        return inputs
    (recording,) = inputs.sound.recordings
    spans_s: Sequence[tuple[float, float]] = run.speech_in(recording.path).spans_s
    if inputs.options.silence == "model" or not spans_s:
        spans_s = [(0.0, float(audio_duration_s(recording.path)))]
    at_s = float(recording.at_s)
    speech_s = [(at_s + start_s, at_s + end_s) for start_s, end_s in spans_s]
    turns, nobody_s = dubbed(
        tracks.turns or (), tracks.shots_s, speech_s, partial(_source_s, inputs)
    )
    if not turns:
        raise NoFaceError(
            f"{inputs.video}: shows {len(tracks.people)} "
            "people, and none is seen to speak; name one "
            "with --face index:N or --speaker N=FILE (latentsync-trt faces)"
        )
    if nobody_s:
        lasts_s = sum(end_s - start_s for start_s, end_s in nobody_s)
        run.announce(
            (
                f"nobody is painted in {lasts_s:.1f} s of the "
                f"speech, from {nobody_s[0][0]:.1f} s on: the source "
                "does not show who speaks there; to change that, give --faces with edited tracks",
            )
        )
    sound = replace(
        inputs.sound,
        recordings=(recording,) * len(turns),
        people=tuple(turns),
        turns=tuple(turns.values()),
    )
    return replace(inputs, tracks=tracks, sound=sound)


def _source_s(inputs: Inputs, times_s: Float64Array) -> Float64Array:
    """Times of the source that are shown at these of the output, also where it is extended."""
    end_s = inputs.info.duration_s
    fps = inputs.info.frames_per_s or MODEL_FPS
    shown_s = np.maximum(times_s - float(inputs.sound.picture_delay_s), 0)
    if end_s is None or inputs.options.output_length not in ("audio", "longest"):
        return shown_s
    lasts_s = float(end_s - inputs.sound.picture_delay_s)
    half_s = float(1 / Fraction(2 * fps))
    if inputs.options.extend == "loop" or lasts_s <= 2 * half_s:
        return shown_s % lasts_s
    turn_s = lasts_s - 2 * half_s  # of neither end, the picture is shown twice
    return half_s + turn_s - np.abs(turn_s - (shown_s - half_s) % (2 * turn_s))


def dubbed(
    speaks: Sequence[Turn],
    shots_s: Sequence[float],
    speech_s: Sequence[tuple[float, float]],
    source_s: Callable[[Float64Array], Float64Array],
) -> tuple[dict[int, SpeakerTurns], list[tuple[float, float]]]:
    """When each person is painted, by number, and when no one is, although there is speech.

    Speech belongs to whom the nearest speech of the source does, in the same shot, or else to the
    last speaker of the shot. Within an unbroken span of it, who would begin or end shortly before
    or after a pause, does so in the pause.

    Args:
        speech_s: when there is speech in the output. source_s: times of the output → of the source.
    """
    margin = round(MARGIN_S * MODEL_FPS)
    count = round(max((end_s for _, end_s in speech_s), default=0.0) * MODEL_FPS) + margin
    times_s = (np.arange(count) + 0.5) / MODEL_FPS  # the middles of frames
    shown_s = source_s(times_s)
    spoken = within(times_s, speech_s)
    shots = np.searchsorted(np.asarray(shots_s), shown_s)
    owners = np.where(spoken, _owners(speaks, shots_s, shown_s, shots), _NOBODY)
    for start, end in runs_of_true(spoken):
        _begin_in_pauses(owners[start:end], shots[start:end])
    turns = dict[int, SpeakerTurns]()
    for person in sorted(
        {one.person for one in speaks if one.person is not None}.intersection(owners.tolist())
    ):
        near = owners == person
        for start, end in runs_of_true(near):
            for edge, around in (
                (start, slice(max(0, start - margin), start)),
                (end - 1, slice(end, end + margin)),
            ):
                near[around] |= ~spoken[around] & (shots[around] == shots[edge])
        spans = runs_of_true(near)
        turns[person] = SpeakerTurns(
            tuple((Fraction(a, MODEL_FPS), Fraction(b, MODEL_FPS)) for a, b in spans)
        )
    return turns, [
        (a / MODEL_FPS, b / MODEL_FPS) for a, b in runs_of_true(spoken & (owners == _NOBODY))
    ]


def _owners(
    speaks: Sequence[Turn],
    shots_s: Sequence[float],
    shown_s: Float64Array,
    shots: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Who would speak at each of `shown_s (n,)` of the source, in `shots (n,)`, by number."""
    owners = np.full(len(shown_s), _NOBODY)
    for number, (start_s, end_s) in enumerate(pairwise((*shots_s, np.inf)), start=1):
        inside = [one for one in speaks if one.start_s < end_s and start_s < one.end_s]
        (at,) = np.nonzero(shots == number)
        if inside and at.size:
            starts_s, ends_s = np.array([(one.start_s, one.end_s) for one in inside]).T
            times_s = shown_s[at, None]
            apart_s = np.maximum(np.maximum(starts_s - times_s, times_s - ends_s), 0)
            nearest = apart_s.argmin(axis=1)
            last = (starts_s <= times_s).sum(axis=1) - 1
            people = np.array(
                [_NOBODY if one.person is None else one.person for one in inside] + [_NOBODY]
            )
            owners[at] = people[np.where(apart_s.min(axis=1) <= _FARTHEST_S, nearest, last)]
    return owners


def _begin_in_pauses(owners: NDArray[np.int64], shots: NDArray[np.int64]) -> None:
    """In a span of speech, gives what is before its first and after its last change to the
    neighbor, if it is short.
    """
    edges = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(owners)]
    short = _FARTHEST_S * MODEL_FPS
    for before, change, after in zip(edges, edges[1:], edges[2:], strict=False):
        if shots[change - 1] != shots[change]:
            continue
        if before == 0 and change < short:
            owners[:change] = owners[change]
        elif after == len(owners) and after - change < short:
            owners[change:] = owners[change - 1]
