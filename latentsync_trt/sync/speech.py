"""The recordings that lips follow, whose lips follow which and when, and their encoded speech.

Times are exact seconds. Times of a recording become times of the output by `SoundPiece.at_s`.
Speech out of the video's own file stays where it is there; other recordings begin with the part
that is synced, those out of another video as much later as they begin there after its picture.
`--offset` moves all.
"""

from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from latentsync_trt.audio.encoder import SpeechStream, plan_of
from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.media.audio import SPEECH_RATE_HZ, Mixer, read_audio_blocks
from latentsync_trt.media.files import check_file, open_input
from latentsync_trt.media.reader import Delays, are_one, delays_of
from latentsync_trt.media.soundtrack import SoundPiece
from latentsync_trt.option_fields import FaceChoice, parse_face
from latentsync_trt.paths import local_path, read_text
from latentsync_trt.types import Float32Array

if TYPE_CHECKING:
    from latentsync_trt.audio.vad import Speech

T = TypeVar("T")

_CANCELED_S = 0.1
"""Less needs no notice."""

MARGIN_S = Fraction(1, 5)
"""A face is painted from this long before its turn until this long after: lips open before the
first sound is heard, and a frame attends to 0.1 s of sound around it."""

_TURN = "SPEAKER file 1 onset duration <NA> <NA> name <NA> <NA>"


@dataclass(frozen=True, slots=True)
class SpeakerTurns:
    """When one speaker is painted: starts and ends, ascending and apart."""

    spans_s: tuple[tuple[Fraction, Fraction], ...]

    def __contains__(self, time_s: Fraction) -> bool:
        position = bisect(self.spans_s, time_s, key=itemgetter(0)) - 1
        return position >= 0 and time_s < self.spans_s[position][1]

    def later(self, by_s: Fraction) -> "SpeakerTurns":
        """The same, `by_s` later."""
        return SpeakerTurns(
            tuple((start_s + by_s, end_s + by_s) for start_s, end_s in self.spans_s)
        )


def read_turns(path: Path, at_s: Fraction = Fraction(0)) -> dict[str, SpeakerTurns]:
    """The turns of every speaker, by name, in the order of their first turns, longer by `MARGIN_S`
    at both ends.

    Lines look like `SPEAKER file 1 onset duration <NA> <NA> name <NA> <NA>`; those of other types
    are ignored.

    Args:
        at_s: when the recording begins in the output.

    Raises:
        InputError: it is no text, a line is damaged, no line is a turn, or several recordings are
            described.
    """
    lines = read_text(path).splitlines()
    turns = dict[str, list[tuple[Fraction, Fraction]]]()
    recordings = dict[str, None]()
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if fields[:1] != ["SPEAKER"]:
            continue
        try:
            recording = fields[1]
            start_s = _seconds(fields[3])
            duration_s = _seconds(fields[4])
            name = fields[7]
        except (ValueError, IndexError):
            where = f"{path}: line {number} is damaged"
            raise InputError(f"{where}: {line.strip()!r} is not {_TURN!r}", usage=False) from None
        recordings[recording] = None
        turns.setdefault(name, []).append((at_s + start_s, at_s + start_s + duration_s))
    if not turns:
        raise InputError(
            f"{path}: has no line that begins with SPEAKER; give an RTTM file", usage=False
        )
    if len(recordings) > 1:
        names = ", ".join(recordings)
        raise InputError(
            f"{path}: describes several recordings ({names}); keep the lines of one", usage=False
        )
    return {name: _merged(turns[name]) for name in sorted(turns, key=lambda name: min(turns[name]))}


def _seconds(text: str) -> Fraction:
    """Raises `ValueError` for what is no number from 0 on; through float, as 1e999999999 would fill
    the memory.
    """
    value = Fraction(repr(float(text)))
    if value < 0:
        raise ValueError(text)
    return value


def _merged(turns: Iterable[tuple[Fraction, Fraction]]) -> SpeakerTurns:
    merged: list[tuple[Fraction, Fraction]] = []
    for turn_start_s, turn_end_s in sorted(turns):
        start_s = turn_start_s - MARGIN_S
        end_s = turn_end_s + MARGIN_S
        if merged and start_s <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end_s, merged[-1][1])
        else:
            merged.append((start_s, end_s))
    return SpeakerTurns(tuple(merged))


