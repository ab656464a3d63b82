"""Whose lips follow which recording, when in the output, and what is heard.

Times of a recording become times of the output by `SoundPiece.at_s`. Speech out of the video's own file stays where it
is there; other recordings begin with the part that is synced. `--offset` moves both.
"""

from bisect import bisect
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import itemgetter
from pathlib import Path
from typing import Self

from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.media.files import check_file, reading
from latentsync_trt.media.reader import are_one
from latentsync_trt.media.soundtrack import SoundPiece, SoundPlan, spliced
from latentsync_trt.paths import local_path
from latentsync_trt.sync.jobs import FrameJob

MARGIN_S = Fraction(1, 5)
"""A face is painted from this long before its turn until this long after: lips open before the
first sound is heard, and a frame attends to 0.1 s of sound around it."""

_LEAST_FIELDS = 8


@dataclass(frozen=True, slots=True)
class SpeakerTurns:
    """When one speaker is painted: starts and ends, ascending and apart."""

    spans_s: tuple[tuple[Fraction, Fraction], ...]

    def __contains__(self, time_s: Fraction) -> bool:
        position = bisect(self.spans_s, time_s, key=itemgetter(0)) - 1
        return position >= 0 and time_s < self.spans_s[position][1]

    def later(self, by_s: Fraction) -> Self:
        """The same turns, `by_s` later."""
        return type(self)(tuple((start_s + by_s, end_s + by_s) for start_s, end_s in self.spans_s))


@dataclass(frozen=True, slots=True)
class Voices:
    """The speakers of a clip.

    `recordings`: one for each speaker, or a single one for all. `faces`: the number of each speaker's face, None = the
    one of `--face`. `turns`: when each is painted, in times of the output; None = always. `notice`: what was assumed.
    """

    recordings: tuple[SoundPiece, ...]
    faces: tuple[int, ...] | None = None
    turns: tuple[SpeakerTurns, ...] | None = None
    notice: str | None = None

    @property
    def count(self) -> int:
        """Number of speakers."""
        return 1 if self.faces is None else len(self.faces)

    @property
    def speaker_of(self) -> Mapping[int, int]:
        """Face → speaker, by their numbers."""
        return {face: speaker for speaker, face in enumerate(self.faces or ())}

    def recording_of(self, speaker: int) -> int:
        """The number of the recording in which `speaker` is heard."""
        return min(speaker, len(self.recordings) - 1)

    @property
    def starts_s(self) -> list[Fraction]:
        """When the recording of each speaker begins in the output."""
        return [self.recordings[self.recording_of(speaker)].at_s for speaker in range(self.count)]

    def speaks(self, speaker: int, time_s: Fraction) -> bool:
        """Whether `speaker` is painted at this time of the output."""
        return self.turns is None or time_s in self.turns[speaker]

    def speaking(self, jobs: Generator[FrameJob, None, None]) -> Generator[FrameJob, None, None]:
        """The same jobs with the faces of those only who speak."""
        with closing(jobs):
            for job in jobs:
                spoken = (target for target in job.targets if self.speaks(target.speaker, job.frame.time_s))
                yield replace(job, targets=tuple(spoken))


def voices_of(audio: Path | None, at_s: Callable[[Path], Fraction], options: SyncOptions) -> Voices:
    """The speakers that arguments and options name.

    Args:
        audio: the recording of `--audio`. at_s: when the first sample of a recording is heard.

    Raises:
        InputError: options that contradict each other or the file of turns, or are missing.
            MediaError: the file of turns cannot be read.
    """
    speakers = options.speaker
    if audio is None and options.turns is not None:
        raise InputError("--turns: needs --audio, the recording whose speakers it names")
    if audio is None and not speakers:
        raise InputError("no speech: give a recording with --audio, or one for each person with --speaker N=FILE")
    if audio is not None and speakers and options.turns is None:
        raise InputError(
            "--audio and --speaker exclude each other: give all recordings with --speaker N=FILE, or say with --turns "
            "who speaks when in --audio"
        )
    numbers = [speaker.face for speaker in speakers]
    if twice := [number for number in numbers if numbers.count(number) > 1]:
        raise InputError(f"--speaker {twice[0]}=…: face {twice[0]} has several voices; give each face one")
    if audio is None:
        paths = [local_path(speaker.voice, f"--speaker {speaker.face}=") for speaker in speakers]
        return Voices(tuple(SoundPiece(path, at_s(path)) for path in paths), tuple(numbers))
    recording = SoundPiece(audio, at_s(audio))
    if options.turns is None:
        return Voices((recording,))
    return _by_turns(recording, local_path(options.turns, "--turns"), options)


