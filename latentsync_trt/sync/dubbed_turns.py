"""`--face speaking`: whose the speech of a dub is, by who speaks in the source."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import NoFaceError, Notices
from latentsync_trt.face.active_speaker import Turn
from latentsync_trt.media.audio import audio_duration_s
from latentsync_trt.spans import Span
from latentsync_trt.sync.caller import CallerProgress
from latentsync_trt.sync.faces import analyze
from latentsync_trt.sync.inputs import Inputs
from latentsync_trt.sync.source_speakers import detect_speakers
from latentsync_trt.sync.speech import FindSpeech
from latentsync_trt.sync.turns import MARGIN_S, SpeakerTurns
from latentsync_trt.types import BoolArray, FaceDetector, Float64Array, runs_of_true, within

IntArray = NDArray[np.int64]

_FARTHEST_S = 0.6
"""A dub is spoken at most so much earlier or later than the source."""

_NO_ONE = -1
"""Takes the place of a person's number where no one speaks."""


@dataclass(frozen=True, slots=True)
class DubbedTurns:
    """Who is painted while a dub is heard."""

    turns: dict[int, SpeakerTurns]
    """When each person is painted, by number."""
    unassigned: tuple[Span, ...]
    """When there is speech that is assigned to no one."""


def assign_speech(
    inputs: Inputs,
    detector: FaceDetector,
    find_speech: FindSpeech,
    notices: Notices,
    progress: CallerProgress,
) -> Inputs:
    """Returns inputs whose sound says which faces are painted when.

    Raises:
        NoFaceError: no one is seen, or none of several people to speak.
    """
    tracks = inputs.tracks
    if tracks is None:
        tracks, _ = analyze(inputs.video, detector, progress)
        tracks, notice = detect_speakers(inputs.video, tracks, progress.ask)
        if notice is not None:
            notices.add(notice)
    if len(tracks.people) == 1:  # painted always, as by `--face largest`
        return inputs
    speech_s = _speech_s(inputs, find_speech)
    shown_at = partial(_source_times_s, inputs)
    dubbed = dubbed_turns(tracks.turns or (), tracks.shots_s, speech_s, shown_at)
    if not dubbed.turns:
        raise NoFaceError(
            f"{inputs.video}: shows {len(tracks.people)} people, and none is seen to speak; name "
            "one with --face index:N or --speaker N=FILE (latentsync-trt faces)"
        )
    if dubbed.unassigned:
        lasts_s = float(sum(span.end_s - span.start_s for span in dubbed.unassigned))
        first_s = float(dubbed.unassigned[0].start_s)
        notices.add(
            f"no one is painted in {lasts_s:.1f} s of the speech, from {first_s:.1f} s on: the "
            "source does not show who speaks there; to change that, give --faces with edited tracks"
        )
    sound = replace(
        inputs.sound,
        recordings=inputs.sound.recordings * len(dubbed.turns),
        people=tuple(dubbed.turns),
        turns=tuple(dubbed.turns.values()),
    )
    return replace(inputs, tracks=tracks, sound=sound)


def _speech_s(inputs: Inputs, find_speech: FindSpeech) -> list[tuple[float, float]]:
    """Returns when the dub is spoken, in times of the output."""
    (recording,) = inputs.sound.recordings
    spans_s = find_speech(recording.path).spans_s
    if inputs.options.silence == "model" or not spans_s:
        spans_s = ((0.0, float(audio_duration_s(recording.path))),)
    at_s = float(recording.at_s)
    return [(at_s + start_s, at_s + end_s) for start_s, end_s in spans_s]


def _source_times_s(inputs: Inputs, times_s: Float64Array) -> Float64Array:
    """Returns the times of the source that are shown at these of the output, also where it is
    extended.
    """
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
    passed_s = (shown_s - half_s) % (2 * turn_s)
    return half_s + turn_s - np.abs(turn_s - passed_s)