@dataclass(frozen=True, slots=True)
class Sound:
    """All that is heard with a clip, and who speaks it.

    `recordings`: of each speaker, perhaps the same. `faces`: the number of each one's person, None
    = the one of `--face`. `turns`: when each is painted, in times of the output; None = always.
    `notice`: what was assumed. `mix`: what is heard instead. `own`, `picture_delay_s`: the video's
    own sound, and the delay of its picture, if needed.
    """

    recordings: tuple[SoundPiece, ...]
    faces: tuple[int, ...] | None = None
    turns: tuple[SpeakerTurns, ...] | None = None
    notice: str | None = None
    mix: SoundPiece | None = None
    own: SoundPiece | None = None
    picture_delay_s: Fraction = Fraction(0)

    @property
    def files(self) -> list[Path]:
        """Those of the speech, and of `mix`."""
        return list(
            dict.fromkeys(
                piece.path for piece in (*self.recordings, *([self.mix] if self.mix else []))
            )
        )

    @property
    def starts_s(self) -> Fraction:
        """When the first recording begins in the output."""
        return min(piece.at_s for piece in self.recordings)

    def choice(self, face: str) -> FaceChoice | dict[int, int]:
        """Whose face: that of `--face`, or the speaker of each person by number."""
        faces = self.faces
        if faces is None:
            return parse_face(face)
        return {number: speaker for speaker, number in enumerate(faces)}

    def speaks(self, speaker: int, time_s: Fraction) -> bool:
        """Whether `speaker` is painted at this time of the output."""
        return self.turns is None or time_s in self.turns[speaker]

    def later(self, by_s: Fraction) -> "Sound":
        """The same, `by_s` later in the output."""

        def moved(piece: SoundPiece) -> SoundPiece:
            return replace(piece, at_s=piece.at_s + by_s)

        return replace(
            self,
            recordings=tuple(map(moved, self.recordings)),
            turns=None if self.turns is None else tuple(turns.later(by_s) for turns in self.turns),
            mix=self.mix and moved(self.mix),
            own=self.own and moved(self.own),
            picture_delay_s=self.picture_delay_s + by_s,
        )

    def is_of(self, video: Path) -> bool:
        """Whether a recording is the video's own sound."""
        return any(are_one(piece.path, video) for piece in self.recordings)


def speakers_of(
    audio: Path | None, piece: Callable[[Path], SoundPiece], options: SyncOptions
) -> Sound:
    """The speakers that arguments and options name; `piece` says when a recording is heard. Raises
    `InputError` where they contradict each other or the file of turns, or are missing; `MediaError`
    if that file cannot be read.
    """
    speakers = options.speaker
    if audio is None and (options.turns is not None or not speakers):
        if options.turns:
            cure = "whose speakers --turns names"
        else:
            cure = "or one for each person with --speaker N=FILE"
        raise InputError(f"no speech: give a recording with --audio, {cure}")
    if audio is not None and speakers and options.turns is None:
        cure = (
            "give all recordings with --speaker N=FILE, "
            "or say with --turns who speaks when in --audio"
        )
        raise InputError(f"--audio and --speaker exclude each other: {cure}")
    numbers = [speaker.face for speaker in speakers]
    if twice := [number for number in numbers if numbers.count(number) > 1]:
        raise InputError(
            f"--speaker {twice[0]}=…: person {twice[0]} "
            "has several recordings; give each person one"
        )
    if audio is None:
        paths = [local_path(speaker.voice, f"--speaker {speaker.face}=") for speaker in speakers]
        return Sound(tuple(piece(path) for path in paths), tuple(numbers))
    recording = piece(audio)
    if options.turns is None:
        return Sound((recording,))
    path = local_path(options.turns, "--turns")
    check_file(path)
    turns = read_turns(path, recording.at_s)
    if speakers:
        if unknown := [speaker.voice for speaker in speakers if speaker.voice not in turns]:
            raise InputError(
                f"--speaker …={unknown[0]}: {path} has no such speaker; it has {', '.join(turns)}"
            )
        named = tuple(turns[speaker.voice] for speaker in speakers)
        return Sound((recording,) * len(named), tuple(numbers), named)
    if len(turns) == 1:
        return Sound((recording,), None, tuple(turns.values()))
    if options.face != "largest":
        raise InputError(
            f"--face {options.face}: {path} has several "
            "speakers; say with --speaker which person each is"
        )
    assumed = ", ".join(f"person {number} = {name}" for number, name in enumerate(turns))
    notice = (
        f"{path}: in the order in which they first speak, "
        f"{assumed}; to change that, give --speaker N=NAME"
    )
    return Sound((recording,) * len(turns), tuple(range(len(turns))), tuple(turns.values()), notice)