def _by_turns(recording: SoundPiece, path: Path, options: SyncOptions) -> Voices:
    turns = {name: each.later(recording.at_s) for name, each in read_turns(path).items()}
    if options.speaker:
        unknown = [speaker.voice for speaker in options.speaker if speaker.voice not in turns]
        if unknown:
            raise InputError(f"--speaker …={unknown[0]}: {path} has no such speaker; it has {', '.join(turns)}")
        faces = tuple(speaker.face for speaker in options.speaker)
        return Voices((recording,), faces, tuple(turns[speaker.voice] for speaker in options.speaker))
    if len(turns) == 1:
        return Voices((recording,), None, tuple(turns.values()))
    if options.face != "largest":
        raise InputError(f"--face {options.face}: {path} has several speakers; say whose face is which with --speaker")
    assumed = ", ".join(f"face {face} = {name}" for face, name in enumerate(turns))
    notice = f"{path}: in the order in which they first speak, {assumed}; to change that, give --speaker N=NAME"
    return Voices((recording,), tuple(range(len(turns))), tuple(turns.values()), notice)


def read_turns(path: Path) -> dict[str, SpeakerTurns]:
    """The turns of every speaker, by name, in the order of their first turns, longer by `MARGIN_S` at both ends.

    Lines look like `SPEAKER file 1 onset duration <NA> <NA> name <NA> <NA>`; those of other types are ignored.

    Raises:
        MediaError: the file cannot be read. InputError: a line is damaged, no line is a turn, or
        several recordings are described.
    """
    check_file(path)
    with reading(path):
        lines = path.read_bytes().decode("utf-8-sig", errors="replace").splitlines()
    turns, recordings = dict[str, list[tuple[Fraction, Fraction]]](), dict[str, None]()
    for recording, name, start_s, end_s in _spoken(path, lines):
        recordings[recording] = None
        turns.setdefault(name, []).append((start_s, end_s))
    if not turns:
        raise InputError(f"{path}: has no line that begins with SPEAKER; give an RTTM file", usage=False)
    if len(recordings) > 1:
        names = ", ".join(recordings)
        raise InputError(f"{path}: describes several recordings ({names}); keep the lines of one", usage=False)
    ordered = sorted(turns, key=lambda name: min(turns[name]))
    return {name: _merged(turns[name]) for name in ordered}


def _spoken(path: Path, lines: Iterable[str]) -> Iterator[tuple[str, str, Fraction, Fraction]]:
    """Recording, speaker, start and end of each turn."""
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if fields[:1] != ["SPEAKER"]:
            continue
        times_s = tuple(map(_seconds, fields[3:5]))
        if len(fields) < _LEAST_FIELDS or None in times_s:
            wanted = "SPEAKER file 1 onset duration <NA> <NA> name <NA> <NA>"
            raise InputError(f"{path}: line {number} is damaged: {line.strip()!r} is not {wanted!r}", usage=False)
        start_s, duration_s = (time_s or Fraction(0) for time_s in times_s)
        yield fields[1], fields[7], start_s, start_s + duration_s


def _seconds(text: str) -> Fraction | None:
    """The number that `text` is, if it is one from 0 on."""
    try:
        value = float(text)
    except ValueError:
        return None
    return Fraction(repr(value)) if 0 <= value < float("inf") else None


def _merged(turns: Iterable[tuple[Fraction, Fraction]]) -> SpeakerTurns:
    """SpeakerTurns with their margins, those that meet joined."""
    merged: list[tuple[Fraction, Fraction]] = []
    for turn_start_s, turn_end_s in sorted(turns):
        start_s, end_s = turn_start_s - MARGIN_S, turn_end_s + MARGIN_S
        if merged and start_s <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end_s, merged[-1][1])
        else:
            merged.append((start_s, end_s))
    return SpeakerTurns(tuple(merged))


@dataclass(frozen=True, slots=True)
class Span:
    """What is synced of the output: from `start_s` to `end_s` (None = its end)."""

    start_s: Fraction = Fraction(0)
    end_s: Fraction | None = None

    def __contains__(self, time_s: Fraction) -> bool:
        return self.start_s <= time_s and (self.end_s is None or time_s < self.end_s)


def span_of(options: SyncOptions, voices: Voices, video: Path, speech_end_s: Fraction) -> Span:
    """What `options` say; speech from another file that begins inside the clip also ends there.

    Raises:
        InputError: no speech is in it.
    """
    end_s = options.end
    if end_s is None and options.start is not None and not any(are_one(each.path, video) for each in voices.recordings):
        end_s = speech_end_s
    span = Span(options.start or Fraction(0), end_s)
    starts_s = min(piece.at_s for piece in voices.recordings)
    from_s, to_s = max(span.start_s, starts_s), speech_end_s if end_s is None else min(end_s, speech_end_s)
    if to_s <= from_s:
        spoken = f"the speech goes from {float(starts_s):.2f} to {float(speech_end_s):.2f} s of the output"
        raise InputError(f"no speech in the part that is synced: {spoken}; change --start, --end or --offset")
    return span


def soundtrack_plan(voices: Voices, mix: SoundPiece | None, own: SoundPiece | None, span: Span) -> SoundPlan | None:
    """What is heard: the recordings, or `mix` instead, within `span`, around it the video's `own` sound."""
    speech = voices.recordings if mix is None else (mix,)
    if speech == (own,):
        return SoundPlan(speech)
    pieces = speech if span == Span() else spliced(own, speech, span.start_s, span.end_s)
    return SoundPlan(pieces) if pieces else None