def dubbed_turns(
    speaks: Sequence[Turn],
    shots_s: Sequence[float],
    speech_s: Sequence[tuple[float, float]],
    shown_at: Callable[[Float64Array], Float64Array],
) -> DubbedTurns:
    """Returns whose the speech of a dub is.

    Speech belongs to whom the nearest speech of the source does, in the same shot, or else to the
    last speaker of the shot. Within an unbroken span of it, who would begin or end shortly before
    or after a pause, does so in the pause.

    Args:
        speech_s: when there is speech in the output, ascending; at least one span.
        shown_at: times of the output → of the source.
    """
    _, ends_s = speech_s[-1]
    frames = round(ends_s * MODEL_FPS) + round(MARGIN_S * MODEL_FPS)
    times_s = (np.arange(frames) + 0.5) / MODEL_FPS  # the middles of frames
    shown_s = shown_at(times_s)
    shots = np.searchsorted(np.asarray(shots_s), shown_s)
    spoken = within(times_s, speech_s)
    owners = np.where(spoken, _owners(speaks, shots_s, shown_s, shots), _NO_ONE)
    _begin_in_pauses(owners, shots, spoken)
    turns = dict[int, SpeakerTurns]()
    for person in sorted(set(owners.tolist()) - {_NO_ONE}):
        painted = _with_silence_around(owners == person, ~spoken, shots)
        turns[person] = SpeakerTurns(_spans_of(painted))
    return DubbedTurns(turns, _spans_of(spoken & (owners == _NO_ONE)))


def _spans_of(frames: BoolArray) -> tuple[Span, ...]:
    """Returns the runs of True as spans of time."""
    runs = runs_of_true(frames)
    return tuple(Span(Fraction(start, MODEL_FPS), Fraction(end, MODEL_FPS)) for start, end in runs)


def _owners(
    speaks: Sequence[Turn],
    shots_s: Sequence[float],
    shown_s: Float64Array,
    shots: IntArray,
) -> IntArray:
    """Returns who would speak at each of `shown_s (n,)` of the source, in `shots (n,)`, by
    number.
    """
    owners = np.full(len(shown_s), _NO_ONE)
    for number, (start_s, end_s) in enumerate(pairwise((*shots_s, np.inf)), start=1):
        in_shot = [one for one in speaks if one.start_s < end_s and start_s < one.end_s]
        is_shown = shots == number
        if in_shot and is_shown.any():
            owners[is_shown] = _nearest_speakers(in_shot, shown_s[is_shown])
    return owners


def _nearest_speakers(speaks: Sequence[Turn], times_s: Float64Array) -> IntArray:
    """Returns who speaks nearest to each of `times_s (n,)`, or spoke last where that is far, by
    number.
    """
    starts_s = np.array([one.start_s for one in speaks])
    ends_s = np.array([one.end_s for one in speaks])
    columns_s = times_s[:, None]
    outside_s = np.maximum(starts_s - columns_s, columns_s - ends_s)
    apart_s = np.maximum(outside_s, 0)
    last = (starts_s <= columns_s).sum(axis=1) - 1  # −1 before the first
    is_near = apart_s.min(axis=1) <= _FARTHEST_S
    nearest = np.where(is_near, apart_s.argmin(axis=1), last)
    people = [_NO_ONE if one.person is None else one.person for one in speaks]
    return np.array([*people, _NO_ONE])[nearest]


def _begin_in_pauses(owners: IntArray, shots: IntArray, spoken: BoolArray) -> None:
    """Gives what lies before the first and after the last change in each span of speech to the
    neighbor in the same shot, if it is short.
    """
    short = _FARTHEST_S * MODEL_FPS
    for start, end in runs_of_true(spoken):
        steps = np.diff(owners[start:end])
        changes = np.flatnonzero(steps) + start + 1
        edges = [start, *changes.tolist(), end]
        for before, change, after in zip(edges, edges[1:], edges[2:], strict=False):
            if shots[change - 1] != shots[change]:
                continue
            if before == start and change - start < short:
                owners[start:change] = owners[change]
            elif after == end and end - change < short:
                owners[change:end] = owners[change - 1]


def _with_silence_around(painted: BoolArray, silent: BoolArray, shots: IntArray) -> BoolArray:
    """Returns the frames in which a person is painted, `(n,)`, with those of silence around, in the
    same shot.
    """
    margin = round(MARGIN_S * MODEL_FPS)
    widened = painted.copy()
    for start, end in runs_of_true(painted):
        before = slice(max(0, start - margin), start)
        after = slice(end, end + margin)
        widened[before] |= silent[before] & (shots[before] == shots[start])
        widened[after] |= silent[after] & (shots[after] == shots[end - 1])
    return widened