def sound_of(video: Path, audio: Path | None, mix: Path | None, options: SyncOptions) -> Sound:
    """What is heard with a video, by arguments and options; decodes the first samples of all files.
    Raises as `speakers_of`, and `MediaError` for a file without sound that can be read.
    """
    own = None
    delays = Delays()
    named = [*filter(None, (audio, mix)), *(Path(speaker.voice) for speaker in options.speaker)]
    if (
        options.start is not None
        or options.end is not None
        or any(are_one(video, path) for path in named)
    ):
        with open_input(video) as container:
            has_sound = bool(container.streams.audio)
        if has_sound:
            delays = delays_of(video, video)
            own = SoundPiece(video, delays.sound_s)

    def piece(path: Path) -> SoundPiece:
        if are_one(path, video):
            start_s = delays.sound_s
        else:
            start_s = delays_of(video, path).sound_s + (options.start or Fraction(0))
        return SoundPiece(path, start_s + Fraction(str(options.offset)) / 1000)

    sound = replace(speakers_of(audio, piece, options), own=own, picture_delay_s=delays.picture_s)
    sound = sound if mix is None else replace(sound, mix=piece(mix))
    for path in sound.files:
        with closing(read_audio_blocks(path)) as blocks:
            next(blocks, None)
    return sound


def asking(ask: Callable[[], object], items: Iterable[T]) -> Iterator[T]:
    """The same items; calls `ask`, which may raise, before each."""
    for item in items:
        ask()
        yield item


def speech_in(path: Path, ask: Callable[[], object] = lambda: None) -> "Speech":
    """When somebody speaks in a recording; `ask` is called with each second of it. Raises as
    `find_speech` and `read_audio_blocks`.
    """
    from latentsync_trt.audio.vad import find_speech  # loads onnxruntime

    return find_speech(lambda: asking(ask, read_audio_blocks(path)))


class OpenSpeech:
    """The encoded speech of all speakers; open until `close`. Raises as `SpeechStream` and
    `read_audio_blocks`.

    `notices`: recordings without speech. `end_s`: when the last recording ends in the output.

    Args:
        listen: gets each speaker's number and the blocks of the recording, and passes them on.
        find_speech: as `speech_in`.
    """

    def __init__(
        self,
        sound: Sound,
        encode_mel: Callable[[Float32Array], Float32Array],
        filters: Float32Array,
        options: SyncOptions,
        listen: Callable[
            [int, Iterable[Float32Array]], Iterable[Float32Array]
        ] = lambda _, blocks: blocks,
        find_speech: "Callable[[Path], Speech]" = speech_in,
    ) -> None:
        def stream_of(recording: SoundPiece) -> SpeechStream:
            mixers = list[Mixer]()
            speech = find_speech(recording.path) if options.silence == "closed" else None
            if speech is not None and speech.notice is not None:
                self.notices.append(f"{recording.path}: {speech.notice}")

            def blocks() -> Iterable[Float32Array]:
                mixers.append(Mixer("mono", SPEECH_RATE_HZ))
                found: Iterable[Float32Array] = read_audio_blocks(recording.path, mixer=mixers[-1])
                found = found if speech is None else speech.gated(found)
                for speaker, own in enumerate(sound.recordings):
                    found = listen(speaker, found) if own == recording else found
                return found

            plan = plan_of(
                options.audio_segments, lambda: (speech or find_speech(recording.path)).spans_s
            )
            stream = SpeechStream(blocks, encode_mel, filters, plan)
            if (canceled_s := max(mixer.canceled_s for mixer in mixers)) > _CANCELED_S:
                what = f"its channels cancel each other out in {canceled_s:.1f} s: there"
                self.notices.append(f"{recording.path}: {what} the lips follow the louder one")
            if max(mixer.low_s for mixer in mixers) > _CANCELED_S:
                what = (
                    "has sound only in its low-frequency "
                    "channel (LFE), which many players leave out"
                )
                self.notices.append(
                    f"{recording.path}: {what}; the lips follow "
                    "it; name the channel anew to hear it"
                )
            return stream

        self._recordings = sound.recordings
        self.notices = list[str]()
        self._streams: dict[SoundPiece, SpeechStream] = {}
        with ExitStack() as opened:
            for recording in dict.fromkeys(sound.recordings):
                self._streams[recording] = opened.enter_context(closing(stream_of(recording)))
            self.close = opened.pop_all().close
        self.end_s = max(
            recording.at_s + stream.duration_s for recording, stream in self._streams.items()
        )

    def windows(self, speaker: int, times_s: Sequence[Fraction]) -> Float32Array:
        """What frames at these times of the output attend to in the speech of `speaker`, float32
        `(n, S, D)`.
        """
        recording = self._recordings[speaker]
        return self._streams[recording].windows([time_s - recording.at_s for time_s in times_s])
